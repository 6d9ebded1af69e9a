import json

import torch

from denserk.modeling.similarity import max_similarity, vector_scores
from denserk.modeling.token_vectors import all_tokens, first_tokens

HIDDEN = torch.arange(1, 13, dtype=torch.float32).reshape(2, 3, 2)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def test_first_tokens_mask_what_a_short_passage_lacks():
    found = first_tokens(HIDDEN, MASK, 4, by_cls=True)
    assert found.values.shape == (2, 4, 2)
    assert found.mask is not None
    assert found.mask.tolist() == [[True, True, False, False], [True, True, True, False]]
    torch.testing.assert_close(found.values[:, :3], HIDDEN)


def test_without_cls_the_mean_comes_first():
    found = first_tokens(HIDDEN, MASK, 2, by_cls=False)
    assert found.values[0].tolist() == [[2.0, 3.0], [1.0, 2.0]]
    assert found.values[1].tolist() == [[9.0, 10.0], [7.0, 8.0]]


def test_one_first_token_is_cls():
    found = first_tokens(HIDDEN, MASK, 1, by_cls=True)
    torch.testing.assert_close(found.values[:, 0], HIDDEN[:, 0])


def test_token_level_example(specs):
    case = json.loads((specs / "mlr_example.json").read_text())["token_level_variant"]
    passage = all_tokens(
        torch.tensor([case["token_vectors"]]), torch.tensor([case["attention_mask"]]).bool()
    )
    scores = vector_scores(torch.tensor([case["query"]]), passage.values)
    assert max_similarity(scores, passage.mask).item() == case["max_sim"]
