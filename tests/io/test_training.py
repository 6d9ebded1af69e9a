import gzip
import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from denserk.config.formats import TrainingFormat
from denserk.errors import DenserkError, InputError, UsageError
from denserk.io.training import FORMATS, detect_training, read_training, write_training
from denserk.records import Candidate, TrainingExample
from tests.reporters import Heard

EXAMPLES = [
    TrainingExample(
        "q1",
        "who runs",
        (Candidate("d1", "the cat runs", "Cat", 2.5, {"rank": 1}),),
        (Candidate("d2", "the dog sleeps", "", -1.0), Candidate("d3", "a boat", "Boat", 0.5)),
        ("the cat",),
        {"prompt": "find"},
    ),
    TrainingExample(
        "q2", "red fish", (Candidate("d4", "fish"),), (Candidate("d1", "the cat runs"),)
    ),
]


def names(candidates, field):
    return [getattr(candidate, field) for candidate in candidates]


@pytest.mark.parametrize("form", TrainingFormat)
def test_what_a_format_carries_is_read_back_and_the_format_is_logged(form, tmp_path):
    where = tmp_path / "train.gz"
    assert write_training(where, EXAMPLES, form) == 2
    notes = Heard()
    back = list(read_training(where))
    assert notes.notes == [f"{where}: training data in the format {form}"]
    if form in (TrainingFormat.TEVATRON, TrainingFormat.DPR):
        assert back == EXAMPLES
    carried = "text" if "text" in FORMATS[form].carries else "docid"
    for example, other in zip(EXAMPLES, back, strict=True):
        assert names(other.negatives, carried) == names(example.negatives, carried)
        if form is not TrainingFormat.NEGATIVES:
            assert names(other.positives, carried) == names(example.positives, carried)
        assert other.query == example.query or carried == "docid"


LINES = {
    TrainingFormat.TRIPLES: [b"1\t20\t30\n", b"1\t20\t30\n1\t20\t31"],
    TrainingFormat.TEXT_TRIPLES: [b"who runs\tcat\tdog\n"],
    TrainingFormat.NEGATIVES: [b"1\t20,30\n", b"1\t20\n"],
    TrainingFormat.ST_TRIPLET: [
        b"anchor\tpositive\tnegative\nwho runs\tcat\tdog\n",
        b"query\tpositive\nwho runs\tcat\n",
        b'{"query": "q", "positive": "a"}\n',
    ],
    TrainingFormat.DPR: [b'[{"question": "q", "positive_ctxs": []', b'{"hard_negative_ctxs": []}'],
    TrainingFormat.FLAG: [b'{"query": "q", "pos": []}\n'],
    None: [
        b"",
        b"one line",
        b'{"id": "d1", "contents": "c"}',
        b"a\tb c\n",
        b"[1, 2]",
        b"a\tb\nc\n",
    ],
}


@pytest.mark.parametrize(("form", "head"), [(f, head) for f in LINES for head in LINES[f]])
def test_formats_are_detected_by_their_first_bytes(form, head):
    assert detect_training(head) is form


@pytest.mark.parametrize(
    ("name", "count", "negatives", "form"),
    [
        ("dpr-nq-dev.json.gz", 5, 96, TrainingFormat.DPR),
        ("pos-neg-nq.jsonl.gz", 10, 100, TrainingFormat.FLAG),
        ("pos-neg-msmarco.jsonl.gz", 10, 25, TrainingFormat.FLAG),
    ],
)
def test_genuine_files_come_back_as_they_were(name, count, negatives, form, shared_data, tmp_path):
    source = shared_data / "format-samples" / name
    examples = list(read_training(source))
    assert (len(examples), len(examples[0].negatives)) == (count, negatives)
    write_training(tmp_path / name, examples, form)
    assert list(read_training(tmp_path / name)) == examples

    def parsed(path):
        text = gzip.decompress(Path(path).read_bytes()).decode("utf-8")
        return json.loads(text) if text.startswith("[") else [*map(json.loads, text.splitlines())]

    assert parsed(tmp_path / name) == parsed(source)


COLUMNS = [
    {"question": "who runs", "answer": "the cat", "negative_1": "a dog", "negative_2": "a boat"},
    {"question": "red", "answer": "fish", "negative_1": "moon", "negative_2": "sun"},
]


def read_columns(source):
    return [
        (e.qid, e.query, [c.text for c in e.positives], [c.text for c in e.negatives])
        for e in read_training(source)
    ]


def test_tables_are_read_as_their_columns_say(tmp_path):
    """Parquet, a folder of save_to_disk, with and without splits, and JSON lines agree."""
    data = Dataset.from_list(COLUMNS)
    data.to_parquet(tmp_path / "t.parquet")
    data.to_json(tmp_path / "t.jsonl")
    data.save_to_disk(tmp_path / "saved")
    DatasetDict(train=data, test=data.select([0])).save_to_disk(tmp_path / "splits")
    expected = [
        ("0", "who runs", ["the cat"], ["a dog", "a boat"]),
        ("1", "red", ["fish"], ["moon", "sun"]),
    ]
    for name in ("t.parquet", "t.jsonl", "saved", "splits"):
        assert read_columns(str(tmp_path / name)) == expected, name


def test_a_table_of_records(tmp_path):
    passages = [{"docid": "d1", "title": "", "text": "a cat"}]
    rows = [{"query_id": 7, "query": "q", "positive_passages": passages, "negative_passages": []}]
    Dataset.from_list(rows).to_parquet(tmp_path / "t.parquet")
    (example,) = read_training(tmp_path / "t.parquet")
    assert example == TrainingExample("7", "q", (Candidate("d1", "a cat"),), ())


def test_errors_of_a_table_name_the_row(tmp_path):
    Dataset.from_list([{"pos": ["a"], "query": 5}]).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t.parquet, line 1: found int as query"):
        list(read_training(tmp_path / "t.parquet"))
    (tmp_path / "t.parquet").write_bytes(b"PAR1 something else")
    with pytest.raises(InputError, match="a broken file"):
        list(read_training(tmp_path / "t.parquet"))


def test_what_is_no_dataset(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="no dataset that could be read"):
        list(read_training(tmp_path))
    monkeypatch.setattr("datasets.load_dataset", fail)
    with pytest.raises(UsageError, match=r"org/name: no such file, and no dataset .*not here"):
        list(read_training("org/name"))


def fail(*_, **__):
    raise ConnectionError("not here")


@pytest.fixture
def read_as(tmp_path):
    """`read_as(form, data)`: the examples of a file that holds these bytes."""

    def examples(form, data):
        (tmp_path / "data").write_bytes(data)
        return list(read_training(tmp_path / "data", form))

    return examples


def written_as(form, folder, examples, name="t"):
    """What the file holds, and what was logged as lost."""
    notes = Heard()
    write_training(folder / name, examples, form)
    return (folder / name).read_text(), [note.partition(": ")[2] for note in notes.notes]


DPR_CONTEXT = {"title": "head", "text": "one", "score": 1000, "title_score": 1, "passage_id": "12"}
DPR_ENTRY = {
    "dataset": "nq",
    "question": "who",
    "answers": ["she"],
    "positive_ctxs": [DPR_CONTEXT],
    "negative_ctxs": [{"title": "", "text": "far"}],
    "hard_negative_ctxs": [{"title": "", "text": "near", "psg_id": 13}],
}
DPR_EXAMPLE = TrainingExample(
    "0",
    "who",
    (Candidate("12", "one", "head", 1000.0, {"title_score": 1}),),
    (Candidate("13", "near"),),
    ("she",),
    {"dataset": "nq", "negative_ctxs": DPR_ENTRY["negative_ctxs"]},
)


def test_both_forms_read_alike_and_questions_count_from_0(read_as):
    line = json.dumps(DPR_ENTRY)
    for data in (json.dumps([DPR_ENTRY, DPR_ENTRY], indent=4), f"{line}\n{line}\n"):
        examples = read_as(TrainingFormat.DPR, data.encode())
        assert examples == [DPR_EXAMPLE, DPR_EXAMPLE._replace(qid="1")]


@pytest.mark.parametrize(("name", "is_array"), [("t.json", True), ("t.jsonl", False)])
def test_the_name_chooses_array_or_lines(name, is_array, read_as, tmp_path):
    other = DPR_EXAMPLE._replace(qid="q7", extra={})
    assert write_training(tmp_path / name, [DPR_EXAMPLE, other], TrainingFormat.DPR) == 2
    text = (tmp_path / name).read_text()
    entries = json.loads(text) if is_array else [json.loads(line) for line in text.splitlines()]
    assert entries[0] == DPR_ENTRY | {
        "hard_negative_ctxs": [{"title": "", "text": "near", "passage_id": "13"}]
    }
    assert entries[1]["query_id"] == "q7"
    assert read_as(TrainingFormat.DPR, text.encode()) == [DPR_EXAMPLE, other]


FULL = TrainingExample(
    "7",
    "who",
    (Candidate("d1", "one", "head", 1.5, {"rank": 2}),),
    (Candidate("d2", "two"),),
    extra={"negative_ctxs": [{"text": "far"}], "split": "dev"},
)
FLAG_LINE = (
    '{"query":"q","pos":["a"],"pos_scores":[2.5],'
    '"neg":["b","c"],"neg_scores":[1.0,0.0],"type":"x"}\n'
)
SCORED = TrainingExample(
    "0",
    "q",
    (Candidate(text="a", score=2.5),),
    (Candidate(text="b", score=1.0), Candidate(text="c", score=0.0)),
    extra={"type": "x"},
)
PAIRS = TrainingExample(
    "q1",
    "who\truns",
    (Candidate("d1", "a cat"), Candidate("d2", "a\ndog")),
    (Candidate("d3", "a boat", "Boat"),),
)


@pytest.mark.parametrize(
    ("form", "example", "text", "lost"),
    [
        (
            TrainingFormat.TEVATRON,
            FULL._replace(extra={"split": "dev"}),
            '{"query_id":"7","query":"who","positive_passages":[{"docid":"d1","title":"head",'
            '"text":"one","score":1.5,"rank":2}],"negative_passages":[{"docid":"d2","title":"",'
            '"text":"two"}],"split":"dev"}\n',
            [],
        ),
        (
            TrainingFormat.TEVATRON_IDS,
            FULL,
            '{"query_id":"7","query_text":"who","positive_document_ids":["d1"],'
            '"negative_document_ids":["d2"],"split":"dev"}\n',
            ["texts: 2, titles: 1, scores: 1, rank: 1, negative_ctxs: 1"],
        ),
        (TrainingFormat.FLAG, SCORED, FLAG_LINE, []),
        (
            TrainingFormat.FLAG,  # scores are written if every passage has one
            SCORED._replace(positives=(Candidate(text="a"),)),
            '{"query":"q","pos":["a"],"neg":["b","c"],"type":"x"}\n',
            ["scores: 2"],
        ),
        (
            TrainingFormat.TRIPLES,
            PAIRS,
            "q1\td1\td3\nq1\td2\td3\n",
            ["texts: 3, titles: 1, query texts: 1"],
        ),
        (
            TrainingFormat.TEXT_TRIPLES,
            PAIRS,
            "who runs\ta cat\ta boat\nwho runs\ta dog\ta boat\n",
            ["passage ids: 3, titles: 1, tabs and line ends inside texts: 2"],
        ),
        (
            TrainingFormat.ST_TRIPLET,
            PAIRS,
            '{"anchor":"who\\truns","positive":"a cat","negative":"a boat"}\n'
            '{"anchor":"who\\truns","positive":"a\\ndog","negative":"a boat"}\n',
            ["passage ids: 3, titles: 1"],
        ),
        (
            TrainingFormat.NEGATIVES,
            PAIRS,
            "q1\td3\n",
            ["texts: 3, titles: 1, query texts: 1, positives: 2"],
        ),
        (
            TrainingFormat.TRIPLES,
            TrainingExample("1", "", (Candidate("d1"),), ()),
            "",
            ["examples without a positive or without a negative: 1"],
        ),
    ],
)
def test_files_as_they_are_written(form, example, text, lost, tmp_path):
    assert written_as(form, tmp_path, [example]) == (text, lost)


def seen(example):
    known = ([c.docid or c.text for c in side] for side in (example.positives, example.negatives))
    return (example.qid, example.query, *known)


@pytest.mark.parametrize(
    ("form", "data", "expected"),
    [
        (
            TrainingFormat.TRIPLES,
            b"007\t1\t2\r\n007\t1\t3\r\n8\t4\t5\r\n007\t6\t7\n",
            [("007", "", ["1"], ["2", "3"]), ("8", "", ["4"], ["5"]), ("007", "", ["6"], ["7"])],
        ),
        (
            TrainingFormat.TEXT_TRIPLES,
            b"q one\ta\tb\nq one\ta\tc\nq two\td\te\n",
            [("0", "q one", ["a"], ["b", "c"]), ("1", "q two", ["d"], ["e"])],
        ),
        (
            TrainingFormat.ST_TRIPLET,
            b"anchor\tpositive\tnegative_1\tnegative_2\nq\ta\tb\tc\n",
            [("0", "q", ["a"], ["b", "c"])],
        ),
        (
            TrainingFormat.ST_TRIPLET,
            b'{"query": "q", "answer": "a"}\n{"query": "q", "answer": "b"}\n',
            [("0", "q", ["a", "b"], [])],
        ),
        (
            TrainingFormat.NEGATIVES,
            b"7\t1,2,3\n8\t\n",
            [("7", "", [], ["1", "2", "3"]), ("8", "", [], [])],
        ),
        (  # numbers as ids become strings, and absent ids are counted
            TrainingFormat.TEVATRON_IDS,
            b'{"query_id": 12, "positive_document_ids": [34]}\n\n'
            b'{"negative_document_ids": ["x"]}\n',
            [("12", "", ["34"], []), ("1", "", [], ["x"])],
        ),
        (
            TrainingFormat.ST_IDS,
            b'{"qid": 3, "pos": [1], "neg": {"bm25": [5, 6], "dense": [6, 7]}}\n',
            [("3", "", ["1"], ["5", "6", "7"])],
        ),
        (
            TrainingFormat.FLAG,
            b'{"query": "q", "pos": ["a"], "pos_scores": null}',
            [("0", "q", ["a"], [])],
        ),
    ],
)
def test_files_as_they_are_read(form, data, expected, read_as):
    assert [seen(example) for example in read_as(form, data)] == expected


@pytest.mark.parametrize(
    ("form", "data", "message"),
    [
        (TrainingFormat.TRIPLES, b"1\t2\t3\n1\t2\n", "data, line 2: found 2 columns; expected 3"),
        (TrainingFormat.TEXT_TRIPLES, b"a\tb\t\xff\n", "a byte that is not UTF-8 (0xff)"),
        (TrainingFormat.ST_TRIPLET, b"anchor\tpositive\nq\ta\tb\n", "line 2: found 3 columns"),
        (TrainingFormat.ST_TRIPLET, b"q\tpositive\tlabel\n1\t2\t3\n", "found the column label"),
        (TrainingFormat.ST_TRIPLET, b'{"a": "q"}', "line 1: found 1 column"),
        (TrainingFormat.NEGATIVES, b"1\t2\t3\n", "found 3 columns; expected 2"),
        (TrainingFormat.TEVATRON, b'{}\n{"query_id": "a b"}', "line 2: found the query_id id"),
        (TrainingFormat.TEVATRON, b'{"negative_passages": ["x"]}', "found str in negative_pass"),
        (TrainingFormat.TEVATRON, b'{"negative_passages": [{"text": 3}]}', "found int as text"),
        (
            TrainingFormat.FLAG,
            b'{"query": "q", "neg": ["a", "b"], "neg_scores": [1]}',
            "line 1: found 1 neg_scores for 2 neg",
        ),
    ],
)
def test_rejections_name_the_line(form, data, message, read_as):
    with pytest.raises(InputError) as caught:
        read_as(form, data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("form", "example", "hint"),
    [
        (TrainingFormat.FLAG, TrainingExample("1", "", (), ()), "--queries"),
        (TrainingFormat.FLAG, TrainingExample("1", "q", (Candidate("d1"),), ()), "--corpus"),
        (TrainingFormat.ST_IDS, TrainingExample("1", "q", (Candidate(text="a"),), ()), "tevatron"),
        (TrainingFormat.NEGATIVES, TrainingExample("1", "", (), (Candidate("a,b"),)), "triples"),
    ],
)
def test_an_example_that_does_not_fit_is_rejected_with_a_hint(form, example, hint, tmp_path):
    with pytest.raises(DenserkError) as caught:
        write_training(tmp_path / "t", [example], form)
    assert hint in str(caught.value.hint)
