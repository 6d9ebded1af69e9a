import pytest
from huggingface_hub import constants

from denserk.errors import ModelError, UsageError
from denserk.io.model_files import find_model


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """The hub's cache is an empty folder, and nothing is fetched."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))


def cached(tmp_path, name, *files):
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
    with pytest.raises(ModelError, match="on the hub holds no weights"):
        find_model("a/b")


@pytest.mark.parametrize("name", ["agg", "someone/some-model", "unknown"])
def test_a_model_that_is_not_in_the_cache(tmp_path, name):
    with pytest.raises(ModelError, match="cannot be fetched from the hub or its cache") as caught:
        find_model(name)
    assert str(tmp_path) in caught.value.message
    assert "hf download" in str(caught.value.hint)


def test_folders_come_first(tmp_path, tiny, monkeypatch):
    (tmp_path / "agg").symlink_to(tiny(), target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path), "..", "agg"):
        assert find_model(name)[0] == name
    for name, message in (
        ("./gone", "no such folder"),
        ("two words", "no such folder"),
        ("mlr", "mlr: no weights"),
    ):
        with pytest.raises(UsageError, match=message):
            find_model(name)
