import csv

import numpy as np
import pytest
import torch

from denserk.analysis.layers import SHARE_HEADER, choose_pairs, winning_vectors
from denserk.config.analysis import WinningVectorSettings
from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED
from denserk.data.batches import pad
from denserk.errors import MismatchError, ModelError
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.conftest import PASSAGES, QRELS, QUERIES
from tests.reporters import Heard

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
    side, wins = encoder.sides["passage"], dict.fromkeys(names, 0)
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


@pytest.mark.parametrize(("reduction", "tokens"), [("multi-vector", 8192), ("self-contrastive", 1)])
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
    with (toy / "l.csv").open() as lines:
        header, *rows = csv.reader(lines)
    assert tuple(header) == SHARE_HEADER
    assert [row[:8] for row in rows] == [
        ["m", str(tiny()), each.passages, "3", str(each.pairs), "layer", name, str(wins)]
        for each in (positive, retrieved)
        for name, wins in each.wins.items()
    ]
    assert [float(row[8]) for row in rows[:3]] == [int(row[7]) / 4 for row in rows[:3]]


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


@pytest.mark.parametrize(
    "made",
    [
        {"representation": "cls"},
        MLR | {"reduction": "average"},
        MLR | {"layers": [2]},
        ME_BERT | {"vectors": 1},
    ],
)
def test_a_single_vector_has_no_maximum_to_win(tiny, toy, made):
    with pytest.raises(ModelError, match="m gives a passage one vector: there is no maximum"):
        counted(toy, f"m={tiny()}", representation=made)


RUN = "q1 Q0 d5 1 1 t\nq1 Q0 d3 2 3 t\nq1 Q0 d1 3 2 t\nq3 Q0 d10 1 1 t\nq3 Q0 d1 2 1 t\n"


def chosen(toy, **more):
    (toy / "run.trec").write_text(RUN)
    given = {"model": ("m",), "topics": str(toy / "queries.tsv"), **more}
    settings = WinningVectorSettings(corpus=str(toy / "corpus.jsonl"), **given)
    pairs = choose_pairs(settings, None, DETECTED)
    named = {
        name: [(pairs.queries[q].qid, pairs.passages[p].docid) for q, p in rows]
        for name, rows in pairs.sets.items()
    }
    return {name: sorted(rows) for name, rows in named.items()}


QRELS_FILE, RUN_FILE = {"qrels": "qrels.txt"}, {"run": "run.trec"}


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        (QRELS_FILE, {}, {"positive": "q1 d3 q2 d1 q2 d5 q3 d4"}),
        (QRELS_FILE, {"relevance_level": 2}, {"positive": "q2 d1"}),
        (RUN_FILE, {"depth": 1}, {"retrieved": "q1 d3 q3 d10"}),
        (RUN_FILE, {"depth": 2}, {"retrieved": "q1 d1 q1 d3 q3 d1 q3 d10"}),
        (
            QRELS_FILE | RUN_FILE,  # the queries that both have
            {"depth": 1},
            {"positive": "q1 d3 q3 d4", "retrieved": "q1 d3 q3 d10"},
        ),
    ],
)
def test_pairs_from_a_grade_on_and_the_best_of_a_run(toy, files, options, expected):
    found = chosen(toy, **{name: str(toy / file) for name, file in files.items()}, **options)
    assert {
        name: " ".join(q + " " + d for q, d in rows) for name, rows in found.items()
    } == expected


def test_passages_that_are_nowhere_are_told(toy):
    told = Heard()
    (toy / "more.txt").write_text("q1 0 d3 1\nq1 0 x1 1\nq2 0 x2 1\n")
    found = chosen(toy, qrels=str(toy / "more.txt"))
    assert found == {"positive": [("q1", "d3")]}
    corpus = toy / "corpus.jsonl"
    assert told.warnings == [
        f"passages that {corpus} does not hold are left out: 2 of 3 ('x1', 'x2')"
    ]


@pytest.mark.parametrize(
    ("qrels", "said"),
    [
        ("zz 0 d1 1\n", "no query of .* has a passage in .*other.txt"),
        ("q1 0 d1 0\n", "no query of .* has a passage in"),
        ("q1 0 x1 1\n", "corpus.jsonl holds none of the positive passages of"),
    ],
)
def test_nothing_in_common(toy, qrels, said):
    (toy / "other.txt").write_text(qrels)
    with pytest.raises(MismatchError, match=said):
        chosen(toy, qrels=str(toy / "other.txt"))
