"""Sections `encode-speed`, the model alone, and `encode-command`, from file to folder."""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.encoding import Backend, ComputeSettings, Dtype, DtypeChoice
from denserk.models.text_encoder import PASSAGE, TextEncoder
from denserk.records import Passage
from tests.gpu.measuring import Load, bert_operations, matrix_rates, median_seconds, tf32
from tests.gpu.models import NARROW, random_aggretriever, random_bert, size_of
from tests.gpu.setup import Setup, last_lines, run_python
from tests.gpu.texts import timed_passages, write_corpus

UNIT = "passages/s"
RATE = re.compile(r"([\d,.]+) per second")


@dataclass(frozen=True)
class Case:
    """A model alone, in a precision and with a batch of so many tokens."""

    dtype: Dtype
    batch_tokens: int
    representation: str = "cls"
    in_tf32: bool = False
    part: int = 1  # a slow one encodes only so great a part of the passages

    @property
    def precision(self) -> str:
        """The precision of products."""
        return "tf32" if self.in_tf32 else self.dtype.value


CASES = (
    Case(Dtype.FLOAT32, 8192, part=4),
    Case(Dtype.FLOAT32, 32_768, in_tf32=True, part=2),
    Case(Dtype.BFLOAT16, 8192),
    Case(Dtype.BFLOAT16, 32_768),
    Case(Dtype.BFLOAT16, 131_072),
    Case(Dtype.FLOAT16, 32_768),
    Case(Dtype.BFLOAT16, 32_768, "agg"),
    Case(Dtype.BFLOAT16, 32_768, "mlr"),
)


def encode_speed(setup: Setup) -> None:
    """Measure BERT-base on tokenised passages, by batch size and precision."""
    report = setup.report
    passages = timed_passages(setup, setup.choose(16_384, 32))
    plain = random_bert(setup, "base", deviation=NARROW)
    encoder = TextEncoder(
        plain,
        {"representation": "cls"},
        compute=ComputeSettings(device="cpu", backend=Backend.TORCH),
    )
    tokenizer = encoder.sides[PASSAGE].tokenizer
    start = time.perf_counter()
    ids = tokenizer.passages(passages)
    seconds = time.perf_counter() - start
    lengths = [len(each) for each in ids]
    mean_length = float(np.mean(lengths))
    report.measure("tokenising", len(ids) / seconds, UNIT, mean_tokens=mean_length)
    layers, hidden, _ = size_of(setup, "base")
    operations = bert_operations(layers, hidden, lengths) / len(ids)
    peaks = matrix_rates(setup.device, setup.choose(8192, 256))
    rates: dict[str, float] = {}
    for case in CASES:
        if case.dtype is Dtype.FLOAT16 and setup.device == "cpu":
            continue
        name = (
            f"base {case.representation}, {case.precision}, batch of {case.batch_tokens:,} tokens"
        )
        with report.attempt(f"model alone: {name}"):
            rate = model_rate(setup, case, plain, ids[:: case.part])
            details: dict[str, Any] = {"TFLOP/s": rate * operations / 1e12}
            details["of_matrix_rate"] = rate * operations / peaks[case.precision]
            if case.representation == "cls":
                rates[f"{case.precision} {case.batch_tokens}"] = rate
            else:
                of_cls = rates.get(f"{case.precision} {case.batch_tokens}")
                details = {} if of_cls is None else {"of_cls": rate / of_cls}
            report.measure(f"model alone: {name}", rate, UNIT, **details)


def model_rate(setup: Setup, case: Case, plain: str, ids: list[Any]) -> float:
    """Return passages a second of a model whose input is tokenised."""
    folder = plain
    settings: dict[str, Any] = {"representation": case.representation}
    if case.representation == "agg":
        folder = random_aggretriever(setup, "base")
        settings = {}
    if case.representation == "mlr":
        settings["reduction"] = "multi-vector"
    tokens = setup.choose(case.batch_tokens, 256)
    dtype = DtypeChoice(case.dtype)
    compute = ComputeSettings(device=setup.device, dtype=dtype, batch_tokens=tokens)
    with tf32(enabled=case.in_tf32):
        encoder = TextEncoder(folder, settings, compute=compute)
        # planning is not timed, but encoding by token ids would plan each time
        planned = encoder._plan(ids, encoder.sides[PASSAGE].tokenizer)
        seconds = median_seconds(lambda: encoder.encode_planned(PASSAGE, planned), setup.device)
    return len(ids) / seconds


def encode_command(setup: Setup) -> None:
    """Measure `denserk encode` from file to folder beside sentence-transformers.

    sentence-transformers goes from texts in memory to vectors in memory, in a process of its own.
    """
    many = timed_passages(setup, setup.choose(49_152, 48))
    few = many[: setup.choose(12_288, 48)]
    model = random_bert(setup, "base", deviation=NARROW)
    low = ["--dtype", "bfloat16"]
    threads = ["--workers", "8"]
    large = ["--batch-tokens", "65536", "--block-size", "16384"]
    commands: dict[str, tuple[list[Passage], list[str]]] = {
        "defaults": (many, []),
        "float32": (few, ["--dtype", "float32"]),
        "bfloat16": (many, low),
        "bfloat16, 8 workers, large batches": (many, [*low, *threads, *large]),
    }
    for name in setup.choose(tuple(commands), ("defaults",)):
        passages, options = commands[name]
        with setup.report.attempt(f"denserk encode, {name}"):
            time_command(setup, name, model, passages, options)
    peers = {
        "defaults": (few, ["--dtype", "float32", "--batch-size", "32"]),
        "bfloat16, batch of 128": (many, ["--dtype", "bfloat16", "--batch-size", "128"]),
    }
    for name in setup.choose(tuple(peers), ("defaults",)):
        passages, options = peers[name]
        with setup.report.attempt(f"sentence-transformers, {name}"):
            time_peer(setup, name, model, passages, options)


def time_command(
    setup: Setup, name: str, model: str, passages: list[Passage], options: list[str]
) -> None:
    """Measure the command; its own figure leaves out that it starts and loads the model."""
    corpus = write_corpus(setup, f"timed-{len(passages)}", passages)
    words = ["-m", "denserk", "encode", "--model", model, "--representation", "mean"]
    words += ["--corpus", corpus, "--output", str(setup.work / "timed-vectors"), "--overwrite"]
    words += ["--device", setup.device, *options]
    start = time.perf_counter()
    with Load(setup.device) as load:
        done = run_python(words, seconds=setup.choose(90, 400))
    seconds = time.perf_counter() - start
    found = RATE.search(done.stderr)
    setup.report.check(
        f"denserk encode, {name}, file to folder",
        float(found[1].replace(",", "")) if found else last_lines(done.stderr),
        done.returncode == 0 and found is not None,
        UNIT,
        passages=len(passages),
        seconds_with_start=seconds,
        **load.details,
        dtype=recorded_dtype(setup.work / "timed-vectors"),
    )


def recorded_dtype(folder: Path) -> str:
    """Return the precision that a folder of vectors records."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return str(manifest["settings"]["dtype"])


def time_peer(
    setup: Setup, name: str, model: str, passages: list[Passage], options: list[str]
) -> None:
    """Measure sentence-transformers, mean pooling, at most 128 tokens, its model loaded."""
    texts = setup.work / f"texts-{len(passages)}.json"
    texts.write_text(json.dumps([f"{each.title} {each.text}".strip() for each in passages]))
    words = ["-m", "tests.gpu.peer", model, str(texts), "--device", setup.device, *options]
    with Load(setup.device) as load:
        done = run_python(words, seconds=setup.choose(90, 400))
    name = f"sentence-transformers, {name}, texts to vectors"
    if "No module named 'sentence_transformers'" in done.stderr:
        setup.report.skip(name, "sentence-transformers is not installed")
        return
    if done.returncode:
        raise RuntimeError(last_lines(done.stderr))
    found = json.loads(done.stdout.splitlines()[-1])
    setup.report.measure(name, len(passages) / found["seconds"], UNIT, **load.details)
