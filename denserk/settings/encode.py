"""What the encode command is asked to do."""

from dataclasses import dataclass

from denserk.errors import UsageError
from denserk.settings.encoding import VectorDtype, VectorFormat
from denserk.settings.formats import TopicsFormat
from denserk.settings.options import REQUIRED, Settings, option
from denserk.settings.shards import refuse_shard


@dataclass(frozen=True, kw_only=True)
class EncodeSettings(Settings):
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
    block_size: int | None = option(None, shown_default="512 on a CPU, 4,096 on a GPU", at_least=1)
    """Passages a block; a block is encoded from its own passages alone. A folder that --resume
    continues keeps its own."""
    workers: int = option(1, at_least=1)
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
        """Reject options that exclude each other."""
        super().__post_init__()
        if (self.corpus is None) == (self.topics is None):
            raise UsageError("give one of --corpus (passages) and --topics (queries)")
        if self.qrels is not None and self.topics is None:
            raise UsageError(f"--qrels {self.qrels}: it selects queries", "add --topics")
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
