"""Which of the papers' gains show at small scale: a tiny BERT pre-trained in five ways.

    python -m tests.benchmarks.pretraining DATA WORK [STAGE ...]

A BERT of 2 x 128 with 8,000 entries is trained from nothing as a masked language model. From it
MLM, Condenser, coCondenser, RetroMAE and MASTER continue, for as many steps of as many sequences.
Each is then fine-tuned as `cls` and as `agg` on questions of nq-qed, and searches slices of nq-qed
(in domain) and of squad (zero-shot). DATA holds `text`, `squad` and `nq-qed`. WORK takes
everything; what is there is used again, so an interrupted study is resumed. A STAGE is `texts`,
`start`, `writers`, `expansions`, a pre-training (`condenser-1`), a fine-tuning with its searches
(`condenser-cls-1`); what it needs must be there. Without one all are made, seed after
seed. Every call ends with the table so far.
"""

import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import orjson
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    get_linear_schedule_with_warmup,
)

from denserk.commands.data import generate
from denserk.commands.train import finetune, pretrain
from denserk.config.formats import CorpusFormat
from denserk.config.pretraining import PretrainingObjective
from denserk.data.sentences import split_sentences
from denserk.io.corpus import read_passages, write_passages
from denserk.io.topics import read_qrels_map, read_queries
from denserk.records import Passage
from tests.benchmarks.studies import (
    COMPUTE,
    Collection,
    finished,
    only,
    prepare,
    print_table,
    retrieve,
)

SEEDS = (1, 2, 3)
COLLECTIONS = (Collection("nq-qed", "dev", trained_on=True), Collection("squad", "dev"))
WORDS, LEAST = 36, 30  # of a passage, about; a paragraph of less than LEAST is left out
RANDOM, START = "random", "start"  # controls: the random weights, and the shared start
OBJECTIVES = tuple(PretrainingObjective)
TUNED = (RANDOM, START, *OBJECTIVES)
VOCABULARY = 8000
BATCH = 32  # sequences of a step; coCondenser's are spans of half as many documents
START_STEPS, START_RATE = 1000, 2e-3
STEPS, LENGTH, RATE = 300, 64, 5e-4
WRITER_STEPS, WRITER_LENGTH = 400, 80
POOL = 7000  # queries to train on; other queries' passages are the negatives
TEXT = {"query_max_length": 32, "passage_max_length": 64}
FINETUNING = {"batch_size": 32, "epochs": 3, "lr": 2e-3, "group_size": 1}
# as many dimensions as the model's states: 128, of which agg's lexical part has 96
REPRESENTATIONS: dict[str, dict[str, Any]] = {
    "cls": {"representation": "cls", "l2_norm": False},
    "agg": {"representation": "agg", "cls_dim": 32, "agg_dim": 96, "l2_norm": False},
}


def cut(text: str) -> list[str]:
    """Cut a document's sentences into parts of about WORDS words each, at least two of them.

    >>> cut("One two three. Four five. Six.")
    ['One two three.', 'Four five. Six.']
    """
    sentences = [sentence for part in text.split("\n") for sentence in split_sentences(part)]
    counts = [len(sentence.split()) for sentence in sentences]
    parts = max(2, round(sum(counts) / WORDS))
    places, before = [], 0
    for count in counts:
        places.append((before + count / 2) * parts // max(1, sum(counts)))
        before += count
    grouped = groupby(zip(places, sentences, strict=True), key=lambda placed: placed[0])
    return [" ".join(sentence for _, sentence in group) for _, group in grouped]


def documents(corpora: Iterable[str]) -> Iterator[list[Passage]]:
    """Yield the documents of corpora, cut into passages."""
    for number, corpus in enumerate(corpora):
        for found in read_passages(corpus):
            if len(found.text.split()) >= LEAST:
                yield [
                    Passage(f"{number}-{found.docid}#{place}", text, found.title)
                    for place, text in enumerate(cut(found.text))
                ]


def sources(data: Path, *more: str) -> tuple[str, ...]:
    """Return the corpora, and other files."""
    names = [f"{name}/corpus.jsonl.gz" for name in ("squad", "nq-qed")]
    return tuple(str(data / name) for name in (*names, *more))


def write_texts(data: Path, work: Path) -> None:
    """Write the same passages one a line, and as spans of documents; slices and training data."""
    drawn = list(documents(sources(data)))
    random.Random(0).shuffle(drawn)
    chosen, room = [], STEPS * BATCH
    for document in drawn:
        if len(document) <= room:
            chosen.append(document)
            room -= len(document)
    write_passages(work / "passages.jsonl", chain.from_iterable(chosen), CorpusFormat.BEIR)
    spans = ({"spans": [p.text for p in document]} for document in chosen if len(document) > 1)
    lines = (orjson.dumps(each) + b"\n" for each in spans)
    (work / "documents.jsonl").write_bytes(b"".join(lines))
    prepare(COLLECTIONS, data, work, POOL, 0)


def train_start(data: Path, work: Path) -> None:
    """Train a masked language model from nothing."""
    new = {"objective": "mlm", "architecture": "tiny", "vocabulary_size": VOCABULARY}
    corpus = sources(data, "text/openstax.jsonl.gz")
    steps = {"max_steps": START_STEPS, "lr": START_RATE, "batch_size": BATCH, "max_length": LENGTH}
    output = {"output": work / START, "overwrite": True, "seed": 1}
    pretrain(corpus=corpus, **new, **steps, **output, **COMPUTE)


def continue_training(objective: str, seed: int, work: Path) -> None:
    """Pre-train further from the start."""
    spans, master = objective == "cocondenser", objective == "master"
    inputs = {
        "model": work / START,
        "corpus": work / ("documents.jsonl" if spans else "passages.jsonl"),
        "expansions": work / "expansions.jsonl" if master else None,
    }
    batch = BATCH // 2 if spans else BATCH
    steps = {"max_steps": STEPS, "lr": RATE, "batch_size": batch, "max_length": LENGTH}
    output = {"output": work / f"{objective}-{seed}", "overwrite": True, "seed": seed}
    pretrain(objective=objective, **inputs, **steps, **output, **COMPUTE)


def byte_pairs(texts: Iterable[str]) -> Any:
    """Train a tokenizer of byte pairs that ends each text."""
    pad, end = "<pad>", "</s>"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special: dict[str, Any] = {"special_tokens": [pad, end, "<unk>"], "initial_alphabet": alphabet}
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, **special)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, unk_token="<unk>"
    )


def train_writer(
    model: Any, rows: Sequence[Mapping[str, Any]], tokenizer: Any, collate: Any, output: Path
) -> None:
    """Train a model that writes expansions for MASTER, in bfloat16."""
    draw, optimizer = random.Random(1), torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, WRITER_STEPS // 10, WRITER_STEPS)
    for _ in range(WRITER_STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**collate(draw.sample(rows, BATCH))).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def train_writers(data: Path, work: Path) -> None:
    """Train a T5 that asks the questions of passages, and a GPT-2 that continues them."""
    pairs = []
    for collection in COLLECTIONS:
        source = data / collection.name
        text = {p.docid: f"{p.title} {p.text}" for p in read_passages(only(source, "corpus"))}
        asked = {query.qid: query.text for query in read_queries(only(source, "queries"))}
        for qid, judged in read_qrels_map(str(source / "qrels" / "train.tsv")).items():
            pairs += [(text[docid], asked[qid]) for docid in judged]
    tokenizer = byte_pairs(chain.from_iterable(pairs))
    passages, questions = (
        tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        for texts, longest in zip(zip(*pairs, strict=True), (WRITER_LENGTH, 24), strict=True)
    )
    rows = [{"input_ids": p, "labels": q} for p, q in zip(passages, questions, strict=True)]
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=len(tokenizer), **sizes, **special)  # type: ignore[arg-type]
    config.decoder_start_token_id = tokenizer.pad_token_id
    torch.manual_seed(1)
    asker = T5ForConditionalGeneration(config)
    train_writer(asker, rows, tokenizer, DataCollatorForSeq2Seq(tokenizer), work / "asker")
    texts = [p.text for d in documents(sources(data, "text/openstax.jsonl.gz")) for p in d]
    texts = random.Random(0).sample(texts, WRITER_STEPS * 32)
    tokenizer = byte_pairs(texts)
    rows = [
        {"input_ids": ids}
        for ids in tokenizer(texts, truncation=True, max_length=WRITER_LENGTH)["input_ids"]
    ]
    special = {f"{kind}_token_id": tokenizer.eos_token_id for kind in ("bos", "eos")}
    special["pad_token_id"] = tokenizer.pad_token_id
    sizes = {"n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": 256}
    gpt = GPT2Config(vocab_size=len(tokenizer), **sizes, **special)  # type: ignore[arg-type]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    train_writer(GPT2LMHeadModel(gpt), rows, tokenizer, collate, work / "continuer")


def generate_texts(work: Path) -> None:
    """Generate queries and continuations of the passages."""
    writers = {"queries_model": work / "asker", "continuation_model": work / "continuer"}
    lengths = {"query_max_tokens": 20, "continuation_max_tokens": 48, "passage_max_length": 80}
    output = {"output": work / "expansions.jsonl", "resume": True, "num_queries": 3}
    generate(corpus=work / "passages.jsonl", **writers, **lengths, **output, **COMPUTE)


def tune(name: str, work: Path) -> None:
    """Fine-tune a model, and write its runs."""
    pretrained, representation, seed = name.split("-")
    start = {RANDOM: f"{START}.training/start", START: START}.get(
        pretrained, f"{pretrained}-{seed}"
    )
    output = work / "models" / name
    if not finished(output):
        inputs = {"train_data": work / "train.jsonl", "corpus": work / "corpus"}
        made = {"model": work / start, "output": output, "overwrite": True, "seed": int(seed)}
        options = REPRESENTATIONS[representation]
        finetune(**inputs, **made, **options, **FINETUNING, **TEXT, **COMPUTE)
    retrieve(str(output), name, COLLECTIONS, work, **TEXT)


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Make the stages asked for, unless what they make is there, then print the table."""
    work.mkdir(parents=True, exist_ok=True)
    single = {
        "texts": ("train.jsonl", lambda: write_texts(data, work)),
        "start": (f"{START}/model.safetensors", lambda: train_start(data, work)),
        "writers": ("continuer/config.json", lambda: train_writers(data, work)),
        "expansions": ("expansions.jsonl", lambda: generate_texts(work)),
    }
    every = list(single)
    for seed in SEEDS:
        every += [f"{objective}-{seed}" for objective in OBJECTIVES]
        every += [f"{name}-{kind}-{seed}" for kind in REPRESENTATIONS for name in TUNED]
    for stage in names or every:
        if stage in single:
            made, make = single[stage]
            if not (work / made).exists():
                make()
        elif stage.count("-") == 2:
            tune(stage, work)
        elif not finished(work / stage):
            objective, _, seed_of = stage.partition("-")
            continue_training(objective, int(seed_of), work)
    systems = [f"{name}-{kind}" for kind in REPRESENTATIONS for name in TUNED]
    print_table(["bm25", *systems], COLLECTIONS, data, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
