"""Tiny retrievers in float64, one of each representation, batches for them, and their gradients."""

import random
from functools import partial
from pathlib import Path

import torch

from denserk.config.encoding import (
    AggKind,
    MlmHead,
    Reduction,
    Representation,
    RepresentationSettings,
)
from denserk.config.finetuning import FinetuneRun
from denserk.config.training import (
    ContrastiveKind,
    Distillation,
    FinetuneSettings,
    ObjectiveSettings,
)
from denserk.data.batches import TrainingBatch, pad
from denserk.losses.retrieval import RetrievalObjective
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import Retriever
from denserk.tasks.finetune import objective_of

GROUP = 2
_AGG = partial(RepresentationSettings, Representation.AGG, agg_dim=20, cls_dim=6)
_MLR = partial(RepresentationSettings, Representation.MLR, layers=(1, 2))
_ME_BERT = partial(RepresentationSettings, Representation.ME_BERT, vectors=3)
_COLBERT = partial(RepresentationSettings, Representation.COLBERT)
REPRESENTATIONS = {
    "cls": RepresentationSettings(Representation.CLS),
    "mean": RepresentationSettings(Representation.MEAN, l2_norm=True),
    **{f"agg-{k}": _AGG(agg_kind=k) for k in AggKind if k is not AggKind.AVERAGE},
    **{f"agg-{k}-bare": _AGG(agg_kind=k, mlm_head=MlmHead.NONE) for k in AggKind},
    **{f"mlr-{r}": _MLR(reduction=r) for r in Reduction},
    **{f"me-bert-{r}": _ME_BERT(reduction=r) for r in Reduction},
    "colbert-self-contrastive": _COLBERT(),
    "colbert-average": _COLBERT(reduction=Reduction.AVERAGE),
}
LOSSES = {
    "in-batch": ObjectiveSettings(temperature=0.5),
    "full": ObjectiveSettings(contrastive=ContrastiveKind.FULL),
    **{kind.value: ObjectiveSettings(distillation=kind) for kind in Distillation},
}


def retriever(
    folder: Path, name: str, *, untie: bool = False, dropout: float | None = None
) -> Retriever:
    torch.manual_seed(11)
    sides = read_model_folder(folder).build(REPRESENTATIONS[name], train=True, untie=untie)
    model = Retriever(*sides).double()
    for weight, parameter in model.named_parameters():
        if weight.endswith("tok_proj.bias"):  # else all term weights of a tiny head may be negative
            torch.nn.init.constant_(parameter, 1.0)
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
    return model


def objective(model: Retriever, name: str, loss: str = "in-batch") -> RetrievalObjective:
    finetune = FinetuneSettings(model="m", train_data=("t",), output="o")
    run = FinetuneRun(finetune, objective=LOSSES[loss])
    return objective_of(run, model)


def batch_of(queries: int) -> TrainingBatch:
    """Texts of unequal lengths, a group of two passages a query, scores of a teacher."""
    draw = random.Random(0)

    def text(longest: int) -> list[int]:
        return [2, *(draw.randrange(5, 100) for _ in range(draw.randint(1, longest))), 3]

    query_tokens = pad([text(4) for _ in range(queries)], 0)
    passage_tokens = pad([text(9) for _ in range(queries * GROUP)], 0)
    scores = [draw.gauss(0, 1) for _ in range(queries * GROUP)]
    rows = torch.arange(queries * GROUP)
    return TrainingBatch(
        query_tokens,
        passage_tokens,
        groups=rows.view(queries, GROUP),
        keys=rows,
        teacher=torch.tensor(scores).view(queries, GROUP),
        items=torch.arange(queries),
    )


def uneven_batch() -> TrainingBatch:
    """Four queries over five passages: one negative is missing, two queries share their positive,
    one's negative is another's positive."""
    whole = batch_of(3)
    groups = torch.tensor([[0, 1], [2, 3], [0, 4], [3, -1]])
    teacher = torch.tensor([[1.0, -0.5], [0.3, 0.8], [0.1, 0.0], [2.0, -torch.inf]])
    queries = whole.queries.of(torch.tensor([0, 1, 2, 0]))
    passages = whole.passages.of(slice(5))
    return TrainingBatch(queries, passages, groups, torch.arange(5) + 70, teacher, torch.arange(4))


def part_of(batch: TrainingBatch, rank: int, size: int) -> TrainingBatch:
    queries = len(batch.items) // size
    rows = slice(rank * queries, (rank + 1) * queries)
    groups = batch.groups[rows]
    passages = groups[groups >= 0].unique()
    assert batch.teacher is not None
    return TrainingBatch(
        batch.queries.of(rows),
        batch.passages.of(passages),
        torch.where(groups < 0, groups, torch.searchsorted(passages, groups)),
        batch.keys[passages],
        batch.teacher[rows],
        batch.items[rows],
    )


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(
    computed: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float
) -> None:
    """Check that gradients agree, and are not all zero."""
    assert computed.keys() == expected.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(computed[name], gradient, rtol=0, atol=tolerance, msg=name)
