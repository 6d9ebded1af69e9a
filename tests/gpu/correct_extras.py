"""Section `extras`: options of training that place tensors themselves, and lack of memory."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from denserk.api import finetune
from denserk.records import Passage
from tests.gpu.models import random_bert
from tests.gpu.setup import Setup, last_lines, run_python
from tests.gpu.texts import (
    timed_passages,
    training_collection,
    training_file,
    write_corpus,
    write_judged_queries,
)
from tests.gpu.training_runs import losses, short_run, tune

LITTLE = "1.0"  # GiB of the card that a process may take, so that any card runs out of memory


def extras(setup: Setup) -> None:
    """Train with every such option for a few steps; lack of memory is no internal error."""
    model = random_bert(setup, "small")
    data = training_file(setup, setup.choose(200, 20), 4)
    for name, options in options_by_name(setup, model).items():
        with setup.report.attempt(f"finetune with {name}"):
            folder = tune(setup, f"extra {name}", model, data, setup.device, **options)
            check_losses(setup, f"finetune with {name}", folder)
    with setup.report.attempt("finetune by alignment"):
        check_alignment(setup, model, data)
    for name, check in (
        ("encode without enough memory", check_encoding_memory),
        ("finetune without enough memory", check_training_memory),
    ):
        if setup.device == "cpu":
            setup.report.skip(name, "a rehearsal on the CPU")
        else:
            with setup.report.attempt(name):
                check(setup, name)


def options_by_name(setup: Setup, model: str) -> dict[str, dict[str, Any]]:
    """Return options of training by what they are about."""
    topics, qrels = write_judged_queries(setup, "train", 10)
    relevant = list(training_collection(setup).relevant["train"].values())[:10]
    judged = {docid for docids in relevant for docid in docids}
    passages = training_collection(setup).passages
    validation_passages = [passage for passage in passages if passage.docid in judged]
    validation_passages += [passage for passage in passages[:100] if passage.docid not in judged]
    held_out = training_file(setup, setup.choose(40, 8), 4)
    return {
        "validation by search": {
            "representation": "agg",
            "dev_corpus": write_corpus(setup, "validation", validation_passages),
            "dev_topics": topics,
            "dev_qrels": qrels,
            "eval_steps": 2,
            "best_by": "RR@10",
        },
        "validation on examples": {
            "representation": "mlr",
            "dev_data": held_out,
            "eval_steps": 2,
            "best_by": "dev-loss",
        },
        "validation of a cross-encoder": {
            "representation": "cross-encoder",
            "dev_data": held_out,
            "eval_steps": 2,
        },
        "a guide": {"representation": "cls", "guide": model},
        "two encoders": {"representation": "cls", "untie": True},
        "LoRA": {"representation": "agg", "lora": 4},
        "accumulation": {"representation": "cls", "gradient_accumulation_steps": 2},
        "R-Drop": {"representation": "cross-encoder", "r_drop": 0.5},
    }


def check_losses(setup: Setup, name: str, folder: Path) -> None:
    """The losses of a run are numbers."""
    curve = losses(folder)
    passed = len(curve) > 0 and bool(np.isfinite(curve).all())
    setup.report.check(name, float(curve[-1]), passed, "last loss")


def check_alignment(setup: Setup, model: str, data: str) -> None:
    """Train a query encoder towards a teacher's vectors."""
    teacher = tune(setup, "teacher", model, data, "cpu", representation="cls", max_steps=2)
    topics, _ = write_judged_queries(setup, "train", 20)
    options: dict[str, Any] = {"objective": "align", "teacher": str(teacher), "keep_layers": (0, 1)}
    general = short_run(setup)
    for unused in ("group_size", "passage_max_length"):
        del general[unused]
    folder = finetune(
        model, topics, setup.work / "aligned", device=setup.device, **general, **options
    )
    check_losses(setup, "finetune by alignment", folder)


def with_little_memory(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of denserk in a process that may take `LITTLE` of the card's memory."""
    return run_python(["-m", "tests.gpu.little_memory", LITTLE, *words], seconds=100)


def check_encoding_memory(setup: Setup, name: str) -> None:
    """`encode` says so, and continues with smaller batches."""
    passages = [
        Passage(f"long{number}", " ".join([passage.text] * 10))
        for number, passage in enumerate(timed_passages(setup, 4000))
    ]
    output = setup.work / "little-memory"
    process = with_little_memory(
        *("encode", "--model", random_bert(setup, "small"), "--representation", "cls"),
        *("--corpus", write_corpus(setup, "long", passages), "--output", str(output)),
        *("--device", "cuda", "--dtype", "float32", "--passage-max-length", "512"),
        *("--batch-tokens", "8000000", "--block-size", "4000"),
    )
    judge_message(setup, name, process, goes_on=True)


def check_training_memory(setup: Setup, name: str) -> None:
    """`finetune` says what to do."""
    output = setup.work / "little-memory-training"
    process = with_little_memory(
        *("finetune", "--model", random_bert(setup, "small"), "--representation", "cls"),
        *("--train-data", training_file(setup, 800, 8), "--output", str(output)),
        *("--device", "cuda", "--batch-size", "512", "--group-size", "8", "--max-steps", "2"),
    )
    judge_message(setup, name, process, goes_on=False)


def judge_message(
    setup: Setup, name: str, process: subprocess.CompletedProcess[str], *, goes_on: bool
) -> None:
    """The memory was too little, which was said, and it was no internal error."""
    text = process.stderr.lower()
    names_memory = "memory" in text
    is_internal = "internal error" in text or "traceback" in text
    ended_well = process.returncode == (0 if goes_on else 1)
    setup.report.check(
        name,
        last_lines(process.stderr, 2),
        names_memory and ended_well and not is_internal,
        exit_code=process.returncode,
    )
