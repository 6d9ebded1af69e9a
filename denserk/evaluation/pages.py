"""HTML pages from templates beside this module."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denserk.io.file_errors import write_errors
from denserk.io.written_files import whole_text


def write_template(path: Path, template: str, content: Mapping[str, Any]) -> None:
    """Fill a template, which escapes the content, and write the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("denserk", "evaluation"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template).render(content)
    with write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_text(path) as out:
        out.write(page)
