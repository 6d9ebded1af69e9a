from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.spawn import spawn

from denserk.config.training import CacheSettings
from denserk.data.batches import TokenBatch, pad
from denserk.data.planning import ENOUGH
from denserk.errors import UsageError
from denserk.models.devices import choose_device, process_group, sum_gradients
from denserk.training.steps import (
    Limits,
    Update,
    encode_retrieval_batch,
    group,
    groups_of,
    join,
    retrieval_step,
)
from tests.support.retrievers import (
    LOSSES,
    REPRESENTATIONS,
    assert_same,
    batch_of,
    gradients,
    objective,
    part_of,
    retriever,
    uneven_batch,
)

CACHE = CacheSettings(grad_cache=True, q_chunk=2, p_chunk=3)
DIRECT = CacheSettings()
LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=9)
LIMITS = st.builds(Limits, st.none() | st.integers(1, 5), st.none() | st.integers(1, 200))


@given(LENGTHS, LIMITS)
def test_groups_are_the_batch_within_the_limits(lengths, limits):
    texts, work = [[7 + number] * length for number, length in enumerate(lengths)], Update()
    with patch.dict(ENOUGH, cpu=16):
        batches, back = group(pad(texts, 0), work, limits)
        (rows, _), *_ = groups_of([pad(texts, 0)], Update(), limits)
    found = []
    for part in batches:
        assert part.has_padding is not part.attention_mask.all().item()
        for row, mask in zip(part.input_ids, part.attention_mask, strict=True):
            found.append(row[mask].tolist())
    assert [found[place] for place in back] == texts
    assert [texts[row] for row in rows] == found[: len(rows)]
    positions = sum(part.input_ids.numel() for part in batches)
    assert (work.tokens, work.positions) == (sum(lengths), positions)
    for count, width in (part.input_ids.shape for part in batches):
        assert limits.texts is None or count <= limits.texts
        assert limits.tokens is None or count == 1 or count * width <= limits.tokens


def run(model, loss, cache, batch, work):
    model.zero_grad()
    torch.manual_seed(5)
    terms = retrieval_step(model, loss, cache, True, batch, work)
    return {name: term.item() for name, term in terms.items()}, gradients(model)


def chunked(model, loss, batch):
    """The direct step chunk by chunk, every graph kept: what the cached step must equal."""
    model.zero_grad()
    torch.manual_seed(5)
    asked, place = group(batch.queries, Update(), Limits(CACHE.q_chunk))
    read, places = group(batch.passages, Update(), Limits(CACHE.p_chunk))
    queries = torch.cat([model.query(chunk) for chunk in asked])[place]
    passages = join([model.passage.passage_vectors(chunk) for chunk in read]).of(places)
    terms = loss(queries, passages, batch.groups, batch.keys, batch.teacher)
    torch.stack(list(terms.values())).sum().backward()
    return {name: term.item() for name, term in terms.items()}, gradients(model)


CASES = [
    *((name, "in-batch", False) for name in REPRESENTATIONS),
    *((name, loss, False) for name in ("cls", "colbert-self-contrastive") for loss in LOSSES),
    ("mlr-scalar-mix", "in-batch", True),
]


@pytest.mark.parametrize(("name", "loss", "untie"), CASES)
def test_cached_is_direct_dropout_included(tiny, name, loss, untie):
    model, batch = retriever(tiny("bert"), name, untie=untie), uneven_batch()
    made = objective(model, name, loss)
    expected_terms, expected = chunked(model, made, batch)
    after = torch.rand(1)
    terms, found = run(model, made, CACHE, batch, Update())
    assert torch.rand(1).equal(after)
    assert_same(found, expected, 1e-9)
    losses = {name: terms[name] for name in expected_terms}  # without the values at chance
    assert losses == pytest.approx(expected_terms, abs=1e-12)


class Saved:
    """A tensor that a graph keeps for its backward pass; counts the bytes of all that live."""

    now = most = 0

    def __init__(self, tensor):
        self.tensor = tensor
        Saved.now += tensor.nbytes
        Saved.most = max(Saved.most, Saved.now)

    def __del__(self):
        Saved.now -= self.tensor.nbytes


def peak(folder, name, cache, queries):
    model, one = retriever(folder, name), batch_of(1)  # the same texts: chunks of one size
    asked, passages = (
        TokenBatch(texts.input_ids.repeat(queries, 1), texts.attention_mask.repeat(queries, 1))
        for texts in (one.queries, one.passages)
    )
    batch = batch_of(queries)._replace(queries=asked, passages=passages)
    assert Saved.now == 0
    Saved.most = 0
    with saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        run(model, objective(model, name), cache, batch, Update())
    return Saved.most


@pytest.mark.parametrize("name", ["cls", "agg-star", "colbert-average"])
def test_memory_is_that_of_a_chunk(tiny, name):
    cache = CacheSettings(grad_cache=True, q_chunk=2, p_chunk=4)
    folder = tiny("bert")
    assert peak(folder, name, DIRECT, 12) > 2.5 * peak(folder, name, DIRECT, 4)
    assert peak(folder, name, cache, 12) < 0.4 * peak(folder, name, DIRECT, 12)


@pytest.mark.parametrize("name", ["cls", "agg-star", "mlr-multi-vector", "colbert-average"])
def test_groups_of_similar_length_change_nothing(tiny, monkeypatch, name):
    model, batch = retriever(tiny("bert"), name, dropout=0.0), batch_of(5)
    made = objective(model, name, "kl")
    whole, grouped = Update(), Update()
    terms, expected = run(model, made, DIRECT, batch, whole)
    assert whole.positions > whole.tokens
    monkeypatch.setitem(ENOUGH, "cpu", 1)
    grouped_terms, found = run(model, made, DIRECT, batch, grouped)
    assert_same(found, expected, 1e-9)
    assert grouped_terms == pytest.approx(terms)
    assert grouped.tokens == whole.tokens == grouped.positions


@pytest.mark.parametrize("name", ["cls", "mean", "agg-star", "mlr-multi-vector"])
@pytest.mark.parametrize("untie", [False, True])
def test_a_shared_encoder_reads_both_sides_at_once(tiny, name, untie):
    model = retriever(tiny("bert"), name, untie=untie, dropout=0.0)
    batch = uneven_batch()
    shapes = []
    encoders = (
        [model.query.backbone] if model.shared else [model.query.backbone, model.passage.backbone]
    )
    for backbone in encoders:
        backbone.encoder.register_forward_hook(lambda _, __, output: shapes.append(output[0].shape))
    queries, passages = encode_retrieval_batch(model, batch, DIRECT, Update())
    query_count, passage_count = len(batch.queries.input_ids), len(batch.passages.input_ids)
    counts = [query_count, passage_count]
    if model.shared and name != "mlr-multi-vector":  # whose passages have several vectors
        counts = [query_count + passage_count]
    assert [shape[0] for shape in shapes] == counts
    torch.testing.assert_close(queries, model.query(batch.queries))
    expected = model.passage.passage_vectors(batch.passages)
    torch.testing.assert_close(passages.values, expected.values)


@pytest.mark.parametrize(("kind", "pad_id"), [("roberta", 1), ("mpnet", 1), ("qwen3", 0)])
def test_reading_both_sides_at_once_is_reading_them_apart(tiny, kind, pad_id):
    model = retriever(tiny(kind), "mean", dropout=0.0)
    texts = [[2, *range(5, 5 + length)] for length in (2, 5, 63, 1)]  # one takes all positions
    batch = batch_of(2)._replace(queries=pad(texts[:2], pad_id), passages=pad(texts, pad_id))
    together = encode_retrieval_batch(model, batch, DIRECT, Update())
    model.passage.sides_alike = False
    apart = encode_retrieval_batch(model, batch, DIRECT, Update())
    torch.testing.assert_close(together[0], apart[0])
    torch.testing.assert_close(together[1].values, apart[1].values)


CHUNKS = CacheSettings(grad_cache=True, q_chunk=1, p_chunk=3)
TOGETHER = [
    *((name, "in-batch", cache, True) for name in REPRESENTATIONS for cache in (DIRECT, CHUNKS)),
    *(("cls", loss, DIRECT, True) for loss in LOSSES if loss != "in-batch"),
    ("cls", "full", DIRECT, False),
    ("mlr-self-contrastive", "full", DIRECT, False),
]


def trained(folder, case, batch):
    name, loss, cache, across = case
    model = retriever(Path(folder), name, dropout=0.0)
    terms = retrieval_step(model, objective(model, name, loss), cache, across, batch, Update())
    sum_gradients(model.parameters())
    return {name: term.item() for name, term in terms.items()}, gradients(model)


def one_of_two(rank, folder, meeting, out):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    batch = part_of(uneven_batch(), rank, 2)
    torch.save({case: trained(folder, case, batch) for case in TOGETHER}, f"{out}-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    spawn(one_of_two, (str(tiny("bert")), str(folder / "meeting"), str(folder / "found")), 2)
    return [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.slow
def test_together_they_do_the_whole_batch_and_apart_the_mean_of_their_parts(two, tiny):
    for case in TOGETHER:
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
    assert str(choose_device("cpu")) == "cpu"
    assert str(choose_device("auto")) == str(choose_device("cuda")) == "cuda:1"
    with pytest.raises(UsageError, match="takes the GPU of its rank"), process_group("cuda:0"):
        pass
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert str(choose_device("cuda")) == "cuda"
