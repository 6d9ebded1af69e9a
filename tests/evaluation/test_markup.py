import pytest

from denserk.evaluation.markup import Html, join, tag


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (tag("td", "<script>"), "<td>&lt;script&gt;</td>"),
        (tag("td", Html("<b>")), "<td><b></td>"),
        (tag("a", "x", href='"><script>'), '<a href="&quot;&gt;&lt;script&gt;">x</a>'),
        (tag("meta", name="a", content="b"), '<meta name="a" content="b">'),
        (tag("g", [tag("i"), "&"], stroke_dasharray=None), "<g><i></i>&amp;</g>"),
        (tag("details", open=True, id="a"), '<details open id="a"></details>'),
        (tag("details", open=False), "<details></details>"),
        (join(["a", Html("<b>")], "<"), "a<b>&lt;"),
    ],
)
def test_text_is_escaped_and_markup_is_not(made: Html, expected: str) -> None:
    assert made == expected
    assert isinstance(made, Html)
