import gzip
import json
from pathlib import Path

import pytest

from denserk.config.formats import TrainingFormat
from denserk.errors import DenserkError, InputError
from denserk.io.training import read_sentences, read_training, write_training
from denserk.records import Candidate, SentenceExample, TrainingExample


def summary(example):
    """Return an example with its passages as their ids, or as their texts without ids."""
    return (
        example.qid,
        example.query,
        [passage.docid or passage.text for passage in example.positives],
        [passage.docid or passage.text for passage in example.negatives],
    )


DPR = (
    b'{"dataset": "nq", "question": "who", "answers": ["she"], "positive_ctxs": [{"title": "head", '
    b'"text": "one", "score": 1000, "title_score": 1, "passage_id": "12"}], "hard_negative_ctxs": '
    b'[{"text": "near", "psg_id": 13}], "negative_ctxs": [{"text": "far"}]}'
)
DPR_EXAMPLE = TrainingExample(
    "0",
    "who",
    (Candidate("12", "one", "head", 1000.0, {"title_score": 1}),),
    (Candidate("13", "near"),),
    ("she",),
    {"dataset": "nq", "negative_ctxs": [{"text": "far"}]},
)
READ = [
    (
        "triples",
        b"007\t1\t2\r\n007\t1\t3\r\n8\t4\t5\r\n007\t6\t7\n",
        [("007", "", ["1"], ["2", "3"]), ("8", "", ["4"], ["5"]), ("007", "", ["6"], ["7"])],
    ),
    (
        "text-triples",
        b"q one\ta\tb\nq one\ta\tc\nq two\td\te\n",
        [("0", "q one", ["a"], ["b", "c"]), ("1", "q two", ["d"], ["e"])],
    ),
    (
        "st-triplet",
        b"anchor\tpositive\tnegative_1\tn\nq\ta\tb\tc\n",
        [("0", "q", ["a"], ["b", "c"])],
    ),
    (
        "st-triplet",
        b'{"query": "q", "answer": "a"}\n{"query": "q", "answer": "b"}\n',
        [("0", "q", ["a", "b"], [])],
    ),
    ("negatives", b"7\t1,2,3\n8\t4\n", [("7", "", [], ["1", "2", "3"]), ("8", "", [], ["4"])]),
    (  # numbers as ids become strings, and absent ids are counted
        "tevatron-ids",
        b'{"query_id": 12, "positive_document_ids": [34]}\n\n{"negative_document_ids": ["x"]}\n',
        [("12", "", ["34"], []), ("1", "", [], ["x"])],
    ),
    (
        "st-ids",
        b'{"qid": 3, "pos": [1], "neg": {"bm25": [5, 6], "dense": [6, 7]}}\n',
        [("3", "", ["1"], ["5", "6", "7"])],
    ),
    ("flag", b'[{"query": "q", "pos": ["a"], "pos_scores": null}]', [("0", "q", ["a"], [])]),
    ("dpr", DPR, [("0", "who", ["12"], ["13"])]),
    (
        "dpr",
        b"[%s,\n %s]" % (DPR, DPR),
        [("0", "who", ["12"], ["13"]), ("1", "who", ["12"], ["13"])],
    ),
]


@pytest.mark.parametrize(("training_format", "data", "expected"), READ)
def test_formats_are_detected(training_format, data, expected, tmp_path, caplog):
    (tmp_path / "t.gz").write_bytes(gzip.compress(data))
    assert [summary(example) for example in read_training(tmp_path / "t.gz")] == expected
    assert f"{tmp_path}/t.gz: training data in the format {training_format}" in caplog.messages


@pytest.mark.parametrize("data", [b"one line", b'{"id": "d1"}', b"a\tb\nc\n", b""])
def test_data_of_no_known_format_is_rejected(data, tmp_path):
    (tmp_path / "t.gz").write_bytes(gzip.compress(data))
    with pytest.raises(InputError, match="no training data of a known format"):
        list(read_training(tmp_path / "t.gz"))


def test_dpr_examples_are_read_whole(tmp_path):
    (tmp_path / "t").write_bytes(DPR)
    assert list(read_training(tmp_path / "t")) == [DPR_EXAMPLE]


def json_records(path):
    text = gzip.decompress(Path(path).read_bytes()).decode("utf-8")
    if text.startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("name", "count", "negatives", "training_format"),
    [
        ("dpr-nq-dev.json.gz", 5, 96, TrainingFormat.DPR),
        ("pos-neg-nq.jsonl.gz", 10, 100, TrainingFormat.FLAG),
        ("pos-neg-msmarco.jsonl.gz", 10, 25, TrainingFormat.FLAG),
    ],
)
def test_genuine_files_come_back_as_they_were(
    name, count, negatives, training_format, shared_data, tmp_path
):
    source = shared_data / "format-samples" / name
    examples = list(read_training(source))
    assert len(examples) == count
    assert len(examples[0].negatives) == negatives
    write_training(tmp_path / name, examples, training_format)
    assert list(read_training(tmp_path / name)) == examples
    assert json_records(tmp_path / name) == json_records(source)


FULL = TrainingExample(
    "7",
    "who",
    (Candidate("d1", "one", "head", 1.5, {"rank": 2}),),
    (Candidate("d2", "two"),),
    extra={"negative_ctxs": [{"text": "far"}], "split": "dev"},
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
WRITTEN = [  # format, example, text, what is lost
    (
        "tevatron-ids",
        FULL,
        '{"query_id":"7","query_text":"who","positive_document_ids":["d1"],'
        '"negative_document_ids":["d2"],"split":"dev"}\n',
        "texts: 2, titles: 1, scores: 1, negative_ctxs: 1, rank: 1",
    ),
    (
        "flag",
        SCORED,
        '{"query":"q","pos":["a"],"neg":["b","c"],'
        '"pos_scores":[2.5],"neg_scores":[1.0,0.0],"type":"x"}\n',
        "",
    ),
    (
        "flag",  # scores are written if every passage has one
        SCORED._replace(positives=(Candidate(text="a"),)),
        '{"query":"q","pos":["a"],"neg":["b","c"],"type":"x"}\n',
        "scores: 2",
    ),
    ("triples", PAIRS, "q1\td1\td3\nq1\td2\td3\n", "texts: 3, titles: 1, query texts: 1"),
    (
        "text-triples",
        PAIRS,
        "who runs\ta cat\ta boat\nwho runs\ta dog\ta boat\n",
        "passage ids: 3, titles: 1",
    ),
    (
        "st-triplet",
        PAIRS,
        '{"anchor":"who\\truns","positive":"a cat","negative":"a boat"}\n'
        '{"anchor":"who\\truns","positive":"a\\ndog","negative":"a boat"}\n',
        "passage ids: 3, titles: 1",
    ),
]


@pytest.mark.parametrize(("training_format", "example", "text", "lost"), WRITTEN)
def test_files_as_they_are_written(training_format, example, text, lost, tmp_path, caplog):
    write_training(tmp_path / "t", [example], TrainingFormat(training_format))
    assert (tmp_path / "t").read_text() == text
    losses = [message.partition(": ")[2] for message in caplog.messages]
    assert losses == ([lost] if lost else [])


@pytest.mark.parametrize("training_format", ["tevatron", "dpr"])
@pytest.mark.parametrize("name", ["t.json.gz", "t.jsonl"])
def test_two_formats_lose_nothing(training_format, name, tmp_path):
    examples = [DPR_EXAMPLE, FULL, PAIRS]
    write_training(tmp_path / name, examples, TrainingFormat(training_format))
    assert list(read_training(tmp_path / name)) == examples


@pytest.mark.parametrize(
    ("training_format", "data", "message"),
    [
        ("triples", b"1\t2\t3\n1\t2\n", "data, line 2: found 2 columns; expected 3"),
        ("text-triples", b"a\tb\t\xff\n", "a byte that is not UTF-8 (0xff)"),
        ("st-triplet", b"anchor\tpositive\nq\ta\tb\n", "line 2: found 3 columns"),
        ("st-triplet", b"q\tpositive\tscore\n1\t2\t3\n", "found the column score"),
        ("st-triplet", b'{"a": "q"}', "line 1: found 1 column"),
        ("negatives", b"1\t2\t3\n", "found 3 columns; expected 2"),
        ("negatives", b'{"id": "1", "negatives": [2]}', "found a list as negatives"),
        ("tevatron", b'{}\n{"query_id": "a b"}', "line 2: found the query_id id"),
        ("tevatron", b'{"negative_passages": ["x"]}', "found a string in negative_pass"),
        ("tevatron", b'{"negative_passages": [{"text": 3}]}', "found a number as text"),
        (
            "flag",
            b'{"query": "q", "neg": ["a", "b"], "neg_scores": [1]}',
            "line 1: found 1 neg_scores for 2 neg",
        ),
    ],
)
def test_rejections_name_the_line(training_format, data, message, tmp_path):
    (tmp_path / "data").write_bytes(data)
    with pytest.raises(InputError) as caught:
        list(read_training(tmp_path / "data", TrainingFormat(training_format)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("training_format", "example", "hint"),
    [
        ("flag", TrainingExample("1", "", (), ()), "--queries"),
        ("flag", TrainingExample("1", "q", (Candidate("d1"),), ()), "--corpus"),
        ("st-ids", TrainingExample("1", "q", (Candidate(text="a"),), ()), "tevatron"),
        ("negatives", TrainingExample("1", "", (), (Candidate("a,b"),)), "triples"),
    ],
)
def test_an_example_that_does_not_fit_is_rejected_with_a_hint(
    training_format, example, hint, tmp_path
):
    with pytest.raises(DenserkError) as caught:
        write_training(tmp_path / "t", [example], TrainingFormat(training_format))
    assert hint in str(caught.value.hint)


PAIR_EXAMPLES = [
    SentenceExample(('a plane "takes off', "an air plane"), 5.0),
    SentenceExample(("a cat sleeps", "a dog, big, runs"), 0.75),
]
TRIPLETS = [
    SentenceExample(("the moon rises", "the star falls", 'a "red" boat')),
    SentenceExample(("a cat", "a house, old", "a river")),
]
LABEL_HEADER = b"sentence1\tsentence2\tlabel\n"
COLUMN_PAIRS = b'a plane "takes off\tan air plane\t5.0\na cat sleeps\ta dog, big, runs\t0.75\n'
JSON_PAIRS = (
    b'{"sentence1": "a plane \\"takes off", "sentence2": "an air plane", "label": 5}\n'
    b'{"sentence1": "a cat sleeps", "sentence2": "a dog, big, runs", "score": "0.75"}\n'
)
JSON_TRIPLETS = (
    b'{"anchor":"the moon rises","positive":"the star falls","negative":"a \\"red\\" boat"}\n'
    b'{"anchor":"a cat","positive":"a house, old","negative":"a river"}\n'
)
GLUE = (
    b"\xef\xbb\xbfindex\tgenre\tyear\tsentence1\tsentence2\tscore\r\n"
    b'0\tmain\t2012\ta plane "takes off\tan air plane\t5.000\r\n\r\n'
    b"1\tmain\t2012\ta cat sleeps\ta dog, big, runs\t0.75\r\n"
)
BENCHMARK = (
    b'main\tMSR\t2012\t0001\t5.000\ta plane "takes off\tan air plane\n'
    b"main\tMSR\t2012\t0004\t0.75\ta cat sleeps\ta dog, big, runs\thttp://a\thttp://b\n"
)
SECTIONS = (
    b"Article Title,Article Link,Sentence1,Sentence2,Sentence3\n"
    b'Moon,http://m,the moon rises,the star falls,"a ""red"" boat"\n'
    b'Cat,http://c,a cat,"a house, old",a river\n'
)
COLUMN_TRIPLETS = b'the moon rises\tthe star falls\ta "red" boat\na cat\ta house, old\ta river\n'


@pytest.mark.parametrize(
    "data",
    [JSON_PAIRS, COLUMN_PAIRS, GLUE, BENCHMARK],
    ids=["JSON", "columns", "GLUE", "STS benchmark"],
)
def test_pairs(data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    assert list(read_sentences(tmp_path / "file")) == PAIR_EXAMPLES
    assert list(read_sentences(tmp_path / "file", 2)) == PAIR_EXAMPLES


@pytest.mark.parametrize(
    "data",
    [SECTIONS, JSON_TRIPLETS, COLUMN_TRIPLETS],
    ids=["Wikipedia sections", "JSON", "columns"],
)
def test_triplets(data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    assert list(read_sentences(tmp_path / "file")) == TRIPLETS
    assert list(read_sentences(tmp_path / "file", 3)) == TRIPLETS


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (b"", None, "found no rows; expected pairs (sentence1, sentence2, label) or triplets"),
        (b"a\tb\n", 3, "line 1: found 2 columns without a header; expected triplets"),
        (LABEL_HEADER + b"a\tb\t1\na\tb\n", 2, "line 3: found 2 columns; expected 3"),
        (GLUE, 3, "line 2: found the columns index, genre, year"),
        (JSON_TRIPLETS, 2, "line 1: found the columns anchor, positive, negative; expected pairs"),
        (JSON_PAIRS + b'{"sentence1": "a", "sentence2": "b"}', 2, "line 3: found no lab"),
        (JSON_PAIRS + b'{"sentence1": "a", "label": 1}', 2, "line 3: found no sentence2"),
        (LABEL_HEADER + b"a\tb\tnan\n", 2, "line 2: found label 'nan'; expected a finite number"),
        (LABEL_HEADER + b"a\t \t1\n", 2, "line 2: found no sentence2; expected a sentence"),
    ],
)
def test_sentences_that_are_rejected(data, size, message, tmp_path):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(InputError) as caught:
        list(read_sentences(tmp_path / "file", size))
    assert message in caught.value.message
