"""Section `pretrain`: loss curves of every objective beside those of the CPU, without dropout."""

from dataclasses import dataclass, field
from typing import Any

from denserk.api import pretrain as api_pretrain
from tests.gpu.models import random_bert
from tests.gpu.setup import Setup
from tests.gpu.texts import training_collection, write_corpus
from tests.gpu.training_runs import NEVER, Losses, losses, relative_difference

LARGEST_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.01, "float16": 0.01}


@dataclass(frozen=True)
class Case:
    """An objective, and the low precisions it is tried in."""

    objective: str
    low: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("mlm", ("bfloat16", "float16")),
    Case("condenser", ("bfloat16",)),
    Case("cocondenser", ("float16",), {"cache_chunk_size": 4}),
    Case("master", ("bfloat16",), {"tasks": ("mkp", "cmp", "npr")}),
    Case("retromae", ("float16",)),
    Case("dupmae", ("bfloat16",)),
)


def pretrain(setup: Setup) -> None:
    """Compare every objective in float32 and in a low precision."""
    model = random_bert(setup, "small")
    passages = training_collection(setup).passages[: setup.choose(120, 30)]
    corpus = write_corpus(setup, "pretraining", passages)
    common = {
        "model": model,
        "max_steps": setup.choose(4, 2),
        "batch_size": setup.choose(8, 4),
        "max_length": setup.choose(64, 24),
        "lr": 1e-4,
        "warmup_ratio": 0.0,
        "logging_steps": 1,
        "save_steps": NEVER,
        "num_workers": 0,
        "overwrite": True,
    }
    for case in CASES:
        with setup.report.attempt(f"pretrain {case.objective}"):

            def run(device: str, dtype: str, case: Case = case) -> Losses:
                folder = setup.work / f"pretrain-{case.objective}-{device}-{dtype}"
                options = {**common, **case.options, "device": device, "dtype": dtype}
                return losses(api_pretrain(case.objective, corpus, folder, **options))

            expected = run("cpu", "float32")
            low = case.low if case is CASES[0] else setup.choose(case.low, ())
            for dtype in ("float32", *low):
                if dtype == "float16" and setup.device == "cpu":
                    continue  # denserk refuses it there
                found = run(setup.device, dtype)
                difference = relative_difference(expected, found)
                setup.report.check(
                    f"pretrain {case.objective}, {dtype}",
                    difference,
                    difference < LARGEST_DIFFERENCE[dtype],
                    "largest relative difference of the losses",
                    first=float(expected[0]),
                    last=float(expected[-1]),
                    last_found=float(found[-1]),
                )
