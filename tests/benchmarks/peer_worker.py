"""Encode texts by one tool, called as its users call it; `encode.py` runs this with its Python.

    python peer_worker.py TOOL PRECISION MODEL TEXTS VECTORS

TOOL is denserk, torch, openvino and onnx (those of sentence-transformers), fastembed or
ctranslate2; PRECISION is default, float32, bfloat16 or int8; MODEL a folder in
sentence-transformers' layout. TEXTS is a JSON list of texts. Once the tool is loaded, a line of
JSON is printed. For each line on stdin all texts are encoded, and one more line tells the seconds:
CPU time of all threads, and the clock's. The last vectors are written to VECTORS (.npy). This file
imports nothing of denserk's tests: it runs where they are not installed.
"""

import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Encode = Callable[[list[str]], np.ndarray]
CALIBRATION_TEXTS = 300
BATCH_SIZE = 32  # of tools that leave batches to their user
THREADS = len(os.sched_getaffinity(0))


def denserk(precision: str, model: str, texts: list[str]) -> Encode:
    """Return `denserk.Encoder`, which computes as `denserk encode` does."""
    from denserk import Encoder

    options: dict[str, Any] = {"device": "cpu"}
    if precision == "int8":
        options["dtype"] = "float32"
    elif precision != "default":
        options["dtype"] = precision
    encoder = Encoder.load(model, **options)
    if precision == "int8":
        from denserk.records import Passage

        passages = [Passage(str(number), text) for number, text in enumerate(texts)]
        encoder.text_encoder.quantize("passage", passages)
    return encoder.encode_passages


def sentence_transformers_torch(precision: str, model: str, texts: list[str]) -> Encode:
    """Return sentence-transformers' encoder on torch."""
    import torch
    from sentence_transformers import SentenceTransformer

    if precision == "int8":
        raise SystemExit("sentence-transformers has no int8 for torch on the CPU")
    options = {} if precision == "default" else {"dtype": getattr(torch, precision)}
    return as_float32(SentenceTransformer(model, device="cpu", model_kwargs=options))


def sentence_transformers_openvino(precision: str, model: str, texts: list[str]) -> Encode:
    """Return sentence-transformers' encoder on OpenVINO; static int8, as its guide quantises."""
    from sentence_transformers import SentenceTransformer

    hints = {"float32": "f32", "bfloat16": "bf16"}
    options = {}
    if precision in hints:
        options["ov_config"] = {"INFERENCE_PRECISION_HINT": hints[precision]}
    encoder = SentenceTransformer(model, device="cpu", backend="openvino", model_kwargs=options)
    if precision != "int8":
        return as_float32(encoder)
    from optimum.intel import OVQuantizationConfig
    from sentence_transformers import export_static_quantized_openvino_model

    folder = tempfile.mkdtemp()
    samples = Path(folder, "calibration")
    samples.mkdir()
    lines = (json.dumps({"text": text}) + "\n" for text in texts[:CALIBRATION_TEXTS])
    (samples / "train.jsonl").write_text("".join(lines))
    encoder.save_pretrained(folder)
    export_static_quantized_openvino_model(
        encoder,
        OVQuantizationConfig(num_samples=min(CALIBRATION_TEXTS, len(texts))),
        folder,
        dataset_name=str(samples),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )
    file = {"file_name": "openvino/openvino_model_qint8_quantized.xml"}
    return as_float32(
        SentenceTransformer(folder, device="cpu", backend="openvino", model_kwargs=file)
    )


def sentence_transformers_onnx(precision: str, model: str, texts: list[str]) -> Encode:
    """Return sentence-transformers' encoder on ONNX Runtime; dynamic int8, as its guide does."""
    from sentence_transformers import SentenceTransformer

    if precision == "bfloat16":
        raise SystemExit("ONNX Runtime computes no bfloat16 on the CPU")
    encoder = SentenceTransformer(model, device="cpu", backend="onnx")
    if precision != "int8":
        return as_float32(encoder)
    from sentence_transformers import export_dynamic_quantized_onnx_model

    folder = tempfile.mkdtemp()
    encoder.save_pretrained(folder)
    export_dynamic_quantized_onnx_model(encoder, "avx512_vnni", folder)
    file = {"file_name": "onnx/model_qint8_avx512_vnni.onnx"}
    return as_float32(SentenceTransformer(folder, device="cpu", backend="onnx", model_kwargs=file))


def as_float32(encoder: Any) -> Encode:
    """Return the `encode` of a SentenceTransformer, its vectors as float32."""
    return lambda texts: np.asarray(encoder.encode(texts, show_progress_bar=False), np.float32)


def fastembed(precision: str, model: str, texts: list[str]) -> Encode:
    """Return fastembed's encoder of a folder with model.onnx, as `export_onnx` wrote it."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    if precision not in ("default", "float32"):
        raise SystemExit(f"fastembed computes no {precision} of an ONNX file in float32")
    dimension = json.loads(Path(model, "config.json").read_text())["hidden_size"]
    TextEmbedding.add_custom_model(
        model="benchmark/model",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="benchmark/model"),
        dim=dimension,
        model_file="onnx/model.onnx",
    )
    encoder = TextEmbedding("benchmark/model", specific_model_path=model, threads=THREADS)
    if precision == "default":
        return lambda texts: np.stack(list(encoder.embed(texts)))
    return lambda texts: np.stack(list(encoder.embed(texts, batch_size=BATCH_SIZE)))


def ctranslate2(precision: str, model: str, texts: list[str]) -> Encode:
    """Return a loop over CTranslate2's encoder: texts by length, mean pooling, unit length."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter
    from tokenizers import Tokenizer

    folder = Path(tempfile.mkdtemp(), "model")
    TransformersConverter(model).convert(str(folder))
    encoder = ctranslate2.Encoder(
        str(folder), device="cpu", compute_type=precision, intra_threads=THREADS
    )
    tokenizer = Tokenizer.from_file(str(Path(model, "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest_text(model))
    dimension = json.loads(Path(model, "config.json").read_text())["hidden_size"]

    def encode(texts: list[str]) -> np.ndarray:
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda place: -len(ids[place]))
        vectors = np.zeros((len(texts), dimension), np.float32)
        for first in range(0, len(order), BATCH_SIZE):
            batch = order[first : first + BATCH_SIZE]
            output = encoder.forward_batch([ids[place] for place in batch])
            states = np.array(output.last_hidden_state).astype(np.float32)
            for row, place in enumerate(batch):
                vector = states[row, : len(ids[place])].mean(0)
                vectors[place] = vector / np.linalg.norm(vector)
        return vectors

    return encode


def longest_text(model: str) -> int:
    """Return the tokens at which a folder in sentence-transformers' layout cuts a text."""
    return int(json.loads(Path(model, "sentence_bert_config.json").read_text())["max_seq_length"])


def export_onnx(model: str, target: str) -> None:
    """Write the folder that fastembed reads: model.onnx, and a tokenizer that cuts texts."""
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(model, device="cpu", backend="onnx").save_pretrained(target)
    path = Path(target, "tokenizer_config.json")
    settings = json.loads(path.read_text())
    length = longest_text(model)
    path.write_text(json.dumps({**settings, "model_max_length": length, "max_length": length}))


TOOLS = {
    "denserk": (denserk, "denserk"),
    "torch": (sentence_transformers_torch, "sentence-transformers"),
    "openvino": (sentence_transformers_openvino, "sentence-transformers"),
    "onnx": (sentence_transformers_onnx, "sentence-transformers"),
    "fastembed": (fastembed, "fastembed"),
    "ctranslate2": (ctranslate2, "ctranslate2"),
}


def main() -> None:
    """Load the tool, and encode once for each line that is read."""
    tool, precision, model, texts_file, vectors_file = sys.argv[1:]
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    if precision == "export":
        export_onnx(model, vectors_file)
        return
    texts = json.loads(Path(texts_file).read_text())
    load, package = TOOLS[tool]
    encode = load(precision, model, texts)
    answers = os.fdopen(os.dup(1), "w")  # libraries may print, too
    os.dup2(2, 1)
    print(json.dumps({"version": version(package)}), file=answers, flush=True)
    for _ in sys.stdin:
        cpu, clock = time.process_time(), time.perf_counter()
        vectors = encode(texts)
        seconds = {"cpu": time.process_time() - cpu, "clock": time.perf_counter() - clock}
        np.save(vectors_file, vectors)
        print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    main()
