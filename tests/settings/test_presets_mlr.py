import pytest

from denserk.settings.preset import Source
from denserk.settings.presets import find_preset
from denserk.settings.presets_mlr import PRESETS
from tests.settings.row_words import read_row

COMMON = (
    "mlr; raw; T 1; in-batch contrastive; 128 queries; eps 1e-8; decay 0; clip 2.0; warm-up 5 %; "
    "seed 12345; negatives shuffle; "
)
QUESTIONS = COMMON + (
    "separate; 1+1; q 256 / p 256; positive first; title and text as a pair; quotes replaced; "
    "chunks of 16 queries with their 32 passages; "
)
BERT = QUESTIONS + "{10,12}; self-contrastive; lambda 1.0; lr 2e-5; 40 epochs; pool 200"
VECTORS = QUESTIONS + "{8,12}; multi-vector; lr 2e-5; 40 epochs; pool 200"
T5 = QUESTIONS + "{8,12}; multi-vector; lr 5e-4; 40 epochs; pool 200"
RETROMAE = QUESTIONS + "{10,12}; self-contrastive; lambda 0.1; lr 5e-6; "
STAGE_1 = RETROMAE + "40 epochs; pool 200"
STAGE_2 = RETROMAE + "20 epochs; pool 50"
BEST = "; best dev loss"
MARCO = COMMON + (
    "separate; 1+15; {10,12}; self-contrastive; lambda 0.01; lr 2e-5; 4 epochs; q 32 / p 140; "
    "positives rotate; title and text as a pair; chunks of 16 queries with their 256 passages; "
)
ROWS = {
    "mlr-nq-bert": BERT + BEST,
    "mlr-tqa-bert": BERT,
    "mlr-squad-bert": BERT + BEST,
    "mlr-nq-bert-multi-vector": VECTORS + BEST,
    "mlr-tqa-bert-multi-vector": VECTORS,
    "mlr-squad-bert-multi-vector": VECTORS + BEST,
    "mlr-nq-t5": T5 + BEST,
    "mlr-tqa-t5": T5,
    "mlr-squad-t5": T5 + BEST,
    "mlr-nq-retromae": STAGE_1,
    "mlr-tqa-retromae": STAGE_1,
    "mlr-squad-retromae": STAGE_1 + BEST,
    "mlr-nq-retromae-hard-negatives": STAGE_2,
    "mlr-tqa-retromae-hard-negatives": STAGE_2,
    "mlr-squad-retromae-hard-negatives": STAGE_2 + BEST,
    "mlr-marco": MARCO + "pool 200",
    "mlr-marco-hard-negatives": MARCO + "pool 100",
    "mlr-beir": COMMON
    + "shared; 1+1; {10,12}; self-contrastive; lambda 0.1; lr 1e-5; 10 epochs; q 32 / p 144; "
    + "positives rotate; title, space, text; chunks of 16 queries with their 32 passages",
}


def test_every_row_is_a_preset():
    assert {preset.name for preset in PRESETS} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_of_the_table(name):
    assert find_preset(name).settings == read_row(ROWS[name])


@pytest.mark.parametrize(
    ("name", "field", "source"),
    [
        ("mlr-nq-bert", "lr", Source.PAPER),
        ("mlr-nq-bert", "layer_weight", Source.RELEASED),
        ("mlr-nq-retromae", "lr", Source.RELEASED),
        ("mlr-nq-retromae", "best_by", Source.PAPER),
        ("mlr-squad-retromae", "best_by", Source.RELEASED),
        ("mlr-marco", "lr", Source.LOST),
        ("mlr-marco", "layer_weight", Source.RELEASED),
        ("mlr-marco", "start", Source.GUESS),
        ("mlr-beir", "lr", Source.LOST),
        ("mlr-beir", "layer_weight", Source.LOST),
        ("mlr-beir", "batch_size", Source.GUESS),
        ("mlr-beir", "untie", Source.GUESS),
    ],
)
def test_marks(name, field, source):
    assert find_preset(name).source_of(field) is source
