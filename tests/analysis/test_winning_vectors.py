import csv
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from denserk.analysis import winning_vectors as analysis
from denserk.analysis.winning_vectors import (
    HEADER,
    KEPT_APART,
    WinningVectors,
    plot,
    share_table,
    vector_names,
    winners,
    winning_vectors,
)
from denserk.config.analysis import WinningVectorSettings
from denserk.config.encoding import (
    ComputeSettings,
    Reduction,
    Representation,
    RepresentationSettings,
)
from denserk.data.batches import pad
from denserk.errors import DenserkError, ModelError, UsageError
from denserk.io.plots import style
from denserk.models.pooling import PassageVectors, max_similarity, vector_scores
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.conftest import PASSAGES, QRELS, QUERIES


def literal_winner(query, vectors, mask):
    """Equation 2 by hand: the first of the highest among real vectors."""
    best, place = -float("inf"), None
    for number, (vector, real) in enumerate(zip(vectors, mask, strict=True)):
        score = sum(q * v for q, v in zip(query, vector, strict=True))
        if real and score > best:
            best, place = score, number
    return place


def test_winners_are_those_of_the_maximum():
    draw = torch.Generator().manual_seed(3)
    queries = torch.randint(-2, 3, (40, 3), generator=draw).float()  # small: many ties
    values = torch.randint(-2, 3, (40, 4, 3), generator=draw).float()
    mask = torch.rand(40, 4, generator=draw) < 0.7
    mask[:, 0] = True
    won = winners(queries, PassageVectors(values, mask))
    arguments = (queries.tolist(), values.tolist(), mask.tolist())
    assert won.tolist() == [literal_winner(*each) for each in zip(*arguments, strict=True)]
    scores = vector_scores(queries, values)[torch.arange(40), torch.arange(40)]
    best = max_similarity(scores[:, None])
    free = winners(queries, PassageVectors(values))
    assert torch.equal(scores.gather(1, free[:, None]), best)


def test_what_is_no_number_wins_as_none():
    values = torch.tensor([[[1.0], [float("nan")]], [[1.0], [2.0]]])
    assert winners(torch.ones(2, 1), PassageVectors(values)).tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("kind", "by_cls", "names"),
    [
        ("mlr", True, ["12", "10", "0"]),
        ("me-bert", True, ["0", "1", "2"]),
        ("me-bert", False, ["mean", "0", "1"]),
        ("colbert", True, ["0", "1", "2"]),
    ],
)
def test_vectors_are_named_as_they_stand(kind, by_cls, names):
    maker: Any = SimpleNamespace(
        settings=RepresentationSettings(Representation(kind)), by_cls=by_cls, layers=(12, 10, 0)
    )
    assert vector_names(maker, 3) == names


def test_reductions_either_keep_vectors_apart_or_make_one():
    assert set(Reduction) - set(KEPT_APART) == {Reduction.AVERAGE, Reduction.SCALAR_MIX}


POSITIVE = [(qid, docid) for qid, judged in QRELS.items() for docid in judged]
ALL = [(qid, docid) for qid in QUERIES for docid in PASSAGES]
MLR = {"representation": "mlr", "layers": [0, 1, 2]}
ME_BERT = {"representation": "me-bert", "vectors": 4}
COLBERT = {"representation": "colbert"}


def counted(toy, *models, representation=MLR, compute=None, **more):
    run = "".join(f"{q} Q0 {d} 1 {n} t\n" for q in QUERIES for n, d in enumerate(PASSAGES))
    (toy / "run.trec").write_text(run)
    chosen = {"qrels": str(toy / "qrels.txt"), "output": str(toy / "l.csv"), **more}
    given = {"topics": str(toy / "queries.tsv"), "corpus": str(toy / "corpus.jsonl"), **chosen}
    settings = WinningVectorSettings(model=tuple(map(str, models)), **given)
    text = {"passage_max_length": 64}
    compute = compute or ComputeSettings(device="cpu")
    return winning_vectors(settings, representation, text, compute)


def literal(folder, representation, pairs, names):
    """Each pair by itself: the vector of the passage, alone in its batch, with the best product."""
    made = representation | {"passage_max_length": 64}
    text = {"passage_max_length": made.pop("passage_max_length")}
    encoder = TextEncoder.load(str(folder), made, text, ComputeSettings(device="cpu"))
    side, wins = encoder.passage_side, dict.fromkeys(names, 0)
    for qid, docid in pairs:
        query = encoder.encode_queries([Query(qid, QUERIES[qid])])[0]
        title, body = PASSAGES[docid]
        (ids,) = side.tokenizer.passages([Passage(docid, body, title)])
        with torch.inference_mode():
            batch = pad([ids], side.tokenizer.pad_id)
            values, mask = side.encoder.passage_vectors(batch)
        real = values[0] if mask is None else values[0][mask[0]]
        wins[names[int(np.argmax(real.numpy() @ query))]] += 1
    return wins


@pytest.mark.parametrize("reduction", ["multi-vector", "self-contrastive"])
@pytest.mark.parametrize("tokens", [1, 8192])
def test_layers_that_win_are_counted_pair_by_pair(tiny, toy, reduction, tokens):
    made = MLR | {"reduction": reduction}
    compute = ComputeSettings(device="cpu", batch_tokens=tokens)
    given = {"representation": made, "compute": compute, "run": str(toy / "run.trec")}
    positive, retrieved = counted(toy, f"m={tiny()}", **given)
    expected = [literal(tiny(), made, pairs, ["2", "1", "0"]) for pairs in (POSITIVE, ALL)]
    assert positive.wins == expected[0]
    assert retrieved.wins == expected[1]
    assert list(positive.wins) == ["0", "1", "2"]
    assert (positive.passages, positive.queries, positive.pairs) == ("positive", 3, len(POSITIVE))
    assert (retrieved.passages, retrieved.queries, retrieved.pairs) == ("retrieved", 3, len(ALL))
    assert {each.kind for each in (positive, retrieved)} == {"layer"}


@pytest.mark.parametrize(
    ("kind", "made", "names"),
    [
        ("bert", ME_BERT, ["0", "1", "2", "3"]),
        ("t5", ME_BERT, ["mean", "0", "1", "2"]),
        ("bert", COLBERT, None),
    ],
)
def test_tokens_that_win_are_counted_pair_by_pair(tiny, toy, kind, made, names):
    given = {"representation": made, "qrels": None, "run": str(toy / "run.trec")}
    (found,) = counted(toy, tiny(kind), **given)
    names = names or list(map(str, range(len(found.wins))))
    assert found.wins == literal(tiny(kind), made, ALL, names)
    assert sum(count > 0 for count in found.wins.values()) > 1  # or it would show little
    assert found.kind == "token"


def test_blocks_change_nothing(tiny, toy, monkeypatch):
    given = {"representation": ME_BERT, "run": str(toy / "run.trec")}
    whole = counted(toy, tiny(), **given)
    monkeypatch.setattr(analysis, "BLOCK", 2)
    assert counted(toy, tiny(), **given) == whole


def test_table_and_plot(tiny, toy):
    pytest.importorskip("matplotlib")
    found = counted(toy, f"a={tiny()}", f"b={tiny(seed=8)}")
    with (toy / "l.csv").open() as lines:
        header, *rows = csv.reader(lines)
    assert tuple(header) == HEADER
    expected = [
        [*(each.label, each.model, "positive", "3", "4", "layer", name), str(wins)]
        for each in found
        for name, wins in each.wins.items()
    ]
    assert [row[:8] for row in rows] == expected
    assert [float(row[8]) for row in rows] == [int(row[7]) / 4 for row in rows]
    assert (toy / "l.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_of_shares():
    found = WinningVectors("m", "runs/m", "positive", 3, 8, "layer", {"10": 2, "12": 6})
    assert share_table([found]) == (
        ["model", "passages", "pairs", "vector", "wins", "share"],
        [
            ["m", "positive", "8", "layer 10", "2", "0.2500"],
            ["m", "positive", "8", "layer 12", "6", "0.7500"],
        ],
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"representation": "cls"}, "m: cls gives a passage one vector: there is no maximum"),
        ({"representation": "mean"}, "m: mean gives a passage one vector"),
        (MLR | {"reduction": "average"}, "m: --reduction average makes one vector of"),
        (MLR | {"layers": [2]}, "m: --layers 2 gives a passage one vector"),
        (ME_BERT | {"vectors": 1}, "m: --set vectors=1 gives a passage one vector"),
    ],
)
def test_a_single_vector_has_no_maximum_to_win(tiny, toy, made, said):
    with pytest.raises(ModelError, match=said):
        counted(toy, f"m={tiny()}", representation=made)


def test_vectors_that_are_no_numbers(tiny, toy, monkeypatch):
    monkeypatch.setattr(analysis, "winners", lambda queries, _: torch.full((len(queries),), -1))
    with pytest.raises(DenserkError, match="an embedding is not a number"):
        counted(toy, tiny())


def test_every_model_is_looked_for_first(tiny, toy, monkeypatch):
    monkeypatch.setattr(analysis, "choose_pairs", pytest.fail)
    with pytest.raises(UsageError, match="none: no such folder"):
        counted(toy, tiny(), toy / "none")


def test_a_row_of_bars_for_each_set_at_the_places_of_all_names():
    pytest.importorskip("matplotlib")
    found = [
        WinningVectors("a $x$", "a", "positive", 3, 4, "layer", {"10": 1, "12": 3}),
        WinningVectors("b", "b", "positive", 3, 4, "token", {"mean": 2, "2": 0, "9": 2}),
    ]
    with style():
        last = plot(found)
    first, second = last.figure.axes
    assert [label.get_text() for label in second.get_xticklabels()] == [
        "mean",
        "2",
        "9",
        "10",
        "12",
    ]
    assert [bar.get_height() for bar in first.patches] == [0, 0, 0, 25, 75]
    assert [bar.get_height() for bar in second.patches] == [50, 0, 50, 0, 0]
    assert first.get_title("left") == "a $x$, positive: 4 pairs"


@pytest.mark.parametrize("count", [1, 17, 128])
def test_many_bars_lose_some_names(count):
    pytest.importorskip("matplotlib")
    wins = {str(i): 1 for i in range(count)}
    with style():
        axes = plot([WinningVectors("m", "m", "positive", 1, count, "token", wins)])
    assert len(axes.patches) == count
    assert min(count, 2) <= len(axes.get_xticks()) <= 24
