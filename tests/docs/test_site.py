"""The documentation as a site: it builds without a warning, with options, and from disk."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    build = ["sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "cache"), "docs"]
    process = subprocess.run(
        [sys.executable, "-m", *build, str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return folder / "html"


def test_options_have_anchors_common_ones_first(site):
    page = (site / "commands" / "finetune.html").read_text("utf-8")
    common = page.index('id="cmdoption-denserk-finetune-group-size"')
    setting = page.index('id="cmdoption-denserk-finetune-arg-negatives-x-device"')
    assert common < page.index("More options of finetune") < setting
    assert page.count('id="cmdoption-denserk-finetune-group-size"') == 1


def test_each_command_of_a_group_has_its_options(site):
    page = (site / "commands" / "analyze.html").read_text("utf-8")
    assert 'id="cmdoption-denserk-analyze-misses-qrels"' in page
    assert 'id="cmdoption-denserk-analyze-attention-entropy-model"' in page


def test_the_readme_is_the_home_and_its_links_stay_in_the_site(site):
    page = (site / "index.html").read_text("utf-8")
    assert 'href="tutorial.html"' in page
    assert 'href="commands/index.html"' in page
    assert "docs/" not in "".join(part.split('"')[0] for part in page.split('href="')[1:])


def test_every_public_name_is_in_the_reference(site):
    import denserk

    page = (site / "api.html").read_text("utf-8")
    assert [name for name in denserk.__all__ if f'id="denserk.{name}"' not in page] == []


def test_outputs_of_the_notebook_are_shown(site):
    page = (site / "notebook.html").read_text("utf-8")
    assert "nDCG@10" in page
    assert "execution_count" not in page
