"""Settings of a run -> transformers' TrainingArguments."""

from pathlib import Path

import torch
import transformers
from transformers import TrainingArguments

from denserk.errors import UsageError
from denserk.settings.training import OptimizerSettings, Precision

LOG_LINES = 20
"""Lines of the log that a run has at least, and steps between two of them at most."""
GPU_WORKERS = 2
"""Processes that keep batches ahead of a GPU."""


def training_arguments(
    optimizer: OptimizerSettings, device: str, seed: int, folder: Path
) -> TrainingArguments:
    """What the Trainer is told; under torchrun this also joins the processes.

    Args:
        optimizer: how long, how fast, how often.
        device: auto, cpu or cuda.
        seed: of weights and dropout.
        folder: takes the checkpoints.

    Raises:
        UsageError: the device is none, is not there, or cannot compute so precisely.
    """
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device {device}: training takes auto, cpu or cuda",
            "choose a GPU with CUDA_VISIBLE_DEVICES, several with torchrun",
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no GPU is seen", "use --device auto or --device cpu")
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if on_cpu and optimizer.precision is Precision.FLOAT16:
        raise UsageError("--dtype float16 needs a GPU", "use --dtype bfloat16 or float32")
    workers = optimizer.num_workers
    if workers is None:  # on a CPU they would take the cores that a step computes on
        workers = 0 if on_cpu else GPU_WORKERS
    return TrainingArguments(
        output_dir=str(folder),
        learning_rate=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        adam_epsilon=optimizer.adam_epsilon,
        max_grad_norm=optimizer.max_grad_norm,
        lr_scheduler_type="linear",
        warmup_steps=optimizer.warmup_ratio
        if optimizer.warmup_steps is None
        else optimizer.warmup_steps,
        bf16=optimizer.precision is Precision.BFLOAT16,
        fp16=optimizer.precision is Precision.FLOAT16,
        save_steps=optimizer.save_steps,
        save_total_limit=optimizer.keep_checkpoints or None,
        logging_nan_inf_filter=False,  # such a loss stops the run: see `StepTrainer`
        dataloader_num_workers=workers,
        seed=seed,
        use_cpu=on_cpu,
        disable_tqdm=True,
        report_to="none",  # TensorBoard's files are a callback's: see `telling.follow`
    )


def set_steps(arguments: TrainingArguments, optimizer: OptimizerSettings, steps: int) -> None:
    """Set the number of steps of a run, and how many stand between two lines of its log."""
    arguments.max_steps = steps
    arguments.logging_steps = optimizer.logging_steps or max(1, min(LOG_LINES, steps // LOG_LINES))
