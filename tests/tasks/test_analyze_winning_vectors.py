"""Wins of the vectors of a passage beside a slow restatement: one pair at a time."""

import numpy as np
import pytest
import torch

from denserk.config.analysis import WinningVectorSettings
from denserk.config.encoding import ComputeSettings, ModelOptions
from denserk.config.formats import DETECTED
from denserk.data.batches import pad
from denserk.errors import MismatchError, ModelError
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from denserk.tasks.analyze.winning_vectors import choose_pairs, winning_vectors
from tests.support.console import warnings_of
from tests.support.toy import PASSAGES, QUERIES

TEXT = {"passage_max_length": 64}
CLS = {"representation": "cls"}
MLR = {"representation": "mlr", "layers": [0, 1, 2]}
ME_BERT = {"representation": "me-bert", "vectors": 4}
COLBERT = {"representation": "colbert"}

RELEVANT_PAIRS = [("q1", "d3"), ("q2", "d1"), ("q2", "d5"), ("q3", "d4")]  # of the toy qrels
ALL_PAIRS = [(qid, docid) for qid in QUERIES for docid in PASSAGES]


@pytest.fixture
def count_wins(toy):
    """`count_wins(folder, representation)`: the rows of a model on the toy collection.

    The run holds every passage for each query.
    """
    run = "".join(f"{qid} Q0 {docid} 1 1 t\n" for qid, docid in ALL_PAIRS)
    (toy / "run.trec").write_text(run)

    def counted(folder, representation, batch_tokens=8192):
        settings = WinningVectorSettings(
            model=(f"tiny={folder}",),
            topics=str(toy / "queries.tsv"),
            corpus=str(toy / "corpus.jsonl"),
            qrels=str(toy / "qrels.txt"),
            run=str(toy / "run.trec"),
            output=str(toy / "wins.csv"),
        )
        compute = ComputeSettings(device="cpu", batch_tokens=batch_tokens)
        return winning_vectors(settings, ModelOptions(representation, TEXT, compute))

    return counted


def winners_pair_by_pair(folder, representation, pairs):
    """The position of each pair's winning vector, of the passage alone in its batch."""
    encoder = TextEncoder(str(folder), representation, TEXT, ComputeSettings(device="cpu"))
    side = encoder.sides["passage"]
    winners = []
    for qid, docid in pairs:
        (query,) = encoder.encode_queries([Query(qid, QUERIES[qid])])
        title, body = PASSAGES[docid]
        (ids,) = side.tokenizer.passages([Passage(docid, body, title)])
        with torch.inference_mode():
            values, mask = side.encoder.passage_vectors(pad([ids], side.tokenizer.pad_id))
        vectors = values[0] if mask is None else values[0][mask[0]]
        winners.append(int(np.argmax(vectors.numpy() @ query)))
    return winners


@pytest.mark.parametrize(
    ("kind", "representation", "batch_tokens", "names"),
    [
        ("bert", MLR | {"reduction": "multi-vector"}, 8192, ["2", "1", "0"]),
        ("bert", MLR | {"reduction": "self-contrastive"}, 1, ["2", "1", "0"]),
        ("bert", ME_BERT, 8192, ["0", "1", "2", "3"]),
        ("t5", ME_BERT, 8192, ["mean", "0", "1", "2"]),
        ("bert", COLBERT, 8192, [str(position) for position in range(64)]),
    ],
)
@pytest.mark.parametrize(
    ("passages", "pairs"), [("positive", RELEVANT_PAIRS), ("retrieved", ALL_PAIRS)]
)
def test_wins_are_those_of_each_pair_by_itself(
    tiny, count_wins, kind, representation, batch_tokens, names, passages, pairs
):
    rows = count_wins(tiny(kind), representation, batch_tokens)
    rows_of_set = [row for row in rows if row["passages"] == passages]
    wins = {row["vector"]: row["wins"] for row in rows_of_set}
    winners = winners_pair_by_pair(tiny(kind), representation, pairs)
    expected = dict.fromkeys(wins, 0)
    for winner in winners:
        expected[names[winner]] += 1
    assert wins == expected
    assert {row["pairs"] for row in rows_of_set} == {len(pairs)}
    assert sum(row["share"] for row in rows_of_set) == pytest.approx(1)


def test_rows_are_layers_of_mlr_in_ascending_order(tiny, count_wins):
    rows = count_wins(tiny(), MLR | {"reduction": "multi-vector"})
    assert [row["vector"] for row in rows] == ["0", "1", "2", "0", "1", "2"]
    assert {row["kind"] for row in rows} == {"layer"}


@pytest.mark.parametrize("representation", [ME_BERT, COLBERT])
def test_rows_are_tokens_of_which_several_win(tiny, count_wins, representation):
    rows = count_wins(tiny(), representation)
    assert {row["kind"] for row in rows} == {"token"}
    winning = [row for row in rows if row["passages"] == "retrieved" and row["wins"] > 0]
    assert len(winning) > 1  # or the comparison above would show little


@pytest.mark.parametrize(
    "representation", [CLS, MLR | {"reduction": "average"}, ME_BERT | {"vectors": 1}]
)
def test_a_single_vector_is_rejected(tiny, count_wins, representation):
    with pytest.raises(ModelError, match="tiny gives a passage one vector"):
        count_wins(tiny(), representation)


def write(path, text):
    """Write a text into a file and return its path; None without a text."""
    if text is None:
        return None
    path.write_text(text)
    return str(path)


@pytest.fixture
def pairs_of(toy):
    """`pairs_of(qrels=TEXT, run=TEXT)`: pairs of query and passage, by set of pairs."""

    def chosen(qrels=None, run=None, **options):
        settings = WinningVectorSettings(
            model=("unread",),
            topics=str(toy / "queries.tsv"),
            corpus=str(toy / "corpus.jsonl"),
            qrels=write(toy / "judgments.txt", qrels),
            run=write(toy / "run.trec", run),
            **options,
        )
        pairs = choose_pairs(settings, None, DETECTED)
        named_pairs = {}
        for name, rows in pairs.sets.items():
            named = [(pairs.queries[q].qid, pairs.passages[p].docid) for q, p in rows]
            named_pairs[name] = sorted(named)
        return named_pairs

    return chosen


TOY_QRELS = "q1 0 d3 1\nq2 0 d1 2\nq2 0 d5 1\nq3 0 d4 1\n"
RUN = """\
q1 Q0 d5 1 1 t
q1 Q0 d3 2 3 t
q1 Q0 d1 3 2 t
q3 Q0 d10 1 1 t
q3 Q0 d1 2 1 t
"""


def test_pairs_of_qrels_are_the_relevant_passages(pairs_of):
    assert pairs_of(TOY_QRELS) == {"positive": RELEVANT_PAIRS}


def test_relevant_passages_have_at_least_the_relevance_level(pairs_of):
    assert pairs_of(TOY_QRELS, relevance_level=2) == {"positive": [("q2", "d1")]}


def test_pairs_of_a_run_are_its_best_hits_by_score(pairs_of):
    assert pairs_of(run=RUN, depth=2) == {
        "retrieved": [("q1", "d1"), ("q1", "d3"), ("q3", "d1"), ("q3", "d10")]
    }


def test_pairs_are_of_the_queries_that_both_files_have(pairs_of):
    assert pairs_of(TOY_QRELS, RUN, depth=1) == {
        "positive": [("q1", "d3"), ("q3", "d4")],
        "retrieved": [("q1", "d3"), ("q3", "d10")],
    }


def test_a_judgment_that_is_repeated_is_one_pair(pairs_of):
    assert pairs_of("q1 0 d3 1\nq1 0 d3 1\n") == {"positive": [("q1", "d3")]}


def test_passages_that_the_corpus_lacks_are_left_out(pairs_of, caplog):
    assert pairs_of("q1 0 d3 1\nq1 0 x1 1\nq2 0 x2 1\n") == {"positive": [("q1", "d3")]}
    assert "left out: 2 of 3 ('x1', 'x2')" in warnings_of(caplog)[0]


@pytest.mark.parametrize(
    "qrels",
    [
        "zz 0 d1 1\n",  # another query
        "q1 0 d1 0\n",  # not relevant
        "q1 0 x1 1\n",  # another passage
    ],
)
def test_qrels_without_a_pair_are_rejected(pairs_of, qrels):
    with pytest.raises(MismatchError, match="has a positive passage in"):
        pairs_of(qrels)
