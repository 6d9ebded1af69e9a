"""Two processes together compute what one computes alone."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from denserk.config.training import CacheSettings
from denserk.errors import UsageError
from denserk.models.distributed import device_of_rank, sum_gradients
from denserk.training.steps import Update, retrieval_step
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
    ("cls", "full", WHOLE, False),
    ("mlr-self-contrastive", "full", WHOLE, False),
]


def trained(folder, case, batch):
    """The loss's terms and the gradients of one step on this process's share."""
    name, loss, cache, across = case
    model = retriever(Path(folder), name, dropout=0.0)
    terms = retrieval_step(model, objective(model, name, loss), cache, across, batch, Update())
    sum_gradients(model.parameters())
    return {name: term.item() for name, term in terms.items()}, gradients(model)


def one_of_two(rank, folder, meeting, out):
    """What each process does: every case."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    batch = part_of(uneven_batch(), rank, 2)
    torch.save({case: trained(folder, case, batch) for case in CASES}, f"{out}-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tiny, tmp_path_factory):
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("two")
    spawn(one_of_two, (str(tiny("bert")), str(folder / "meeting"), str(folder / "found")), 2)
    return [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.slow
def test_together_they_do_the_whole_batch_and_apart_the_mean_of_their_parts(two, tiny):
    for case in CASES:
        parts = [part_of(uneven_batch(), rank, 2) for rank in range(2)]
        alone = [trained(tiny("bert"), case, p) for p in ([uneven_batch()] if case[3] else parts)]
        terms, expected = (
            {name: sum(part[name] for part in each) / len(alone) for name in each[0]}
            for each in zip(*alone, strict=True)
        )
        for found in two:
            assert_same(found[case][1], expected, 1e-6)
            assert found[case][0] == pytest.approx(terms)


def test_the_launch_and_the_device_of_a_rank(monkeypatch):
    """Under torchrun each process takes its own GPU."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert device_of_rank("cpu") == "cpu"
    assert device_of_rank("auto") == device_of_rank("cuda") == "cuda:1"
    with pytest.raises(UsageError, match="takes the GPU of its rank"):
        device_of_rank("cuda:0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert device_of_rank("cuda:0") == "cuda:0"
