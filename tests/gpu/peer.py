"""Encode texts by sentence-transformers, and print the seconds as JSON.

    python -m tests.gpu.peer MODEL TEXTS.json --device cuda --dtype float32 --batch-size 32

In a process of its own: what denserk sets for its process would slow its tokenizer down.
"""

import argparse
import json
import time
from pathlib import Path

import torch


def main() -> None:
    """Encode some texts to warm up, then all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    texts = json.loads(arguments.texts.read_text())
    model = SentenceTransformer(arguments.model, device=arguments.device)
    model.max_seq_length = 128
    model = model.to(getattr(torch, arguments.dtype))
    options = {"batch_size": arguments.batch_size, "show_progress_bar": False}
    model.encode(texts[: 4 * arguments.batch_size], **options)
    start = time.perf_counter()
    model.encode(texts, **options)
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
