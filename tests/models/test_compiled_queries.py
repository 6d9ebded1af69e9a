import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from denserk.commands.retrieve import encode, index
from denserk.config.encoding import ComputeSettings, DtypeChoice
from denserk.config.retrieval import SearchSettings
from denserk.index.opening import open_index
from denserk.index.query_encoder import load_query_encoder
from denserk.models import compiled_cache, compiled_queries
from denserk.models.compiled_queries import CompiledQueries
from denserk.models.processor import has_bfloat16
from denserk.models.text_encoder import TextEncoder
from denserk.records import Query
from tests.support.console import warnings_of
from tests.support.toy import WORDS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("openvino")]
CPU = ComputeSettings(device="cpu")
TEXTS = ("the old river", "", "bank", "money " * 90, "water fish boat", "tree")
QUERIES = [Query(f"q{number}", text) for number, text in enumerate(TEXTS)]
MEAN = {"representation": "mean", "l2_norm": True}
DRIVER = """
import sys
{lines}
sys.stderr.write("loaded: " + " ".join(sorted(sys.modules.keys() & {{"torch", "transformers"}})))
"""


@pytest.fixture(autouse=True)
def folder(cache, monkeypatch):
    """The folder of compiled models."""
    monkeypatch.setenv(compiled_cache.LIMIT, "1")
    return cache / "compiled"


@pytest.fixture
def model(tiny, tmp_path):
    return shutil.copytree(tiny("bert"), tmp_path / "model")


def index_of(toy, model, **options):
    """An index of the toy collection; the model is used, and so kept."""
    options = {"device": "cpu", **MEAN, **options}
    encode(model=str(model), corpus=str(toy / "corpus.jsonl"), output=str(toy / "v"), **options)
    index(input=[str(toy / "v")], output=str(toy / "index"))
    return str(toy / "index")


def query_encoder(name, overrides=({}, {}), compute=CPU):
    opened = open_index([name], SearchSettings(), compute)
    return load_query_encoder(opened, None, overrides, compute)


def loaded(*lines):
    """Which of torch and transformers a fresh process has loaded after these lines of Python."""
    script = DRIVER.format(lines="\n".join(lines))
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stderr.rpartition("loaded: ")[2].split()


def command_line(*words):
    return f"from denserk.commands.app import run; assert run({list(map(str, words))}) == 0"


@pytest.mark.parametrize(
    "options",
    [
        MEAN,
        {"representation": "mean", "truncate_dim": 5, "query_prefix": "query: "},
        {"representation": "cls"},
        {"representation": "max", "query_max_length": 6},
        pytest.param(
            {"representation": "last", "dtype": "bfloat16"},
            marks=pytest.mark.skipif(not has_bfloat16(), reason="queries are in float32 here"),
        ),
    ],
    ids=str,
)
def test_vectors_are_those_of_the_text_encoder_byte_by_byte(toy, model, options, monkeypatch):
    name = index_of(toy, model, **{"l2_norm": False, **options})
    compiled = query_encoder(name)
    assert isinstance(compiled, CompiledQueries)
    monkeypatch.setenv(compiled_cache.LIMIT, "0")
    encoder = query_encoder(name)
    assert isinstance(encoder, TextEncoder)
    assert compiled.description() == encoder.description()
    assert compiled.fingerprint == encoder.fingerprint
    assert compiled.dimension == encoder.dimension
    for queries in (QUERIES, QUERIES[:1], QUERIES[3:4], QUERIES * 30, []):
        expected = encoder.encode_queries(queries)
        assert compiled.encode_queries(queries).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [CompiledQueries, TextEncoder])
def test_threads_that_search_at_once_get_their_own_vectors(toy, model, kind, monkeypatch):
    name = index_of(toy, model)
    monkeypatch.setenv(compiled_cache.LIMIT, "1" if kind is CompiledQueries else "0")
    encoder = query_encoder(name)
    assert isinstance(encoder, kind)
    queries = [Query("", " ".join(WORDS[first : first + 4])) for first in range(30)]
    expected = [encoder.encode_queries([query]) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(lambda query: encoder.encode_queries([query]), queries * 20))
    np.testing.assert_array_equal(vectors, expected * 20)


def test_search_imports_neither_torch_nor_transformers(toy, model, capsys):
    name = index_of(toy, model)
    search = ["search", "--index", name]
    assert not loaded(command_line(*search, "--query", "the old river", "--quiet"))
    topics = ["--topics", toy / "queries.tsv", "--output", toy / "run.trec"]
    assert not loaded(command_line(*search, *topics))
    lines = ("import denserk", f"index = denserk.Index.open({name!r})", "index.search('river')")
    assert not loaded(*lines)
    run_bytes = (toy / "run.trec").read_bytes()
    assert loaded(command_line(*search, *topics, "--overwrite", "--backend", "torch"))
    assert loaded(command_line("doctor", "--clear-compiled"), *lines)
    # what the first search without an entry kept is used by the next
    assert not loaded(command_line(*search, *topics, "--overwrite"))
    assert (toy / "run.trec").read_bytes() == run_bytes


def test_other_settings_are_other_entries(toy, model, folder):
    name = index_of(toy, model)
    assert len(list(folder.iterdir())) == 1
    assert isinstance(query_encoder(name, ({}, {"query_prefix": "query: "})), TextEncoder)
    assert isinstance(query_encoder(name, ({}, {"query_prefix": "query: "})), CompiledQueries)
    assert len(list(folder.iterdir())) == 2


def test_a_changed_model_is_another_entry(toy, model, tiny):
    opened = open_index([index_of(toy, model)], SearchSettings(), CPU)
    assert opened.model is not None
    compute = ComputeSettings(device="cpu", dtype=DtypeChoice(opened.model["dtype"]))

    def find():
        return compiled_queries.find(str(model), opened.model, ({}, {}), compute)

    assert find() is not None
    (model / "modules.json").write_text("[]")  # a file that makes it a folder of another layout
    assert find() is None
    (model / "modules.json").unlink()
    assert find() is not None
    shutil.copyfile(tiny("bert", seed=8) / "model.safetensors", model / "model.safetensors")
    assert find() is None


def test_a_damaged_entry_is_made_again(toy, model, folder):
    name = index_of(toy, model)
    weights = next(folder.glob("*/model.bin"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"ruin")
    assert isinstance(query_encoder(name), TextEncoder)
    assert isinstance(query_encoder(name), CompiledQueries)


@pytest.mark.parametrize("name", [compiled_cache.MODEL, compiled_cache.TOKENIZER])
def test_an_entry_that_another_process_removes_meanwhile(toy, model, monkeypatch, name):
    index_name = index_of(toy, model)
    find_entry = compiled_cache.find

    def find_and_remove(key):
        entry = find_entry(key)
        if entry is not None:
            (entry.folder / name).unlink()
        return entry

    monkeypatch.setattr(compiled_cache, "find", find_and_remove)
    assert isinstance(query_encoder(index_name), TextEncoder)


def test_a_model_that_is_gone_is_not_kept(toy, model, folder):
    encoder = TextEncoder(str(model), MEAN, {}, CPU)
    shutil.rmtree(model)
    compiled_queries.keep(encoder)
    assert list(folder.iterdir()) == []


def test_a_closed_home_changes_nothing(toy, model, folder, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path / "file" / "cache"))
    name = index_of(toy, model)
    assert isinstance(query_encoder(name), TextEncoder)
    assert warnings_of(caplog) == []
    assert not folder.exists()


def test_the_first_use_says_that_the_model_is_kept(toy, model, folder, caplog):
    index_of(toy, model)
    assert f"{model} is kept in compiled form for later queries in {folder}" in caplog.text


def test_vectors_that_would_differ_are_not_kept(toy, model, folder, monkeypatch, caplog):
    caplog.set_level("DEBUG", logger="denserk")
    monkeypatch.setattr(compiled_queries, "l2_normalised", lambda vectors: vectors * np.float32(2))
    name = index_of(toy, model)
    assert list(folder.iterdir()) == []
    assert "its vectors would differ" in caplog.text
    assert isinstance(query_encoder(name), TextEncoder)


@pytest.mark.parametrize("kind", ["agg", "modernbert"])
def test_models_that_need_torch_are_not_kept(toy, tiny, tiny_agg, folder, kind):
    if kind == "agg":
        name = index_of(toy, tiny_agg(), representation="agg", l2_norm=False)
    else:
        name = index_of(toy, tiny(kind))
    assert isinstance(query_encoder(name), TextEncoder)
    assert not folder.exists()


def test_an_index_without_all_settings_loads_the_model(toy, model):
    name = index_of(toy, model)
    manifest = toy / "index" / "manifest.json"
    record = json.loads(manifest.read_text())
    del record["made_from"]["model"]["text"]["normalize_quotes"]
    manifest.write_text(json.dumps(record))
    assert isinstance(query_encoder(name), TextEncoder)
