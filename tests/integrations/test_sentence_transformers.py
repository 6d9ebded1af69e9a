import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

from denserk.commands.app import run
from denserk.errors import ModelError, UsageError
from tests.support.finetuning import write_examples
from tests.support.tiny_models import tiny_config, tiny_tokenizer
from tests.support.toy import VOCABULARY
from tests.support.training_examples import jsonl

SHORT = slice(4)
TEXTS = ["river boat", "", "the old cat’s house", "a", "moon star " * 30, "red fish " * 8]
PREFIXES = ("--query-prefix", "the ", "--passage-prefix", "a ")
LENGTHS = ("--query-max-length", "12", "--passage-max-length", "20")
pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def opened():
    st = pytest.importorskip("sentence_transformers", minversion="6.0")
    return lambda folder, **named: st.SentenceTransformer(str(folder), device="cpu", **named)


def converted(source, target, *options):
    words = ("convert", source, target, "--kind", "model", "--to", "denserk", *options)
    assert run([str(word) for word in words]) == 0
    return target


def finetuned(source, target, tmp_path, *options):
    data = write_examples(tmp_path / "train.jsonl", range(8))
    words = ("finetune", "--model", source, "--train-data", data, "--output", target, *options)
    usual = ("--max-steps", "2", "--batch-size", "4", "--group-size", "2", "--device", "cpu")
    assert run([str(word) for word in (*words, *usual)]) == 0
    return target


def encoded(folder, tmp_path, source="--corpus"):
    texts, vectors = tmp_path / "texts.jsonl", tmp_path / "vectors.jsonl"
    jsonl(texts, ({"_id": str(i), "text": text} for i, text in enumerate(TEXTS)))
    words = ("encode", "--model", folder, source, texts, "--output", vectors, "--overwrite")
    assert run([str(word) for word in (*words, "--output-format", "jsonl")]) == 0
    records = [json.loads(line) for line in vectors.read_text().splitlines()]
    vectors.unlink()
    by_id = {record["id"]: record["vector"] for record in records}
    return np.array([by_id[str(i)] for i in range(len(TEXTS))])


def check_equal(folder, model, tmp_path, whole=None):
    """Compare both sides; `whole`: the texts that `prompt_name` is compared on, if it is known."""
    passages, asked = encoded(folder, tmp_path), encoded(folder, tmp_path, "--queries")
    pairs = [
        (passages, model.encode(TEXTS)),
        (passages, model.encode_document(TEXTS)),
        (asked, model.encode_query(TEXTS)),
    ]
    if whole:
        pairs.append((passages, model.encode(TEXTS, prompt_name="document")))
        pairs.append((asked[whole], model.encode(TEXTS[whole], prompt_name="query")))
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert abs(passages - asked).max() > 1e-3


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "last"])
def test_pooled_models(tiny, tmp_path, opened, pooling):
    norm = "--l2-norm" if pooling == "mean" else "--no-l2-norm"
    options = ("--representation", pooling, norm, *PREFIXES, *LENGTHS)
    folder = converted(tiny(), tmp_path / "m", *options)
    model, again = opened(folder), tmp_path / "again"
    check_equal(folder, model, tmp_path, SHORT)
    model.save(str(again))  # which keeps lengths, prefixes and pooling
    assert not (again / "denserk.json").exists()
    check_equal(again, model, tmp_path, SHORT)


CUSTOM = {
    "agg": ("--representation", "agg", "--agg-dim", "20", "--cls-dim", "6"),
    "mlr": ("--representation", "mlr", "--layers", "1,2", "--reduction", "scalar-mix"),
    "me-bert": ("--representation", "me-bert", "--set", "vectors=3", "--reduction", "average"),
    "colbert": ("--representation", "colbert"),
    "untied": ("--representation", "cls", "--untie"),
    "quotes": ("--representation", "mean", "--set", "normalize-quotes=yes"),
    "pair": ("--representation", "mean", "--set", "join=pair"),
    "truncated": ("--representation", "mean", "--truncate-dim", "8"),
}


@pytest.mark.parametrize(
    ("name", "prefixes"), [*((name, PREFIXES) for name in CUSTOM), ("agg", ()), ("untied", ())]
)
def test_other_models(tiny, tmp_path, opened, name, prefixes):
    folder = finetuned(tiny(), tmp_path / "m", tmp_path, *CUSTOM[name], *prefixes, *LENGTHS)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        opened(folder)
    assert (
        'SentenceTransformer("MODEL", trust_remote_code=True)' in (folder / "README.md").read_text()
    )
    model = opened(folder, trust_remote_code=True)
    copy = pickle.loads(pickle.dumps(model))  # as several processes get it
    check_equal(folder, model, tmp_path)
    assert model.get_embedding_dimension() == model.encode("a").shape[0]
    np.testing.assert_array_equal(copy.encode_query(TEXTS), model.encode_query(TEXTS))
    model.save(str(tmp_path / "again"))
    again = opened(tmp_path / "again", trust_remote_code=True)
    np.testing.assert_array_equal(again.encode_query(TEXTS), model.encode_query(TEXTS))
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    np.testing.assert_allclose(
        encoded(tmp_path / "again", tmp_path), model.encode(TEXTS), rtol=0, atol=1e-5
    )


def test_what_would_give_other_vectors_is_an_error(tiny, tmp_path, opened):
    folder = finetuned(tiny(), tmp_path / "m", tmp_path, *CUSTOM["untied"])
    model = opened(folder, trust_remote_code=True)
    with pytest.raises(UsageError, match="call encode_query or encode_document"):
        model.encode(TEXTS, prompt="the ")
    np.testing.assert_allclose(
        model.encode_query(["cat"], prompt="the "), model.encode_query(["the cat"]), atol=1e-6
    )
    with pytest.raises(AttributeError):
        model.max_seq_length = 5
    with pytest.raises(UsageError, match="takes no model_kwargs"):
        opened(folder, trust_remote_code=True, model_kwargs={"dtype": "float16"})


@pytest.mark.parametrize("name", ["mlr", "me-bert"])
def test_several_embeddings_per_passage_do_not_open(tiny, tmp_path, opened, name):
    options = ("--representation", name, "--reduction", "multi-vector", "--set", "vectors=2")
    folder = finetuned(tiny(), tmp_path / "m", tmp_path, *options)
    assert "with one embedding per text, cannot open it" in (folder / "README.md").read_text()
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        opened(folder)
    with pytest.raises(ModelError, match=r"2 embeddings per passage.*open it with denserk"):
        opened(folder, trust_remote_code=True)


def test_pairs_are_encoded_as_denserk_joins_title_and_text(tiny, tmp_path, opened):
    mean = ("--representation", "mean")
    folder = converted(tiny(), tmp_path / "m", *mean, "--set", "join=pair", *PREFIXES)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "title": "Moon", "text": "red fish"}\n')
    words = ("encode", "--model", folder, "--corpus", tmp_path / "corpus.jsonl", "--output-format")
    assert run([str(w) for w in (*words, "jsonl", "--output", tmp_path / "v.jsonl")]) == 0
    ours = json.loads((tmp_path / "v.jsonl").read_text())["vector"]
    theirs = opened(folder, trust_remote_code=True).encode_document([("Moon", "red fish")])[0]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    joined = converted(tiny(), tmp_path / "j", *mean, "--set", "normalize-quotes=yes")
    with pytest.raises(UsageError, match="as one string"):
        opened(joined, trust_remote_code=True).encode_document([("Moon", "red fish")])


LOAD = """
import sys, warnings
warnings.simplefilter("always")
from sentence_transformers import SentenceTransformer
from transformers import AutoModel
warnings.simplefilter("error")
for folder in sys.argv[1:]:
    SentenceTransformer(folder, device="cpu", trust_remote_code=True).encode(["the river"])
    if "agg" not in folder:  # whose heads are none of transformers' encoder
        AutoModel.from_pretrained(folder)
"""


def test_trained_models_open_without_a_warning(tmp_path):
    """A BERT with a pooler, as the published ones are, and what is made of it."""
    start = tmp_path / "bert"
    tokenizer = tiny_tokenizer("bert", VOCABULARY)
    torch.manual_seed(5)
    config = tiny_config("bert", len(tokenizer))
    transformers.BertForPreTraining(config).save_pretrained(start)
    tokenizer.save_pretrained(start)
    heads = ("--agg-dim", "20", "--cls-dim", "6")
    folders = [
        finetuned(start, tmp_path / "mean", tmp_path, "--representation", "mean"),
        finetuned(start, tmp_path / "agg", tmp_path, "--representation", "agg", *heads),
    ]
    command = [sys.executable, "-c", LOAD, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "Loading weights" not in line]
    assert not [line for line in lines if line.strip()]
