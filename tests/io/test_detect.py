import pytest

from denserk.config.formats import (
    CorpusFormat,
    Kind,
    QrelsFormat,
    RunFormat,
    TopicsFormat,
    TrainingFormat,
)
from denserk.errors import UsageError
from denserk.io.detect import detect_kind, format_by_name

CONTENTS = {
    Kind.CORPUS: [
        b'{"_id": "d1", "title": "", "text": "one"}',
        b'{"id": "d1", "contents": "one"}',
        b"id\ttext\ttitle\n1\tone\thead\n",
        b'[{"id": "d1", "contents": "one"}]',
    ],
    Kind.QUERIES: [
        b'{"query_id": "1", "query": "who"}',
        b'{"id": "1", "title": "who"}',
        b'{"question": "who", "answers": ["she"]}',
        b'{"0": {"question": "who"}}',
        b'[{"question": "who", "answers": []}]',
        b"who\t['she']\n",
    ],
    Kind.QRELS: [b"q1 0 d1 1\n", b"query-id\tcorpus-id\tscore\nq1\td1\t1\n"],
    Kind.RUN: [
        b"q1 Q0 d1 1 2.5 tag\n",
        b'{"qid": "q1", "docid": "d1", "rank": 1, "score": 2.5}',
        b"q1\td1\t2.5\n",
    ],
    Kind.VECTORS: [b'{"qid": "q1", "vector": [1]}', b"PAR1", b"\x93NUMPY", b"\x80\x04"],
    Kind.TRAINING: [
        b'{"query": "who", "pos": ["a"], "neg": []}',
        b'[{"question": "who", "positive_ctxs": []}]',
        b"1\t2,3\n",
        b"anchor\tpositive\nwho\ta\n",
        b"q1\td1\td2\n",
    ],
}


@pytest.mark.parametrize(("kind", "data"), [(k, data) for k in CONTENTS for data in CONTENTS[k]])
def test_contents_give_their_kind_away(kind, data, tmp_path):
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbf" * data.isascii() + data)
    assert detect_kind(str(tmp_path / "file"), "target") is kind


@pytest.mark.parametrize(
    ("source", "data", "target", "kind"),
    [
        ("collection.tsv", b"1\tone two\n", "out", Kind.CORPUS),
        ("x.jsonl", b'{"_id": "1", "text": "one"}', "corpus.tsv", Kind.CORPUS),
        ("qrels.x.tsv", b"1\t2\t3\n", "out", Kind.QRELS),
        ("run.x.tsv", b"1\t2\t1\n", "out", Kind.RUN),
        ("qidpidtriples.tsv", b"1\t2\t3\n", "out", Kind.TRAINING),
        ("train.tsv", b"who runs\ta cat\ta dog\n", "out", Kind.TRAINING),
    ],
)
def test_names_settle_what_contents_leave_open(source, data, target, kind, tmp_path):
    (tmp_path / source).write_bytes(data)
    assert detect_kind(str(tmp_path / source), target) is kind


@pytest.mark.parametrize(
    ("data", "choices"),
    [
        (b"1\tone two\n", "corpus, queries"),
        (b"1\t2\t3\n", "qrels, run, training"),
        (b"no tabs\n", "corpus, queries, qrels, run, vectors, training, model"),
    ],
)
def test_what_stays_open_is_asked_for(data, choices, tmp_path):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(UsageError) as caught:
        detect_kind(str(tmp_path / "file"), "target")
    assert caught.value.hint == f"add --kind with one of {choices}"


def test_a_stream_is_not_guessed():
    with pytest.raises(UsageError, match="standard input"):
        detect_kind("-", "corpus.jsonl")


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["config.json"], Kind.MODEL),
        (["index", "docid"], Kind.VECTORS),
        (["manifest.json"], Kind.VECTORS),
        (["embedding.pkl"], Kind.VECTORS),
        (["P17.test.json"], Kind.QUERIES),
    ],
)
def test_folders(files, kind, tmp_path):
    for name in files:
        (tmp_path / name).write_text("{}")
    assert detect_kind(str(tmp_path), "target") is kind


@pytest.mark.parametrize(
    ("target", "kind", "form"),
    [
        ("x/corpus.jsonl.gz", Kind.CORPUS, CorpusFormat.BEIR),
        ("c.jsonl", Kind.CORPUS, None),
        ("t.txt", Kind.QUERIES, TopicsFormat.TSV),
        ("nq.qa.csv", Kind.QUERIES, TopicsFormat.DPR),
        ("test.tsv", Kind.QRELS, QrelsFormat.BEIR),
        ("a.trec.gz", Kind.RUN, RunFormat.TREC),
        ("t.json", Kind.TRAINING, TrainingFormat.DPR),
        ("-", Kind.RUN, None),
        ("anything", Kind.MODEL, None),
    ],
)
def test_target_names(target, kind, form):
    assert format_by_name(target, kind) is form
