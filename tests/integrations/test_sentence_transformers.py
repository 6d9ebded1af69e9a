import json
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import denserk
from denserk.commands.app import run
from denserk.errors import ModelError, UsageError
from tests.support.finetuning import write_examples
from tests.support.tiny_models import tiny_config, tiny_tokenizer, write_tiny_classifier
from tests.support.toy import VOCABULARY
from tests.support.training_examples import jsonl

SHORT = slice(4)
TEXTS = ["river boat", "", "the old cat’s house", "a", "moon star " * 30, "red fish " * 8]
PREFIXES = ("--query-prefix", "the ", "--passage-prefix", "a ")
LENGTHS = ("--query-max-length", "12", "--passage-max-length", "20")
pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def open_model():
    """`open_model(folder)`: a folder, open_model by sentence-transformers."""
    st = pytest.importorskip("sentence_transformers", minversion="6.0")
    return partial(st.SentenceTransformer, device="cpu")


def command(*words):
    assert run([str(word) for word in words]) == 0


def convert(source, target, *options):
    command("convert", source, target, "--kind", "model", "--to", "denserk", *options)
    return str(target)


def finetune(source, target, tmp_path, *options):
    data = write_examples(tmp_path / "train.jsonl", range(8))
    files = ("--model", source, "--train-data", data, "--output", target)
    sizes = ("--max-steps", 2, "--batch-size", 4, "--group-size", 2)
    command("finetune", *files, *sizes, "--device", "cpu", *options)
    return str(target)


def encode(folder, tmp_path, texts_option="--corpus"):
    """The vectors of `denserk encode`, in the order of `TEXTS`."""
    records = [{"_id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    texts = jsonl(tmp_path / "texts.jsonl", records)
    output = tmp_path / "vectors.jsonl"
    files = (texts_option, texts, "--output", output, "--overwrite", "--output-format", "jsonl")
    command("encode", "--model", folder, *files)
    vectors = {}
    for line in output.read_text().splitlines():
        record = json.loads(line)
        vectors[record["id"]] = record["vector"]
    output.unlink()
    return np.array([vectors[str(number)] for number in range(len(TEXTS))])


def assert_near(vectors, expected):
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def check_equal(folder, model, tmp_path):
    """Compare queries and passages of `denserk encode` with those of sentence-transformers."""
    passages = encode(folder, tmp_path)
    queries = encode(folder, tmp_path, "--queries")
    assert_near(model.encode(TEXTS), passages)
    assert_near(model.encode_document(TEXTS), passages)
    assert_near(model.encode_query(TEXTS), queries)
    assert abs(passages - queries).max() > 1e-3


def check_prompt_names(folder, model, tmp_path):
    passages = encode(folder, tmp_path)
    queries = encode(folder, tmp_path, "--queries")
    assert_near(model.encode(TEXTS, prompt_name="document"), passages)
    # whose length is that of passages
    assert_near(model.encode(TEXTS[SHORT], prompt_name="query"), queries[SHORT])


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "last"])
def test_pooled_models(tiny, tmp_path, open_model, pooling):
    norm = "--l2-norm" if pooling == "mean" else "--no-l2-norm"
    options = ("--representation", pooling, norm, *PREFIXES, *LENGTHS)
    folder = convert(tiny(), tmp_path / "m", *options)
    model = open_model(folder)
    check_equal(folder, model, tmp_path)
    check_prompt_names(folder, model, tmp_path)
    copy = tmp_path / "copy"
    model.save(str(copy))  # which keeps lengths, prefixes and pooling
    assert not (copy / "denserk.json").exists()
    check_equal(copy, model, tmp_path)
    check_prompt_names(copy, model, tmp_path)


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
    ("name", "prefixes"), [*[(name, PREFIXES) for name in CUSTOM], ("agg", ()), ("untied", ())]
)
def test_other_models(tiny, tmp_path, open_model, name, prefixes):
    folder = finetune(tiny(), tmp_path / "m", tmp_path, *CUSTOM[name], *prefixes, *LENGTHS)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        open_model(folder)
    card = Path(folder, "README.md").read_text()
    assert 'SentenceTransformer("MODEL", trust_remote_code=True)' in card
    model = open_model(folder, trust_remote_code=True)
    pickled = pickle.loads(pickle.dumps(model))  # as several processes get it
    check_equal(folder, model, tmp_path)
    assert model.get_embedding_dimension() == model.encode("a").shape[0]
    np.testing.assert_array_equal(pickled.encode_query(TEXTS), model.encode_query(TEXTS))

    saved_folder = str(tmp_path / "saved")
    model.save(saved_folder)
    saved = open_model(saved_folder, trust_remote_code=True)
    np.testing.assert_array_equal(saved.encode_query(TEXTS), model.encode_query(TEXTS))
    np.testing.assert_array_equal(saved.encode(TEXTS), model.encode(TEXTS))
    assert_near(encode(saved_folder, tmp_path), model.encode(TEXTS))


def test_what_would_give_other_vectors_is_an_error(tiny, tmp_path, open_model):
    folder = finetune(tiny(), tmp_path / "m", tmp_path, *CUSTOM["untied"])
    model = open_model(folder, trust_remote_code=True)
    with pytest.raises(UsageError, match="call encode_query or encode_document"):
        model.encode(TEXTS, prompt="the ")
    np.testing.assert_allclose(
        model.encode_query(["cat"], prompt="the "), model.encode_query(["the cat"]), atol=1e-6
    )
    with pytest.raises(AttributeError):
        model.max_seq_length = 5
    with pytest.raises(UsageError, match="takes no model_kwargs"):
        open_model(folder, trust_remote_code=True, model_kwargs={"dtype": "float16"})


@pytest.mark.parametrize("name", ["mlr", "me-bert"])
def test_several_embeddings_per_passage_do_not_open(tiny, tmp_path, open_model, name):
    options = ("--representation", name, "--reduction", "multi-vector", "--set", "vectors=2")
    folder = finetune(tiny(), tmp_path / "m", tmp_path, *options)
    card = Path(folder, "README.md").read_text()
    assert "with one embedding per text, cannot open it" in card
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        open_model(folder)
    with pytest.raises(ModelError, match=r"2 embeddings per passage.*open it with denserk"):
        open_model(folder, trust_remote_code=True)


def test_pairs_are_encoded_as_denserk_joins_title_and_text(tiny, tmp_path, open_model):
    mean = ("--representation", "mean")
    folder = convert(tiny(), tmp_path / "m", *mean, "--set", "join=pair", *PREFIXES)
    corpus = jsonl(tmp_path / "corpus.jsonl", [{"_id": "d", "title": "Moon", "text": "red fish"}])
    output = tmp_path / "v.jsonl"
    files = ("--corpus", corpus, "--output-format", "jsonl", "--output", output)
    command("encode", "--model", folder, *files)
    expected = json.loads(output.read_text())["vector"]
    model = open_model(folder, trust_remote_code=True)
    assert_near(model.encode_document([("Moon", "red fish")])[0], expected)


def test_a_model_that_joins_title_and_text_takes_no_pairs(tiny, tmp_path, open_model):
    options = ("--representation", "mean", "--set", "normalize-quotes=yes")
    folder = convert(tiny(), tmp_path / "m", *options)
    with pytest.raises(UsageError, match="as one string"):
        open_model(folder, trust_remote_code=True).encode_document([("Moon", "red fish")])


def test_a_cross_encoder_scores_as_its_card_says(tmp_path):
    st = pytest.importorskip("sentence_transformers", minversion="6.0")
    write_tiny_classifier(tmp_path / "start", "bert", VOCABULARY)
    options = ("--representation", "cross-encoder")
    folder = finetune(tmp_path / "start", tmp_path / "tuned", tmp_path, *options)
    corpus = {"d1": {"title": "Moon", "text": "it rises"}, "d2": {"title": "", "text": "old river"}}
    hits = {"q": {"d1": 1.0, "d2": 1.0}}
    reranked = denserk.rerank(hits, folder, topics={"q": "moon"}, corpus=corpus)["q"]
    model = st.CrossEncoder(folder, device="cpu", max_length=64)
    pairs = [("moon", "Moon it rises"), ("moon", "old river")]
    scores = model.predict(pairs, activation_fn=torch.nn.Identity())
    assert [reranked["d1"], reranked["d2"]] == pytest.approx(scores.tolist(), abs=1e-5)


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
        finetune(start, tmp_path / "mean", tmp_path, "--representation", "mean"),
        finetune(start, tmp_path / "agg", tmp_path, "--representation", "agg", *heads),
    ]
    process = subprocess.run(
        [sys.executable, "-c", LOAD, *folders], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stderr.splitlines() if "Loading weights" not in line]
    assert not [line for line in lines if line.strip()]
