import pytest

from denserk.settings.preset import Source
from denserk.settings.presets import find_preset
from denserk.settings.presets_master_released import PRESETS
from tests.settings.row_words import read_row

COMMON = "clip 2.0; decay 0; negatives shuffle; "
RETRIEVER = COMMON + "cls; separate; raw; T 1; in-batch contrastive; title and text as a pair; "
MARCO = RETRIEVER + "q 32 / p 128; positive random; pool 100; lr 5e-6; "
STAGE = MARCO + "64 queries; 1+31; warm-up 1,000; "
WIKI = RETRIEVER + "q 128 / p 128; positive first; quotes replaced; "
WIKI_STAGE = WIKI + "1+1; warm-up 8,000; "
RERANKER = COMMON + "cross-encoder; 64 queries; lr 1e-5; title [SEP] text; "
ROWS = {
    "master-marco-retriever1-released": STAGE + "30k steps",
    "master-marco-retriever2-released": STAGE + "40k steps",
    "master-marco-reranker-released": RERANKER
    + "1+63; q 32 / p 128; warm-up 2,000; 33k steps; positive random; pool 100",
    "master-marco-distil-released": MARCO
    + "512 queries; 1+41; warm-up 10 %; 25k steps; soft cross-entropy + 0.2 contrastive",
    "master-nq-retriever1-released": WIKI_STAGE + "256 queries; lr 1e-5; 80k steps",
    "master-nq-retriever2-released": WIKI_STAGE + "128 queries; lr 5e-6; 50k steps",
    "master-tqa-retriever1-released": WIKI_STAGE + "256 queries; lr 1e-5; 80k steps",
    "master-tqa-retriever2-released": WIKI_STAGE + "64 queries; lr 5e-6; 80k steps",
    "master-nq-reranker-released": RERANKER
    + "1+15; q 128 / p 128; warm-up 1,000; 5k steps; positive first; quotes replaced",
    "master-nq-distil-released": WIKI
    + "64 queries; 1+15; lr 1e-5; warm-up 10 %; 80k steps; soft cross-entropy + 0 contrastive",
}


def test_every_row_is_a_preset():
    assert {preset.name for preset in PRESETS} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_of_the_table(name):
    assert find_preset(name).settings == read_row(ROWS[name])


def test_a_released_preset_is_released():
    assert {preset.source for preset in PRESETS} == {Source.RELEASED}


def test_rerankers_read_160_and_256_tokens():
    for name, tokens in (("marco", 160), ("nq", 256)):
        settings = find_preset(f"master-{name}-reranker-released").settings
        assert settings["query_max_length"] + settings["passage_max_length"] == tokens
