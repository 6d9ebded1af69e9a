"""What a file or folder is: one table of rules for every command."""

from typing import Any

import pytest

from denserk.config.formats import Kind
from denserk.io.detection import detect_kind

KINDS: dict[Kind, list[Any]] = {
    Kind.CORPUS: [
        b'{"_id": "d1", "title": "", "text": "one"}',
        b'[{"id": "d1", "contents": "one"}]',
        b"id\ttext\ttitle\n1\tone\thead\n",
        ("collection.tsv", b"1\tone two\n"),
        ("corpus.jsonl", b'{"_id": "1", "text": "one"}'),
    ],
    Kind.QUERIES: [
        *(b'{"query_id": "1", "query": "who"}', b'{"id": "1", "title": "who"}'),
        *(b'{"0": {"question": "who"}}', b'{\n"0": {"question": "who"}}', b"who\t['she']\n"),
        b'[{"question": "who", "answers": []}]',
        ("P17.test.json", b"{}"),
    ],
    Kind.QRELS: [
        *(b"q1 0 d1 1\n", b"query-id\tcorpus-id\tscore\nq1\td1\t1\n"),
        ("qrels.x.tsv", b"1\t2\t3\n"),
    ],
    Kind.RUN: [
        *(b"q1 Q0 d1 1 2.5 tag\n", b'{"qid": "q1", "docid": "d1", "score": 2.5}', b"q1\td1\t2.5\n"),
        *(b'{"mteb_model_meta": {}, "default": {"tes', ("run.x.tsv", b"1\t2\t1\n")),
    ],
    Kind.VECTORS: [
        *(b'{"qid": "q1", "vector": [1]}', b"PAR1", b"\x93NUMPY", b"\x80\x04"),
        *(("manifest.json", b"{}"), ("embedding.pkl", b"")),
    ],
    Kind.TRAINING: [
        *(b'{"query": "who", "pos": ["a"], "neg": []}', b"1\t2,3\n", b"q1\td1\td2\n"),
        *(b'[{"question": "who", "positive_ctxs": []}]', b"anchor\tpositive\nwho\ta\n"),
        ("train.tsv", b"who runs\ta cat\ta dog\n"),
    ],
    Kind.MODEL: [("config.json", b"{}")],
}


@pytest.mark.parametrize(("kind", "data"), [(k, data) for k in KINDS for data in KINDS[k]])
def test_contents_and_names_decide_the_kind(kind, data, tmp_path):
    name, data = ("file", data) if isinstance(data, bytes) else data
    (tmp_path / name).write_bytes(data)
    of_folder = data in (b"{}", b"")
    assert detect_kind(str(tmp_path if of_folder else tmp_path / name), "target") is kind
