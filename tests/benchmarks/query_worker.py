"""Encode single queries by one tool, called as its users call it; `query.py` runs this.

    python query_worker.py TOOL PRECISION MODEL QUERIES

TOOL is denserk, index (denserk's open index, which also searches), torch or openvino (those of
sentence-transformers), fastembed or ctranslate2; PRECISION is default, float32 or bfloat16; MODEL
a folder in sentence-transformers' layout, for `index` that of an index, for fastembed with
onnx/model.onnx, for ctranslate2 a converted one with tokenizer.json. QUERIES is a file of one query
a line. With one query, it is a cold process' whole work; with more, the median of the CPU
milliseconds of each, after five that are not counted, is printed.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM_UP = 5
Ask = Callable[[str], Any]


def denserk(precision: str, model: str) -> Ask:
    """Return `denserk.Encoder`."""
    from denserk import Encoder

    options: dict[str, Any] = {"device": "cpu"}
    if precision != "default":
        options["dtype"] = precision
    return Encoder.load(model, **options).encode_queries


def denserk_index(precision: str, model: str) -> Ask:
    """Return the search of `denserk.Index`, in the precision of the index."""
    from denserk import Index

    index = Index.open(model, device="cpu")
    return lambda query: index.search(query, hits=10)


def sentence_transformers_torch(precision: str, model: str) -> Ask:
    """Return sentence-transformers' encoder on torch."""
    import torch
    from sentence_transformers import SentenceTransformer

    options = {} if precision == "default" else {"dtype": getattr(torch, precision)}
    encoder = SentenceTransformer(model, device="cpu", model_kwargs=options)
    return lambda query: encoder.encode(query, show_progress_bar=False)


def sentence_transformers_openvino(precision: str, model: str) -> Ask:
    """Return sentence-transformers' encoder on OpenVINO."""
    from sentence_transformers import SentenceTransformer

    hints = {"float32": "f32", "bfloat16": "bf16"}
    options = {}
    if precision in hints:
        options["ov_config"] = {"INFERENCE_PRECISION_HINT": hints[precision]}
    encoder = SentenceTransformer(model, device="cpu", backend="openvino", model_kwargs=options)
    return lambda query: encoder.encode(query, show_progress_bar=False)


def fastembed(precision: str, model: str) -> Ask:
    """Return fastembed's encoder, which computes in float32."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="benchmark/model",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="benchmark/model"),
        dim=json.loads(Path(model, "config.json").read_text())["hidden_size"],
        model_file="onnx/model.onnx",
    )
    encoder = TextEmbedding("benchmark/model", specific_model_path=model, threads=1)
    return lambda query: next(iter(encoder.embed([query])))


def ctranslate2(precision: str, model: str) -> Ask:
    """Return CTranslate2's encoder: mean pooling, unit length."""
    import ctranslate2
    import numpy as np
    from tokenizers import Tokenizer

    encoder = ctranslate2.Encoder(model, device="cpu", compute_type=precision, intra_threads=1)
    tokenizer = Tokenizer.from_file(str(Path(model, "tokenizer.json")))
    tokenizer.no_padding()

    def encode(query: str) -> Any:
        output = encoder.forward_batch([tokenizer.encode(query).ids])
        vector = np.array(output.last_hidden_state)[0].mean(0)
        return vector / np.linalg.norm(vector)

    return encode


TOOLS = {
    "denserk": denserk,
    "index": denserk_index,
    "torch": sentence_transformers_torch,
    "openvino": sentence_transformers_openvino,
    "fastembed": fastembed,
    "ctranslate2": ctranslate2,
}


def main() -> None:
    """Encode the queries one by one."""
    tool, precision, model, queries_name = sys.argv[1:]
    ask = TOOLS[tool](precision, model)
    queries = Path(queries_name).read_text().splitlines()
    seconds = []
    for query in queries:
        start = time.process_time()
        ask(query)
        seconds.append(time.process_time() - start)
    if len(queries) > WARM_UP:
        print(1000 * statistics.median(seconds[WARM_UP:]))


if __name__ == "__main__":
    main()
