import pytest

from denserk.settings.preset import Source
from denserk.settings.presets import find_preset
from denserk.settings.presets_aggretriever import PRESETS
from tests.settings.row_words import read_row

AGG = (
    "agg* of 640 beside CLS of 128; loss L + 0.5 L_agg + 0.5 L_cls; shared; raw; T 1; "
    "in-batch contrastive; eps 1e-8; decay 0; seed 42; negatives window; "
)
MARCO = AGG + (
    "8 queries; 8 passages; lr 5e-6; warm-up 10 %; clip 1.0; q 32 / p 128; "
    "positives rotate; text only; "
)
QUESTIONS = AGG + (
    "128 queries; 1+1; 40 epochs; q 32 / p 156; positive first; title, space, text; "
    "quotes replaced; "
)
RECIPE = QUESTIONS + "lr 1e-5; warm-up 10 %; clip 1.0"
DPR = QUESTIONS + "lr 2e-5; warm-up 1,237; clip 2.0"
ROWS = {
    "aggretriever-marco": MARCO + "3 epochs",
    "aggretriever-nq": RECIPE,
    "aggretriever-tqa": RECIPE,
    "aggretriever-nq-dpr": DPR,
    "aggretriever-tqa-dpr": DPR,
    "aggretriever-low-data": MARCO + "40 epochs; 1,000 training queries",
    "aggretriever-hard-negatives": MARCO + "2 epochs; pool 200",
}


def test_every_row_is_a_preset():
    assert {preset.name for preset in PRESETS} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_of_the_table(name):
    assert find_preset(name).settings == read_row(ROWS[name])


def test_the_learning_rate_of_questions_is_a_decision():
    assert find_preset("aggretriever-nq").source_of("lr") is Source.DECISION
    assert find_preset("aggretriever-nq-dpr").source_of("lr") is Source.CITED
    assert find_preset("aggretriever-marco").source_of("lr") is Source.PAPER
    assert find_preset("aggretriever-marco").source_of("positive") is Source.RELEASED
