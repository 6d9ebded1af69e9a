"""Alignment of a student with a teacher's vectors."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import List, Value
from torch import nn

from denserk.config import encoding, recorded
from denserk.config.finetuning import FinetuneRun
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.data.batches import plan
from denserk.data.sentences import split_sentences
from denserk.data.tokenization import TextTokenizer, special_tokens_around
from denserk.data.training_data import SentenceStore, write_sentences
from denserk.errors import UsageError
from denserk.io.corpus import read_passages
from denserk.io.model_files import find_model
from denserk.io.topics import read_queries
from denserk.models import model_folder, saving
from denserk.models.backbone import STATIC, StaticConfig, without_special_tokens
from denserk.models.model_card import Origin, origin_of
from denserk.models.text_encoder import QUERY, TextEncoder
from denserk.records import Query
from denserk.reporting import track
from denserk.training import run_folder
from denserk.training.preparation import prepare_sentences
from denserk.training.steps import sentence_step
from denserk.training.trainer import Training

BLOCK = 4096  # queries that a teacher encodes at once


def alignment_training(run: FinetuneRun) -> Training:
    """Load the teacher and the student of a run; a student of other dimensions is projected.

    The student learns the teacher's query vectors, to search an index that exists faster: "Query
    Encoder Distillation via Embedding Alignment is a Strong Baseline Method to Boost Dense
    Retriever Online Efficiency" (Wang and Lyu, 2023).
    """
    if run.finetune.teacher is None:
        raise UsageError("--objective align needs --teacher, whose query vectors are learned")
    compute = encoding.ComputeSettings(
        device=run.finetune.device, dtype=encoding.DtypeChoice.FLOAT32
    )
    teacher = TextEncoder(run.finetune.teacher, compute=compute)
    student = TrainedStudent(run, teacher)
    encoder = student.encoder
    tokenize = partial(prepare_alignment, run, student.tokenizer, teacher)
    return Training(
        encoder,
        step=partial(sentence_step, encoder, run.objective, run.cache),
        save=student.save,
        load=student.load,
        prepare=partial(prepare_sentences, run, encoder, tokenize),
        resolved={
            "representation": as_json(student.representation),
            "text": as_json(student.text),
            "teacher": student.teacher,
        },
    )


class TrainedStudent:
    """An encoder of queries that learns a teacher's vectors, and saves itself as a model folder."""

    def __init__(self, run: FinetuneRun, teacher: TextEncoder) -> None:
        start = read_student(run.finetune.model, teacher)
        self._origin = start.origin
        self._license = run.optimizer.license
        self._tokenizer = start.tokenizer
        stored_encoder = start.stored.query.keep_layers(run.finetune.keep_layers)
        # a query has one vector, whatever passages have
        overrides = {
            "l2_norm": teacher.representation.l2_norm,
            "layers": (),
            "reduction": "average",
            **run.representation,
        }
        self.representation = model_folder.override(start.stored.representation, overrides)
        self.encoder = stored_encoder.build(self.representation, train=True)
        if self.encoder.dimension != teacher.dimension:
            projection = {"projection": teacher.dimension}
            self.representation = model_folder.override(self.representation, projection)
            self.encoder = stored_encoder.build(self.representation, train=True)
        turn_off_dropout(self.encoder)
        longest = stored_encoder.max_length
        self.text = model_folder.fit_lengths(start.stored.text, run.text, longest)
        self.tokenizer = TextTokenizer(self._tokenizer, self.text)
        description = teacher.description()
        self.teacher = {key: description[key] for key in model_folder.TEACHER}

    def save(self, folder: Path) -> None:
        """Write a model folder, which records whose queries it encodes."""
        # without the folders above the teacher's: its fingerprint tells whose vectors they are
        name = self.teacher["name"]
        public_name = recorded.public_name(name, Path(name).parent)
        saving.save_model(
            folder,
            self.encoder,
            self._tokenizer,
            self.text,
            base=self._origin,
            license_id=self._license,
            queries_of={**self.teacher, "name": public_name},
        )

    def load(self, folder: Path) -> None:
        """Read the weights of a model folder back."""
        saved = model_folder.read_model_folder(folder)
        self.encoder.load_state_dict(saved.query.build(saved.representation).state_dict())


def turn_off_dropout(encoder: nn.Module) -> None:
    """Turn dropout off, in training too: vectors with noise are not the teacher's."""
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


class StudentStart(NamedTuple):
    """What a student starts from."""

    origin: Origin
    stored: model_folder.StoredModel
    tokenizer: Any


def read_student(model: str, teacher: TextEncoder) -> StudentStart:
    """Return what a student starts from: a model, or a new static one."""
    if model == STATIC:
        return static_student(teacher)
    name, folder = find_model(model)
    stored = model_folder.read_model_folder(folder)
    tokenizer = stored.load_tokenizer(stored.query.folder)
    return StudentStart(origin_of(name, folder), stored, tokenizer)


def static_student(teacher: TextEncoder) -> StudentStart:
    """Return a static model: a table of the teacher's vectors of single tokens."""
    name, teacher_folder = find_model(teacher.name)
    teacher_model = model_folder.read_model_folder(teacher_folder)
    folder = teacher_model.query.folder
    tokenizer = teacher_model.load_tokenizer(folder)
    encoder, _ = teacher.sides[QUERY]
    token_count = encoder.backbone.config.vocab_size
    before, after = special_tokens_around(tokenizer)
    token_texts = [[*before, token, *after] for token in range(token_count)]
    planned = plan(token_texts, 0, teacher.batch_tokens)
    with track("encoding single tokens", token_count, "tokens") as progress:
        vectors = teacher.encode_planned(QUERY, planned, progress.advance)
    config = StaticConfig(vocab_size=token_count, hidden_size=teacher.dimension)
    weights = {"embedding.weight": torch.from_numpy(vectors)}
    stored_encoder = model_folder.StoredEncoder(folder, config, weights, heads={})
    pooling = encoding.RepresentationSettings(encoding.Representation.MEAN)
    stored = model_folder.StoredModel(folder, stored_encoder, stored_encoder, pooling, teacher.text)
    origin = origin_of(name, teacher_folder)
    return StudentStart(origin, stored, without_special_tokens(tokenizer))


def prepare_alignment(
    run: FinetuneRun,
    tokenizer: TextTokenizer,
    teacher: TextEncoder,
    sources: Sequence[str],
    folder: Path,
    *,
    replace_outdated: bool,
) -> SentenceStore:
    """Tokenise queries, and encode them by the teacher; training data has also --corpus' sentences.

    `sources` are files of queries, `folder` is the one of training data or of held-out data.
    """
    is_training_data = folder.name == run_folder.DATA
    corpus = run.finetune.corpus if is_training_data else None
    fields = teacher.text.fields

    def read_texts() -> Iterator[Query]:
        for source in sources:
            yield from read_queries(source)
        if corpus is not None:
            yield from corpus_sentences(corpus, run.corpus, fields)

    return write_sentences(
        folder,
        tokenizer,
        {"size": 1, "corpus": as_json(run.corpus), "teacher": teacher.description()},
        {"file": sources, "corpus": corpus},
        List(Value("float32"), teacher.dimension),
        lambda: alignment_rows(read_texts(), tokenizer, teacher),
        replace_outdated=replace_outdated,
    )


def corpus_sentences(corpus: str, format: CorpusSettings, fields: Sequence[str]) -> Iterator[Query]:
    """Yield the sentences of a corpus, each as a query with its passage's id."""
    for passage in read_passages(corpus, format, fields):
        for name in fields:
            for sentence in split_sentences(passage.field(name)):
                yield Query(passage.docid, sentence)


def alignment_rows(
    texts: Iterator[Query], tokenizer: TextTokenizer, teacher: TextEncoder
) -> Iterator[dict[str, Any]]:
    """Yield the student's token ids of each text, and the teacher's vector of it."""
    with track("encoding by the teacher", None, "queries") as progress:
        while block := list(islice(texts, BLOCK)):
            vectors = teacher.encode_queries(block)
            for ids, vector in zip(tokenizer.queries(block), vectors, strict=True):
                yield {"input_ids": ids, "label": vector}
            progress.advance(len(block))
