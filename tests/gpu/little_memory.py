"""`denserk` in a process that may take little of the card's memory.

    python -m tests.gpu.little_memory GIB COMMAND...

Runs out of memory early, on any card.
"""

import sys

import torch

from denserk.__main__ import main

if __name__ == "__main__":
    _, total = torch.cuda.mem_get_info()
    share = float(sys.argv[1]) * 2**30 / total
    torch.cuda.set_per_process_memory_fraction(min(share, 1.0))
    sys.argv = ["denserk", *sys.argv[2:]]
    main()
