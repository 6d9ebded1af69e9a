"""denserk: dense passage retrieval from text to measures.

The names below are loaded when they are first used: `import denserk` imports no other package.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from denserk.api import BM25 as BM25
    from denserk.api import Encoder as Encoder
    from denserk.api import Index as Index
    from denserk.api import Run as Run
    from denserk.api import evaluate as evaluate
    from denserk.api import finetune as finetune
    from denserk.api import fuse as fuse
    from denserk.api import mine_negatives as mine_negatives
    from denserk.api import pretrain as pretrain

__all__ = [
    "BM25",
    "Encoder",
    "Index",
    "Run",
    "evaluate",
    "finetune",
    "fuse",
    "mine_negatives",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'denserk' has no attribute {name!r}")
    from denserk import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
