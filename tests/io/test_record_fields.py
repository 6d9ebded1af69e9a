"""Corpora of records whose keys or columns no format names; ids that are made from texts."""

import gzip
import json

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.formats import DETECTED, CorpusFormat, CorpusSettings
from denserk.errors import InputError, UsageError
from denserk.io.corpus import read_passages, with_used_fields
from denserk.io.record_fields import HashSet, id_of_texts
from denserk.records import Passage

LONG = "The moon rises over the river, and the boat lies still."
WITHOUT_COMMA = "The moon rises over the river while the boat lies still."
ROWS = [
    {"doc_key": "a1", "headline": "Moon", "article": LONG, "n": 1},
    {"doc_key": "a2", "headline": "", "article": f"{LONG} Twice.", "n": 2},
]


def write(path, rows):
    """Write rows in the format of a file's name; return the path as a source."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        Dataset.from_list(rows).to_parquet(path)
        return str(path)
    if name.endswith(".json"):
        text = json.dumps(rows, indent=1)
    elif name.endswith(".jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    elif name.endswith(".tsv"):
        text = table(rows, "\t", "{}")
    else:
        text = table(rows, ",", '"{}"')
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return str(path)


def table(rows, delimiter, cell_format):
    """Return rows as lines of a table, below their keys."""
    lines = [rows[0].keys(), *(row.values() for row in rows)]
    text = ""
    for line in lines:
        text += delimiter.join(cell_format.format(value) for value in line) + "\n"
    return text


def ids_texts_titles(passages):
    return [(passage.docid, passage.text, passage.title) for passage in passages]


NAMES = ["c.jsonl", "c.jsonl.gz", "c.json", "c.parquet", "c.csv", "c.csv.gz", "c.tsv", "c.tsv.gz"]


@pytest.mark.parametrize(
    ("count", "listed"), [(1, "subject0; "), (5, "subject4; "), (6, "subject4, ...; ")]
)
def test_fields_that_are_not_used_are_named(count, listed, tmp_path, caplog):
    others = {f"subject{number}": "boat" for number in range(count)}
    source = write(tmp_path / "c.csv", [{"number": 7, "message": LONG} | others])
    list(read_passages(source))
    assert f"{listed}--id-field" in caplog.text
    assert f"not used as text: {', '.join(list(others)[:5])}" in caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_the_only_field_with_long_texts_is_the_text(name, tmp_path, caplog):
    source = write(tmp_path / name, ROWS)
    passages = list(read_passages(source))
    assert ids_texts_titles(passages) == [
        ("a1", LONG, "Moon"),
        ("a2", f"{LONG} Twice.", ""),
    ]
    assert [str(passage.extra["n"]) for passage in passages] == ["1", "2"]
    assert f"{name}: corpus (text: article, title: headline, id: doc_key)" in caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_fields_that_are_named(name, tmp_path):
    source = write(tmp_path / name, ROWS)
    settings = CorpusSettings(id_field="n", text_field="headline", title_field="doc_key")
    assert ids_texts_titles(read_passages(source, settings)) == [
        ("1", "Moon", "a1"),
        ("2", "", "a2"),
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "settings", [CorpusSettings(text_field="body"), CorpusSettings(id_field="body")]
)
def test_fields_that_are_not_there(settings, name, tmp_path):
    source = write(tmp_path / name, ROWS)
    with pytest.raises(InputError, match=r"found the fields doc_key, headline.*expected body"):
        list(read_passages(source, settings))


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"a": "x", "b": "y"}, "--text-field"),
        ({"key": "x", "one": LONG, "two": LONG}, "--text-field one --id-field key"),
        ({"it's": [LONG], "my text": "x"}, "--text-field 'my text'"),
        ({"ticket": "A-7", "message": "it rains"}, "--text-field message --id-field ticket"),
        ({}, "--text-field NAME"),
        ({"": "x"}, "--text-field NAME"),
    ],
)
def test_a_text_that_is_not_clear(row, hint, tmp_path):
    source = write(tmp_path / "c.jsonl", [row])
    with pytest.raises(InputError, match="no field that is clearly the text") as error:
        list(read_passages(source))
    assert hint in str(error.value.hint)
    for name in row:
        assert name in error.value.message


def test_a_record_without_the_fields_of_the_first(tmp_path):
    source = write(tmp_path / "c.jsonl", [*ROWS, {"doc_key": "a3"}])
    with pytest.raises(InputError, match="line 3: found no article"):
        list(read_passages(source))


@pytest.mark.parametrize(
    "settings", [CorpusSettings(id_field="url"), CorpusSettings(docid_field="url")]
)
def test_an_id_key_alone_leaves_text_and_title_to_the_format(settings, tmp_path):
    source = write(tmp_path / "c.jsonl", [{"_id": "b", "url": "u", "title": "h", "text": "x"}])
    assert ids_texts_titles(read_passages(source, settings)) == [("u", "x", "h")]


def test_an_id_key_has_one_option():
    with pytest.raises(UsageError, match="exclude each other"):
        CorpusSettings(id_field="url", docid_field="url")


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.csv.gz"])
def test_ids_are_made_of_texts_and_equal_texts_are_one_passage(name, tmp_path, caplog):
    rows = [{"body": LONG}, {"body": "other"}, {"body": LONG}]
    file = write(tmp_path / name, rows)
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / f"1{name}", rows)
    write(folder / f"2{name}", rows)
    passages = [
        Passage(id_of_texts("", LONG), LONG),
        Passage(id_of_texts("", "other"), "other"),
    ]
    assert list(read_passages(file)) == passages
    assert list(read_passages(str(folder))) == passages
    assert "with the title and text of an earlier one are left out (4)" in caplog.text
    assert "ids made from the texts" in caplog.text


def test_ids_that_are_made_where_there_are_others(tmp_path):
    source = write(tmp_path / "c.jsonl", [{"_id": "d1", "title": "h", "text": "x"}])
    (passage,) = read_passages(source, CorpusSettings(id_field=""))
    assert passage.docid == id_of_texts("h", "x")


def test_texts_under_the_name_of_an_id_are_texts(tmp_path):
    source = write(tmp_path / "c.jsonl", [{"docid": LONG}])
    assert list(read_passages(source)) == [Passage(id_of_texts("", LONG), LONG)]


def test_one_field_may_be_named_as_id_and_text(tmp_path):
    source = write(tmp_path / "c.jsonl", [{"url": "u", "text": "x"}])
    settings = CorpusSettings(id_field="url", text_field="url")
    assert list(read_passages(source, settings)) == [Passage("u", "u", "", {"text": "x"})]


def test_records_of_text_alone_keep_their_numbers(tmp_path):
    source = write(tmp_path / "c.jsonl", [{"text": "x"}, {"text": "x"}])
    assert [passage.docid for passage in read_passages(source)] == ["0", "1"]


@pytest.mark.parametrize("key", ["doc_id", "docno", "pid", "document_id", "passageId", "ID", "id_"])
def test_ids_beside_a_text_under_any_known_name(key, tmp_path):
    rows = [{key: "d1", "text": "one"}, {key: "d2", "text": "two", "title": "h"}]
    source = write(tmp_path / "c.jsonl", rows)
    passages = [("d1", "one", ""), ("d2", "two", "h")]
    assert ids_texts_titles(read_passages(source)) == passages
    used_settings = with_used_fields(source, DETECTED)
    assert used_settings.id_key == key
    assert ids_texts_titles(read_passages(source, used_settings)) == passages
    numbered = read_passages(source, CorpusSettings(CorpusFormat.FLAG))
    assert [passage.docid for passage in numbered] == ["0", "1"]


def test_a_known_id_of_several_passages_is_none(tmp_path):
    rows = [{"doc_id": "d1", "text": "one"}, {"doc_id": "d1", "text": "two"}]
    passages = read_passages(write(tmp_path / "c.jsonl", rows))
    assert [passage.docid for passage in passages] == ["0", "1"]


def test_passages_of_documents_have_the_ids_of_passages(tmp_path):
    row = {"pid": "p1", "passage": "one", "spans": "(0,3)", "docid": "d1"}
    source = write(tmp_path / "c.jsonl", [row])
    assert [passage.docid for passage in read_passages(source)] == ["p1"]
    by_document = CorpusSettings(id_field="docid")
    assert [passage.docid for passage in read_passages(source, by_document)] == ["d1"]


def test_used_fields_are_those_of_every_reading(tmp_path):
    source = write(tmp_path / "c.jsonl", ROWS)
    settings = with_used_fields(source, DETECTED)
    assert settings == CorpusSettings(
        id_field="doc_key", text_field="article", title_field="headline"
    )
    assert with_used_fields(source, settings) == settings
    assert list(read_passages(source, settings)) == list(read_passages(source))


def test_an_empty_id_field_stands_for_ids_that_are_made(tmp_path):
    source = write(tmp_path / "c.csv", [{"body": LONG}])
    settings = CorpusSettings(id_field="", text_field="body")
    assert with_used_fields(source, DETECTED) == settings


def test_a_known_format_needs_no_fields(tmp_path):
    source = write(tmp_path / "c.jsonl", [{"_id": "b", "text": "x"}])
    assert with_used_fields(source, DETECTED) is DETECTED


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3)))
def test_a_hash_set_is_a_set(values):
    hashes = HashSet()
    earlier_values = set()
    for value in values * 2:
        value = value or 1  # 0 and 1 are one hash
        assert hashes.add(value) == (value not in earlier_values)
        earlier_values.add(value)


def test_zero_is_a_hash():
    hashes = HashSet()
    assert hashes.add(0)
    assert not hashes.add(0)


def test_a_hash_set_grows():
    hashes = HashSet()
    assert all(hashes.add(number * 977) for number in range(1, 5000))
    assert not any(hashes.add(number * 977) for number in range(1, 5000))


# CSV


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(delimiter, end, mark, tmp_path):
    rows = [
        ["Doc ID", "Title", "Content", "url"],
        ["1", "", f'"a ""b""{delimiter} c"', "x"],
        ["2", "head", '"two\n\nlines"', ""],
    ]
    text = "\n".join(delimiter.join(row) for row in rows)
    (tmp_path / "c.csv").write_text(mark + text.replace("\n", end) + end, newline="")
    settings = CorpusSettings(corpus_format=CorpusFormat.CSV) if delimiter == "\t" else DETECTED
    assert list(read_passages(str(tmp_path / "c.csv"), settings)) == [
        Passage("1", f'a "b"{delimiter} c', "", {"url": "x"}),
        Passage("2", "two\n\nlines", "head", {"url": ""}),
    ]


def test_a_long_cell(tmp_path):
    text = "word " * 100_000
    (tmp_path / "c.csv").write_text(f'id,text\n1,"{text}"\n')
    assert [passage.text for passage in read_passages(str(tmp_path / "c.csv"))] == [text]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("id,text\n1,a\n2,b,c\n", "line 3: found 3 columns between commas; expected 2"),
        ('id,text\n1,a\n\n2,"b\nc\n3,d\n', "line 4: found a row that is not quoted as CSV"),
        ('id,text\n1,"a"b\n', "line 2: found a row that is not quoted as CSV"),
        ("id,text\n,a\n", "line 2: found an empty passage id"),
        ("id,text\na b,a\n", "line 2: found the passage id 'a b'"),
        ("1,a\n2,b\n", "line 2: found no field that is clearly the text"),
        (
            f"{WITHOUT_COMMA},b\n{WITHOUT_COMMA},{WITHOUT_COMMA}\n",
            "line 2: found no field that is clearly the text",
        ),
        ("id,text\n", "found no passages"),
        ("id,text,text\n1,a,b\n", "line 1: found the column text twice"),
    ],
)
def test_broken_csv_is_reported_with_its_line(text, found, tmp_path):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(InputError, match=found):
        list(read_passages(str(tmp_path / "c.csv")))


def test_csv_under_another_name_is_read_by_its_format_or_a_named_field(tmp_path):
    path = tmp_path / "c"
    path.write_text(f"key,body\nd1,{WITHOUT_COMMA}\n")
    with pytest.raises(InputError, match="found 1 column between tabs") as error:
        list(read_passages(str(path)))
    assert "--corpus-format csv" in str(error.value.hint)

    passages = [Passage("d1", WITHOUT_COMMA)]
    assert list(read_passages(str(path), CorpusSettings(CorpusFormat.CSV))) == passages
    assert list(read_passages(str(path), CorpusSettings(text_field="body"))) == passages


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("text_field", [None, "article"])
def test_an_object_of_records_by_id(text_field, indent, tmp_path):
    """The key is the id, whatever is inside."""
    records = {
        "a1": {"headline": "Moon", "id": 9, "article": LONG},
        "a2": {"headline": "", "id": 9, "article": f"{LONG} Twice."},
    }
    path = tmp_path / "c.json"
    path.write_text(json.dumps(records, indent=indent))
    passages = read_passages(str(path), CorpusSettings(text_field=text_field))
    assert ids_texts_titles(passages) == [
        ("a1", LONG, "Moon"),
        ("a2", f"{LONG} Twice.", ""),
    ]


def test_an_object_of_records_without_the_named_field(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"a1": {"headline": "Moon"}, "a2": {"headline": "Boat"}}))
    with pytest.raises(InputError, match="headline"):
        list(read_passages(str(path), CorpusSettings(text_field="article")))


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("doc_key\theadline\tbody", f"a1\tMoon\t{LONG}"),
        ("doc_key\tbody", f"a1\t{LONG}"),
    ],
)
def test_a_table_of_two_or_three_columns_whose_header_names_a_text(header, row, tmp_path, caplog):
    path = tmp_path / "c.tsv"
    path.write_text(f"{header}\n{row}\n")
    (passage,) = read_passages(str(path))
    assert (passage.docid, passage.text) == ("a1", LONG)
    assert "text: body" in caplog.text

    path.write_text(f"{row}\n{header}\n")  # only a first line is a header
    assert len(list(read_passages(str(path)))) == 2


def test_names_of_columns_are_not_reported_as_a_record(tmp_path, caplog):
    path = tmp_path / "c.tsv"
    path.write_text(f"docid\tarticle\tn\tm\na1\t{LONG}\t1\t2\na2\t{LONG}\t1\t2\n")
    assert [passage.docid for passage in read_passages(str(path))] == ["a1", "a2"]
    assert "read as a record" not in caplog.text
