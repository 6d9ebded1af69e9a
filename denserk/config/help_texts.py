"""Help texts of options: what stands under a field, with its default."""

from typing import Any

from denserk.config.options import REQUIRED, field_docs, fields_of, spec_of


def help_text(settings: type, name: str, *, is_unset: bool = False) -> str:
    """Return a field's help text, with its default.

    `is_unset`: what is not given is not passed on, so a field without a default is not required.
    """
    text = field_docs(settings)[name]
    field = fields_of(settings)[name]
    if field.default is REQUIRED:
        return text if is_unset else f"{text} [required]"
    if "[default: " in text:
        return text
    default = own_defaults(settings) or _default_text(field.default, spec_of(field).rare)
    return f"{text} [default: {default}]" if default else text


def own_defaults(settings: type) -> str:
    """Return what a class shows in place of every default; empty: nothing else."""
    return getattr(settings, "own_defaults", "")


def _default_text(default: Any, is_setting: bool) -> str:
    """Return a default as it is typed; empty if the help does not show it.

    >>> _default_text((12, 10), is_setting=False), _default_text(" ", is_setting=False)
    ('12,10', "' '")
    >>> _default_text(False, is_setting=False), _default_text(False, is_setting=True)
    ('', 'no')
    """
    if default is None:
        return "none" if is_setting else ""
    if default is False:
        return "no" if is_setting else ""
    if default is True:
        return "yes"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    text = str(default)
    if text.isspace():
        return repr(default)
    return text
