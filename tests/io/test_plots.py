from xml.etree import ElementTree

import pytest

from denserk.io.plots import as_svg, draw_lines, new_axes, save_if_installed, style

pytest.importorskip("matplotlib")

EVIL = '</svg><b id="x">$#0066a6'
LINES = {EVIL: [(1.0, 0.5), (10.0, 0.25)], "_second": [(1.0, 1.0)], "empty": []}


def axes():
    made = new_axes(3, 2)
    draw_lines(made, LINES)
    return made


def test_a_plot_as_a_file(tmp_path):
    for suffix, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        save_if_installed(axes, "curves", tmp_path / f"p.{suffix}")
        assert (tmp_path / f"p.{suffix}").read_bytes().startswith(start)


def test_a_plot_for_a_page_is_escaped_takes_its_colours_and_has_its_own_ids():
    with style():
        text = as_svg(axes(), EVIL, "p7")
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == EVIL
    assert {"".join(e.itertext()).strip() for e in root.iter() if e.tag.endswith("}text")} >= {
        *LINES
    }
    ids = [name for element in root.iter() if (name := element.get("id"))]
    assert len(set(ids)) == len(ids)
    assert all(name.startswith("p7-") for name in ids)
    assert "var(--ink0)" in text
    assert "currentColor" in text
    assert "http" not in text.replace("http://www.w3.org/", "")
