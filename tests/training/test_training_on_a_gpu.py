"""Training on a simulated GPU: the losses of a CPU, and a few waits for the GPU in each step."""

import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from denserk.config.encoding import Dtype
from denserk.config.pretraining import PretrainingObjective
from denserk.config.training import Distillation, Objective
from denserk.errors import DenserkError
from denserk.models.backbone import Backbone
from denserk.training.trainer import Trainer
from tests.support import pretraining
from tests.support.faults import Stopped, stopped_at
from tests.support.finetuning import AGG, log_of, tune, weights
from tests.support.tiny_models import without_dropout
from tests.support.training_examples import jsonl, pairs, triplets, words

STEPS = {"max_steps": 2, "lr": 1e-3, "logging_steps": 1, "save_steps": 2, "num_workers": 0}
CLS = {"representation": "cls"}
MLR = {"representation": "mlr"}
CROSS_ENCODER = {"representation": "cross-encoder"}
MULTI_VECTOR = {"reduction": "multi-vector"}
CACHE = {"grad_cache": True, "q_chunk": 2, "p_chunk": 5}
RUNS: dict[str, dict[str, Any]] = {
    "cls": CLS,
    "mean-dimensions": {"representation": "mean", "dimensions": (8, 16)},
    "max-untied": {"representation": "max", "untie": True},
    "last-checkpointed": {"representation": "last", "gradient_checkpointing": True},
    "full": {"representation": "mean", "contrastive": "full", "mask_false_negatives": True},
    "kl": {**CLS, "distillation": Distillation.KL},
    "soft": {**CLS, "distillation": Distillation.SOFT_CROSS_ENTROPY},
    "margin": {**MLR, "distillation": Distillation.MARGIN_MSE, "lr": 1e-5},
    "mlr": MLR,
    "mlr-vectors": {**MLR, **MULTI_VECTOR},
    "mlr-mix": {**MLR, "reduction": "scalar-mix"},
    "me-bert": {"representation": "me-bert", "vectors": 3, **MULTI_VECTOR},
    "colbert": {"representation": "colbert", "reduction": "average"},
    "agg": AGG,
    "agg-random": {**AGG, "agg_layout": "random"},
    "agg-plus": {**AGG, "agg_kind": "plus"},
    "agg-linear": {**AGG, "agg_kind": "linear"},
    "agg-average": {**AGG, "agg_kind": "average"},
    "agg-signed": {**AGG, "term_weight": "signed"},
    "agg-bare": {**AGG, "mlm_head": "none"},
    "cls-cached": {**CLS, **CACHE},
    "agg-cached": {**AGG, **CACHE},
    "accumulated": {**CLS, "gradient_accumulation_steps": 2},
    "cross-encoder": CROSS_ENCODER,
    "r-drop": {**CROSS_ENCODER, "r_drop": 0.5},
}
# Waits of a step: lengths of each side, the loss, clipping. No bound has room for one more.
WAITS = 4
OTHER_WAITS = {
    # which positions of each side have a weight
    **dict.fromkeys(["agg", "agg-random", "agg-plus", "agg-linear", "agg-signed"], 6),
    "agg-cached": 14,  # of each chunk, and again in the backward pass
    "accumulated": 6,  # lengths of two batches
}
OPTIONS: dict[str, dict[str, Any]] = {
    "guide": {"guide_margin": 0.1},
    "lora": {"lora": 2},
    "bfloat16": {"dtype": Dtype.BFLOAT16},
    "float16": {"dtype": Dtype.FLOAT16},
    "checkpointed": {"gradient_checkpointing": True},
}
WAITS_OF_OPTIONS = {
    "guide": 8,  # its vectors of each side, to the CPU and back
    "float16": 6,  # whether a gradient is infinite, and the scale that follows
}
WAITS_OF_PRETRAINING = {
    "mlm": 5,
    "condenser": 7,
    "cocondenser": 19,
    "master": 15,
    "retromae": 7,
    "dupmae": 13,
}


@pytest.fixture
def model(tiny, tmp_path):
    return without_dropout(tiny(), tmp_path / "model")


@pytest.fixture
def waits_of_steps(simulated_gpu, monkeypatch):
    """The waits for the GPU in each training step."""
    waits: list[Counter[str]] = []
    step = Trainer.training_step

    def counted_step(self, batches):
        simulated_gpu.waits.clear()
        step(self, batches)
        if self.device.type == "cuda":
            waits.append(simulated_gpu.waits.copy())

    monkeypatch.setattr(Trainer, "training_step", counted_step)
    return waits


def losses(folder):
    return [entry["loss"] for entry in log_of(folder) if "loss" in entry]


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_of_a_cpu(model, train, tmp_path, waits_of_steps, name):
    for device in ("cpu", "cuda"):
        tune(tmp_path / device, model, train, **{**STEPS, **RUNS[name]}, device=device)
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-4)
    most_waits = OTHER_WAITS.get(name, WAITS)
    assert waits_of_steps[-1].total() <= most_waits, waits_of_steps[-1]


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FLOAT16])
@pytest.mark.parametrize("name", ["mlr", "agg", "agg-cached", "cross-encoder"])
def test_losses_in_low_precision_are_near(model, train, tmp_path, simulated_gpu, name, dtype):
    for device, precision in (("cpu", Dtype.FLOAT32), ("cuda", dtype)):
        options = {**STEPS, **RUNS[name], "dtype": precision}
        tune(tmp_path / device, model, train, **options, device=device)
    assert losses(tmp_path / "cuda")[0] == pytest.approx(losses(tmp_path / "cpu")[0], rel=0.05)


def test_steps_whose_gradients_are_too_large_for_float16_are_said_to_be_skipped(
    model, train, tmp_path, simulated_gpu, monkeypatch, caplog
):
    caplog.set_level("INFO", "denserk")
    scaler = partial(torch.amp.GradScaler, init_scale=2.0**26)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    options = {**STEPS, **CLS, "dtype": Dtype.FLOAT16, "max_steps": 16}
    tune(tmp_path / "out", model, train, **options, device="cuda")
    entries = [entry for entry in log_of(tmp_path / "out") if "loss" in entry]
    skipped = ["grad_norm" not in entry for entry in entries]
    assert skipped[0]
    assert not skipped[-1]
    assert "null" not in (tmp_path / "out" / "training.json").read_text().partition('"log"')[2]
    messages = [message for message in caplog.messages if ": skipped 1 of the last 1" in message]
    assert len(messages) == sum(skipped)
    caplog.clear()
    options |= {"logging_steps": 16, "save_steps": 1}
    with stopped_at(8, [(Trainer, "training_step")]), pytest.raises(Stopped):
        tune(tmp_path / "seldom", model, train, **options, device="cuda")
    tune(tmp_path / "seldom", model, train, **options, device="cuda", resume=True)
    expected = f"step 16: skipped {sum(skipped)} of the last 16 steps"
    assert caplog.text.count(expected) == 1


@pytest.mark.parametrize("objective", [Objective.COSINE_MSE, Objective.TRIPLET])
def test_losses_of_sentences_are_those_of_a_cpu(model, tmp_path, simulated_gpu, objective):
    examples = triplets(12) if objective is Objective.TRIPLET else pairs(12)
    data = jsonl(tmp_path / "train.jsonl", examples)
    options = {**STEPS, "objective": objective, "group_size": 8, "representation": "mean"}
    if objective is Objective.COSINE_MSE:
        options["label_scale"] = 5.0
    for device in ("cpu", "cuda"):
        tune(tmp_path / device, model, data, **options, device=device)
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-4)


@pytest.mark.parametrize("name", OPTIONS)
def test_waits_of_other_steps(model, train, tmp_path, waits_of_steps, name):
    options: dict[str, Any] = {**STEPS, **CLS, **OPTIONS[name]}
    if name == "guide":
        options["guide"] = str(model)
    if name == "lora":
        pytest.importorskip("peft")
    tune(tmp_path / "out", model, train, **options, device="cuda")
    assert waits_of_steps[-1].total() <= WAITS_OF_OPTIONS.get(name, WAITS), waits_of_steps[-1]


def test_a_student_is_aligned_as_on_a_cpu(model, tiny, tmp_path, waits_of_steps):
    queries = tmp_path / "queries.tsv"
    queries.write_text("".join(f"{number}\t{words(number, 5)}\n" for number in range(24)))
    options = {**STEPS, "objective": Objective.ALIGN, "teacher": str(tiny()), "group_size": 8}
    for device in ("cpu", "cuda"):
        tune(tmp_path / device, model, str(queries), **options, device=device)
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-4)
    assert waits_of_steps[-1].total() <= WAITS, waits_of_steps[-1]


def test_a_run_resumes_midway_with_the_random_state_of_its_gpu(
    tiny, train, tmp_path, simulated_gpu, monkeypatch
):
    options = {**STEPS, **CLS, "max_steps": 4, "device": "cuda"}
    whole = tune(tmp_path / "whole", tiny(), train, **options)
    state = torch.arange(16, dtype=torch.uint8)
    set_states: list[tuple[torch.Tensor, torch.device]] = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: state)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: set_states.append((state, device))
    )
    with stopped_at(3, [(Trainer, "training_step")]), pytest.raises(Stopped):
        tune(tmp_path / "cut", tiny(), train, **options)
    assert not set_states
    resumed = tune(tmp_path / "cut", tiny(), train, **options, resume=True)
    assert resumed.steps == 4
    assert resumed.first_step == 2
    [(set_state, device)] = set_states
    assert torch.equal(set_state, state)
    assert device == torch.device("cuda")
    assert resumed.loss == whole.loss
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_batches_of_other_processes_come_pinned(
    model, train, tmp_path, waits_of_steps, monkeypatch
):
    pinning_threads: set[str] = set()

    def pin(tensor, *_):
        pinning_threads.add(threading.current_thread().name)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    for workers in (0, 2):
        options = {**STEPS, **CLS, "num_workers": workers, "device": "cuda"}
        tune(tmp_path / f"{workers}", model, train, **options)
        pins_apart = pinning_threads - {threading.main_thread().name}
        assert bool(pins_apart) is (workers > 0)
        assert waits_of_steps[-1].total() <= WAITS, waits_of_steps[-1]
    assert losses(tmp_path / "2") == losses(tmp_path / "0")


def test_training_without_enough_memory_names_what_needs_less(
    model, train, corpus, tmp_path, simulated_gpu, monkeypatch
):
    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Backbone, "forward", fail)
    for run in (
        lambda: tune(tmp_path / "finetune", model, train, **STEPS, **CLS, device="cuda"),
        lambda: pretraining.train(
            tmp_path / "pretrain", corpus, PretrainingObjective.MLM, model, **STEPS, device="cuda"
        ),
    ):
        with pytest.raises(DenserkError, match="out of memory while training step 1 on") as caught:
            run()
        assert caught.value.hint is not None
        for option in ("--grad-cache", "--micro-batch-size", "--gradient-checkpointing"):
            assert option in caught.value.hint


def test_guide_validation_and_resuming_work(model, train, dev, tmp_path, simulated_gpu):
    options = {**STEPS, **CLS, "guide": str(model), "dev_data": dev, "eval_steps": 1}
    for device in ("cpu", "cuda"):
        tune(tmp_path / device, model, train, **options, device=device)
        tune(tmp_path / device, model, train, **options, device=device, resume=True)
    for expected, entry in zip(log_of(tmp_path / "cpu"), log_of(tmp_path / "cuda"), strict=True):
        assert entry == pytest.approx(expected, rel=1e-3)


def test_validation_by_search_and_adapters_work(model, toy, train, tmp_path, simulated_gpu):
    pytest.importorskip("peft")
    files = {"corpus": "corpus.jsonl", "topics": "queries.tsv", "qrels": "qrels.txt"}
    options = {**STEPS, **AGG, "lora": 2, "eval_steps": 1, "best_by": "RR@10"}
    options |= {f"dev_{name}": str(toy / file) for name, file in files.items()}
    for device in ("cpu", "cuda"):
        tune(tmp_path / device, model, train, **options, device=device)
    for expected, entry in zip(log_of(tmp_path / "cpu"), log_of(tmp_path / "cuda"), strict=True):
        assert entry == pytest.approx(expected, rel=1e-3)


def test_the_memory_that_is_measured_is_that_of_the_runs_gpu(
    model, train, tmp_path, simulated_gpu, monkeypatch
):
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", devices.append)
    tune(tmp_path / "out", model, train, **STEPS, **CLS, device="cuda:0")
    assert devices == [torch.device("cuda:0")]


@pytest.fixture(scope="module")
def expansions(tmp_path_factory):
    return pretraining.write_expansions(tmp_path_factory.mktemp("data") / "expansions.jsonl")


@pytest.fixture
def pretrain(model, corpus, expansions, tmp_path):
    """`pretrain(folder, objective, ...)`: a run of two steps; the losses of its log."""

    def run(folder, objective, **options):
        if objective is PretrainingObjective.MASTER:
            options["expansions"] = expansions
        output = tmp_path / folder
        pretraining.train(output, corpus, objective, model, **{**STEPS, **options})
        return losses(output)

    return run


@pytest.mark.parametrize("objective", PretrainingObjective)
def test_losses_of_pretraining_are_those_of_a_cpu(pretrain, waits_of_steps, objective):
    options = {"cache_chunk_size": 2}
    expected = pretrain("cpu", objective, **options)
    assert pretrain("gpu", objective, **options, device="cuda") == pytest.approx(expected, rel=1e-4)
    most_waits = WAITS_OF_PRETRAINING[objective.value]
    assert waits_of_steps[-1].total() <= most_waits, waits_of_steps[-1]


@pytest.mark.parametrize("objective", ["condenser", "master"])
def test_rotary_positions_are_on_the_gpu(
    tiny, corpus, expansions, tmp_path, simulated_gpu, objective
):
    model = tiny("modernbert")
    options = {**STEPS, "expansions": expansions if objective == "master" else None}
    for device in ("cpu", "cuda"):
        pretraining.train(tmp_path / device, corpus, objective, model, **options, device=device)
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)


@pytest.mark.parametrize("objective", PretrainingObjective)
def test_pretraining_does_not_wait_for_each_text(pretrain, waits_of_steps, objective):
    for batch_size in (4, 8):
        options = {"batch_size": batch_size, "max_steps": 1, "cache_chunk_size": batch_size}
        pretrain(f"batch-{batch_size}", objective, **options, device="cuda")
    small, large = waits_of_steps
    assert small == large


@pytest.mark.parametrize("name", ["mlr-vectors", "agg", "agg-bare", "full", "r-drop"])
def test_finetuning_does_not_wait_for_each_text(model, train, tmp_path, waits_of_steps, name):
    for batch_size in (4, 8):
        options = {**STEPS, **RUNS[name], "batch_size": batch_size, "max_steps": 1}
        tune(tmp_path / f"batch-{batch_size}", model, train, **options, device="cuda")
    small, large = waits_of_steps
    assert small == large


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_training_in_float32_says_once_what_is_faster(
    model, train, tmp_path, simulated_gpu, monkeypatch, caplog, has_bfloat16
):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    faster = "training in float32: add --bf16 to train faster on cuda"
    tune(tmp_path / "gpu", model, train, **STEPS, **CLS, device="cuda")
    assert caplog.messages.count(faster) == has_bfloat16
    caplog.clear()
    tune(tmp_path / "low", model, train, **STEPS, **CLS, device="cuda", dtype=Dtype.BFLOAT16)
    tune(tmp_path / "cpu", model, train, **STEPS, **CLS, device="cpu")
    assert faster not in caplog.messages


def test_pretraining_in_float32_says_once_what_is_faster(pretrain, simulated_gpu, caplog):
    pretrain("gpu", PretrainingObjective.CONDENSER, device="cuda")
    faster = "training in float32: add --bf16 to train faster on cuda"
    assert caplog.messages.count(faster) == 1
