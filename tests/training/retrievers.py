"""Tiny retrievers in float64, one of each representation, and batches for them."""

import itertools
import random

import torch

from denserk.config.encoding import (
    AggKind,
    MlmHead,
    Reduction,
    Representation,
    RepresentationSettings,
)
from denserk.config.training import (
    ContrastiveKind,
    Distillation,
    FinetuneRun,
    FinetuneSettings,
    ObjectiveSettings,
)
from denserk.data.batches import TokenBatch, TrainingBatch, pad
from denserk.losses.retrieval import RetrievalObjective
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import Retriever
from denserk.training.finetune import objective_of

GROUP = 2


def _name(settings):
    parts = [settings.representation]
    if settings.representation is Representation.AGG:
        parts += [settings.agg_kind, "head" if settings.mlm_head is MlmHead.PRETRAINED else "bare"]
    if settings.representation in (Representation.MLR, Representation.ME_BERT):
        parts.append(settings.reduction)
    if settings.representation is Representation.COLBERT:
        parts.append(settings.reduction)
    return "-".join(parts)


def _every_representation():
    yield RepresentationSettings(Representation.CLS)
    yield RepresentationSettings(Representation.MEAN, l2_norm=True)
    for kind, head in itertools.product(AggKind, (MlmHead.PRETRAINED, MlmHead.NONE)):
        if kind is not AggKind.AVERAGE or head is MlmHead.NONE:
            yield RepresentationSettings(
                Representation.AGG, agg_kind=kind, mlm_head=head, agg_dim=20, cls_dim=6
            )
    for made, reduction in itertools.product(
        (Representation.MLR, Representation.ME_BERT), Reduction
    ):
        yield RepresentationSettings(made, reduction=reduction, layers=(1, 2), vectors=3)
    for reduction in (Reduction.SELF_CONTRASTIVE, Reduction.AVERAGE):
        yield RepresentationSettings(Representation.COLBERT, reduction=reduction)


REPRESENTATIONS = {_name(settings): settings for settings in _every_representation()}
LOSSES = {
    "in-batch": ObjectiveSettings(temperature=0.5),
    "full": ObjectiveSettings(contrastive=ContrastiveKind.FULL),
    **{kind.value: ObjectiveSettings(distillation=kind) for kind in Distillation},
}


def retriever(folder, settings, *, untie=False, dropout=None) -> Retriever:
    """A retriever to train from a tiny folder; `dropout` replaces the model's own rate."""
    torch.manual_seed(11)
    sides = read_model_folder(folder).build(settings, train=True, untie=untie)
    made = Retriever(*sides).double()
    for name, parameter in made.named_parameters():
        if name.endswith("tok_proj.bias"):  # else all term weights of a tiny head may be negative
            torch.nn.init.constant_(parameter, 1.0)
    if dropout is not None:
        for module in made.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
    return made


def objective(model: Retriever, settings, loss: ObjectiveSettings) -> RetrievalObjective:
    """What `finetune` would train it with."""
    finetune = FinetuneSettings(model="m", train_data=("t",), output="o")
    return objective_of(FinetuneRun(finetune, objective=loss), settings, model)


def batch_of(queries: int, seed=0, vocabulary=100) -> TrainingBatch:
    """Texts of unequal lengths, a group of two passages a query, scores of a teacher."""
    draw = random.Random(seed)

    def text(shortest, longest):
        length = draw.randint(shortest, longest)
        return [2, *(draw.randrange(5, vocabulary) for _ in range(length)), 3]

    asked = pad([text(1, 4) for _ in range(queries)], 0)
    passages = pad([text(1, 9) for _ in range(queries * GROUP)], 0)
    teacher = torch.tensor([[draw.gauss(0, 1) for _ in range(GROUP)] for _ in range(queries)])
    rows = torch.arange(queries * GROUP)
    return TrainingBatch(
        asked, passages, rows.view(queries, GROUP), rows, teacher, torch.arange(queries)
    )


def uneven_batch(seed=0) -> TrainingBatch:
    """Four queries over five passages: one negative is missing, two queries share their positive,
    one's negative is another's positive."""
    whole = batch_of(3, seed)
    groups = torch.tensor([[0, 1], [2, 3], [0, 4], [3, -1]])
    teacher = torch.tensor([[1.0, -0.5], [0.3, 0.8], [0.1, 0.0], [2.0, -torch.inf]])
    queries = TokenBatch(*(part[[0, 1, 2, 0]] for part in whole.queries))
    passages = TokenBatch(*(part[:5] for part in whole.passages))
    return TrainingBatch(queries, passages, groups, torch.arange(5) + 70, teacher, torch.arange(4))


def part_of(batch: TrainingBatch, rank: int, size: int) -> TrainingBatch:
    """One process's share of a batch."""
    queries = len(batch.items) // size
    rows = slice(rank * queries, (rank + 1) * queries)
    groups = batch.groups[rows]
    own = groups[groups >= 0].unique()
    assert batch.teacher is not None
    return TrainingBatch(
        type(batch.queries)(*(part[rows] for part in batch.queries)),
        type(batch.passages)(*(part[own] for part in batch.passages)),
        torch.where(groups < 0, groups, torch.searchsorted(own, groups)),
        batch.keys[own],
        batch.teacher[rows],
        batch.items[rows],
    )


def gradients(model: Retriever) -> dict[str, torch.Tensor | None]:
    """The gradients of all weights, by name."""
    return {
        name: p.grad if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }


def assert_same(found, expected, tolerance):
    """Gradients agree, and are not all zero."""
    assert found.keys() == expected.keys()
    assert any(e is not None and e.abs().max() > 1e-4 for e in expected.values())
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, rtol=0, atol=tolerance, msg=name)
