import pytest

from denserk.settings.preset import Source
from denserk.settings.presets import find_preset
from denserk.settings.presets_master import PRESETS
from tests.settings.row_words import read_row

COMMON = "warm-up 1,000; clip 1.0; decay 0; negatives window; "
RETRIEVER = COMMON + (
    "cls; shared; L2-normalised; T 0.02; full contrastive; title and text as a pair; "
)
MARCO = RETRIEVER + "64 queries; q 32 / p 144; positives rotate; "
STAGE = MARCO + "1+15; lr 2e-5; 3 epochs; pool 200; seed 1234"
NQ = RETRIEVER + "64 queries; 1+15; q 32 / p 192; positive first; pool 100; quotes replaced; "
RERANKER = COMMON + "cross-encoder; 64 queries; lr 3e-5; R-Drop; title, colon, text; seed 987; "
ROWS = {
    "master-marco-retriever1": STAGE,
    "master-marco-retriever2": STAGE,
    "master-marco-reranker": RERANKER
    + "1+63; 3 epochs; length 192 of both; q 32 / p 192; positives rotate; pool 200",
    "master-marco-distil": MARCO
    + "1+23; lr 3e-5; 6 epochs; pool 30; KL + 0.2 contrastive; seed 123",
    "master-nq-retriever1": NQ + "lr 1e-5; 20k steps; seed 5678",
    "master-nq-retriever2": NQ + "lr 1e-5; 20k steps; seed 5678",
    "master-nq-reranker": RERANKER
    + "1+31; 20k steps; length 224 of both; q 32 / p 224; positive first; pool 100; "
    + "quotes replaced",
    "master-nq-distil": NQ + "lr 3e-5; 15 epochs; KL + 1 contrastive; seed 123",
}


def test_every_row_is_a_preset():
    assert {preset.name for preset in PRESETS} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_of_the_table(name):
    assert find_preset(name).settings == read_row(ROWS[name])


@pytest.mark.parametrize(
    ("name", "field", "source"),
    [
        ("master-marco-retriever1", "temperature", Source.CITED),
        ("master-marco-retriever1", "max_grad_norm", Source.LIBRARY),
        ("master-nq-retriever1", "batch_size", Source.DECISION),
        ("master-nq-retriever2", "lr", Source.DECISION),
    ],
)
def test_marks(name, field, source):
    assert find_preset(name).source_of(field) is source
