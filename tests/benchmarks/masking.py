"""Masked sequences a second and core, beside a bare copy, and what a GPU would ask for.

    python -m tests.benchmarks.masking [folder]

The batches of MASTER in both presets, of Condenser and of RetroMAE, at their papers' lengths and
batch sizes, from made-up token ids of BERT's vocabulary. A rate is per second of one core's work;
the copy is that of the same batches' arrays. The need is arithmetic: the floating-point operations
of BERT-base's forward and backward pass over these very batches, at the full matrix rate of an
H200, which no training reaches. Status 1 if two cores cannot feed MASTER at that rate.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import torch
from torch.utils.data import DataLoader

from denserk.config.formats import CorpusSettings
from denserk.config.pretraining import (
    MasterPreset,
    PretrainingObjective,
    PretrainSettings,
    resolve_run,
)
from denserk.data.batches import MaskedTexts, PretrainingBatch
from denserk.data.masking import IGNORED
from denserk.data.pretraining_batches import PretrainingBatches
from denserk.data.pretraining_data import prepare
from tests.benchmarks.timing import medians
from tests.tiny_models import tiny_tokenizer

LAYERS, HIDDEN, VOCABULARY = 12, 768, 30522
H200 = 788e12
"""Matrix products of bfloat16 a second, as measured on such a card elsewhere; not here."""
PIECES_A_WORD = 1.25
ROUNDS, WORKERS = 5, 2
TOKENIZER = tiny_tokenizer(
    "bert",
    [
        *(f"w{number}" for number in range(24_000)),
        *(f"##p{number}" for number in range(VOCABULARY - 24_005)),
    ],
)


class Case(NamedTuple):
    """What is measured: texts of `shortest` to `longest` pieces, as many as fill some batches."""

    name: str
    objective: PretrainingObjective
    preset: MasterPreset
    shortest: int
    longest: int
    batch_size: int
    decoder_layers: int


CASES = (
    Case("master, paper", PretrainingObjective.MASTER, MasterPreset.PAPER, 40, 126, 2048, 2),
    Case("master, released", PretrainingObjective.MASTER, MasterPreset.RELEASED, 40, 126, 2048, 2),
    Case("condenser", PretrainingObjective.CONDENSER, MasterPreset.PAPER, 480, 510, 256, 2),
    Case("retromae", PretrainingObjective.RETROMAE, MasterPreset.PAPER, 480, 510, 256, 1),
    Case("retromae, 150", PretrainingObjective.RETROMAE, MasterPreset.PAPER, 40, 148, 1024, 1),
)


def made_up(draw: np.random.Generator, length: int) -> list[int]:
    """Ids whose words follow Zipf's law, some of several pieces."""
    words = 5 + np.minimum(draw.zipf(1.2, length), 23_999)
    rests = draw.integers(24_005, VOCABULARY, length)
    inside = draw.random(length) < 1 - 1 / PIECES_A_WORD
    inside[0] = False
    return np.where(inside, rests, words).tolist()


def records(case: Case) -> Iterator[dict[str, object]]:
    """Texts of four batches; of MASTER with ten queries and a continuation each."""
    draw = np.random.default_rng(42)
    for _ in range(4 * case.batch_size):
        record: dict[str, object] = {
            "text": made_up(draw, int(draw.integers(case.shortest, case.longest + 1)))
        }
        if case.objective is PretrainingObjective.MASTER:
            record["queries"] = [made_up(draw, 8) for _ in range(10)]
            record["next"] = [made_up(draw, 126)]
        yield record


def batches_of(case: Case, folder: Path) -> PretrainingBatches:
    """The batches of a case's own run, as the command would make them."""
    name = f"{case.objective}-{case.longest}"
    source = folder / f"{name}.jsonl"
    if not source.exists():
        with source.open("wb") as out:
            out.writelines(orjson.dumps(record) + b"\n" for record in records(case))
    length = case.longest + 2
    settings = PretrainSettings(
        objective=case.objective, preset=case.preset, model="m", corpus=("c",), output="o"
    )
    run = resolve_run(settings, CorpusSettings(), {"max_length": length})
    store = prepare([str(source)], folder / name, TOKENIZER, case.objective, units=run.units)
    return PretrainingBatches(
        *(store, TOKENIZER, case.objective, run.masking, length, case.batch_size), epochs=1000
    )


def texts_of(batch: PretrainingBatch) -> tuple[list[MaskedTexts], list[MaskedTexts]]:
    """What the encoder reads, and what decoders read."""
    return [batch.texts, *batch.passes.values()], list(batch.decoders.values())


def operations(batch: PretrainingBatch, decoder_layers: int) -> float:
    """Floating-point operations of a step: forward, and twice as many backward; padding aside."""

    def layers(texts: MaskedTexts, count: int) -> float:
        lengths = texts.tokens.attention_mask.sum(1).double()
        return float((count * (24 * HIDDEN**2 * lengths + 4 * HIDDEN * lengths**2)).sum())

    encoder, decoders = texts_of(batch)
    work = sum(layers(texts, LAYERS) for texts in encoder)
    work += sum(layers(texts, decoder_layers) for texts in decoders)
    labels = sum(int((texts.labels != IGNORED).sum()) for texts in [*encoder, *decoders])
    return 3 * (work + labels * (2 * HIDDEN**2 + 2 * HIDDEN * VOCABULARY))


def arrays(batch: PretrainingBatch) -> list[np.ndarray]:
    """Every array of a batch."""
    parts = [tensor for side in texts_of(batch) for t in side for tensor in (*t.tokens, t.labels)]
    return [part.numpy() for part in [*parts, batch.visible] if part is not None]


def core_seconds(batches: PretrainingBatches) -> Mapping[str, float]:
    """Median seconds of one core for a batch: masked, and copied."""
    steps = iter(range(1, 1000))
    copied = arrays(batches[0])  # the order of the epoch is drawn here, too

    def mask() -> float:
        start = time.process_time()
        batches[next(steps)]
        return time.process_time() - start

    def copy() -> float:
        start = time.process_time()
        for array in copied:
            np.copyto(np.empty_like(array), array)
        return time.process_time() - start

    return medians({"mask": mask, "copy": copy}, ROUNDS)


def through_workers(batches: PretrainingBatches) -> float:
    """Batches a second, by the clock, that two data workers hand over."""
    loader = DataLoader(batches, batch_size=None, num_workers=WORKERS, sampler=range(12))
    waiting = iter(loader)
    for _ in range(4):  # one each, and those that they make ahead
        next(waiting)
    start = time.perf_counter()
    count = sum(1 for _ in waiting)
    return count / (time.perf_counter() - start)


def measure(case: Case, folder: Path) -> bool:
    """Prints a case's line; whether two cores feed it."""
    batches = batches_of(case, folder)
    seconds = core_seconds(batches)
    step = batches[0]
    need = H200 / operations(step, case.decoder_layers) * case.batch_size
    rate, bare = (case.batch_size / seconds[name] for name in ("mask", "copy"))
    clock = through_workers(batches) * case.batch_size
    tokens = int(step.texts.tokens.attention_mask.sum()) / case.batch_size
    print(
        f"{case.name:17} {tokens:6.0f} {rate:9,.0f} {bare:10,.0f} {need:11,.0f} "
        f"{2 * rate / need:10.1f} {clock:12,.0f}"
    )
    return 2 * rate > need


def main() -> None:
    """Measures every case."""
    torch.set_num_threads(1)
    print("sequences a second          masked     copied    the H200  two cores  two workers")
    print("                  tokens    a core     a core     at most    / H200     by clock")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        fed = {case.name: measure(case, folder) for case in CASES}
    hungry = [name for name, enough in fed.items() if name.startswith("master") and not enough]
    if hungry:
        raise SystemExit(f"two cores do not feed {' and '.join(hungry)}")


if __name__ == "__main__":
    main()
