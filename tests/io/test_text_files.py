"""Documents as .txt and .md files, and folders of them."""

import gzip
import shlex
import subprocess
import sys

import pytest

from denserk.config.formats import DETECTED, CorpusFormat, CorpusSettings
from denserk.errors import InputError, UsageError
from denserk.io.corpus import read_passages, with_used_fields
from denserk.io.text_files import split_markdown
from denserk.records import Passage


def write(folder, contents):
    """Write files by name, compressed under a name in .gz; return the folder as a source."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(folder)


def ids_texts_titles(passages):
    return [(passage.docid, passage.text, passage.title) for passage in passages]


def test_a_folder_of_text(tmp_path, caplog):
    source = write(
        tmp_path / "notes",
        {
            "b #2.md": "# Boat\r\n\r\non the river\r\n",
            "a.txt": "\ufeffcat\n",
            "sub/deep/c.TXT.gz": "moon\n",
            "sub/empty.md": "",
            "picture.png": b"\x89PNG",
            "sub/page.html": "<html>",
            ".hidden.txt": "no",
            ".git/d.txt": "no",
        },
    )
    write(tmp_path, {"outside/e.txt": "no"})
    notes = tmp_path / "notes"
    (notes / "out.txt").symlink_to(tmp_path / "outside" / "e.txt")
    (notes / "out").symlink_to(tmp_path / "outside")
    (notes / "broken.txt").symlink_to("nowhere")
    (notes / "z.txt").symlink_to("a.txt")
    assert ids_texts_titles(read_passages(source)) == [
        ("a.txt", "cat", ""),
        ("b%20%232.md", "on the river", "Boat"),
        ("sub/deep/c.TXT.gz", "moon", ""),
        ("sub/empty.md", "", ""),
        ("z.txt", "cat", ""),
    ]
    assert "links out of it (5), files of other kinds (.png 1, .html 1)" in caplog.text
    assert "percent-encoded: b%20%232.md" in caplog.text
    assert "1 of 5 passages are empty" in caplog.text


@pytest.mark.parametrize("name", ["c.json", "c.jsonl.gz", "c.tsv"])
def test_tables_in_a_folder_come_first(name, tmp_path):
    line = "d1\tone\n" if name == "c.tsv" else '{"_id": "d1", "text": "one"}\n'
    source = write(tmp_path, {name: line, "README.md": "# Read me"})
    assert [passage.docid for passage in read_passages(source)] == ["d1"]
    settings = CorpusSettings(corpus_format=CorpusFormat.TEXT)
    assert [passage.docid for passage in read_passages(source, settings)] == ["README.md"]


@pytest.mark.parametrize(
    ("text", "title", "body"),
    [
        ("---\ntitle: The moon\ntags: [a]\n---\n# Head\n\none", "The moon", "# Head\n\none"),
        ("---\ntitle: 7\n...\none", "7", "one"),
        ('---\ntitle: ""\n---\n# Head\none', "Head", "one"),
        ("---\ntags: a\n---\n# Head #\none", "Head", "one"),
        ("---\n---\none", "", "one"),
        ("---\ntitle: [a\n---\none", "", "---\ntitle: [a\n---\none"),
        ("---\nno mapping\n---\none", "", "---\nno mapping\n---\none"),
        ("---\ndate: 2024-99-99\n---\none", "", "---\ndate: 2024-99-99\n---\none"),
        ("one\n\n## Head\n\ntwo", "Head", "one\n\n## Head\n\ntwo"),
        ("Head\n====\n\none", "Head", "one"),
        ("```\n# no head\n```\n# Head", "Head", "```\n# no head\n```\n# Head"),
        ("#tag\n\none", "", "#tag\n\none"),
        ("one\n\n---\n\ntwo", "", "one\n\n---\n\ntwo"),
        ("", "", ""),
    ],
)
def test_markdown(text, title, body):
    assert split_markdown(text, "d1") == Passage("d1", body, title)


def test_one_markdown_file_is_one_document(tmp_path):
    write(tmp_path, {"my notes.md": "# Head\n\na\tb\n"})
    passages = list(read_passages(str(tmp_path / "my notes.md")))
    assert passages == [Passage("my%20notes.md", "a\tb", "Head")]


def test_a_txt_file_may_have_an_id_and_a_text_in_each_line(tmp_path):
    write(tmp_path, {"lines.txt": "d1\tone\nd2\ttwo\n"})
    passages = list(read_passages(str(tmp_path / "lines.txt")))
    assert passages == [Passage("d1", "one"), Passage("d2", "two")]


@pytest.mark.parametrize("name", ["notes.md", "."])
def test_documents_have_no_fields_to_name(name, tmp_path):
    write(tmp_path, {"notes.md": "# Head\n\nbody\n"})
    with pytest.raises(UsageError, match="no fields to name"):
        list(read_passages(str(tmp_path / name), CorpusSettings(text_field="body")))


@pytest.mark.parametrize(("encoding", "line"), [("iso-8859-1", 2), ("utf-16", 1)])
@pytest.mark.parametrize("name", ["it's.txt", "sub/my notes.md", "a.txt.gz"])
def test_another_encoding_is_an_error_that_converts(name, encoding, line, tmp_path):
    source = write(tmp_path, {name: "one\ncafé\n".encode(encoding), "z.txt": "two"})
    with pytest.raises(InputError, match="found a byte that is not UTF-8") as error:
        list(read_passages(source))
    assert str(tmp_path / name) in error.value.message
    assert error.value.line == line
    _, _, command = str(error.value.hint).partition(": ")
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", command], check=True)
    assert next(read_passages(source)).text == "one\ncafé"


def test_a_file_that_is_no_text(tmp_path):
    source = write(tmp_path, {"a.txt": b"one\n\x00\x01"})
    with pytest.raises(InputError, match="line 2: found a zero byte"):
        list(read_passages(source))


def test_a_name_that_is_not_utf8(tmp_path):
    if sys.platform == "darwin":
        pytest.skip("its file names are UTF-8")
    (tmp_path / "caf\udce9.txt").write_text("one")
    assert [passage.docid for passage in read_passages(str(tmp_path))] == ["caf%E9.txt"]


def test_an_empty_folder_holds_no_corpus(tmp_path):
    with pytest.raises(UsageError, match="holds no corpus"):
        list(read_passages(str(tmp_path)))


def test_a_folder_of_pdf_files_is_an_error_with_a_command(tmp_path):
    source = write(tmp_path, {"a.pdf": b"%PDF-1.7"})
    with pytest.raises(InputError, match=r"\*\.pdf files") as error:
        list(read_passages(source))
    assert shlex.quote(source) in str(error.value.hint)


TABLE_AND_README = {"c.jsonl": '{"_id": "1", "text": "one"}', "README.md": "# Data"}


def test_a_description_beside_tables_is_not_reported(tmp_path, caplog):
    source = write(tmp_path, TABLE_AND_README)
    assert [passage.docid for passage in read_passages(source)] == ["1"]
    assert "not read" not in caplog.text


def test_documents_beside_tables_are_reported(tmp_path, caplog):
    source = write(tmp_path, TABLE_AND_README | {"note.md": "a note"})
    assert [passage.docid for passage in read_passages(source)] == ["1"]
    assert ".txt and .md files are not read beside c.jsonl (1)" in caplog.text

    settings = CorpusSettings(corpus_format=CorpusFormat.TEXT)
    docids = [passage.docid for passage in read_passages(source, settings)]
    assert docids == ["README.md", "note.md"]


def test_documents_below_tables_are_warned_of_once(tmp_path, caplog):
    source = write(tmp_path, TABLE_AND_README | {"wiki/a.md": "one", "wiki/deep/b.txt": "two"})
    for _ in range(2):
        assert [passage.docid for passage in read_passages(source)] == ["1"]
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert ".txt and .md files are not read beside c.jsonl (2)" in warning.getMessage()


def test_documents_beside_a_file_of_settings_are_reported(tmp_path, caplog):
    source = write(tmp_path, {"app.json": b'{"theme": "dark", "size": "9"}', "note.md": b"a note"})
    with pytest.raises(InputError, match=r"app\.json"):
        with_used_fields(source, DETECTED)
    assert "--corpus-format text" in caplog.text


def test_tables_in_subfolders_are_pointed_to(tmp_path):
    source = write(tmp_path, {"sub/c.jsonl.gz": b""})
    with pytest.raises(UsageError, match="holds no corpus") as error:
        list(read_passages(source))
    assert str(tmp_path / "sub") in str(error.value.hint)
