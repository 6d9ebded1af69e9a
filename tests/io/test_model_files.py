"""Which model a name stands for, where a folder is called as a short name."""

import pytest

from denserk.errors import UsageError
from denserk.io.claims import claim_outputs
from denserk.io.model_files import full_name, is_model_folder

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder that is called minilm, and is no model yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()
    return tmp_path / "minilm"


def test_a_folder_of_vectors_is_not_the_model_of_its_name(folder):
    assert full_name("minilm") == MINILM
    (folder / "config.json").write_text("{}")
    assert full_name("minilm") == "minilm"


def test_any_other_folder_is_a_path(tmp_path):
    (tmp_path / "mine").mkdir()
    assert is_model_folder("mine")
    assert is_model_folder("./minilm")
    assert not is_model_folder("absent")


def test_vectors_may_be_written_to_the_name_of_their_model(folder):
    values = {"model": "minilm", "output": "minilm", "overwrite": True}
    with claim_outputs(values, ()):
        pass
    (folder / "config.json").write_text("{}")  # now it is a model, which must stay
    with pytest.raises(UsageError, match="both input and output"), claim_outputs(values, ()):
        pass
