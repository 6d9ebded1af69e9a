import pytest

from denserk.losses.objective import MaskedLanguageModel
from tests.losses.pretraining_models import backbone_of, literal_loss, only, random_texts
from tests.tiny_models import WITH_HEADS


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_literal_restatement(tiny, kind):
    backbone = backbone_of(tiny(kind))
    batch = only(random_texts(backbone, [7, 5]))
    hidden = backbone(batch.texts.tokens)
    total, count = literal_loss(backbone, hidden, batch.texts.labels)
    objective = MaskedLanguageModel(backbone)
    terms = objective(batch)
    assert list(terms) == ["mlm"]
    assert terms["mlm"].total.item() == pytest.approx(total)
    assert terms["mlm"].count.item() == count
    assert objective.cls(batch).equal(hidden[:, 0])
    assert objective.heads() == {}


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_transformers_own_loss(tiny, kind):
    backbone = backbone_of(tiny(kind))
    tokens, labels = random_texts(backbone, [7, 5])
    theirs = backbone.model(tokens.input_ids, tokens.attention_mask, labels=labels).loss
    term = MaskedLanguageModel(backbone)(only(random_texts(backbone, [7, 5])))["mlm"]
    assert (term.total / term.count).item() == pytest.approx(theirs.item())
