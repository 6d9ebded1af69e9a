"""Help texts of options: what stands under a field, with its default."""

import re
from typing import Any

from denserk.config.options import REQUIRED, field_docs, fields_of, spec_of
from denserk.config.values import plain

# Words of help texts that Python has other words for; further ones follow a rule in `in_python`.
IN_PYTHON = (
    ("Exit with status 1 if", "Raise a GateError if"),
    ("[default: yes; released: no]", "[default: True; released: False]"),
    ("(see --list-presets)", "(`denserk finetune` lists them)"),
    ("With answer-bearing=promote,", "With answer_bearing='promote',"),
    ("is -m 'Success@5 Success@20'", "is measures='Success@5 Success@20'"),
)


def help_text(settings: type, name: str, *, given_only: bool = False) -> str:
    """Return a field's help text on the command line, with its default.

    With `given_only`, a field without a default is not called required: it may be left out.
    """
    text = field_docs(settings)[name]
    field = fields_of(settings)[name]
    if field.default is REQUIRED:
        return text if given_only else f"{text} [required]"
    if "[default: " in text:
        return text
    is_setting = spec_of(field).rare
    default = own_defaults(settings) or _default_text(field.default, is_setting=is_setting)
    return f"{text} [default: {default}]" if default else text


def own_defaults(settings: type) -> str:
    """Return what a class shows in place of every default; empty: nothing else."""
    return getattr(settings, "own_defaults", "")


def _default_text(default: Any, *, is_setting: bool) -> str:
    """Return a default as it is typed; empty if the help does not show it.

    The help of a setting (`--set NAME=VALUE`) also shows "none" and "no".

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


def python_help_text(settings: type, name: str) -> str:
    """Return a field's help text as Python spells options, with its default.

    >>> from denserk.config.shared import ResumeSettings, TagSettings
    >>> python_help_text(TagSettings, "tag")
    "Run tag, the last column of a TREC run. [default: 'denserk']"
    >>> python_help_text(ResumeSettings, "overwrite")
    'Replace an existing output. [default: False]'
    """
    text = in_python(field_docs(settings)[name])
    if "[default: " in text:
        return text
    default = own_defaults(settings) or _python_default(fields_of(settings)[name].default)
    return f"{text} [default: {default}]" if default else text


def in_python(text: str) -> str:
    """Return a help text with the spelling of options in Python.

    >>> in_python("With --set answer-bearing=promote, see --group-size and --no-complete.")
    "With answer_bearing='promote', see group_size and complete=False."
    """
    for phrase, phrase_in_python in IN_PYTHON:
        text = text.replace(phrase, phrase_in_python)
    text = re.sub(r"--set ([a-z][a-z0-9-]*)=([\w-]+)", _as_assignment, text)
    text = re.sub(r"--no-([a-z][a-z0-9-]*)", r"--\1=False", text)
    return re.sub(r"--(?:set )?([a-z][a-z0-9-]*)", _as_name, text)


def _as_assignment(match: re.Match[str]) -> str:
    name, value = match.groups()
    value = {"yes": "True", "no": "False"}.get(value, repr(value))
    return f"{name.replace('-', '_')}={value}"


def _as_name(match: re.Match[str]) -> str:
    return match.group(1).replace("-", "_")


def _python_default(default: Any) -> str:
    """Return a default as Python writes it; empty for a required option.

    >>> _python_default(("title", "text")), _python_default(None), _python_default(0.9)
    ("['title', 'text']", 'None', '0.9')
    """
    if default is REQUIRED:
        return ""
    return repr(plain(default))
