"""What a file or folder is: one table of rules for every command."""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from denserk.config.formats import Kind, QrelsFormat, RunFormat
from denserk.errors import InputError, UsageError
from denserk.io import detection
from denserk.io.corpus import read_passages
from denserk.io.detection import (
    KIND_OF_FORMATS,
    detect_kind,
    detect_run_or_qrels,
    format_of,
    recognise,
)
from denserk.io.file_head import FileHead
from denserk.io.files import open_ahead
from denserk.io.generated import read_generated
from denserk.io.qrels import FORMAT_BY_WIDTH, read_qrels
from denserk.io.runs import read_run
from denserk.io.topics import read_queries
from denserk.io.training import read_training
from denserk.io.vectors import read_vector_blocks

ROOT = Path(__file__).parents[2]


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


# an example of each rule, by what the file looks like; with (name, text) where the name counts
EXAMPLES: dict[str, str | bytes | tuple[str, str | bytes]] = {
    "Parquet": b"PAR1",
    "a NumPy array": b"\x93NUMPY",
    "a pickle, or a name in `.pkl` or `.pickle`": b"\x80\x04",
    "`<DOC>` and `<DOCNO>` (TREC)": "<DOC>\n<DOCNO> d1 </DOCNO>\n<TEXT>one</TEXT>\n</DOC>\n",
    "a name in `.md`": ("one.md", "# Head\n\none\n"),
    "JSON: `mteb_model_meta` first": lines(
        {"mteb_model_meta": {"model_name": "m"}, "default": {"test": {"q1": {"d1": 2.5}}}}
    ),
    "JSON: `vector`": lines({"id": "d1", "contents": "", "vector": [1.0, 2.0]}),
    "JSON: `docid` and `queries`": '{"docid": "d1", "queries": ["a b"], "next": []}\n',
    "JSON: `qid` with `pos`, or `neg` by system": lines(
        {"qid": "1", "pos": ["2"], "neg": {"bm25": ["3"]}}
    ),
    "JSON: `positive_passages` or `negative_passages`": lines(
        {"query_id": "1", "query": "who", "positive_passages": [{"docid": "d", "text": "one"}]}
    ),
    "JSON: `positive_document_ids` or `negative_document_ids`": lines(
        {"query_id": "1", "query_text": "who", "positive_document_ids": ["d"]}
    ),
    "JSON: `positive_ctxs` or `hard_negative_ctxs`": lines(
        {"question": "who", "answers": [], "positive_ctxs": [{"title": "t", "text": "one"}]}
    ),
    "JSON: `pos` or `neg`": lines({"query": "who", "pos": ["a"], "neg": ["b"]}),
    "JSON: an array in a file such as `P17.test.json`": (
        "P17.test.json",
        '[{"question": "who", "answers": ["she"]}]',
    ),
    "JSON: `question` and `answer`, a list": lines({"question": "who", "answer": ["she"]}),
    "JSON: three ids, of a query, a positive and a negative": lines(
        {"query_id": 1, "positive_id": 2, "negative_id": 3}
    ),
    "JSON: `anchor`, `positive`, `negative`, or `query` with `label`": lines(
        {"anchor": "q", "positive": "a"}
    ),
    "JSON: one object of scores or grades by query and passage": lines({"q1": {"d1": 2.0}}),
    "JSON: one object with `queries`, `corpus` and `relevant_docs`": lines(
        {"queries": {"q1": "who"}, "corpus": {"d1": "one"}, "relevant_docs": {"q1": ["d1"]}}
    ),
    "JSON: query, passage, and score or rank": lines({"topic": "q1", "docno": "d1", "score": 2.5}),
    "JSON: query, passage and grade, or BEIR's names": lines(
        {"query-id": "q1", "corpus-id": "d1", "score": 1}
    ),
    "JSON: `query-id` and `corpus-id`": lines({"query-id": "q1", "corpus-id": "d1"}),
    "JSON: `qid` and `docid` without a text": lines({"qid": "q1", "docid": "d1"}),
    "JSON: `text` or `spans`, a list (of `pretrain` alone)": lines({"spans": ["a", "b"]}),
    "JSON: `docid`, `text` and a `qid`": lines({"docid": "d1", "qid": "q1", "text": "one"}),
    "JSON: `question`, `query`, `query_text`, `query_id` or `qid`": lines(
        {"query_id": "1", "query": "who"}
    ),
    "JSON: one object with a record for each id, with `text` or `contents`": lines(
        {"d1": {"title": "head", "text": "one"}, "d2": {"title": "", "text": "two"}}
    ),
    "JSON: one object with a text for each id, of which one has a digit": lines(
        {"q1": "who", "q2": "what"}
    ),
    "JSON: one object with a record for each query id": '{\n"0": {"question": "who"}}\n',
    "JSON: `contents`, `docid`, `passage_id`, or `title` with `text`": lines(
        {"id": "d1", "contents": "one"}
    ),
    "JSON: `title` alone": lines({"id": "1", "title": "who"}),
    "JSON: `text` alone": lines({"_id": "1", "text": "one"}),
    "XML with `<topic>`, or tags of `<top>`": (
        "<topics>\n<topic number='1'><query>who</query></topic>\n</topics>\n"
    ),
    "a header: query, passage, and clicks or count, between tabs, commas or semicolons": (
        "query,url,clicks\nwho is,d1,3\n"
    ),
    "a header: `query-id`, `corpus-id`, `score`, `query`, `text`, between tabs, commas or "
    "semicolons": (
        "query-id\tcorpus-id\tscore\tquery\ttext\nq1\td1\t1\twho\tone\nq1\td2\t\twho\ttwo\n"
    ),
    "a header: query, passage, and score or rank": "docid qid score\nd1 q1 2.5\n",
    "a header: query, passage and label, above texts": (
        "query\tpassage\tlabel\nwho is\tone two\t1\n"
    ),
    "a header: query, passage and grade": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    "a header: question and answer, above a list in brackets": ("question\tanswer\nwho\t['she']\n"),
    "a header: query id and negatives": "qid\tnegative_ids\n1\t2,3\n",
    "a header: three ids, of a query, a positive and a negative": (
        "qid\tpositive_id\tnegative_id\n1\t2\t3\n"
    ),
    "a header: query or anchor, positive, negatives": "anchor\tpositive\nwho\ta b\n",
    "a header of training data, above lines of several widths": "anchor\tpositive\nwho\ta\tb\n",
    "a header: `id` and `text`": "id\ttext\n1\tone\n",
    "a header: query id and query, or question and answers": "qid\tquery\n1\twho\n",
    "a header: passage id and text": "docid\ttitle\ttext\nd1\thead\tone\n",
    "a header: two or three sentences": "sentence1\tsentence2\tscore\na\tb\t3.5\n",
    "two columns between tabs that are the six of a run between blanks": "1\tQ0 of 3 4 five\n",
    "two columns between tabs that are the four of qrels between blanks": "1\tone of 3\n",
    "six columns with rank and score; more after `Q0` or `0`": "q1 Q0 d1 1 2.5 tag\n",
    "four columns, a number last": "q1 0 d1 1\n",
    "a tab, and a list in brackets": "who\t['she']\n",
    "a first line that names query and positive among its columns": "query\tpositive\tx\nq\ta\tb\n",
    "a header between commas or semicolons: query or anchor, positive": (
        "anchor,positive\nwho is,a b\n"
    ),
    "a header between commas or semicolons: `id` and `text`": "id;text\n1;one\n",
    "a header between commas or semicolons: query id and query": "qid,query\n1,who\n",
    "a header between commas or semicolons: passage id and text": "docid,title,text\nd1,head,one\n",
    "a name in `.csv`, and names of other columns": ("one.csv", f"a,b\n1,{'text ' * 9}\n"),
    "an id, a tab, and ids between commas": "1\t2,3\n",
    "two columns between tabs": "1\tone two\n",
    "three columns, a number last that is no whole one": "q1\td1\t2.5\n",
    "three columns between tabs, a rank last": "q1\td1\t1\nq1\td2\t2\n",
    "three columns between tabs, a whole number last": "q1\td1\t9\nq1\td2\t7\n",
    "three columns between blanks, a rank last": "q1 d1 1\nq1 d2 2\n",
    "three columns between blanks, a whole number last": "q1 d1 9\nq1 d2 7\n",
    "three ids between tabs": "q1\td1\td2\n",
    "three columns between tabs": "d1\thead\tone two\n",
    "three columns between tabs, above lines of other widths": "d1\thead\tone\nd2\tone\n",
    "an id with a digit, a colon and a text in every line": "wt09-1:obama family tree\n2:who\n",
}
# examples that a rule takes for its kinds although the reader of the kind reports an error
BROKEN = {
    "Parquet",
    "a NumPy array",
    "a pickle, or a name in `.pkl` or `.pickle`",
    "JSON: `qid` and `docid` without a text",
    "a header of training data, above lines of several widths",
    "a header: two or three sentences",
    "three columns between tabs, above lines of other widths",
}
READERS: dict[Kind, Callable[[str], Iterable[Any]]] = {
    Kind.CORPUS: read_passages,
    Kind.QUERIES: read_queries,
    Kind.QRELS: read_qrels,
    Kind.RUN: read_run,
    Kind.TRAINING: read_training,
    Kind.GENERATED: read_generated,
    Kind.VECTORS: lambda source: read_vector_blocks(source, allow_pickle=True).blocks(),
}


def write_example(example, folder):
    """Write an example; return its path."""
    name, content = example if isinstance(example, tuple) else ("file", example)
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rule_name(path):
    """Return what the first rule that holds of a file says that it looks like."""
    with open_ahead(path) as (data, _):
        rule = recognise(FileHead(data, path.name))
    return None if rule is None else rule.looks_like


def test_every_rule_has_an_example_and_a_name_of_its_own():
    names = [rule.looks_like for rule in detection.RULES]
    assert list(EXAMPLES) == names
    assert len({rule.holds for rule in detection.RULES}) == len(names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_recognised_by_its_rule(name, tmp_path):
    path = write_example(EXAMPLES[name], tmp_path)
    assert rule_name(path) == name
    assert rule_name(compressed(path)) == name


@pytest.mark.parametrize("name", [name for name in EXAMPLES if isinstance(EXAMPLES[name], str)])
@pytest.mark.parametrize(
    "variant_of",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: b"\n \n" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.removesuffix(b"\n"),
    ],
    ids=["byte-order mark", "blank lines", "Windows line ends", "no last line end"],
)
def test_marks_and_line_ends_change_nothing(variant_of, name, tmp_path):
    path = write_example(EXAMPLES[name], tmp_path)
    path.write_bytes(variant_of(path.read_bytes()))
    assert rule_name(path) == name
    assert rule_name(compressed(path)) == name


def compressed(path):
    """Write a file with .gz behind its name; return its path."""
    packed_path = path.with_name(f"{path.name}.gz")
    packed_path.write_bytes(gzip.compress(path.read_bytes()))
    return packed_path


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_reader_of_a_recognised_kind_reads(name, tmp_path):
    """A file is taken for nothing that its reader does not read."""
    path = write_example(EXAMPLES[name], tmp_path)
    rule = next(rule for rule in detection.RULES if rule.looks_like == name)
    for kind in rule.formats:
        if name not in BROKEN:
            assert list(READERS[kind](str(path)))
        else:
            with pytest.raises((InputError, UsageError)):
                list(READERS[kind](str(path)))


RECORDS_OF_RUNS_AND_QRELS = {
    "q1 Q0 d1 1 2.5 tag\n": Kind.RUN,
    "q1\tQ0\td1\t1\t2.5\ttag\n": Kind.RUN,
    "q1\td1\t2.5\n": Kind.RUN,
    "qid docid score\nq1 d1 2.5\n": Kind.RUN,
    "q1 0 d1 1\n": Kind.QRELS,
    "query-id\tcorpus-id\tscore\nq1\td1\t1\n": Kind.QRELS,
}


@pytest.mark.parametrize(
    "comment", ["# a\n", "# a b\n", "# tag: 7\n", "# a b c\n", "\n# a\n\n#b\n"]
)
@pytest.mark.parametrize(("text", "kind"), RECORDS_OF_RUNS_AND_QRELS.items())
def test_runs_and_qrels_may_begin_with_comments(text, kind, comment, tmp_path):
    path = tmp_path / "file"
    path.write_text(comment + text)
    assert detect_kind(str(path), "target") is kind
    assert detect_run_or_qrels(str(path)) is kind
    assert len(list(READERS[kind](str(path)))) == 1


OF_A_KIND = [
    ("JSON: one object with a list for each query", '{"q1": ["d1"]}\n', Kind.QRELS),
    ("JSON: one object with an object for each query", '{"q1": {"d1": "2"}}\n', Kind.RUN),
    ("JSON of other keys", '{"a": 1}\n', Kind.RUN),
    (
        "JSON: one object with a record for each passage id",
        '{"a": {"headline": "Moon"}, "b": {"headline": "Boat"}}\n',
        Kind.CORPUS,
    ),
    ("a name in `.csv`", "qid,docid,score\nq1,d1,2.5\n", Kind.CORPUS),
    ("JSON: an object on several lines", '{\n"1": 2}\n', Kind.QUERIES),
    ("six columns or more", "a b c d e f g\n", Kind.RUN),
    ("four columns", "a b c d\n", Kind.QRELS),
    ("three columns, ranks last", "q1\td1\t1\nq1\td 2\t2\n", Kind.RUN),
    ("three columns", "a b c\n", Kind.RUN),
    ("columns between tabs", "1\tone\ttwo\tthree\n", Kind.QUERIES),
    ("two ids between tabs", "1\t2\n", Kind.TRAINING),
]


def test_rules_that_need_a_kind_have_examples():
    names = [name for name, _, _ in OF_A_KIND]
    assert [rule.looks_like for rule in detection.RULES_OF_A_KIND] == names


@pytest.mark.parametrize(("name", "text", "kind"), OF_A_KIND)
def test_rules_that_need_a_kind(name, text, kind):
    head = FileHead(text.encode(), "file.csv" if ".csv" in name else "file")
    rule_of_kind = recognise(head, {kind})
    assert rule_of_kind is not None
    assert rule_of_kind.looks_like == name
    rule_of_any_kind = recognise(head)
    assert rule_of_any_kind is None or kind not in rule_of_any_kind.formats


@pytest.mark.parametrize("width", FORMAT_BY_WIDTH)
def test_widths_of_qrels_are_those_of_the_rules(width):
    text = " ".join("abcdef"[:width])
    assert format_of(FileHead(text.encode()), QrelsFormat) is FORMAT_BY_WIDTH[width]


UNKNOWN = [
    "",
    " \n",
    "1\n",
    "The green moon\n",
    "The moon is green\n",
    "q1 Q0 d1 1 2.5\n",
    "[1, 2]\n",
    "[]\n",
    "{}\n",
    "{broken\n",
    '{"a": "b"}\n',
    '{"sentence1": "a", "score": 1}\n',
    '[{"a": {"b": "c"}}]\n',
    '[{"a": {}}, 1]\n',
    "qid,docid,score\nq1,d1,2.5\n",
    "<html>",
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_the_kind_of_what_no_rule_recognises_must_be_given(text, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(UsageError, match="of no known kind"):
        detect_kind(str(tmp_path / "file"), "target")


@pytest.mark.parametrize("reader", [read_passages, read_queries, read_qrels, read_training])
@pytest.mark.parametrize("text", UNKNOWN)
def test_readers_report_what_no_rule_recognises(text, reader, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError):
        list(reader(str(tmp_path / "file")))


SEVERAL_KINDS = "(several kinds)"
UNKNOWN_KIND = "(of no known kind)"
# name of a file, its content, and what `convert` takes it for
CONVERTED = [
    # runs and qrels, below comments too
    ("file", "# a comment\nq1 Q0 d1 1 2.5 tag\n", "run"),
    ("file", "# a comment\nqid Q0 docid rank score tag\n", "run"),
    ("file", "# a comment\nq1 0 d1 1\n", "qrels"),
    ("file", "# a comment\nquery-id\tcorpus-id\tscore\n", "qrels"),
    ("file", "q1 0 d1 1 2.5 my tag\n", "run"),
    ("file", "q1 Q0 d1 - 2.5 tag\n", "run"),
    ("file", "q1 d1 2.5\n", "run"),
    ("file", "q1 d1 1\n", SEVERAL_KINDS),
    ("run.txt", "q1 d1 1\n", "run"),
    ("file", "q1\td1\t2e5\n", "run"),
    # texts that have as many words as a run or qrels have columns
    ("file", "1\tboeing model 747\n", SEVERAL_KINDS),
    ("queries.tsv", "1\tboeing model 747\n", "queries"),
    ("collection.tsv", "1\tthe of 3 4 of\n", "corpus"),
    # JSON records
    ("file", lines({"passage_id": "d1", "text": "one"}), "corpus"),
    ("file", lines({"passage_id": "d1", "passage": "one"}), "corpus"),
    ("file", lines({"docid": "d1", "qid": "q1", "text": "one"}), "corpus"),
    ("file", lines({"question": "who", "answer": ["she"]}), "queries"),
    ("file", lines({"query_id": 1, "docid": 2, "label": 1}), "qrels"),
    ("file", lines({"text": [101, 2054]}), UNKNOWN_KIND),
    ("file", "[1, 2]\n", UNKNOWN_KIND),
    ("file", "{broken\n", UNKNOWN_KIND),
    ("file", "{}\n", UNKNOWN_KIND),
    # a header of labelled texts, which are training data in JSON
    ("file", "query\tpassage\tlabel\nwho is\tone two\t1\n", "training"),
]


def kind_for_convert(path):
    """Return what `convert` takes a file or a folder for."""
    try:
        return str(detect_kind(str(path), "target"))
    except UsageError as error:
        return SEVERAL_KINDS if "could hold" in str(error) else UNKNOWN_KIND


@pytest.mark.parametrize(("name", "text", "kind"), CONVERTED)
def test_what_convert_takes_a_file_for(name, text, kind, tmp_path):
    (tmp_path / name).write_text(text, newline="")
    assert kind_for_convert(tmp_path / name) == kind


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qrels.tsv", "q1\td1\t1\nq1\td2\t0\n"),
        ("file", lines({"query-id": "q1", "corpus-id": "d1"})),
    ],
)
def test_qrels_of_three_columns_and_of_json_are_no_run(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert detect_run_or_qrels(str(tmp_path / name)) is Kind.QRELS


@pytest.mark.parametrize(
    "text",
    [
        "sentence1\tsentence2\tscore\na\tb\t3.5\n",
        "sentence1\tsentence2\tsentence3\na\tb\tc\n",
        "anchor\tpositive\rq\ta\r",
    ],
)
def test_a_header_is_no_first_example(text, tmp_path):
    (tmp_path / "file").write_text(text, newline="")
    with pytest.raises(InputError):
        list(read_training(str(tmp_path / "file")))


@pytest.mark.parametrize(
    ("text", "detected_format"),
    [
        ("# a comment\nq1\td1\t2.5\n", RunFormat.TEVATRON),
        ("# a comment\nq1\td1\t1\n", RunFormat.MSMARCO),
        (' {"qid": "q1", "docid": "d1", "score": 2.5}\n', RunFormat.JSONL),
        ("# queries: 1\nq1 0 d1 1\n", QrelsFormat.TREC),
    ],
)
def test_readers_read_what_is_detected(text, detected_format, tmp_path):
    path = tmp_path / "file"
    path.write_text(text)
    formats = type(detected_format)
    assert format_of(FileHead(path.read_bytes()), formats) is detected_format
    assert list(READERS[KIND_OF_FORMATS[formats]](str(path)))


FOLDERS = [
    ({"README.md": "Read me.\n", "part-0.jsonl": lines({"id": "d1", "contents": "one"})}, "corpus"),
    ({"pooler.pt": ""}, UNKNOWN_KIND),  # the reader of models does not take it for one
    ({"config.json": "{}"}, "model"),
    ({"manifest.json": "{}"}, "vectors"),
    ({"index": "", "docid": ""}, "vectors"),
    ({"embedding.pkl": ""}, "vectors"),
    ({"corpus.jsonl": ""}, SEVERAL_KINDS),
    ({"P17.test.json": "[]"}, "queries"),
    ({"a.txt": "q1 0 d1 1\n", "b.md": "", ".hidden": ""}, "corpus"),
    ({"README.md": "Read me.\n", "a.npy": "\x93"}, UNKNOWN_KIND),
    ({".hidden": "q1 0 d1 1\n"}, UNKNOWN_KIND),
]


@pytest.mark.parametrize(("contents", "kind"), FOLDERS)
def test_what_convert_takes_a_folder_for(contents, kind, tmp_path):
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    assert kind_for_convert(tmp_path) == kind


def test_every_rule_of_folders_has_an_example():
    for rule in detection.FOLDER_RULES:
        assert any(rule.holds(contents.keys()) for contents, _ in FOLDERS)


def table_of_rules(rules):
    """Return the rows of a table of rules: what a file looks like, and the kinds that it may be."""
    rows = []
    for rule in rules:
        kinds = [kind for kind in Kind if kind in rule.formats]
        rows.append(f"| {rule.looks_like} | {' or '.join(kinds) or 'none'} |\n")
    return "".join(rows)


def test_the_page_of_formats_lists_the_rules():
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    assert table_of_rules(detection.RULES) in page
    assert table_of_rules(detection.FOLDER_RULES) in page


@pytest.mark.parametrize(
    "names",
    [
        ["a.txt", "b.docx", "c.pdf"],
        ["a.md", "picture.png"],
        ["b.docx", "sub/a.txt"],
        ["q1 0 d1 1.txt", "b.odt"],
    ],
)
def test_texts_beside_files_of_no_known_kind_are_a_corpus(names, tmp_path):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"q1 0 d1 1\n" if name.endswith((".txt", ".md")) else b"\x89PNG\r\n\x1a\n")
    assert kind_for_convert(tmp_path) == "corpus"


def test_a_file_that_is_known_decides_beside_texts(tmp_path):
    (tmp_path / "notes.txt").write_text("The moon.\n")
    (tmp_path / "a.trec").write_text("q1 Q0 d1 1 2.5 tag\n")
    assert kind_for_convert(tmp_path) == "run"


def test_a_description_alone_is_no_corpus(tmp_path):
    (tmp_path / "README.md").write_text("# Scripts\n")
    (tmp_path / "run.sh").write_text("exit\n")
    assert kind_for_convert(tmp_path) == UNKNOWN_KIND
