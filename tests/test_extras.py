import pytest

from denserk.errors import MissingExtraError
from denserk.extras import package_folder, require


def test_a_missing_extra_names_its_install_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtraError, match="this needs the package faiss") as caught:
        require("faiss", "this")
    assert str(caught.value.hint).startswith("pip install faiss-cpu")
    with pytest.raises(MissingExtraError, match="this needs the package no_such_module"):
        package_folder("no_such_module", "this")


def test_an_extra_that_breaks_inside_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "pyserini.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        require("pyserini", "this")
    assert package_folder("ir_measures", "this").name == "ir_measures"
