"""Alignment of a student with a teacher's vectors."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import List, Value
from torch import nn

from denserk.config import encoding, recorded
from denserk.config.finetuning import FinetuneRun
from denserk.config.options import as_json
from denserk.data.batches import plan
from denserk.data.pretraining_data import split_sentences
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_data import SentenceStore, write_sentences
from denserk.errors import UsageError
from denserk.io.corpus import read_passages
from denserk.io.model_files import find_model
from denserk.io.topics import read_queries
from denserk.models import model_folder, saving
from denserk.models.backbone import STATIC, StaticConfig, without_special_tokens
from denserk.models.text_encoder import QUERY, TextEncoder
from denserk.records import Query
from denserk.reporting import track
from denserk.training import run_folder
from denserk.training.preparation import BLOCK, prepare_sentences
from denserk.training.steps import sentence_step
from denserk.training.trainer import Training


def alignment_training(run: FinetuneRun) -> Training:
    """Load the teacher and the student of a run; a student of other dimensions is projected.

    The student learns the teacher's query vectors, to search an index that exists faster: "Query
    Encoder Distillation via Embedding Alignment is a Strong Baseline Method to Boost Dense
    Retriever Online Efficiency" (Wang and Lyu, 2023).
    """
    if run.finetune.teacher is None:
        raise UsageError("--objective align needs --teacher, whose query vectors are learned")
    compute = encoding.ComputeSettings(device=run.finetune.device)
    teacher = TextEncoder(run.finetune.teacher, compute=compute)
    name, stored, tokenizer = read_student(run.finetune.model, teacher)
    start = stored.query.keep_layers(run.finetune.keep_layers)
    # a query has one vector, whatever passages have
    usual = {"l2_norm": teacher.representation.l2_norm, "layers": (), "reduction": "average"}
    chosen = model_folder.override(stored.representation, {**usual, **run.representation})
    encoder = start.build(chosen, train=True)
    if encoder.dimension != teacher.dimension:
        chosen = model_folder.override(chosen, {"projection": teacher.dimension})
        encoder = start.build(chosen, train=True)
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):  # vectors with noise are not the teacher's
            module.p = 0.0
    texts = model_folder.fit_lengths(stored.text, run.text, start.max_length)
    own = TextTokenizer(tokenizer, texts)
    described = {key: teacher.description()[key] for key in model_folder.TEACHER}
    # a folder without the folders of this machine: the fingerprint tells whose vectors they are
    public = {**described, "name": recorded.public_name(teacher.name, Path(teacher.name).parent)}

    def save(folder: Path) -> None:
        saving.save_model(folder, encoder, tokenizer, texts, base=name, queries_of=public)

    def load(folder: Path) -> None:
        saved = model_folder.read_model_folder(folder)
        encoder.load_state_dict(saved.query.build(saved.representation).state_dict())

    tokenize = partial(prepare_alignment, run, own, teacher)
    prepare = partial(prepare_sentences, run, encoder, tokenize)
    step = partial(sentence_step, encoder, run.objective, run.cache)
    resolved = {"representation": as_json(chosen), "text": as_json(texts), "teacher": described}
    return Training(encoder, step, save, load, prepare, resolved)


def read_student(model: str, teacher: TextEncoder) -> tuple[str, model_folder.StoredModel, Any]:
    """Return name, model and tokenizer to start from; static ones have the teacher's of tokens."""
    if model != STATIC:
        name, folder = find_model(model)
        stored = model_folder.read_model_folder(folder)
        return name, stored, stored.load_tokenizer(stored.query.folder)
    of_teacher = model_folder.read_model_folder(find_model(teacher.name)[1])
    folder = of_teacher.query.folder
    tokenizer = of_teacher.load_tokenizer(folder)
    encoder, _ = teacher.sides[QUERY]
    tokenizer.backend_tokenizer.no_padding()
    text = tokenizer.backend_tokenizer.encode("a")
    first, last = (text.sequence_ids[::step].index(0) for step in (1, -1))
    before, after = text.ids[:first], text.ids[len(text.ids) - last :]
    count = encoder.backbone.config.vocab_size
    planned = plan([[*before, token, *after] for token in range(count)], 0, teacher.batch_tokens)
    with track("encoding single tokens", count, "tokens") as progress:
        vectors = teacher.encode_planned(QUERY, planned, progress.advance)
    config = StaticConfig(vocab_size=count, hidden_size=teacher.dimension)
    weights = {"embedding.weight": torch.from_numpy(vectors)}
    start = model_folder.StoredEncoder(folder, config, weights, {})
    pooling = encoding.RepresentationSettings(encoding.Representation.MEAN)
    stored = model_folder.StoredModel(folder, start, start, pooling, teacher.text)
    return STATIC, stored, without_special_tokens(tokenizer)


def prepare_alignment(
    run: FinetuneRun,
    tokenizer: TextTokenizer,
    teacher: TextEncoder,
    sources: Sequence[str],
    folder: Path,
    *,
    again: bool,
) -> SentenceStore:
    """Tokenise queries, to train also the sentences of --corpus, and encode them by the teacher."""
    fields = teacher.text.fields
    corpus = run.finetune.corpus if folder.name == run_folder.DATA else None

    def texts() -> Iterator[Query]:
        for source in sources:
            yield from read_queries(source)
        for passage in read_passages(corpus, run.corpus, fields) if corpus else ():
            for part in map(passage.field, fields):
                yield from (Query(passage.docid, text) for text in split_sentences(part))

    def rows() -> Iterator[dict[str, Any]]:
        left = texts()
        with track("encoding by the teacher", None, "queries") as progress:
            while block := list(islice(left, BLOCK)):
                vectors = teacher.encode_queries(block)
                for ids, vector in zip(tokenizer.queries(block), vectors, strict=True):
                    yield {"input_ids": ids, "label": vector}
                progress.advance(len(block))

    settings = {"size": 1, "corpus": as_json(run.corpus), "teacher": teacher.description()}
    inputs, label = {"file": sources, "corpus": corpus}, List(Value("float32"), teacher.dimension)
    return write_sentences(folder, tokenizer, settings, inputs, label, rows, again=again)
