"""Prepared pairs and triplets of sentences: tokenised once, memory-mapped.

sentences.npy        token ids, one sentence after another (see `token_store`)
labels.npy           a pair's label; empty for triplets
manifest.json        what it was made from
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denserk.data.prepared_folder import is_prepared, plan_of, rules_of
from denserk.data.token_store import ArrayWriter, Ragged, RaggedWriter, open_array
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError
from denserk.formats.manifest import Kind, read_manifest, write_manifest
from denserk.formats.outputs import whole_folder
from denserk.formats.sentence_pairs import read_sentences
from denserk.records import SentenceExample
from denserk.reporting import track

LAYOUT = "sentences 1"
"""The layout of a prepared folder; another one is prepared again."""
BLOCK = 2048
"""Examples tokenised at once."""


class SentenceStore:
    """Prepared pairs or triplets, opened.

    Args:
        folder: what `prepare_sentences` wrote.

    Attributes:
        size: sentences of an example, 2 or 3; those of example i are the rows size * i and on.
        sentences: token ids by row.
        labels: (N,) float32, of pairs.
        pad_id: for batches.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = read_manifest(folder, Kind.TRAINING).settings
        self.size = int(settings["size"])
        self.pad_id = int(settings["sentence"]["pad_id"])
        self.sentences = Ragged(folder, "sentences")
        self.labels: NDArray[np.float32] = open_array(folder / "labels.npy")

    def __reduce__(self) -> tuple[type["SentenceStore"], tuple[Path]]:
        return SentenceStore, (self.folder,)  # another process maps the files itself

    def __len__(self) -> int:
        return len(self.sentences) // self.size


def prepare_sentences(
    sources: Sequence[str],
    folder: Path,
    tokenizer: TextTokenizer,
    *,
    size: int,
    label_scale: float = 1.0,
    again: bool = True,
) -> SentenceStore:
    """Prepares pairs or triplets, or opens what an earlier call prepared from the same inputs.

    Args:
        sources: files, all of them used, in their order; "-" is standard input.
        folder: where the prepared data is kept; it appears whole or not at all.
        tokenizer: makes token ids.
        size: 2 for pairs with labels, 3 for triplets.
        label_scale: no label may be larger than this, whatever its sign.
        again: prepare again what the inputs would make otherwise; False refuses it.

    Raises:
        UsageError: there is no such file.
        MismatchError: `folder` holds something else, or was made otherwise and must not be made
            again.
        InputError: a file holds something else, or a label is beyond the scale.
        OutputError: `folder` cannot be written.
    """
    inputs = {f"file {number}": name for number, name in enumerate(sources, start=1)}
    scale = label_scale if size == 2 else None
    settings = {"layout": LAYOUT, "size": size, "label_scale": scale}
    plan = plan_of(settings | {"sentence": rules_of(tokenizer)}, inputs)
    if not is_prepared(folder, plan, again=again):
        with whole_folder(folder, own=True) as part:
            examples = _read(sources, size, scale)
            count = _write(part, examples, tokenizer)
            write_manifest(part, replace(plan, contents={"examples": count}, complete=True))
    return SentenceStore(folder)


def _read(sources: Sequence[str], size: int, scale: float | None) -> Iterator[SentenceExample]:
    what = "pairs" if size == 2 else "triplets"
    with track("reading training data", None, what) as progress:
        for source in sources:
            for number, example in enumerate(read_sentences(source, size), start=1):
                if scale is not None and abs(example.label or 0) > scale:
                    raise InputError(
                        source,
                        None,
                        f"the label {example.label:g} of pair {number:,}",
                        f"labels up to {scale:g}, that of equal sentences",
                        "give the largest label, for example --set label-scale=5",
                    )
                progress.advance()
                yield example


def _write(folder: Path, examples: Iterable[SentenceExample], tokenizer: TextTokenizer) -> int:
    small = tokenizer.vocabulary_size <= np.iinfo(np.uint16).max + 1
    stream, count = iter(examples), 0
    with (
        closing(RaggedWriter(folder, "sentences", np.uint16 if small else np.int32)) as sentences,
        closing(ArrayWriter(folder / "labels.npy", np.float32)) as labels,
    ):
        while block := list(islice(stream, BLOCK)):
            texts = [text for example in block for text in example.texts]
            sentences.extend(tokenizer.sentences(texts))
            labels.append([example.label for example in block if example.label is not None])
            count += len(block)
    return count
