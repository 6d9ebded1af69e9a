from pathlib import Path

import pytest
from huggingface_hub import constants

from denserk.errors import ModelError, UsageError
from denserk.models.checkpoints import find_model
from tests.reporters import Heard


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """The hub's cache is an empty folder, and nothing is fetched."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))


def cached(tmp_path, name, *files):
    """A snapshot in the hub's cache."""
    root = tmp_path / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs/main").write_text("0" * 40)
    for file in files:
        (snapshot / file).write_text("{}")
    return snapshot


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_name_is_found_in_the_cache(tmp_path, weights):
    hub_name = "castorini/aggretriever-cocondenser"
    snapshot = cached(tmp_path, hub_name, "config.json", weights)
    assert find_model("agg") == find_model(hub_name) == (hub_name, snapshot)
    cached(tmp_path, "a/b", "config.json")
    with pytest.raises(ModelError, match="holds no weights"):
        find_model("a/b")


@pytest.mark.parametrize("name", ["agg", "someone/some-model", "unknown"])
def test_a_model_that_cannot_be_had_says_where_it_was_sought(tmp_path, name):
    with pytest.raises(ModelError, match="not in the hub's cache") as caught:
        find_model(name)
    assert str(tmp_path) in caught.value.message
    assert "HF_HUB_OFFLINE is set" in caught.value.message
    assert "hf download" in str(caught.value.hint)


def test_paths_and_names_without_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_model(str(tmp_path)) == (str(tmp_path), tmp_path)
    assert find_model("..")[1].is_dir()
    for name in ("./agg", "/nowhere/model", "a/b/c", "two words"):
        with pytest.raises(UsageError, match="no such folder"):
            find_model(name)
    with pytest.raises(UsageError, match="mlr: no weights"):
        find_model("mlr")


def test_a_folder_that_exists_is_used_before_a_short_name(tmp_path, tiny, monkeypatch):
    (tmp_path / "agg").symlink_to(tiny(), target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    heard = Heard()
    assert find_model("agg") == ("agg", Path("agg"))
    used = "--model agg: the folder agg/ is used, not castorini/aggretriever-cocondenser"
    assert heard.notes == [used]
