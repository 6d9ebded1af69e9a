"""Section `resume`: a training that is stopped resumes as if it had not been, dropout and all."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from denserk.training.trainer import Trainer
from tests.gpu.models import random_bert
from tests.gpu.setup import Setup
from tests.gpu.texts import training_file
from tests.gpu.training_runs import largest_difference, losses, tune
from tests.support.faults import Stopped, stopped_at

STEPS = 8
CHECKPOINT = 3  # steps between checkpoints
STOP = 5  # steps that a stopped run does


def resume(setup: Setup) -> None:
    """Compare a resumed run with a whole one, and resume a card's run on the CPU."""
    report = setup.report
    model = random_bert(setup, "small", dropout=0.1)
    data = training_file(setup, setup.choose(200, 20), 4)

    def run(name: str, device: str, **options: Any) -> Path:
        chosen = {
            "representation": "agg",
            "grad_cache": True,
            "max_steps": STEPS,
            "save_steps": CHECKPOINT,
            **options,
        }
        return tune(setup, name, model, data, device, **chosen)

    def stopped(name: str) -> None:
        with suppress(Stopped), stopped_at(STOP, [(Trainer, "training_step")]):
            run(name, setup.device)

    def resumed(name: str, device: str) -> Path:
        return run(name, device, resume=True, overwrite=False)

    whole = run("resume whole", setup.device)
    noise = largest_difference(whole, run("resume again", setup.device))
    report.measure("two equal runs with dropout", noise, "largest difference of a weight")
    stopped("resume stopped")
    found = resumed("resume stopped", setup.device)
    difference = largest_difference(whole, found)
    report.check(
        "a run resumed on the same device",
        difference,
        difference <= max(1e-5, 3 * noise),
        "largest difference of a weight",
        losses=float(np.abs(losses(whole) - losses(found)).max()),
    )
    if setup.device == "cpu":
        report.skip("a card's run resumed on the CPU", "a rehearsal on the CPU")
        return
    with report.attempt("a card's run resumed on the CPU"):
        stopped("resume elsewhere")
        found = resumed("resume elsewhere", "cpu")
        curve = losses(found)
        report.check(
            "a card's run resumed on the CPU",
            float(np.abs(losses(whole) - curve).max()),
            len(curve) == STEPS and bool(np.isfinite(curve).all()),
            "largest difference of the losses (other dropout)",
        )
