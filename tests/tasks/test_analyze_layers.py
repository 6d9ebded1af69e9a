import csv

import numpy as np
import pytest
import torch

from denserk.data.batches import pad
from denserk.errors import DenserkError, ModelError, UsageError
from denserk.modeling.text_encoder import TextEncoder
from denserk.records import Passage, Query
from denserk.settings.analysis import WinningVectorSettings
from denserk.settings.encoding import ComputeSettings
from denserk.tasks import analyze_layers
from denserk.tasks.analyze_layers import HEADER, WinningVectors, as_table, winning_vectors
from tests.conftest import PASSAGES, QRELS, QUERIES

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
    monkeypatch.setattr(analyze_layers, "BLOCK", 2)
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
    assert as_table([found]) == (
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
        (ME_BERT | {"vectors": 1}, "m: --vectors 1 gives a passage one vector"),
    ],
)
def test_a_single_vector_has_no_maximum_to_win(tiny, toy, made, said):
    with pytest.raises(ModelError, match=said):
        counted(toy, f"m={tiny()}", representation=made)


def test_vectors_that_are_no_numbers(tiny, toy, monkeypatch):
    monkeypatch.setattr(
        analyze_layers, "winners", lambda queries, _: torch.full((len(queries),), -1)
    )
    with pytest.raises(DenserkError, match="gives vectors that are no numbers"):
        counted(toy, tiny())


def test_every_model_is_looked_for_first(tiny, toy, monkeypatch):
    monkeypatch.setattr(analyze_layers, "choose_pairs", pytest.fail)
    with pytest.raises(UsageError, match="none: no such folder"):
        counted(toy, tiny(), toy / "none")
