import pytest

from denserk.config.mining import MiningSettings
from denserk.errors import InputError
from denserk.io.manifest import beside
from tests.mining.toy_runs import RUN, negatives, run_text
from tests.reporters import Heard

FAULTS = {
    "a query without hits": (
        {"run": run_text({"q1": RUN["q1"], "q2": RUN["q2"]})},
        "run.trec: found no hits for 1 of 3 queries ('q3'); expected hits for every query",
        {"queries without hits": 1},
        ["q1", "q2"],
    ),
    "a passage that the corpus lacks": (
        {"run": run_text({**RUN, "q1": {"d10": 3.0, "d77": 2.0}})},
        "corpus.jsonl: found no passages with 1 of the ids that runs and training data name ('d77'",
        {"not in the corpus": 1},
        ["q1", "q2", "q3"],
    ),
    "a positive that the corpus lacks": (
        {"qrels": "q1 0 d3 1\nq2 0 d88 1\nq3 0 d4 1\nq3 0 d99 1\n"},
        "corpus.jsonl: found no passages with 2 of the ids that runs and training data name "
        "('d88', 'd99')",
        {"positives that the corpus lacks": 2, "queries without a positive left": 1},
        ["q1", "q3"],
    ),
    "a passage twice": (
        {"run": run_text(RUN) + "q2 Q0 d2 6 0.5 made\n"},
        "run.trec, line 13: found passage d2 twice for query q2",
        {"a passage twice for a query": 1},
        ["q1", "q2", "q3"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_in_a_line_or_counted(fault, mine, toy):
    files, told, counted, left = FAULTS[fault]
    for name, text in files.items():
        (toy / {"run": "run.trec", "qrels": "qrels.txt"}[name]).write_text(text)
    with pytest.raises(InputError) as refusal:
        mine()
    assert str(refusal.value).startswith(told)
    assert not (toy / "mined.jsonl").exists()
    result, examples = mine(MiningSettings(num_negatives=9, skip_missing=True))
    counts = result.left_out + result.noticed + result.dropped
    assert {reason: counts[reason] for reason in counted} == counted
    assert list(examples) == left


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("run.trec", "q9 Q0 d1 1 1 t\n", "run.trec: found none of the 3 queries; expected hits"),
        ("qrels.txt", "q1 0 d3 0\n", "qrels.txt: found no query with a positive"),
        (
            "run.trec",
            run_text({"q1": {"d1": 1}, "q2": {"d1": 1}}) + "q1 Q0 d2 1 1 t\n",
            "run.trec, line 3: found query q1 again after query q2",
        ),
    ],
)
def test_nothing_to_mine_is_refused(name, text, told, mine, toy):
    (toy / name).write_text(text)
    with pytest.raises(InputError) as refusal:
        mine(MiningSettings(skip_missing=True))
    assert str(refusal.value).startswith(told)


def test_ties_are_ordered_by_descending_id_and_reported(mine, toy):
    told = Heard()
    (toy / "run.trec").write_text(run_text({**RUN, "q1": {"d5": 1.0, "d2": 1.0, "d10": 1.0}}))
    _, examples = mine()
    assert negatives(examples)["q1"] == ["d5", "d2", "d10"]
    assert "ties, ordered by descending passage id: 2" in told.notes


def test_a_failure_leaves_the_earlier_output(mine, toy):
    mine()
    before = (toy / "mined.jsonl").read_bytes()
    (toy / "run.trec").write_text("q1 Q0 d1\n")
    with pytest.raises(InputError):
        mine()
    assert (toy / "mined.jsonl").read_bytes() == before
    assert beside(toy / "mined.jsonl").exists()
