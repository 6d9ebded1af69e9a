import pytest
import torch

from denserk.data.batches import pad
from denserk.errors import ModelError
from denserk.modeling.stored_model import StoredEncoder
from tests.reporters import Heard
from tests.tiny_models import HIDDEN, WITH_HEADS

BATCH = pad([[2, 9, 14, 30, 8, 3], [2, 17, 3]], pad_id=0)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("head", [True, False])
def test_a_backbone_to_pre_train(tiny, kind, head):
    heard = Heard()
    stored = StoredEncoder.read(tiny(kind, head=head))
    backbone = stored.begin_masked_lm()
    assert backbone.training
    assert len(heard.notes) == (0 if head else 1)
    decoder = backbone.decoder
    assert decoder.weight is backbone.encoder.embeddings.word_embeddings.weight
    backbone.eval()
    assert backbone.vocabulary_logits(torch.ones(3, HIDDEN)).shape == (3, backbone.vocabulary)
    plain = StoredEncoder.read(tiny(kind)).begin_masked_lm().eval()
    assert backbone(BATCH).equal(plain(BATCH))


@pytest.mark.parametrize(("kind", "lacks"), [("t5", "CLS"), ("electra", "masked-language-model")])
def test_backbones_without_what_pre_training_needs(tiny, kind, lacks):
    with pytest.raises(
        ModelError, match=f"{kind} cannot be pre-trained.* has no .*{lacks}"
    ) as told:
        StoredEncoder.read(tiny(kind)).begin_masked_lm()
    assert told.value.hint == "start from a BERT, RoBERTa, DistilBERT or ModernBERT"
