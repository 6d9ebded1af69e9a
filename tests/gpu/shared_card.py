"""`denserk` in one of several processes that share one card, for torchrun.

    python -m torch.distributed.run --nproc-per-node 2 -m tests.gpu.shared_card COMMAND...

NCCL refuses two processes on one card: gloo moves their tensors.
"""

import os
import sys
from typing import Any

import torch.distributed as dist

from denserk.__main__ import main


def with_gloo(backend: str | None = None, **options: Any) -> None:
    """Join the processes by gloo wherever NCCL is asked for."""
    join(backend and backend.replace("nccl", "gloo"), **options)


if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = "0"  # the card of each process
    join = dist.init_process_group
    dist.init_process_group = with_gloo  # type: ignore[assignment]
    sys.argv = ["denserk", *sys.argv[1:]]
    main()
