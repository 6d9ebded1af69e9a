import pytest
import torch

from denserk.modeling import gpu_paths
from denserk.settings.encoding import Representation, RepresentationSettings
from denserk.settings.training import CacheSettings, ObjectiveSettings
from denserk.training.length_groups import Work
from denserk.training.paths import take_training_paths
from denserk.training.retrieval_step import RetrievalStep
from tests.reporters import Heard
from tests.training.retrievers import assert_same, batch_of, gradients, objective, retriever

CLS = RepresentationSettings(Representation.CLS)


RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")


def step_of(folder, *, plain, drops=False, seed=3, **options):
    """One step's terms, gradients and work; `drops` leaves the model's own dropout."""
    model = retriever(folder, CLS, dropout=None if drops else 0.0, **options).float().train()
    for backbone in (model.query.backbone, model.passage.backbone):
        for name in RATES if not drops else ():
            setattr(backbone.config, name, 0.0)
    made = objective(model, CLS, ObjectiveSettings())
    step = RetrievalStep(model, made, CacheSettings(), plain=plain)
    heard = Heard()
    take_training_paths(model, step.work, plain=plain)
    assert not heard.warnings
    torch.manual_seed(seed)
    terms = step(batch_of(5), torch.autograd.backward, torch.enable_grad)
    return terms, gradients(model), step.work


@pytest.mark.parametrize("untie", [False, True])
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_without_padding_a_step_is_the_plain_one(tiny, kind, untie):
    terms, expected, _ = step_of(tiny(kind), plain=True, untie=untie)
    found_terms, found, work = step_of(tiny(kind), plain=False, untie=untie)
    torch.testing.assert_close(found_terms, terms)
    assert_same(found, expected, 1e-4)
    assert (work.unpadded, work.padding) == (True, 0.0)


def test_dropout_falls(tiny):
    one, same, other = (
        step_of(tiny("bert"), plain=False, drops=True, seed=seed)[0]["contrastive"].item()
        for seed in (3, 3, 4)
    )
    assert one == same != other


def test_an_architecture_that_is_not_known_stays_plain(tiny):
    model, work = retriever(tiny("t5"), RepresentationSettings(Representation.MEAN)), Work()
    take_training_paths(model.float(), work)
    assert not work.unpadded


def test_a_forward_that_is_off_is_told_and_not_taken(tiny, monkeypatch):
    monkeypatch.setattr(gpu_paths, "difference", lambda *_: 0.5)
    model, work, heard = retriever(tiny("bert"), CLS).float(), Work(), Heard()
    take_training_paths(model, work)
    assert not work.unpadded
    assert len(heard.warnings) == 1
    assert "the plain path" in heard.warnings[0]
