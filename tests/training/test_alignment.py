from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from denserk.config.encoding import ComputeSettings, ModelLayout
from denserk.config.training import DevMetric, Objective
from denserk.data.batches import pad
from denserk.data.tokenization import load_tokenizer
from denserk.data.training_data import SentenceStore
from denserk.errors import MismatchError, ModelError, UsageError
from denserk.models.layouts import convert_model
from denserk.models.model_folder import read_model_folder
from denserk.models.text_encoder import TextEncoder
from denserk.records import Query
from denserk.training.trainer import Trainer
from tests.support.faults import Stopped, stopped_at
from tests.support.finetuning import log_of, tune, weights
from tests.support.toy import PASSAGES
from tests.support.training_examples import words

ALIGN: dict[str, Any] = {"objective": Objective.ALIGN, "group_size": 8}
TEACHERS: dict[str, dict[str, Any]] = {
    "mean": {"representation": "mean", "l2_norm": True},
    "agg": {},
    "mlr": {"representation": "mlr", "layers": (1, 2), "reduction": "multi-vector"},
}
TEXTS = [words(number, 2 + number % 4) for number in range(50)]


def write_queries(path, numbers):
    path.write_text("".join(f"{number}\t{TEXTS[number]}\n" for number in numbers))
    return str(path)


@pytest.fixture
def queries(tmp_path):
    """Forty queries to train on."""
    return write_queries(tmp_path / "train.tsv", range(40))


@pytest.fixture
def dev_queries(tmp_path):
    """Ten other queries."""
    return write_queries(tmp_path / "dev.tsv", range(40, 50))


@pytest.fixture
def teacher_of(tiny, tiny_agg, tmp_path):
    """`teacher_of("mean")`: the folder of a teacher of a representation."""

    def teacher_folder(representation):
        source = tiny_agg() if representation == "agg" else tiny()
        folder = tmp_path / representation
        convert_model(str(source), folder, ModelLayout.DENSERK, TEACHERS[representation])
        return str(folder)

    return teacher_folder


@pytest.fixture
def teacher(teacher_of):
    return teacher_of("mean")


def align(output, model, teacher, queries, **options):
    return tune(output, model, queries, **{**ALIGN, "teacher": teacher, **options})


def vectors_of(folder, texts):
    encoder = TextEncoder(str(folder), compute=ComputeSettings(device="cpu"))
    return encoder.encode_queries([Query("", text) for text in texts])


def cosines(vectors, other_vectors):
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(other_vectors, axis=1)
    return (vectors * other_vectors).sum(1) / norms


@pytest.mark.parametrize(
    ("representation", "start", "keep_layers"),
    [
        ("mean", "teacher", (1,)),
        ("agg", "another backbone", ()),
        ("mlr", "teacher", (1,)),
        ("mean", "static", ()),
    ],
)
def test_a_student_searches_the_index_of_its_teacher(
    tiny,
    teacher_of,
    toy,
    queries,
    dev_queries,
    denserk,
    tmp_path,
    representation,
    start,
    keep_layers,
):
    teacher = teacher_of(representation)
    student = tmp_path / "student"
    starts = {"teacher": teacher, "another backbone": tiny("distilbert"), "static": "static"}
    result = align(
        student,
        starts[start],
        teacher,
        queries,
        max_steps=80,
        keep_layers=keep_layers,
        dev_data=dev_queries,
        best_by=DevMetric.COSINE,
        eval_steps=20,
    )
    losses = [entry["loss"] for entry in log_of(student) if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]
    student_vectors = vectors_of(student, TEXTS[40:])
    teacher_vectors = vectors_of(teacher, TEXTS[40:])
    mean_cosine = cosines(student_vectors, teacher_vectors).mean()
    assert mean_cosine == pytest.approx(result.best, abs=1e-4)

    def succeeds(command, options, *flags):
        status, _ = denserk(command, options, *flags)
        return status == 0

    index = {"model": teacher, "corpus": toy / "corpus.jsonl", "output": toy / "index"}
    topics = {"model": student, "topics": toy / "queries.tsv"}
    search = {"index": toy / "index", "output": toy / "run.trec"}
    assert succeeds("encode", index)
    assert succeeds("search", search | topics)
    assert succeeds("encode", topics | {"output": toy / "query-vectors"})
    assert succeeds("search", search | {"encoded-queries": toy / "query-vectors"}, "--overwrite")


def test_a_student_searches_no_other_index(tiny, teacher, toy, queries, denserk, tmp_path):
    student = tmp_path / "student"
    align(student, teacher, teacher, queries, max_steps=1)
    search = {
        "index": toy / "index",
        "output": toy / "run.trec",
        "model": student,
        "topics": toy / "queries.tsv",
    }
    index = {"model": teacher, "corpus": toy / "corpus.jsonl", "output": toy / "index"}
    for change in ({"representation": "max"}, {"model": tiny(seed=8)}):
        status, _ = denserk("encode", index | change, "--overwrite")
        assert status == 0
        status, printed = denserk("search", search, "--overwrite")
        assert status == 1
        assert "were encoded differently" in printed


def test_a_student_encodes_no_corpus_and_names_its_teacher(
    teacher, toy, queries, denserk, tmp_path
):
    student = tmp_path / "student"
    align(student, teacher, teacher, queries, max_steps=1)
    status, printed = denserk(
        "encode", {"model": student, "corpus": toy / "corpus.jsonl", "output": toy / "index"}
    )
    assert status == 2
    # its name alone: a model that is published names no folder of this machine
    assert "encode the corpus with --model mean" in printed
    convert_model(str(student), tmp_path / "copy", ModelLayout.DENSERK)
    queries_of = read_model_folder(student).queries_of
    assert queries_of is not None
    assert read_model_folder(tmp_path / "copy").queries_of == queries_of


def test_a_static_student_is_the_mean_of_its_tokens(tiny, teacher, queries, tmp_path):
    padding_tokenizer = load_tokenizer(tiny())
    padding_tokenizer.backend_tokenizer.enable_padding(length=9)  # as MiniLM's file has it
    padding_tokenizer.backend_tokenizer.save(f"{teacher}/tokenizer.json")
    student = tmp_path / "student"
    align(student, "static", teacher, queries, max_steps=1, lr=1e-9)
    tokens = ["river", "moon", "cat"]
    token_vectors = vectors_of(student, tokens)
    np.testing.assert_allclose(token_vectors, vectors_of(teacher, tokens), atol=1e-5)
    table = load_file(student / "model.safetensors")["embedding.weight"].numpy()
    mean = table[load_tokenizer(tiny()).convert_tokens_to_ids(tokens)].mean(0)
    vectors = vectors_of(student, [" ".join(tokens), ""])
    np.testing.assert_allclose(vectors, [mean / np.linalg.norm(mean), 0 * mean], atol=1e-6)


@pytest.mark.peer
def test_sentence_transformers_open_a_static_student(teacher, queries, tmp_path):
    peer = pytest.importorskip("sentence_transformers")
    align(tmp_path / "student", "static", teacher, queries, max_steps=1)
    model = peer.SentenceTransformer(str(tmp_path / "student"), device="cpu")
    assert type(model[0]).__name__ == "StaticEmbedding"
    expected = vectors_of(tmp_path / "student", TEXTS)
    np.testing.assert_allclose(model.encode_query(TEXTS), expected, atol=1e-6)


def test_the_vectors_of_queries_and_of_a_corpus_sentences_are_learned(
    teacher_of, toy, queries, tmp_path
):
    teacher = teacher_of("agg")
    corpus = str(toy / "corpus.jsonl")
    align(
        tmp_path / "student", teacher, teacher, queries, corpus=corpus, max_steps=1, batch_size=60
    )
    texts = TEXTS[:40]
    for title, text in PASSAGES.values():
        texts += [field for field in (title, text) if field]
    store = SentenceStore(tmp_path / "student.training" / "training-data")
    np.testing.assert_allclose(store.labels[:], vectors_of(teacher, texts), atol=1e-5)
    [entry] = [entry for entry in log_of(tmp_path / "student") if "loss_align" in entry]
    assert entry["loss_align"] == pytest.approx(0, abs=1e-8)  # the student is the teacher


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("bert", (1,)), ("roberta", (0,)), ("distilbert", (1,)), ("modernbert", (0, 3))],
)
def test_a_backbone_of_some_layers_is_one_whose_other_layers_pass_states_on(tiny, kind, numbers):
    stored = read_model_folder(tiny(kind)).query
    smaller = stored.keep_layers(numbers).backbone()
    whole = stored.backbone()
    for number, layer in enumerate(whole.encoder.get_submodule(whole.architecture.layers)):
        if number not in numbers:
            layer.forward = lambda states, *_, **__: states
    batch = pad([[2, 9, 14, 3], [2, 17, 3]], 0)
    with torch.no_grad():
        torch.testing.assert_close(smaller(batch), whole(batch))


def test_resumed_is_uninterrupted(teacher, teacher_of, queries, tmp_path):
    options = {"keep_layers": (0,)}
    align(tmp_path / "whole", teacher, teacher, queries, **options)
    with stopped_at(6, [(Trainer, "training_step")]), pytest.raises(Stopped):
        align(tmp_path / "cut", teacher, teacher, queries, **options)
    with pytest.raises(MismatchError, match=r"teacher\.fingerprint was"):
        align(tmp_path / "cut", teacher, teacher_of("agg"), queries, **options, resume=True)
    align(tmp_path / "cut", teacher, teacher, queries, **options, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"teacher": None}, "needs --teacher"),
        ({"keep_layers": (0, 2)}, "the layers 0 to 1"),
        ({"keep_layers": (1,), "model": "static"}, "no layers to choose from, as a static"),
        ({"objective": Objective.TRIPLET}, "--teacher: not used by triplet"),
    ],
    ids=str,
)
def test_rejected(teacher, queries, tmp_path, options, phrase):
    usual = {"model": teacher, "teacher": teacher, "queries": queries}
    with pytest.raises((ModelError, UsageError), match=phrase):
        align(tmp_path / "student", **{**usual, **options})
    assert not (tmp_path / "student").exists()
