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


@pytest.fixture
def queries(tmp_path):
    """Forty queries; beside them dev.tsv, ten others."""
    for name, numbers in (("train", range(40)), ("dev", range(40, 50))):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{n}\t{TEXTS[n]}\n" for n in numbers))
    return str(tmp_path / "train.tsv")


@pytest.fixture
def teacher(tiny, tiny_agg, tmp_path):

    def folder(made="mean"):
        source = str(tiny_agg() if made == "agg" else tiny())
        convert_model(source, tmp_path / made, ModelLayout.DENSERK, TEACHERS[made])
        return str(tmp_path / made)

    return folder


def align(output, model, teacher, queries, **options):
    return tune(output, model, queries, **{**ALIGN, "teacher": teacher, **options})


def vectors_of(folder, *texts):
    encoder = TextEncoder(str(folder), compute=ComputeSettings(device="cpu"))
    return encoder.encode_queries([Query("", text) for text in texts])


@pytest.mark.parametrize("case", ["mean-layers", "agg-other", "mlr-layers", "mean-static"])
def test_a_student_searches_the_index_of_its_teacher(
    tiny, teacher, toy, queries, denserk, tmp_path, case
):
    made, _, kind = case.partition("-")
    of, path = teacher(made), tmp_path / "student"
    model = {"layers": of, "other": tiny("distilbert"), "static": "static"}[kind]
    measured = {"dev_data": queries.replace("train", "dev"), "best_by": DevMetric.COSINE}
    result = align(
        path,
        model,
        of,
        queries,
        max_steps=80,
        eval_steps=20,
        keep_layers=(1,) * (kind == "layers"),
        **measured,
    )
    losses = [entry["loss"] for entry in log_of(path) if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]
    found, expected = (vectors_of(folder, *TEXTS[40:]) for folder in (path, of))
    found, expected = (each / np.linalg.norm(each, axis=1)[:, None] for each in (found, expected))
    assert (found * expected).sum(1).mean() == pytest.approx(result.best, abs=1e-4)
    encode = {"model": of, "corpus": toy / "corpus.jsonl", "output": toy / "v"}
    assert denserk("encode", encode)[0] == 0
    search = {"index": toy / "v", "output": toy / "run.trec"}
    asked = {"model": path, "topics": toy / "queries.tsv"}
    assert denserk("search", search | asked)[0] == 0
    assert denserk("encode", asked | {"output": toy / "q"})[0] == 0
    assert denserk("search", search | {"encoded-queries": toy / "q"}, "--overwrite")[0] == 0
    for changed in ({"representation": "max"}, {"model": tiny(seed=8)}) if made == "mean" else ():
        assert denserk("encode", encode | changed, "--overwrite")[0] == 0
        status, printed = denserk("search", search | asked, "--overwrite")
        assert (status, "were encoded differently" in printed) == (1, True)
    status, printed = denserk("encode", encode | {"model": path}, "--overwrite")
    # its name alone: a model that is published names no folder of this machine
    assert (status, f"encode the corpus with --model {made}" in printed) == (2, True)
    convert_model(str(path), tmp_path / "copy", ModelLayout.DENSERK)
    kept = [read_model_folder(folder).queries_of for folder in (path, tmp_path / "copy")]
    assert kept[0] == kept[1] is not None


def test_a_static_student_is_the_mean_of_its_tokens(tiny, teacher, queries, tmp_path):
    of, path, padding = teacher(), tmp_path / "m", load_tokenizer(tiny())
    padding.backend_tokenizer.enable_padding(length=9)  # as MiniLM's file has it
    padding.backend_tokenizer.save(f"{of}/tokenizer.json")
    align(path, "static", of, queries, max_steps=1, lr=1e-9)
    tokens = ["river", "moon", "cat"]
    np.testing.assert_allclose(vectors_of(path, *tokens), vectors_of(of, *tokens), atol=1e-5)
    table = load_file(path / "model.safetensors")["embedding.weight"].numpy()
    mean = table[load_tokenizer(tiny()).convert_tokens_to_ids(tokens)].mean(0)
    found = vectors_of(path, " ".join(tokens), "")
    np.testing.assert_allclose(found, [mean / np.linalg.norm(mean), 0 * mean], atol=1e-6)


@pytest.mark.peer
def test_sentence_transformers_open_a_static_student(teacher, queries, tmp_path):
    peer = pytest.importorskip("sentence_transformers")
    align(tmp_path / "m", "static", teacher(), queries, max_steps=1)
    model = peer.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert type(model[0]).__name__ == "StaticEmbedding"
    expected = vectors_of(tmp_path / "m", *TEXTS)
    np.testing.assert_allclose(model.encode_query(TEXTS), expected, atol=1e-6)


def test_what_is_learned(teacher, toy, queries, tmp_path):
    of, corpus = teacher("agg"), str(toy / "corpus.jsonl")
    align(tmp_path / "m", of, of, queries, corpus=corpus, max_steps=1, batch_size=60)
    store = SentenceStore(tmp_path / "m.training" / "training-data")
    texts = TEXTS[:40] + [part for passage in PASSAGES.values() for part in passage if part]
    np.testing.assert_allclose(store.labels[:], vectors_of(of, *texts), atol=1e-5)
    (entry,) = [each for each in log_of(tmp_path / "m") if "loss_align" in each]
    assert entry["loss_align"] == pytest.approx(0, abs=1e-8)  # the student is the teacher


@pytest.mark.parametrize(
    ("kind", "kept"),
    [("bert", (1,)), ("roberta", (0,)), ("distilbert", (1,)), ("modernbert", (0, 3))],
)
def test_layers_are_kept(tiny, kind, kept):
    stored, batch = read_model_folder(tiny(kind)).query, pad([[2, 9, 14, 3], [2, 17, 3]], 0)
    some, whole = stored.keep_layers(kept).backbone(), stored.backbone()
    for number, layer in enumerate(whole.encoder.get_submodule(whole.architecture.layers)):
        if number not in kept:
            layer.forward = lambda states, *_, **__: states
    with torch.no_grad():
        torch.testing.assert_close(some(batch), whole(batch))


def test_resumed_is_uninterrupted(teacher, queries, tmp_path):
    of, options = teacher(), {"keep_layers": (0,)}
    align(tmp_path / "whole", of, of, queries, **options)
    with stopped_at(6, [(Trainer, "training_step")]), pytest.raises(Stopped):
        align(tmp_path / "cut", of, of, queries, **options)
    with pytest.raises(MismatchError, match=r"teacher\.fingerprint was"):
        align(tmp_path / "cut", of, teacher("agg"), queries, **options, resume=True)
    align(tmp_path / "cut", of, of, queries, **options, resume=True)
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
    of = teacher()
    with pytest.raises((ModelError, UsageError), match=phrase):
        align(tmp_path / "m", **{"model": of, "teacher": of, "queries": queries, **options})
    assert not (tmp_path / "m").exists()
