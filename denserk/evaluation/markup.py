"""HTML and SVG from Python: elements whose text cannot be forgotten to be escaped."""

from collections.abc import Iterable
from html import escape
from typing import Any

VOID = frozenset({"meta", "input", "col", "br"})
"""Elements without content and end tag."""


class Html(str):
    """Text that is markup already; everything else is escaped when it is put into an element."""

    __slots__ = ()


def tag(name: str, /, *content: str | Iterable[str], **attributes: Any) -> Html:
    """One element.

    Args:
        name: of the element.
        content: texts, which are escaped; markup, which is not; or iterables of them.
        attributes: `class_` is class, `aria_label` aria-label; True stands alone, None and False
            are left out.

    >>> tag("p", "a < b", tag("b", "!"), class_="note", hidden=True, id=None)
    '<p class="note" hidden>a &lt; b<b>!</b></p>'
    """
    told = "".join(
        f" {_spelled(key)}" if value is True else f' {_spelled(key)}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{join(*content)}</{name}>")


def join(*content: str | Iterable[str]) -> Html:
    """Several pieces of content as one, escaped where they are no markup.

    >>> join("&", [tag("i", "x")])
    '&amp;<i>x</i>'
    """
    return Html(
        "".join(
            (part if isinstance(part, Html) else escape(part, quote=False))
            if isinstance(part, str)
            else join(*part)
            for part in content
        )
    )


def _spelled(attribute: str) -> str:
    return attribute.rstrip("_").replace("_", "-")
