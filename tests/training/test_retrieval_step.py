from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy

from denserk.config.encoding import AggOrder, Representation, RepresentationSettings
from denserk.config.finetuning import FinetuneRun
from denserk.config.training import CacheSettings, FinetuneSettings, ObjectiveSettings
from denserk.data.batches import TokenBatch, pad
from denserk.data.planning import ENOUGH
from denserk.errors import UsageError
from denserk.models.devices import choose_device
from denserk.models.distributed import process_group, sum_gradients
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import Retriever
from denserk.tasks.finetune import objective_of
from denserk.training.steps import (
    Limits,
    Update,
    chunks_by_length,
    encode_retrieval_batch,
    join,
    retrieval_step,
    split_by_length,
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
    texts = [[7 + number] * length for number, length in enumerate(lengths)]
    update = Update()
    with patch.dict(ENOUGH, cpu=16):
        groups, positions_of_texts = split_by_length(pad(texts, 0), update, limits)
        (rows_of_first_group, _), *_ = chunks_by_length([pad(texts, 0)], Update(), limits)
    grouped_texts = []
    for tokens in groups:
        assert tokens.has_padding is not tokens.attention_mask.all().item()
        for row, mask in zip(tokens.input_ids, tokens.attention_mask, strict=True):
            grouped_texts.append(row[mask].tolist())
    assert [grouped_texts[position] for position in positions_of_texts] == texts
    first_group = [texts[row] for row in rows_of_first_group]
    assert first_group == grouped_texts[: len(first_group)]
    assert update.tokens == sum(lengths)
    assert update.positions == sum(tokens.input_ids.numel() for tokens in groups)
    for tokens in groups:
        count, width = tokens.input_ids.shape
        assert limits.texts is None or count <= limits.texts
        assert limits.tokens is None or count == 1 or count * width <= limits.tokens


def run(model, loss, cache, batch, update):
    """The terms of a step, and the gradients."""
    model.zero_grad()
    torch.manual_seed(5)
    terms = retrieval_step(model, loss, cache, True, batch, update)
    return {name: term.item() for name, term in terms.items()}, gradients(model)


def run_by_chunks(model, loss, batch):
    """The direct step chunk by chunk, with the graphs of all: what the cached step must equal."""
    model.zero_grad()
    torch.manual_seed(5)
    query_chunks, query_rows = split_by_length(batch.queries, Update(), Limits(CACHE.q_chunk))
    passage_chunks, passage_rows = split_by_length(batch.passages, Update(), Limits(CACHE.p_chunk))
    queries = torch.cat([model.query(chunk) for chunk in query_chunks])[query_rows]
    vectors_of_chunks = [model.passage.passage_vectors(chunk) for chunk in passage_chunks]
    passages = join(vectors_of_chunks).of(passage_rows)
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
    model = retriever(tiny("bert"), name, untie=untie)
    batch = uneven_batch()
    loss_function = objective(model, name, loss)
    expected_terms, expected_gradients = run_by_chunks(model, loss_function, batch)
    random_number = torch.rand(1)
    terms, step_gradients = run(model, loss_function, CACHE, batch, Update())
    assert torch.rand(1).equal(random_number)  # the random state is where it would be
    assert_same(step_gradients, expected_gradients, 1e-9)
    losses = {name: terms[name] for name in expected_terms}  # without the values at chance
    assert losses == pytest.approx(expected_terms, abs=1e-12)


@pytest.mark.parametrize("order", AggOrder)
@pytest.mark.parametrize(("cls_dim", "agg_dim"), [(6, 20), (0, 20), (6, 0)])
@pytest.mark.parametrize("cache", [DIRECT, CACHE])
def test_the_parts_of_aggretriever_are_trained_beside_their_sum(
    tiny, order, cls_dim, agg_dim, cache
):
    """NLL(S) + a NLL(S_cls) + b NLL(S_agg), of the parts as the heads make them."""
    settings = RepresentationSettings(
        Representation.AGG, cls_dim=cls_dim, agg_dim=agg_dim, agg_order=order
    )
    torch.manual_seed(1)
    model = Retriever(*read_model_folder(tiny("bert")).build(settings, train=True)).double()
    model.eval()  # without dropout
    batch = batch_of(3)
    weights = {"cls": 0.3, "agg": 0.7}
    run = FinetuneRun(
        FinetuneSettings(model="m", train_data=("t",), output="o"),
        objective=ObjectiveSettings(cls_weight=0.3, agg_weight=0.7),
    )
    terms = retrieval_step(model, objective_of(run, model), cache, True, batch, Update())

    def parts_of(texts):
        hidden = model.passage.backbone(texts)
        heads: Any = model.passage.representation
        parts = {}
        if cls_dim:
            parts["cls"] = heads.cls_proj(hidden[:, 0])
        if agg_dim:
            parts["agg"] = heads.lexical_part(hidden, texts, model.passage.backbone)
        return parts

    scores = {}
    query_parts = parts_of(batch.queries)
    for name, passage_part in parts_of(batch.passages).items():
        scores[name] = query_parts[name] @ passage_part.T
    positives = batch.groups[:, 0]
    total_scores = torch.stack(list(scores.values())).sum(0)
    expected = {"contrastive": cross_entropy(total_scores, positives).item()}
    if len(scores) == 2:  # else the sum is the only part
        for name, weight in weights.items():
            expected[name] = weight * cross_entropy(scores[name], positives).item()
    losses = {name: terms[name].item() for name in terms if not name.startswith("chance")}
    assert losses == pytest.approx(expected, abs=1e-12)


class SavedTensor:
    """A tensor that a graph keeps for its backward pass; counts the bytes of all that live."""

    bytes_now = 0
    peak_bytes = 0

    def __init__(self, tensor):
        self.tensor = tensor
        SavedTensor.bytes_now += tensor.nbytes
        SavedTensor.peak_bytes = max(SavedTensor.peak_bytes, SavedTensor.bytes_now)

    def __del__(self):
        SavedTensor.bytes_now -= self.tensor.nbytes


def repeated(texts, count):
    """The same texts several times: chunks of one size."""
    return TokenBatch(texts.input_ids.repeat(count, 1), texts.attention_mask.repeat(count, 1))


def peak_bytes(folder, name, cache, query_count):
    """The bytes that the graphs of a step keep at most."""
    model = retriever(folder, name)
    batch_of_one = batch_of(1)
    batch = batch_of(query_count)._replace(
        queries=repeated(batch_of_one.queries, query_count),
        passages=repeated(batch_of_one.passages, query_count),
    )
    assert SavedTensor.bytes_now == 0
    SavedTensor.peak_bytes = 0
    with saved_tensors_hooks(SavedTensor, lambda saved: saved.tensor):
        run(model, objective(model, name), cache, batch, Update())
    return SavedTensor.peak_bytes


@pytest.mark.parametrize("name", ["cls", "agg-star", "colbert-average"])
def test_memory_is_that_of_a_chunk(tiny, name):
    cache = CacheSettings(grad_cache=True, q_chunk=2, p_chunk=4)
    model = tiny("bert")
    direct_bytes = peak_bytes(model, name, DIRECT, 12)
    assert direct_bytes > 2.5 * peak_bytes(model, name, DIRECT, 4)
    assert peak_bytes(model, name, cache, 12) < 0.4 * direct_bytes


@pytest.mark.parametrize("name", ["cls", "agg-star", "mlr-multi-vector", "colbert-average"])
def test_chunks_of_similar_length_change_nothing(tiny, monkeypatch, name):
    model = retriever(tiny("bert"), name, dropout=0.0)
    loss_function = objective(model, name, "kl")
    batch = batch_of(5)
    update = Update()
    expected_terms, expected_gradients = run(model, loss_function, DIRECT, batch, update)
    assert update.positions > update.tokens
    monkeypatch.setitem(ENOUGH, "cpu", 1)
    update_of_groups = Update()
    terms, step_gradients = run(model, loss_function, DIRECT, batch, update_of_groups)
    assert_same(step_gradients, expected_gradients, 1e-9)
    assert terms == pytest.approx(expected_terms)
    assert update_of_groups.tokens == update.tokens
    assert update_of_groups.positions == update.tokens  # no padding


@pytest.mark.parametrize("name", ["cls", "mean", "agg-star", "mlr-multi-vector"])
@pytest.mark.parametrize("untie", [False, True])
def test_a_shared_encoder_reads_both_sides_at_once(tiny, name, untie):
    model = retriever(tiny("bert"), name, untie=untie, dropout=0.0)
    batch = uneven_batch()
    text_counts = []

    def count_texts(_, __, output):
        text_counts.append(len(output[0]))

    backbones = [model.query.backbone]
    if not model.shared:
        backbones.append(model.passage.backbone)
    for backbone in backbones:
        backbone.encoder.register_forward_hook(count_texts)
    queries, passages = encode_retrieval_batch(model, batch, DIRECT, Update())
    query_count = len(batch.queries.input_ids)
    passage_count = len(batch.passages.input_ids)
    if model.shared and name != "mlr-multi-vector":  # whose passages have several vectors
        assert text_counts == [query_count + passage_count]
    else:
        assert text_counts == [query_count, passage_count]
    torch.testing.assert_close(queries, model.query(batch.queries))
    expected = model.passage.passage_vectors(batch.passages)
    torch.testing.assert_close(passages.values, expected.values)


@pytest.mark.parametrize(("kind", "pad_id"), [("roberta", 1), ("mpnet", 1), ("qwen3", 0)])
def test_reading_both_sides_at_once_is_reading_them_apart(tiny, kind, pad_id):
    model = retriever(tiny(kind), "mean", dropout=0.0)
    texts = [[2, *range(5, 5 + length)] for length in (2, 5, 63, 1)]  # one takes all positions
    batch = batch_of(2)._replace(queries=pad(texts[:2], pad_id), passages=pad(texts, pad_id))
    queries, passages = encode_retrieval_batch(model, batch, DIRECT, Update())
    model.passage.sides_alike = False
    expected_queries, expected_passages = encode_retrieval_batch(model, batch, DIRECT, Update())
    torch.testing.assert_close(queries, expected_queries)
    torch.testing.assert_close(passages.values, expected_passages.values)


class Case(NamedTuple):
    """A step of two processes."""

    representation: str
    loss: str
    cache: CacheSettings
    across_devices: bool


CHUNKS = CacheSettings(grad_cache=True, q_chunk=1, p_chunk=3)
CASES_OF_TWO_PROCESSES = [
    *(Case(name, "in-batch", DIRECT, True) for name in REPRESENTATIONS),
    *(Case(name, "in-batch", CHUNKS, True) for name in REPRESENTATIONS),
    *(Case("cls", loss, DIRECT, True) for loss in LOSSES if loss != "in-batch"),
    Case("cls", "full", DIRECT, False),
    Case("mlr-self-contrastive", "full", DIRECT, False),
]


def run_case(folder, case, batch):
    """The terms of a step, and the gradients, summed over the processes."""
    model = retriever(Path(folder), case.representation, dropout=0.0)
    loss_function = objective(model, case.representation, case.loss)
    terms = retrieval_step(model, loss_function, case.cache, case.across_devices, batch, Update())
    sum_gradients(model.parameters())
    return {name: term.item() for name, term in terms.items()}, gradients(model)


def run_cases_on_rank(rank, folder, meeting, results):
    """Write the terms and gradients of all cases, of one of two processes."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    batch = part_of(uneven_batch(), rank, 2)
    results_of_rank = [run_case(folder, case, batch) for case in CASES_OF_TWO_PROCESSES]
    torch.save(results_of_rank, f"{results}-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results_of_ranks(tiny, tmp_path_factory):
    """For each of two processes, the terms and gradients of all cases."""
    folder = tmp_path_factory.mktemp("two")
    results = folder / "results"
    spawn(run_cases_on_rank, (str(tiny("bert")), str(folder / "meeting"), str(results)), 2)
    return [torch.load(f"{results}-{rank}.pt", weights_only=False) for rank in range(2)]


def mean_by_name(first, second):
    return {name: (first[name] + second[name]) / 2 for name in first}


@pytest.mark.slow
def test_two_processes_do_the_whole_batch_or_the_mean_of_their_parts(results_of_ranks, tiny):
    for number, case in enumerate(CASES_OF_TWO_PROCESSES):
        if case.across_devices:
            expected_terms, expected_gradients = run_case(tiny("bert"), case, uneven_batch())
        else:
            first_part = part_of(uneven_batch(), 0, 2)
            second_part = part_of(uneven_batch(), 1, 2)
            first_terms, first_gradients = run_case(tiny("bert"), case, first_part)
            second_terms, second_gradients = run_case(tiny("bert"), case, second_part)
            expected_terms = mean_by_name(first_terms, second_terms)
            expected_gradients = mean_by_name(first_gradients, second_gradients)
        for results in results_of_ranks:
            terms, step_gradients = results[number]
            assert_same(step_gradients, expected_gradients, 1e-6)
            assert terms == pytest.approx(expected_terms)


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
