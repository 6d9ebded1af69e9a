"""TREC topics: in XML, or between the tags of `<top>`; and the fields that a query is made of.

The fields are what the tracks call them: title, description (`<desc>`), narrative (`<narr>`),
query, question, summary, ... The query is the title by default, else the query or the question.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import unescape

from denserk.errors import InputError
from denserk.io import files
from denserk.io.json_records import Row
from denserk.io.short_texts import with_single_spaces
from denserk.records import Query

EXPECTED = "TREC topics: a number, and a title, query or question each"
QUERY_FIELDS = ("title", "query", "question", "text")  # the first one that a topic has is its query
NUMBER_FIELDS = ("number", "num", "id")
FULL_NAMES = {"desc": "description", "narr": "narrative"}
TOPIC_TAGS = ("topic", "top")
FIRST_TAG = re.compile(rb"<([A-Za-z][\w.-]*)")
TOPIC = re.compile(r"<top(?:\s[^<>]*)?>(.*?)(</top>|(?=<top[\s>])|\Z)", re.DOTALL | re.IGNORECASE)
# the start of the line, if the tag is first there, and the name
TAG = re.compile(r"(?:(^)[ \t]*+)?<(/?[A-Za-z][\w.-]*+)[^<>]*+>", re.MULTILINE)
# what a text begins with, by its tag: `<num> Number: 301`
LABELS = {
    "num": r"number",
    "number": r"number",
    "title": r"topic|title",
    "description": r"description",
    "narrative": r"narrative",
    "dom": r"domain",
    "smry": r"summary",
    "con": r"concept\(s\)|concepts",
}
# fields whose tag may follow others on one line; other tags are markup there: `the <i>word</i>`
KNOWN_FIELDS = {*QUERY_FIELDS, *NUMBER_FIELDS, *FULL_NAMES, *LABELS}
QUOTES = {"&quot;": '"', "&apos;": "'"}
DECLARED_ENCODING = re.compile(rb"<\?xml[^>]*\sencoding\s*=")


def read_topics(data: bytes, path: str | Path, *, needs_query: bool = True) -> Iterator[Row]:
    """Yield (line, record with `id`, `text` and the other fields) of each topic of a file.

    Unless it `needs_query`, a topic may have other fields alone; its text is empty then.
    """
    first_tag = FIRST_TAG.search(data)
    if first_tag is not None and first_tag[1].lower() == b"top":
        topics = _tagged_topics(_decoded(data, path), path)
    else:
        topics = _xml_topics(data, path)
    is_empty = True
    for line, fields in topics:
        is_empty = False
        yield line, _record(fields, path, line, needs_query)
    if is_empty:
        raise InputError(path, None, "no topics", EXPECTED)


Topic = tuple[int | None, dict[str, str]]  # line, texts by field


def _record(
    fields: Mapping[str, str], path: str | Path, line: int | None, needs_query: bool
) -> dict[str, str]:
    """Return the record of a topic, whose query is one of its fields."""
    texts = {name: text for name, text in fields.items() if name not in NUMBER_FIELDS}
    names = ", ".join(texts) if texts else "nothing"
    number_field = _first_filled(fields, NUMBER_FIELDS)
    if number_field is None:
        raise InputError(path, line, f"a topic without a number ({names})", EXPECTED)
    number = fields[number_field]
    query_field = _first_filled(texts, QUERY_FIELDS)
    if query_field is not None:
        query = texts.pop(query_field)
        return {**texts, "id": number, "text": query}
    if needs_query:
        found = f"topic {number} with {names}, and without title, query and question"
        hint = None
        if texts:
            hint = f"name fields of it: --set topics-field={','.join(texts)}"
        raise InputError(path, line, found, EXPECTED, hint)
    return {**texts, "id": number, "text": ""}


def _first_filled(fields: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return the first of some fields that has a text."""
    for name in names:
        if fields.get(name):
            return name
    return None


def _decoded(data: bytes, path: str | Path) -> str:
    """Return the text of a file in UTF-8; the error names the line of another encoding."""
    lines = files.decode_lines(enumerate(data.split(b"\n"), start=1), path)
    return "\n".join(text for _, text in lines)


def _xml_topics(data: bytes, path: str | Path) -> Iterator[Topic]:
    """Yield the topics of an XML document, which may not declare entities."""
    if b"<!ENTITY" in data:
        found = "XML that declares entities"
        raise InputError(path, None, found, "XML without <!ENTITY, which can grow without end")
    if DECLARED_ENCODING.search(data) is None:
        data = _decoded(data, path).encode()
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        line, _ = error.position
        raise InputError(path, line, f"XML that is not well-formed ({error})", EXPECTED) from None
    except (LookupError, ValueError) as error:
        found = f"XML in an encoding that is not known ({error})"
        raise InputError(path, None, found, "UTF-8") from None
    for element in root.iter():
        if _name(element) in TOPIC_TAGS:
            yield None, _fields_of_element(element)


def _name(element: ElementTree.Element) -> str:
    """Return the name of an element in lower case, without a name space."""
    name = str(element.tag).rpartition("}")[2].lower()
    return FULL_NAMES.get(name, name)


def _fields_of_element(topic: ElementTree.Element) -> dict[str, str]:
    """Return the texts of a topic by field: of its attributes, its children, and its own."""
    fields = {name: topic.attrib[name] for name in NUMBER_FIELDS if name in topic.attrib}
    texts = [(_name(child), "".join(child.itertext())) for child in topic]
    for name, text in [*texts, ("text", topic.text or "")]:
        _add_text(fields, name, text)
    return fields


def _tagged_topics(text: str, path: str | Path) -> Iterator[Topic]:
    """Yield the topics between the tags of `<top>`, whose fields need no closing tags."""
    closes_topics = "</top>" in text.lower()
    for match in TOPIC.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if closes_topics and not match[2]:
            raise InputError(path, line, "a topic that does not end", "</top> after each topic")
        yield line, _fields_of_markup(match[1])


def _fields_of_markup(markup: str) -> dict[str, str]:
    """Return the texts of a topic by field: each follows a tag, and belongs to the field of it.

    Other tags are markup, and the text behind them belongs to the field before.
    """
    fields: dict[str, str] = {}
    name = ""
    # the groups of TAG, line start and tag, with the text up to the next tag
    _, *pieces = TAG.split(markup)
    for line_start, tag, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        tag_name = tag.lower()
        is_first_in_line = line_start is not None and not tag_name.startswith("/")
        if tag_name in KNOWN_FIELDS or is_first_in_line:
            name = FULL_NAMES.get(tag_name, tag_name)
        _add_text(fields, name, unescape(text, QUOTES))
    return fields


def _add_text(fields: dict[str, str], name: str, text: str) -> None:
    """Add a text to a field, on one line and without the label that old topics repeat."""
    one_line = with_single_spaces(text)
    if name in fields:
        if one_line:
            fields[name] += f" {one_line}"
        return
    label = LABELS.get(name)
    if label is not None:
        one_line = re.sub(rf"^(?:{label})\s*:\s*", "", one_line, flags=re.IGNORECASE)
    if one_line:
        fields[name] = one_line


def query_of_fields(query: Query, names: Sequence[str], source: str) -> Query:
    """Return a query whose text is that of some of its fields, in their order, with blanks between.

    A text that two of them have is there once: a query without a title has its text as `title`.

    >>> topic = Query("301", "crime", extra={"description": "Who commits it?"})
    >>> query_of_fields(topic, ["title", "desc"], "topics.txt").text
    'crime Who commits it?'
    """
    fields = {"text": query.text, "title": query.text, "query": query.text, **query.extra}
    texts = []
    for name in names:
        full_name = FULL_NAMES.get(name, name)
        text = fields.get(full_name, fields.get(name))
        if text is None:
            available = ", ".join(dict.fromkeys(["text", *query.extra]))
            found = f"no field {name} in query {query.qid} (there: {available})"
            raise InputError(source, None, found, f"the fields {', '.join(names)}")
        if not isinstance(text, str):
            raise InputError(source, None, f"{name} of query {query.qid} is no text", "a string")
        if text and text not in texts:
            texts.append(text)
    return query._replace(text=" ".join(texts))
