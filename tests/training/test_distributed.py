"""Two processes together compute what one computes alone."""

import contextlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from denserk.config.training import CacheSettings
from denserk.training import distributed
from denserk.training.distributed import gather, sum_gradients, widen, widest, world
from denserk.training.steps import RetrievalStep
from tests.training.retrievers import (
    LOSSES,
    REPRESENTATIONS,
    assert_same,
    gradients,
    objective,
    part_of,
    retriever,
    uneven_batch,
)

CHUNKS = CacheSettings(grad_cache=True, q_chunk=1, p_chunk=3)
WHOLE = CacheSettings()
CASES = [
    *((name, "in-batch", cache, True) for name in REPRESENTATIONS for cache in (WHOLE, CHUNKS)),
    *(("cls", loss, WHOLE, True) for loss in LOSSES if loss != "in-batch"),
    *(("colbert-self-contrastive", loss, CHUNKS, True) for loss in LOSSES if loss != "in-batch"),
    *((name, "full", WHOLE, False) for name in ("cls", "agg-star-head", "mlr-self-contrastive")),
]


def trained(folder, case, batch):
    """The loss's terms and the gradients of one step on this process's share."""
    name, loss, cache, across = case
    settings = REPRESENTATIONS[name]
    model = retriever(Path(folder), settings, dropout=0.0)
    step = RetrievalStep(
        model, objective(model, settings, LOSSES[loss]), cache, across_devices=across
    )
    terms = step(batch, lambda loss: loss.backward(), contextlib.nullcontext)
    sum_gradients(model.parameters())
    return {name: term.item() for name, term in terms.items()}, gradients(model)


def one_of_two(rank, folder, meeting, out):
    """What each process does: every case; then the helpers, where processes differ."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    batch = part_of(uneven_batch(), rank, 2)
    found = {case: trained(folder, case, batch) for case in CASES}
    device = torch.device("cpu")
    own = nn.Linear(2, 2)
    (own.weight.sum() * (rank + 1)).backward()  # no bias here
    late = nn.Linear(2, 1)
    if rank == 1:
        late.weight.grad = torch.ones(1, 2)
    sum_gradients([*own.parameters(), *late.parameters()])
    helpers = {
        "world": world(),
        "widest": widest(3 + rank, device),
        "gathered": gather(torch.full((2, 1), float(rank))).tolist(),
        "summed": own.weight.grad.tolist() if own.weight.grad is not None else None,
        "absent": own.bias.grad,
        "late": late.weight.grad.tolist() if late.weight.grad is not None else None,
    }
    torch.save((found, helpers), f"{out}-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tiny, tmp_path_factory):
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("two")
    spawn(one_of_two, (str(tiny("bert")), str(folder / "meeting"), str(folder / "found")), 2)
    return [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c[3]], ids=str)
def test_together_they_do_the_whole_batch(two, tiny, case):
    terms, expected = trained(tiny("bert"), case, uneven_batch())
    for found, _ in two:
        found_terms, found_gradients = found[case]
        assert_same(found_gradients, expected, 1e-6)
        assert found_terms == {name: pytest.approx(term) for name, term in terms.items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if not c[3]], ids=str)
def test_without_each_other_their_losses_are_averaged(two, tiny, case):
    halves = [trained(tiny("bert"), case, part_of(uneven_batch(), rank, 2)) for rank in range(2)]
    expected = {
        name: None if first is None else (first + halves[1][1][name]) / 2
        for name, first in halves[0][1].items()
    }
    for found, _ in two:
        found_terms, found_gradients = found[case]
        assert_same(found_gradients, expected, 1e-6)
        assert found_terms == {
            name: pytest.approx((term + halves[1][0][name]) / 2)
            for name, term in halves[0][0].items()
        }


@pytest.mark.slow
def test_what_they_tell_each_other(two):
    for rank, (_, helpers) in enumerate(two):
        assert helpers == {
            "world": (rank, 2),
            "widest": 4,
            "gathered": [[0.0], [0.0], [1.0], [1.0]],
            "summed": [[3.0, 3.0], [3.0, 3.0]],
            "absent": None,
            "late": [[1.0, 1.0]],
        }


def test_alone_nothing_is_told():
    tensor = torch.ones(2, 1)
    assert world() == (0, 1)
    assert gather(tensor) is tensor
    assert widest(3, torch.device("cpu")) == 3
    sum_gradients([nn.Parameter(torch.ones(2))])


def test_gathered_rows_keep_the_graph_of_the_own_ones(monkeypatch):
    def all_gather(parts, tensor):
        for part in parts:
            part.copy_(tensor)

    monkeypatch.setattr(distributed, "world", lambda: (1, 2))
    monkeypatch.setattr(dist, "all_gather", all_gather)
    own = torch.tensor([[1.0], [2.0]], requires_grad=True)
    gather(own * 3).sum().backward()
    assert own.grad is not None
    assert own.grad.tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize("size", [2, 5])
def test_widened_with_nothing(size):
    mask = torch.ones(3, 2, dtype=torch.bool)
    assert widen(torch.ones(3, 2, 4), size).sum() == 3 * 2 * 4
    assert widen(mask, size).shape == (3, size)
    assert widen(mask, size)[:, 2:].sum() == 0
