"""Which fields of records hold id, text and title, where no format that is known decides it.

Passages without ids get them from their texts.
"""

import json
import shlex
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from denserk.config.formats import CorpusSettings
from denserk.errors import InputError
from denserk.io.column_names import Column, Table, columns_by_meaning
from denserk.io.json_hints import choose_keys, flattening_hint, is_id_name, unpacking_hint
from denserk.io.json_records import UsedKeys, list_keys

FIRST_RECORDS = 100  # number of those by which fields are chosen
SHORTEST_TEXT = 40  # characters: a field with a shorter median is not taken as the text unasked
LISTED_FIELDS = 5  # of those that are not used
OTHER_FIELDS = "--id-field, --text-field and --title-field name others"

FirstRecords = Sequence[tuple[int | None, Mapping[str, Any]]]  # with their lines, at least one


def choose_fields(
    first_records: FirstRecords, settings: CorpusSettings, path: str | Path
) -> UsedKeys:
    """Return the fields of a corpus: those that were named, else by name and by length.

    A text is under a name that is known, or in the only field with long strings. An id is under a
    name that is known, or looks like one; without either the id is None. Raises an InputError for
    records without a field that was named, and if the text is not clear.
    """
    line, first_record = first_records[0]
    _require_fields(settings, first_record, path, line)
    records = [record for _, record in first_records]
    field_by_column = columns_by_meaning(first_record, Table.CORPUS)
    text_field = settings.text_field or _find_text_field(records, field_by_column, settings)
    if text_field is None:
        raise _unclear_text(records, path, line)
    title_field = settings.title_field
    if title_field is None:
        names = dict.fromkeys(chain.from_iterable(records))  # some records may have no title
        title_field = columns_by_meaning(names, Table.CORPUS).get(Column.TITLE)
    if title_field == text_field:
        title_field = None
    id_field = settings.id_key
    if id_field is None:
        id_field = _find_id_field(records, field_by_column, (text_field, title_field))
    return UsedKeys(id_field or None, text_field, title_field)  # "" or None: ids are made


def _require_fields(
    settings: CorpusSettings, record: Mapping[str, Any], path: str | Path, line: int | None
) -> None:
    """Raise an InputError if the first record lacks a field that was named.

    A title may be missing.
    """
    for field in (settings.id_key, settings.text_field):
        if field and field not in record:
            found = f"the fields {list_keys(record)}"
            raise InputError(path, line, found, field, f"{OTHER_FIELDS}, or leave them out")


def _find_text_field(
    records: Sequence[Mapping[str, Any]],
    field_by_column: Mapping[Column, str],
    settings: CorpusSettings,
) -> str | None:
    """Return the field with the text; None if it is not clear."""
    median_lengths = _median_lengths(records)
    known_field = field_by_column.get(Column.TEXT)
    if known_field in median_lengths:  # its values are texts
        return known_field
    named_fields = (settings.id_key, settings.title_field)
    long_fields = [
        field
        for field, length in median_lengths.items()
        if length >= SHORTEST_TEXT and field not in named_fields
    ]
    if len(long_fields) != 1:
        return None
    (text_field,) = long_fields
    # a name as long as a text is a text, in a first row that is no header
    return text_field if len(text_field) < SHORTEST_TEXT else None


def _median_lengths(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median length of each field whose values are strings or null."""
    values_by_field: dict[str, list[Any]] = {}
    for record in records:
        for field, value in record.items():
            values_by_field.setdefault(field, []).append(value)
    medians = {}
    for field, values in values_by_field.items():
        texts = [value for value in values if isinstance(value, str)]
        are_texts = len(texts) + values.count(None) == len(values)
        if texts and are_texts:
            lengths = [len(text) for text in texts]
            lengths += [0] * (len(records) - len(texts))  # null, or no such field
            medians[field] = median(lengths)
    return medians


def _find_id_field(
    records: Sequence[Mapping[str, Any]],
    field_by_column: Mapping[Column, str],
    taken_fields: Sequence[str | None],
) -> str | None:
    """Return the field with the ids: by a name that is known, else the only one that looks so.

    None if there is none, or more than one.
    """
    known_field = field_by_column.get(Column.PASSAGE_ID)
    if known_field is not None and known_field not in taken_fields:
        return known_field
    candidates = [
        field
        for field in records[0]
        if field not in taken_fields and is_id_name(field) and _has_ids(records, field)
    ]
    if len(candidates) != 1:
        return None
    return candidates[0]


def has_known_ids(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether records have ids under a name that is known, such as `doc_id`."""
    field = columns_by_meaning(records[0], Table.CORPUS).get(Column.PASSAGE_ID)
    return field is not None and _has_ids(records, field)


def _has_ids(records: Sequence[Mapping[str, Any]], field: str) -> bool:
    """Return whether the values of a field could be ids: each there once, without white space."""
    ids = set()
    for record in records:
        value = record.get(field)
        is_number = type(value) is int
        is_term = isinstance(value, str) and value.split() == [value]
        if not (is_number or is_term):
            return False
        ids.add(str(value))
    return len(ids) == len(records)


def _unclear_text(
    records: Sequence[Mapping[str, Any]], path: str | Path, line: int | None
) -> InputError:
    """Return the error of records in which no field is clearly the text."""
    found = f"no field that is clearly the text: {_examples(records[0])}"
    expected = "a known format, or one field of texts"
    hint = unpacking_hint(records[0], path, Table.CORPUS)
    if hint is None:
        hint = flattening_hint(records[0], path) or _naming_hint(records)
    is_whole_file = line == 1 and len(records) == 1
    if is_whole_file and _may_be_texts_by_id(records[0]):
        hint += "; or, if it is one object {id: text}, add --corpus-format json"
    return InputError(path, line, found, expected, hint)


def _may_be_texts_by_id(record: Mapping[str, Any]) -> bool:
    """Return whether the values of a record are texts alone, as in {id: text}."""
    return bool(record) and all(isinstance(value, str) for value in record.values())


def _naming_hint(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the options that name fields, with those that the records probably have."""
    if any(len(name) >= SHORTEST_TEXT for name in records[0]):  # a text, not a name
        return "if the first row is a passage, write the names above it: id,title,text"
    keys = choose_keys(records, Table.CORPUS)
    if keys is None:
        return "name the fields: --text-field NAME --id-field NAME --title-field NAME"
    if "_id" not in keys:
        possible_ids = [
            name for name in records[0] if name not in keys.values() and _has_ids(records, name)
        ]
        if possible_ids:
            keys = {**keys, "_id": possible_ids[0]}
    option_by_key = {"text": "--text-field", "_id": "--id-field", "title": "--title-field"}
    options = [
        f"{option} {_shell_word(keys[key])}" for key, option in option_by_key.items() if key in keys
    ]
    return f"name the fields, for instance {' '.join(options)}"


def _examples(record: Mapping[str, Any]) -> str:
    """Return the first fields of a record with the beginnings of their values."""
    if not record:
        return "an empty record"
    examples = []
    for field in list(record)[:8]:
        value = json.dumps(record[field], ensure_ascii=False, default=str)
        if len(value) > 27:
            value = f"{value[:24]}..."
        if not value.isprintable():
            value = ascii(value)
        name = list_keys([field])  # shortened, and printable
        examples.append(f"{name} ({value})")
    if len(record) > 8:
        examples.append("...")
    return ", ".join(examples)


def _shell_word(field: str) -> str:
    """Return a field as a shell reads it."""
    return shlex.quote(field) if field and field.isprintable() else "NAME"


def describe_fields(fields: UsedKeys) -> str:
    """Return which fields are used, for a message.

    >>> describe_fields(UsedKeys(None, "body", "headline"))
    'text: body, title: headline, ids made from the texts'
    """
    descriptions = [f"text: {fields.text}"]
    if fields.title is not None:
        descriptions.append(f"title: {fields.title}")
    if fields.id is None:
        descriptions.append("ids made from the texts")
    else:
        descriptions.append(f"id: {fields.id}")
    return ", ".join(descriptions)


def list_fields(fields: Sequence[str]) -> str:
    """Return the first few of some fields, for a message.

    >>> list_fields(["subject", "sender"])
    'subject, sender'
    """
    names = [list_keys([field]) for field in fields[:LISTED_FIELDS]]  # shortened, and printable
    if len(fields) > LISTED_FIELDS:
        names.append("...")
    return ", ".join(names)


def id_of_texts(title: str, text: str) -> str:
    """Return an id that depends on title and text alone: 16 hexadecimal digits.

    >>> id_of_texts("", "the moon")
    '451b1671bc7efb9b'
    """
    data = f"{title}\x1f{text}".encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=8).hexdigest()


class MadeIds:
    """Makes the ids of passages from their texts; equal texts are one passage.

    Memory holds 16 to 32 bytes a passage.
    """

    def __init__(self) -> None:
        self.repeats = 0  # passages whose texts an earlier one has
        self._seen = HashSet()

    def make(self, title: str, text: str) -> str | None:
        """Return the id of a passage; None if an earlier one has its title and text."""
        docid = id_of_texts(title, text)
        if self._seen.add(int(docid, 16)):
            return docid
        self.repeats += 1
        return None


class HashSet:
    """A set of 64-bit hashes, a third of the size of a `set`: open addressing in an array.

    >>> hashes = HashSet()
    >>> hashes.add(7), hashes.add(7), hashes.add(7 + 1024)
    (True, False, True)
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))  # 0: empty
        self._count = 0

    def add(self, hash_value: int) -> bool:
        """Add a hash; return whether it is new."""
        value = hash_value or 1  # 0 marks an empty slot: the hashes 0 and 1 count as one
        slots = self._slots
        slot = self._slot_of(slots, value)
        if slots[slot] == value:
            return False
        slots[slot] = value
        self._count += 1
        if 2 * self._count > len(slots):  # more than half are taken
            self._grow()
        return True

    def _slot_of(self, slots: "array[int]", value: int) -> int:
        """Return the slot of a value, or the empty one in which it belongs."""
        last = len(slots) - 1  # the number of slots is a power of 2, of which this is the bit mask
        slot = value & last
        while slots[slot] not in (0, value):
            slot = (slot + 1) & last  # the next one; after the last the first
        return slot

    def _grow(self) -> None:
        """Move all values to twice as many slots."""
        larger = array("Q", bytes(2 * 8 * len(self._slots)))  # 8 bytes a slot
        for value in self._slots:
            if value:
                larger[self._slot_of(larger, value)] = value
        self._slots = larger
