import pytest

from denserk.errors import MissingExtraError
from denserk.extras import PACKAGES, package_folder, require


@pytest.mark.parametrize("module", ["faiss", "pyarrow"])
def test_a_missing_extra_names_its_install_command(module, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        require(module, "this")
    assert caught.value.exit_status == 2
    assert caught.value.message == f"this needs the package {module}, which is not installed"
    assert caught.value.hint == f"pip install {PACKAGES.get(module, module)}"


def test_an_extra_that_breaks_inside_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "pyserini.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        require("pyserini", "this")


def test_the_folder_of_a_package_that_is_not_imported(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "beir", raising=False)
    (tmp_path / "beir").mkdir()
    (tmp_path / "beir/__init__.py").write_text("import no_such_module")
    assert package_folder("beir", "this") == tmp_path / "beir"
    monkeypatch.setitem(__import__("sys").modules, "beir", None)
    with pytest.raises(MissingExtraError, match="this needs the package beir") as caught:
        package_folder("beir", "this")
    assert caught.value.hint == "pip install beir"
