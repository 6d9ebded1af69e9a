"""The Python API: models, indexes and runs in memory; training and evaluation by one call.

Wherever a command reads a file, these functions also take Python objects: a run or qrels as
{query id: {passage id: score}}, queries as {id: text} or a list, a corpus or training data as a
list of dicts, and each of them as a pandas DataFrame. Options have the names of the command line,
with underscores (`denserk.api.options`); an error of the input is a `denserk.errors.DenserkError`.
Nothing is printed unless `show_progress` is called, warnings neither: messages go to the logger
`denserk`.
"""

from denserk.api.encoder import Encoder, encode
from denserk.api.evaluation import (
    Evaluation,
    benchmark,
    draw_queries,
    evaluate,
    explain,
    fuse,
    judgment_bounds,
    rerank,
)
from denserk.api.indexes import BM25, Index
from denserk.api.progress import show_progress
from denserk.api.runs import Run
from denserk.api.training import convert, finetune, generate, mine_negatives, pretrain

__all__ = [
    "BM25",
    "Encoder",
    "Evaluation",
    "Index",
    "Run",
    "benchmark",
    "convert",
    "draw_queries",
    "encode",
    "evaluate",
    "explain",
    "finetune",
    "fuse",
    "generate",
    "judgment_bounds",
    "mine_negatives",
    "pretrain",
    "rerank",
    "show_progress",
]
