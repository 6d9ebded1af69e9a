import pytest

from denserk.config.conversion import TrainingFormat
from denserk.config.mining import AnswerBearing, MiningPaths, MiningSettings
from denserk.errors import UsageError

PATHS = {"train": "t", "run": ("r",), "corpus": "c", "output": "o"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"run": ()}, "no run to mine from"),
        ({"train": None}, "no queries with positives"),
        ({"train": None, "topics": "q"}, "no queries with positives"),
        ({"corpus": None}, "--output-format tevatron"),
        ({"run": ("r", "r")}, "--run names one run twice"),
        ({"run": ("-",), "train": "-"}, "only one of the inputs"),
    ],
)
def test_paths_that_do_not_go_together(given, told):
    with pytest.raises(UsageError, match=told):
        MiningPaths(**(PATHS | given))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"train": None, "topics": "q", "qrels": "j"},
        {"corpus": None, "output_format": TrainingFormat.TRIPLES},
        {"run": ("-", "r"), "output": "-"},
    ],
)
def test_paths_that_do(given):
    assert MiningPaths(**(PATHS | given)).output == given.get("output", "o")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"depth": 0}, "--depth 0: at least 1"),
        ({"num_negatives": 0}, "--num-negatives 0: at least 1"),
        ({"range_min": 200}, "--range-min 200 --depth 200"),
        ({"range_min": -1}, "--range-min -1: at least 0"),
        ({"near_duplicate": 0.0}, "near-duplicate=0: above 0"),
        ({"shard_id": 2, "shard_num": 2}, "--shard-id 2"),
        ({"keep_gold": False}, "keep-gold=no leaves no positive"),
    ],
)
def test_settings_that_cannot_be(given, told):
    with pytest.raises(UsageError, match=told):
        MiningSettings(**given)


def test_gold_may_make_way_for_what_is_promoted():
    assert not MiningSettings(keep_gold=False, answer_bearing=AnswerBearing.PROMOTE).keep_gold
