"""Section `finetune`: loss curves of the card beside those of the CPU, without dropout."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.models import random_bert
from tests.gpu.setup import Setup
from tests.gpu.texts import training_file
from tests.gpu.training_runs import log_of, losses, relative_difference, tune

LARGEST_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.03, "float16": 0.01}


@dataclass(frozen=True)
class Case:
    """A way to fine-tune, and the low precisions it is tried in."""

    name: str
    options: dict[str, Any]
    low: tuple[str, ...] = ("bfloat16",)
    scored: bool = False  # with a teacher's scores


CASES = (
    Case("cls", {"representation": "cls", "num_workers": 2}, ("bfloat16", "float16")),
    Case("agg", {"representation": "agg"}),
    Case(
        "agg, gradient cache",
        {"representation": "agg", "grad_cache": True, "q_chunk": 3, "p_chunk": 5},
        ("float16",),
    ),
    Case("mlr", {"representation": "mlr"}),
    Case("mlr, several vectors", {"representation": "mlr", "reduction": "multi-vector"}, ()),
    Case("distillation, KL", {"representation": "cls", "distillation": "kl"}, scored=True),
    Case(
        "distillation, margin MSE",
        {"representation": "cls", "distillation": "margin-mse", "lr": 2e-5},
        (),
        scored=True,
    ),
    Case(
        "full contrastive, masked",
        {"representation": "mean", "contrastive": "full", "mask_false_negatives": True},
        (),
    ),
    Case(
        "Matryoshka, checkpointing",
        {"representation": "mean", "dimensions": (16, 32), "gradient_checkpointing": True},
        (),
    ),
    Case("cross-encoder", {"representation": "cross-encoder"}),
)


def finetune(setup: Setup) -> None:
    """Compare every loss in float32, and some in low precision."""
    model = random_bert(setup, "small")
    for case in CASES:
        data = training_file(setup, setup.choose(200, 20), 4, scored=case.scored)
        with setup.report.attempt(f"finetune {case.name}"):

            def run(device: str, dtype: str, case: Case = case, data: str = data) -> Path:
                name = f"finetune {case.name} {device} {dtype}"
                options = {**case.options, "dtype": dtype}
                return tune(setup, name, model, data, device, **options)

            expected = losses(run("cpu", "float32"))
            low = case.low if case is CASES[0] else setup.choose(case.low, ())
            for dtype in ("float32", *low):
                if dtype == "float16" and setup.device == "cpu":
                    continue  # denserk refuses it there
                folder = run(setup.device, dtype)
                found = losses(folder)
                difference = relative_difference(expected, found)
                setup.report.check(
                    f"finetune {case.name}, {dtype}",
                    difference,
                    difference < LARGEST_DIFFERENCE[dtype],
                    "largest relative difference of the losses",
                    first=float(expected[0]),
                    last=float(expected[-1]),
                    last_found=float(found[-1]),
                    **missing_norms(folder),
                )


def missing_norms(folder: Path) -> dict[str, Any]:
    """Return how many steps are logged without a gradient norm, if any is: GradScaler's."""
    count = sum("loss" in entry and "grad_norm" not in entry for entry in log_of(folder))
    return {"steps_without_norm": count} if count else {}
