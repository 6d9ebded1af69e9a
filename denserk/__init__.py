"""denserk: dense passage retrieval from text to measures.

The names below are loaded when they are first used: `import denserk` imports no other package.
"""

import os
from typing import TYPE_CHECKING, Any

from denserk.version import __version__ as __version__

if TYPE_CHECKING:
    from denserk.api import BM25 as BM25
    from denserk.api import Encoder as Encoder
    from denserk.api import Evaluation as Evaluation
    from denserk.api import Index as Index
    from denserk.api import Run as Run
    from denserk.api import benchmark as benchmark
    from denserk.api import convert as convert
    from denserk.api import draw_queries as draw_queries
    from denserk.api import encode as encode
    from denserk.api import evaluate as evaluate
    from denserk.api import explain as explain
    from denserk.api import finetune as finetune
    from denserk.api import fuse as fuse
    from denserk.api import generate as generate
    from denserk.api import judgment_bounds as judgment_bounds
    from denserk.api import mine_negatives as mine_negatives
    from denserk.api import pretrain as pretrain
    from denserk.api import rerank as rerank
    from denserk.api import show_progress as show_progress

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


def let_idle_threads_sleep() -> None:
    """Let threads of OpenMP and OpenBLAS sleep while they wait for work, unless the user chose.

    Threads that spin instead halve the speed of a busy machine. The libraries read these variables
    once, when they are loaded, so call this before torch, NumPy or faiss are imported.
    """
    openmp_variables = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}  # any of them decides
    if openmp_variables.isdisjoint(os.environ):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    # threads of OpenBLAS spin for 2^N cycles before they sleep, and 4 is the least N
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used; Python calls this for names not defined above."""
    if name not in __all__:
        raise AttributeError(f"module 'denserk' has no attribute {name!r}")
    let_idle_threads_sleep()
    from denserk import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not loaded yet."""
    return [*__all__, "__version__"]
