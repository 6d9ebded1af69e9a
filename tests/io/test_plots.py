from base64 import b64decode
from xml.etree import ElementTree

import pytest

from denserk.io.plots import as_image, draw_lines, new_axes, save_if_installed, style

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


def test_an_image_of_a_page_is_escaped_and_holds_all_of_it():
    with style():
        text = as_image(axes(), EVIL)
    image = ElementTree.fromstring(f"{text[:-1]}/>")
    assert image.get("alt") == EVIL
    head, _, data = str(image.get("src")).partition(",")
    assert head == "data:image/svg+xml;base64"
    found = {"".join(e.itertext()).strip() for e in ElementTree.fromstring(b64decode(data)).iter()}
    assert found >= {*LINES}
