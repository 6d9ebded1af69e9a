"""Section `real-training`: pre-training, mining and fine-tuning on real text, and their nDCG@10."""

import time
from pathlib import Path
from typing import Any

from denserk.api import Index, encode, evaluate, finetune, mine_negatives, pretrain
from denserk.io.corpus import read_passages
from tests.gpu.measuring import Load
from tests.gpu.models import NARROW, has_minilm, random_bert
from tests.gpu.setup import Setup
from tests.gpu.texts import (
    books_of,
    more_passages,
    training_collection,
    write_corpus,
    write_judged_queries,
)
from tests.gpu.training_runs import NEVER, Messages, losses


def real_training(setup: Setup) -> None:
    """Train a masked-language-model head, then [CLS] and Aggretriever from the same weights."""
    report = setup.report
    if has_minilm(setup):
        start, described = str(setup.minilm), "MiniLM's weights"
    else:
        start, described = (
            random_bert(setup, "minilm", dropout=0.1, deviation=NARROW),
            "random ones",
        )
    report.measure("starts from", described)
    corpus = write_corpus(
        setup, "collection", [*training_collection(setup).passages, *more_passages(setup)]
    )
    dev = write_judged_queries(setup, "dev", setup.choose(None, 10))
    vectors = measured(setup, "start", start, corpus, dev)
    pretrained = pretrained_head(setup, start, corpus)
    mined = mined_examples(setup, vectors, corpus)
    for representation in ("cls", "agg"):
        with report.attempt(f"fine-tuned {representation}"):
            model = fine_tuned(setup, representation, pretrained, mined)
            measured(setup, f"fine-tuned {representation}", model, corpus, dev)


def precision(setup: Setup) -> dict[str, Any]:
    """Return the device, and bfloat16 on a card."""
    return {"device": setup.device, "dtype": setup.choose("bfloat16", "float32")}


def passage_length(setup: Setup) -> int:
    """Return the number of tokens at which passages are cut."""
    return setup.choose(156, 32)


def measured(setup: Setup, name: str, model: str | Path, corpus: str, dev: tuple[str, str]) -> Path:
    """Encode, search and evaluate; return the folder of vectors."""
    topics, qrels = dev
    output = setup.work / f"vectors-{name.replace(' ', '-')}"
    start = time.perf_counter()
    options: dict[str, Any] = {
        "passage_max_length": passage_length(setup),
        "workers": setup.choose(8, 1),
        "overwrite": True,
        **precision(setup),
    }
    encode(model, output, corpus=corpus, **options)
    with Index.open(output, device=setup.device) as index:
        run = index.search(topics, hits=100)
    found = evaluate(run, qrels, "nDCG@10 RR@10 R@100")
    setup.report.measure(
        name,
        found["nDCG@10"],
        "nDCG@10",
        **{"RR@10": found["RR@10"], "R@100": found["R@100"]},
        seconds=time.perf_counter() - start,
    )
    return output


def pretrained_head(setup: Setup, start: str, corpus: str) -> Path:
    """Pre-train by mlm on the collection, and on books if they are there; the loss falls."""
    books = books_of(setup)
    if books:
        corpus = write_corpus(setup, "collection-and-books", [*read_passages(corpus), *books])
    options = {
        "model": start,
        "batch_size": setup.choose(256, 8),
        "max_length": setup.choose(128, 32),
        "max_steps": setup.choose(400, 3),
        "lr": 3e-4,
        "logging_steps": setup.choose(20, 1),
        "save_steps": NEVER,
        "overwrite": True,
        **precision(setup),
    }
    started = time.perf_counter()
    with Messages() as messages, Load(setup.device) as load:
        folder = pretrain("mlm", corpus, setup.work / "head", **options)
    report_losses(setup, "pre-trained by mlm", folder, started, messages, load)
    return folder


def mined_examples(setup: Setup, vectors: Path, corpus: str) -> str:
    """Mine negatives among the hits of the model that training starts from."""
    topics, qrels = write_judged_queries(setup, "train", setup.choose(None, 20))
    with Index.open(vectors, device=setup.device) as index:
        run = index.search(topics, hits=setup.choose(50, 20))
    output = setup.work / "mined.jsonl"
    mine_negatives(run, topics=topics, qrels=qrels, corpus=corpus, output=output, overwrite=True)
    return str(output)


def fine_tuned(setup: Setup, representation: str, model: Path, mined: str) -> Path:
    """Fine-tune on mined examples; the loss falls."""
    length = {"epochs": 5} if not setup.rehearsal else {"max_steps": 3}
    options = {
        "representation": representation,
        "batch_size": setup.choose(128, 4),
        "group_size": 2,
        "lr": 1e-4,
        "temperature": 1.0,
        "mask_false_negatives": True,
        "passage_max_length": passage_length(setup),
        "logging_steps": setup.choose(20, 1),
        "save_steps": NEVER,
        "overwrite": True,
        **length,
        **precision(setup),
    }
    started = time.perf_counter()
    with Messages() as messages, Load(setup.device) as load:
        folder = finetune(model, mined, setup.work / f"tuned-{representation}", **options)
    report_losses(setup, f"training of {representation}", folder, started, messages, load)
    return folder


def report_losses(
    setup: Setup, name: str, folder: Path, started: float, messages: Messages, load: Load
) -> None:
    """Judge that the loss fell, which the few steps of a rehearsal need not show."""
    curve = losses(folder)
    details = {
        "first": float(curve[0]),
        "seconds": time.perf_counter() - started,
        **load.details,
        "log": messages.last_with("tokens/s"),
    }
    last = float(curve[-1])
    if setup.rehearsal:
        setup.report.measure(name, last, "last loss", **details)
    else:
        setup.report.check(name, last, last < curve[0], "last loss", **details)
