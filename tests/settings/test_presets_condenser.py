import pytest

from denserk.settings.preset import Source
from denserk.settings.presets import find_preset
from denserk.settings.presets_condenser import PRESETS
from tests.settings.row_words import read_row

CLS = "cls; raw; T 1; in-batch contrastive; decay 0; "
MARCO = CLS + (
    "shared; 8 queries; 8 passages; lr 5e-6; warm-up 10 %; q 32 / p 128; positives rotate; "
    "negatives window; clip 1.0; title [SEP] text; "
)
QUESTIONS = CLS + (
    "separate; 128 queries; 1+1; warm-up 1,237; q 32 / p 256; positive first; negatives shuffle; "
    "clip 2.0; seed 12345; title and text as a pair; quotes replaced; "
)
ROWS = {
    "condenser-marco": MARCO + "3 epochs",
    "condenser-marco-low-data": MARCO + "40 epochs; 1,000 training queries",
    "condenser-marco-hard-negatives": MARCO + "3 epochs",
    "condenser-nq": QUESTIONS + "lr 1e-5; 40 epochs",
    "condenser-nq-low-data": QUESTIONS + "lr 1e-5; 40 epochs; 1,000 training queries",
    "condenser-nq-hard-negatives": QUESTIONS + "lr 1e-5; 20 epochs",
    "condenser-tqa": QUESTIONS + "lr 1e-5; 40 epochs",
    "condenser-tqa-low-data": QUESTIONS + "lr 1e-5; 40 epochs; 1,000 training queries",
    "condenser-tqa-hard-negatives": QUESTIONS + "lr 1e-5; 20 epochs",
    "cocondenser-marco": MARCO + "3 epochs",
    "cocondenser-marco-hard-negatives": MARCO + "3 epochs",
    "cocondenser-nq": QUESTIONS + "lr 5e-6; 40 epochs",
    "cocondenser-nq-hard-negatives": QUESTIONS + "lr 5e-6; 20 epochs",
    "condenser-sts-b": "cls; 16 queries; lr 2e-5; 4 epochs; MSE of the cosine and label / 5",
    "condenser-wiki-sections": "cls; 16 queries; lr 2e-5; 1 epoch; triplets with margin 5",
}


def test_every_row_is_a_preset():
    assert {preset.name for preset in PRESETS} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_of_the_table(name):
    assert find_preset(name).settings == read_row(ROWS[name])


@pytest.mark.parametrize(
    ("name", "field", "source"),
    [
        ("condenser-nq", "lr", Source.PAPER),
        ("condenser-nq", "warmup_steps", Source.CITED),
        ("condenser-nq-hard-negatives", "epochs", Source.CITED),
        ("condenser-marco-low-data", "epochs", Source.DECISION),
        ("cocondenser-marco-hard-negatives", "epochs", Source.DECISION),
        ("cocondenser-nq", "lr", Source.CITED),
        ("condenser-sts-b", "batch_size", Source.LIBRARY),
        ("condenser-sts-b", "representation", Source.GUESS),
    ],
)
def test_marks(name, field, source):
    assert find_preset(name).source_of(field) is source
