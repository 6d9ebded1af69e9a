"""What the encode command is asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from denserk.errors import UsageError
from denserk.settings.encoding import VectorDtype, VectorFormat
from denserk.settings.formats import TopicsFormat
from denserk.settings.options import REQUIRED, option
from denserk.settings.shards import refuse_shard


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    """One encoding run: whose weights, which texts, what comes out."""

    model: str = option(REQUIRED, "--encoder", "--model-name-or-path", metavar="NAME|DIR|HUB_ID")
    """Weights: a short name (see docs/models.md), a folder, or a name on the hub."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """Passages to encode: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    topics: str | None = option(None, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries to encode, in place of --corpus."""
    topics_format: TopicsFormat | None = option(None, shown_default="detected")
    """Shape of the queries."""
    qrels: str | None = option(None, metavar="FILE|DIR|NAME")
    """Keep only the queries of --topics with judgments in these qrels: one split of BEIR."""
    output: str = option(REQUIRED, "--embeddings", "--encode-output-path", metavar="DIR|FILE|-")
    """Where the vectors go: a folder, or a file for the one-file shapes."""
    output_format: VectorFormat = VectorFormat.NPY
    """Shape of the vectors."""
    vector_dtype: VectorDtype = VectorDtype.FLOAT32
    """Precision of the stored vectors."""
    block_size: int | None = option(None, shown_default="512 on a CPU, 4,096 on a GPU")
    """Passages a block; a block is encoded from its own passages alone. A folder that --resume
    continues keeps its own."""
    workers: int = 1
    """Threads that tokenise ahead of the model; a fast GPU wants several."""
    shard_id: int = option(0, "--dataset-shard-index")
    """Which shard to encode, from 0."""
    shard_num: int = option(1, "--num-shards", "--dataset-number-of-shards")
    """Number of shards: whole blocks each, so that all shards in order are the unsharded folder."""
    resume: bool = False
    """Continue an interrupted run: finished blocks are compared with the input and kept."""
    overwrite: bool = False
    """Replace what is in the output folder."""

    def __post_init__(self) -> None:
        """Refuses combinations that cannot be done."""
        if (self.corpus is None) == (self.topics is None):
            raise UsageError("give one of --corpus (passages) and --topics (queries)")
        if self.qrels is not None and self.topics is None:
            raise UsageError(f"--qrels {self.qrels}: it selects queries", "add --topics")
        if self.block_size is not None and self.block_size < 1:
            raise UsageError(f"--block-size {self.block_size}: at least 1 is needed")
        if self.workers < 1:
            raise UsageError(f"--workers {self.workers}: at least 1 is needed")
        refuse_shard(self.shard_id, self.shard_num)
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if self.output_format is not VectorFormat.NPY and self.resume:
            raise UsageError(
                f"--resume needs --output-format npy; {self.output_format} is written whole or not"
            )
        if self.output == "-" and self.output_format not in (
            VectorFormat.JSONL,
            VectorFormat.ANSERINI_JSONL,
        ):
            raise UsageError(
                f"--output - cannot carry --output-format {self.output_format}",
                "use --output-format jsonl",
            )
        if self.source == "-" and self.shard_num > 1:
            raise UsageError("--shard-num needs a corpus that can be counted, not a stream")

    @property
    def side(self) -> str:
        """Which side of retrieval is encoded: "query" or "passage"."""
        return "passage" if self.topics is None else "query"

    @property
    def source(self) -> str:
        """The texts' source, whichever side they are of."""
        source = self.topics if self.corpus is None else self.corpus
        assert source is not None
        return source


@dataclass(frozen=True)
class TextShorthands:
    """Other ways to say what the text options say, for the side that is encoded."""

    max_length: int | None = option(None, shown_default="the model's own")
    """Tokens of a text, special tokens included, whichever side is encoded."""
    prefix: str | None = option(None, shown_default="the model's own")
    """Text put before every text, whichever side is encoded."""
    add_sep: bool = False
    """Short for --join pair: title and text as a sentence pair."""

    def overrides(self, given: Mapping[str, Any], side: str) -> dict[str, Any]:
        """The fields of `TextSettings` that these and the options beside them stand for.

        Args:
            given: fields of `TextSettings` given by their own options.
            side: "query" or "passage".

        Raises:
            UsageError: two of them contradict each other.

        >>> TextShorthands(max_length=256).overrides({"join": "sep"}, "passage")
        {'join': 'sep', 'passage_max_length': 256}
        """
        meant = {
            f"{side}_max_length": self.max_length,
            f"{side}_prefix": self.prefix,
            "join": "pair" if self.add_sep else None,
        }
        merged = dict(given)
        for name, value in meant.items():
            if value is not None and merged.setdefault(name, value) != value:
                raise UsageError(
                    f"--{name.replace('_', '-')} is given twice: {merged[name]!r} and {value!r}"
                )
        return merged
