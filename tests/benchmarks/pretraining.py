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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

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
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.records import Passage
from tests.benchmarks.studies import (
    COMPUTE,
    Collection,
    beir_file,
    finished,
    prepare,
    print_table,
    retrieve,
)

SEEDS = (1, 2, 3)
COLLECTIONS = (Collection("nq-qed", "dev", trained_on=True), Collection("squad", "dev"))
WORDS = 36  # of a passage, about
LEAST_WORDS = 30  # of a paragraph: shorter ones are left out
# controls: the random weights, and the shared start
RANDOM = "random"
START = "start"
OBJECTIVES = tuple(PretrainingObjective)
TUNED = (RANDOM, START, *OBJECTIVES)
VOCABULARY = 8000
BATCH = 32  # sequences of a step; coCondenser's are spans of half as many documents
START_STEPS = 1000
START_RATE = 2e-3
STEPS = 300
LENGTH = 64
RATE = 5e-4
WRITER_STEPS = 400
WRITER_LENGTH = 80
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
    sentences: list[str] = []
    for paragraph in text.split("\n"):
        sentences += split_sentences(paragraph)
    word_counts = [len(sentence.split()) for sentence in sentences]
    words = max(1, sum(word_counts))
    passage_count = max(2, round(sum(word_counts) / WORDS))
    passages: dict[int, list[str]] = {}
    words_before = 0
    for sentence, count in zip(sentences, word_counts, strict=True):
        middle = words_before + count / 2
        passages.setdefault(int(middle * passage_count // words), []).append(sentence)
        words_before += count
    return [" ".join(passage) for passage in passages.values()]


def documents(corpora: Iterable[str]) -> Iterator[list[Passage]]:
    """Yield the documents of corpora, cut into passages."""
    for number, corpus in enumerate(corpora):
        for paragraph in read_passages(corpus):
            if len(paragraph.text.split()) >= LEAST_WORDS:
                docid = f"{number}-{paragraph.docid}"
                yield [
                    Passage(f"{docid}#{position}", text, paragraph.title)
                    for position, text in enumerate(cut(paragraph.text))
                ]


def sources(data: Path, *further_files: str) -> tuple[str, ...]:
    """Return the corpora, and other files."""
    files = ("squad/corpus.jsonl.gz", "nq-qed/corpus.jsonl.gz", *further_files)
    return tuple(str(data / file) for file in files)


def write_texts(data: Path, work: Path) -> None:
    """Write the same passages one a line, and as spans of documents; slices and training data."""
    shuffled = list(documents(sources(data)))
    random.Random(0).shuffle(shuffled)
    selected: list[list[Passage]] = []
    passages_left = STEPS * BATCH
    for document in shuffled:
        if len(document) <= passages_left:
            selected.append(document)
            passages_left -= len(document)
    write_passages(work / "passages.jsonl", chain.from_iterable(selected), CorpusFormat.BEIR)
    with (work / "documents.jsonl").open("wb") as file:
        for document in selected:
            if len(document) > 1:
                spans = [passage.text for passage in document]
                file.write(orjson.dumps({"spans": spans}) + b"\n")
    prepare(COLLECTIONS, data, work, POOL, 0)


def train_start(data: Path, work: Path) -> None:
    """Train a masked language model from nothing."""
    pretrain(
        objective="mlm",
        architecture="tiny",
        vocabulary_size=VOCABULARY,
        corpus=sources(data, "text/openstax.jsonl.gz"),
        max_steps=START_STEPS,
        lr=START_RATE,
        batch_size=BATCH,
        max_length=LENGTH,
        output=work / START,
        overwrite=True,
        seed=1,
        **COMPUTE,
    )


def continue_training(objective: str, seed: int, work: Path) -> None:
    """Pre-train further from the start."""
    corpus = work / "passages.jsonl"
    batch_size = BATCH
    expansions = None
    if objective == "cocondenser":
        corpus = work / "documents.jsonl"
        batch_size = BATCH // 2
    if objective == "master":
        expansions = work / "expansions.jsonl"
    pretrain(
        objective=objective,
        model=work / START,
        corpus=corpus,
        expansions=expansions,
        max_steps=STEPS,
        lr=RATE,
        batch_size=batch_size,
        max_length=LENGTH,
        output=work / f"{objective}-{seed}",
        overwrite=True,
        seed=seed,
        **COMPUTE,
    )


def byte_pairs(texts: Iterable[str]) -> Any:
    """Train a tokenizer of byte pairs that ends each text."""
    pad = "<pad>"
    end = "</s>"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        special_tokens=[pad, end, "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
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
    draw = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
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


def train_query_writer(data: Path, work: Path) -> None:
    """Train a T5 that asks the questions of passages."""
    passages, questions = passages_with_questions(data)
    tokenizer = byte_pairs(chain.from_iterable(zip(passages, questions, strict=True)))
    passage_ids = tokenizer(passages, truncation=True, max_length=WRITER_LENGTH)["input_ids"]
    question_ids = tokenizer(questions, truncation=True, max_length=24)["input_ids"]
    rows = [
        {"input_ids": input_ids, "labels": labels}
        for input_ids, labels in zip(passage_ids, question_ids, strict=True)
    ]
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=2,
        num_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config.decoder_start_token_id = tokenizer.pad_token_id
    torch.manual_seed(1)
    model = T5ForConditionalGeneration(config)
    train_writer(model, rows, tokenizer, DataCollatorForSeq2Seq(tokenizer), work / "asker")


def passages_with_questions(data: Path) -> tuple[list[str], list[str]]:
    """Return the judged passages of the training splits, and the question of each."""
    passages: list[str] = []
    questions: list[str] = []
    for collection in COLLECTIONS:
        source = data / collection.name
        text_by_docid = {
            passage.docid: f"{passage.title} {passage.text}"
            for passage in read_passages(beir_file(source, "corpus"))
        }
        queries = {query.qid: query.text for query in read_queries(beir_file(source, "queries"))}
        for qid, judged in read_qrels_map(str(source / "qrels" / "train.tsv")).items():
            for docid in judged:
                passages.append(text_by_docid[docid])
                questions.append(queries[qid])
    return passages, questions


def train_continuation_writer(data: Path, work: Path) -> None:
    """Train a GPT-2 that continues passages."""
    texts: list[str] = []
    for document in documents(sources(data, "text/openstax.jsonl.gz")):
        texts += [passage.text for passage in document]
    texts = random.Random(0).sample(texts, WRITER_STEPS * 32)
    tokenizer = byte_pairs(texts)
    token_ids = tokenizer(texts, truncation=True, max_length=WRITER_LENGTH)["input_ids"]
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=128,
        n_layer=2,
        n_head=2,
        n_positions=256,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    rows = [{"input_ids": ids} for ids in token_ids]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    train_writer(GPT2LMHeadModel(config), rows, tokenizer, collate, work / "continuer")


def train_writers(data: Path, work: Path) -> None:
    """Train the two models that write MASTER's expansions."""
    train_query_writer(data, work)
    train_continuation_writer(data, work)


def generate_texts(work: Path) -> None:
    """Generate queries and continuations of the passages."""
    generate(
        corpus=work / "passages.jsonl",
        queries_model=work / "asker",
        continuation_model=work / "continuer",
        query_max_tokens=20,
        continuation_max_tokens=48,
        passage_max_length=80,
        num_queries=3,
        output=work / "expansions.jsonl",
        resume=True,
        **COMPUTE,
    )


def tune(name: str, work: Path) -> None:
    """Fine-tune a model, and write its runs."""
    pretrained, representation, seed = name.split("-")
    if pretrained == RANDOM:
        model = work / f"{START}.training" / "start"
    elif pretrained == START:
        model = work / START
    else:
        model = work / f"{pretrained}-{seed}"
    output = work / "models" / name
    if not finished(output):
        finetune(
            model=model,
            train_data=work / "train.jsonl",
            corpus=work / "corpus",
            output=output,
            overwrite=True,
            seed=int(seed),
            **REPRESENTATIONS[representation],
            **FINETUNING,
            **TEXT,
            **COMPUTE,
        )
    retrieve(str(output), name, COLLECTIONS, work, **TEXT)


class SharedStage(NamedTuple):
    """A stage that all seeds share: its last file, and what makes it."""

    file: str
    make: Callable[[], None]


def main(data: Path, work: Path, requested_stages: Sequence[str]) -> None:
    """Make the stages that are requested, unless what they make is there, then print the table."""
    work.mkdir(parents=True, exist_ok=True)
    shared_stages = {
        "texts": SharedStage("train.jsonl", lambda: write_texts(data, work)),
        "start": SharedStage(f"{START}/model.safetensors", lambda: train_start(data, work)),
        "writers": SharedStage("continuer/config.json", lambda: train_writers(data, work)),
        "expansions": SharedStage("expansions.jsonl", lambda: generate_texts(work)),
    }
    systems = [
        f"{pretrained}-{representation}"
        for representation, pretrained in product(REPRESENTATIONS, TUNED)
    ]
    stages = list(shared_stages)
    for seed in SEEDS:
        stages += [f"{objective}-{seed}" for objective in OBJECTIVES]
        stages += [f"{system}-{seed}" for system in systems]
    for stage in requested_stages or stages:
        if stage in shared_stages:
            if not (work / shared_stages[stage].file).exists():
                shared_stages[stage].make()
        elif stage.count("-") == 2:
            tune(stage, work)
        elif not finished(work / stage):
            objective, _, seed_text = stage.partition("-")
            continue_training(objective, int(seed_text), work)
    print_table(["bm25", *systems], COLLECTIONS, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
