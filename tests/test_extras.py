import pytest

from denserk.errors import MissingExtraError
from denserk.extras import EXTRA_OF, installed, require


def test_returns_the_module():
    assert require("json", "reading").loads("1") == 1


@pytest.mark.parametrize("module", sorted(EXTRA_OF))
def test_a_missing_extra_names_its_install_command(module, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        require(module, "this")
    assert caught.value.exit_status == 2
    assert caught.value.message == f"this needs the package {module}, which is not installed"
    assert f"pip install 'denserk[{EXTRA_OF[module]}]'" in (caught.value.hint or "")


def test_an_extra_that_breaks_inside_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "pyserini.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        require("pyserini", "this")


def test_installed():
    assert installed("json")
    assert not installed("no_such_module")
