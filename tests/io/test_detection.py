"""What a file or folder is: one table of rules for every command."""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from denserk.config.formats import Kind, QrelsFormat, RunFormat, TrainingFormat
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
from denserk.io.runs import read_run
from denserk.io.topics import FORMAT_BY_WIDTH, read_qrels, read_queries
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
    "a header between commas: query or anchor, positive": "anchor,positive\nwho is,a b\n",
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
    "JSON: `query-id` and `corpus-id`",
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


def rule_of(path):
    with open_ahead(path) as (data, _):
        rule = recognise(FileHead(data, path.name))
    return None if rule is None else rule.looks_like


def test_every_rule_has_an_example_and_a_name_of_its_own():
    names = [rule.looks_like for rule in detection.RULES]
    assert list(EXAMPLES) == names
    assert len({rule.holds for rule in detection.RULES}) == len(names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_recognised_by_its_rule(name, tmp_path):
    assert rule_of(write_example(EXAMPLES[name], tmp_path)) == name


@pytest.mark.parametrize("name", EXAMPLES)
def test_marks_blank_lines_and_compression_change_nothing(name, tmp_path):
    path = write_example(EXAMPLES[name], tmp_path)
    data = path.read_bytes()
    variants = [data]
    if isinstance(EXAMPLES[name], str):
        variants += [
            b"\xef\xbb\xbf" + data,
            b"\n \n" + data,
            data.replace(b"\n", b"\r\n"),
            data.removesuffix(b"\n"),
        ]
    for variant in variants:
        path.write_bytes(variant)
        assert rule_of(path) == name
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(variant))
        assert rule_of(packed) == name


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_reader_of_a_recognised_kind_reads(name, tmp_path):
    """A file is taken for nothing that its reader does not read."""
    path = write_example(EXAMPLES[name], tmp_path)
    rule = next(rule for rule in detection.RULES if rule.looks_like == name)
    if name in BROKEN:
        with pytest.raises((InputError, UsageError)):
            assert [list(READERS[kind](str(path))) for kind in rule.formats]
        return
    for kind in rule.formats:
        assert list(READERS[kind](str(path)))


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
    assert [rule.looks_like for rule in detection.RULES_OF_A_KIND] == [row[0] for row in OF_A_KIND]


@pytest.mark.parametrize(("name", "text", "kind"), OF_A_KIND)
def test_rules_that_need_a_kind(name, text, kind):
    head = FileHead(text.encode(), "file.csv" if ".csv" in name else "file")
    expected = recognise(head, {kind})
    assert expected is not None
    assert expected.looks_like == name
    for_any_kind = recognise(head)
    assert for_any_kind is None or kind not in for_any_kind.formats


@pytest.mark.parametrize("width", FORMAT_BY_WIDTH)
def test_widths_of_qrels_are_those_of_the_rules(width):
    text = " ".join("abcdef"[:width])
    assert format_of(FileHead(text.encode()), QrelsFormat) is FORMAT_BY_WIDTH[width]


UNKNOWN = [
    *("", " \n", "1\n", "The green moon\n", "The moon is green\n", "q1 Q0 d1 1 2.5\n"),
    *("[1, 2]\n", "[]\n", "{}\n", "{broken\n", '{"a": "b"}\n', '{"sentence1": "a", "score": 1}\n'),
    *('[{"a": {"b": "c"}}]\n', '[{"a": {}}, 1]\n'),
    *("qid,docid,score\nq1,d1,2.5\n", "<html>"),
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_no_rule_recognises_is_asked_for(text, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(UsageError, match="of no known kind"):
        detect_kind(str(tmp_path / "file"), "target")


@pytest.mark.parametrize("reader", [read_passages, read_queries, read_qrels, read_training])
@pytest.mark.parametrize("text", UNKNOWN)
def test_readers_report_what_no_rule_recognises(text, reader, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError):
        list(reader(str(tmp_path / "file")))


ASKED = "(asked)"
UNKNOWN_KIND = "(of no known kind)"
UNREAD = "(an error)"
CONVERT, EVAL, TRAINING, RUN, QRELS = "convert", "eval", "training data", "run", "qrels"
# Files on which the detectors of commands and readers disagreed before they had one table:
# (name of the file, content, who is asked, the answer before, the answer now)
DISAGREED = [
    # runs and qrels that eval and the readers knew, and convert did not
    ("file", "# a comment\nq1 Q0 d1 1 2.5 tag\n", CONVERT, UNKNOWN_KIND, "run"),
    ("file", "# a comment\nqid Q0 docid rank score tag\n", CONVERT, UNKNOWN_KIND, "run"),
    ("file", "# a comment\nq1 0 d1 1\n", CONVERT, UNKNOWN_KIND, "qrels"),
    ("file", "# a comment\nquery-id\tcorpus-id\tscore\n", CONVERT, UNKNOWN_KIND, "qrels"),
    ("file", "q1 0 d1 1 2.5 my tag\n", CONVERT, UNKNOWN_KIND, "run"),
    ("file", "q1 Q0 d1 - 2.5 tag\n", CONVERT, UNKNOWN_KIND, "run"),
    ("file", "q1 d1 2.5\n", CONVERT, UNKNOWN_KIND, "run"),
    ("file", "q1 d1 1\n", CONVERT, UNKNOWN_KIND, ASKED),
    ("run.txt", "q1 d1 1\n", CONVERT, "run", "run"),
    ("file", "q1\td1\t2e5\n", CONVERT, ASKED, "run"),
    # texts that convert took for columns of a run or of qrels
    ("file", "1\tboeing model 747\n", CONVERT, "qrels", ASKED),
    ("queries.tsv", "1\tboeing model 747\n", CONVERT, "qrels", "queries"),
    ("collection.tsv", "1\tthe of 3 4 of\n", CONVERT, "run", "corpus"),
    # qrels of three columns, which convert knew by their name
    ("qrels.tsv", "q1\td1\t1\nq1\td2\t0\n", EVAL, "run", "qrels"),
    ("file", lines({"query-id": "q1", "corpus-id": "d1"}), EVAL, "run", "qrels"),
    # JSON records
    ("file", lines({"passage_id": "d1", "text": "one"}), CONVERT, ASKED, "corpus"),
    ("file", lines({"passage_id": "d1", "passage": "one"}), CONVERT, UNKNOWN_KIND, "corpus"),
    ("file", lines({"docid": "d1", "qid": "q1", "text": "one"}), CONVERT, "run", "corpus"),
    ("file", lines({"question": "who", "answer": ["she"]}), CONVERT, "training", "queries"),
    ("file", lines({"query_id": 1, "docid": 2, "label": 1}), CONVERT, "training", "qrels"),
    ("file", lines({"text": [101, 2054]}), CONVERT, ASKED, UNKNOWN_KIND),
    ("file", "[1, 2]\n", CONVERT, "queries", UNKNOWN_KIND),
    ("file", "{broken\n", CONVERT, "queries", UNKNOWN_KIND),
    ("file", "{}\n", CONVERT, "queries", UNKNOWN_KIND),
    # a header of labelled texts, which are training data in JSON
    ("file", "query\tpassage\tlabel\nwho is\tone two\t1\n", CONVERT, "qrels", "training"),
    # headers that were taken for a first example
    ("file", "sentence1\tsentence2\tscore\na\tb\t3.5\n", TRAINING, "triples", UNREAD),
    ("file", "sentence1\tsentence2\tsentence3\na\tb\tc\n", TRAINING, "triples", UNREAD),
    ("file", "anchor\tpositive\rq\ta\r", TRAINING, "st-triplet", UNREAD),
    # what was detected, and not read
    ("file", "# a comment\nq1\td1\t2.5\n", RUN, UNREAD, "tevatron"),
    ("file", "# a comment\nq1\td1\t1\n", RUN, UNREAD, "msmarco"),
    ("file", ' {"qid": "q1", "docid": "d1", "score": 2.5}\n', RUN, UNREAD, "jsonl"),
    ("file", "# queries: 1\nq1 0 d1 1\n", QRELS, UNREAD, "trec"),
]


def answer(asked, path):
    """What a command or reader takes a file for."""
    if asked == CONVERT:
        try:
            return str(detect_kind(path, "target"))
        except UsageError as error:
            return ASKED if "could hold" in str(error) else UNKNOWN_KIND
    if asked == EVAL:
        return str(detect_run_or_qrels(path))
    formats = {TRAINING: TrainingFormat, RUN: RunFormat, QRELS: QrelsFormat}[asked]
    try:
        assert list(READERS[KIND_OF_FORMATS[formats]](path))
    except InputError:
        return UNREAD
    return str(format_of(FileHead(Path(path).read_bytes()), formats))


@pytest.mark.parametrize(("name", "text", "asked", "before", "now"), DISAGREED)
def test_files_on_which_detectors_disagreed(name, text, asked, before, now, tmp_path):
    (tmp_path / name).write_text(text, newline="")
    assert answer(asked, str(tmp_path / name)) == now


FOLDERS = [
    ({"README.md": "Read me.\n", "part-0.jsonl": lines({"id": "d1", "contents": "one"})}, "corpus"),
    ({"pooler.pt": ""}, UNKNOWN_KIND),  # the reader of models does not take it for one
    ({"config.json": "{}"}, "model"),
    ({"manifest.json": "{}"}, "vectors"),
    ({"index": "", "docid": ""}, "vectors"),
    ({"embedding.pkl": ""}, "vectors"),
    ({"corpus.jsonl": ""}, ASKED),
    ({"P17.test.json": "[]"}, "queries"),
    ({"a.txt": "q1 0 d1 1\n", "b.md": "", ".hidden": ""}, "corpus"),
    ({"README.md": "Read me.\n", "a.npy": "\x93"}, UNKNOWN_KIND),
    ({".hidden": "q1 0 d1 1\n"}, UNKNOWN_KIND),
]


@pytest.mark.parametrize(("contents", "expected"), FOLDERS)
def test_folders(contents, expected, tmp_path):
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    assert answer(CONVERT, str(tmp_path)) == expected


def test_every_rule_of_folders_has_an_example():
    for rule in detection.FOLDER_RULES:
        assert any(rule.holds(contents.keys()) for contents, _ in FOLDERS)


def listed(kinds):
    names = [kind.value for kind in Kind if kind in kinds]
    return " or ".join(names) or "none"


def test_the_page_of_formats_lists_the_rules():
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    files = "".join(f"| {rule.looks_like} | {listed(rule.formats)} |\n" for rule in detection.RULES)
    folders = "".join(
        f"| {rule.looks_like} | {listed(rule.formats)} |\n" for rule in detection.FOLDER_RULES
    )
    assert files in page
    assert folders in page
