import gzip
import json

import pytest

from denserk.errors import InputError, UsageError
from denserk.io.corpus import read_passages, refuse_duplicates
from denserk.io.qrels import read_qrels, read_qrels_map
from denserk.io.topics import read_queries, read_questions
from denserk.records import Passage, Qrel
from tests.conftest import PASSAGES, QRELS, QUERIES
from tests.io.test_data_sets import NAME, here, toy_irds  # noqa: F401 - fixtures
from tests.reporters import Heard

COUNTS = {
    "squad": (2067, 9249, {"train": 8172, "dev": 1077}),
    "scifact": (5183, 1109, {"train": 919, "test": 339}),
    "cranfield": (1400, 225, {"test": 1837}),
    "marco-dl19": (11843, 43, {"test": 3983}),
}
TOPICS = {
    "msmarco-dev.queries.tsv.gz": (6980, 0),
    "dl19.queries.tsv": (43, 0),
    "nq-test.dpr.tsv.gz": (3610, 3610),
    "trivia-test.dpr.tsv.gz": (11313, 11313),
    "curated-test.dpr.jsonl.gz": (694, 694),
}


def beir(folder):
    """The toy collection as a BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": d, "title": h, "text": t} for d, (h, t) in PASSAGES.items()]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    queries = "\n".join(json.dumps({"_id": q, "text": t}) for q, t in QUERIES.items())
    (folder / "queries.jsonl.gz").write_bytes(gzip.compress(queries.encode()))
    for split, qids in {"test": ["q1", "q2"], "dev": ["q3"]}.items():
        rows = [f"{q}\t{d}\t{r}" for q in qids for d, r in QRELS[q].items()]
        (folder / "qrels" / f"{split}.tsv").write_text(
            "\n".join(["query-id\tcorpus-id\tscore", *rows])
        )
    return folder


@pytest.mark.parametrize("name", COUNTS)
def test_real_collections(shared_data, name):
    passages, queries, judgements = COUNTS[name]
    folder = shared_data / name
    assert sum(1 for _ in read_passages(str(folder))) == passages
    assert sum(1 for _ in read_queries(str(folder))) == queries
    for split, count in judgements.items():
        qrels = list(read_qrels(str(folder / "qrels" / f"{split}.tsv")))
        assert len(qrels) == count


@pytest.mark.parametrize("name", TOPICS)
def test_real_topics(shared_data, name):
    queries = list(read_queries(str(shared_data / "topics" / name)))
    assert (len(queries), sum(bool(query.answers) for query in queries)) == TOPICS[name]


def test_a_beir_folder(tmp_path):
    folder = str(beir(tmp_path / "toy"))
    assert [passage.docid for passage in read_passages(folder)] == list(PASSAGES)
    assert {query.qid: query.text for query in read_queries(folder)} == QUERIES
    with pytest.raises(UsageError, match=r"several splits .there: test, dev") as refusal:
        read_qrels_map(folder)
    assert refusal.value.hint == f"name one: {folder}/qrels/test.tsv"
    (tmp_path / "toy" / "qrels" / "dev.tsv").unlink()
    assert read_qrels_map(folder) == {q: QRELS[q] for q in ("q1", "q2")}


def test_a_beir_name(here):  # noqa: F811 - the fixture
    beir(here / "datasets" / "toy")
    assert len(list(read_passages("beir:toy"))) == 6
    assert [query.qid for query in read_queries("beir:toy")] == list(QUERIES)
    assert [query.qid for query in read_queries("beir:toy/dev")] == ["q3"]
    assert list(read_qrels("beir:toy/dev")) == [Qrel("q3", "d4", 1)]
    with pytest.raises(UsageError, match=r"no split train .there: test, dev"):
        read_qrels_map("beir:toy/train")
    with pytest.raises(UsageError, match=r"several splits"):
        read_qrels_map("beir:toy")


@pytest.mark.usefixtures("toy_irds")
@pytest.mark.parametrize("source", [NAME, f"irds:{NAME}"])
def test_a_data_set_by_its_id(source):
    assert len(list(read_passages(source))) == 2
    assert {query.qid: query.text for query in read_queries(source)} == QUERIES
    assert read_qrels_map(source) == QRELS


def test_a_folder_is_read_by_name(tmp_path):
    (tmp_path / "b.tsv").write_text("d10\tten\nd2\ttwo\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"id": "d1", "contents": "one"}'))
    for other in ("manifest.json", ".hidden.tsv", "notes.md"):
        (tmp_path / other).write_text("x")
    notes = Heard()
    read = list(read_passages(str(tmp_path)))
    assert read == [Passage("d1", "one"), Passage("d10", "ten"), Passage("d2", "two")]
    assert [note.partition(":")[0] for note in notes.notes] == ["a.jsonl.gz", "b.tsv"]


def test_empty_passages_are_counted_once(tmp_path):
    (tmp_path / "c.tsv").write_text("d1\t\nd2\ttwo\nd3\t \u3000\n")
    notes = Heard()
    read = list(read_passages(str(tmp_path / "c.tsv")))
    assert [passage.text for passage in read] == ["", "two", " \u3000"]
    assert notes.notes[1:] == ["c.tsv: 2 of 3 passages are empty"]


def test_entity_questions(tmp_path):
    for relation in ("P170", "P17"):
        (tmp_path / f"{relation}.test.json").write_text('[{"question": "who", "answers": ["a"]}]')
    queries = list(read_queries(str(tmp_path)))
    assert [(q.qid, q.answers, q.extra) for q in queries] == [
        ("P17-0", ("a",), {"relation": "P17"}),
        ("P170-0", ("a",), {"relation": "P170"}),
    ]
    (tmp_path / "P17.dev.json").write_text('[{"question": "who", "answers": ["a"]}]')
    with pytest.raises(InputError, match=r"found the query id P17-0 twice"):
        list(read_queries(str(tmp_path)))


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (read_passages, "no passages"),
        (read_queries, "no queries"),
        (read_qrels, "no judgments"),
        (read_questions, "no answers"),
    ],
)
def test_sources_that_hold_nothing(tmp_path, read, told):
    (tmp_path / "f").write_text("\n")
    with pytest.raises(InputError, match=f"found {told}"):
        list(read(str(tmp_path / "f")))
    with pytest.raises(UsageError, match=r"none/f: no such file or folder") as refusal:
        list(read("none/f"))
    assert refusal.value.hint == "if it is a dataset of ir_datasets, write irds:none/f"
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"holds no|no qrels"):
        list(read(str(tmp_path / "folder")))


def test_an_id_that_comes_twice(tmp_path):
    passages = [Passage("a", ""), Passage("b", ""), Passage("a", "")]
    watched = refuse_duplicates(lambda: iter(passages), "c.tsv")
    assert [next(watched).docid for _ in passages] == ["a", "b", "a"]
    with pytest.raises(InputError, match=r"c.tsv: found the id a twice: passages 1 and 3"):
        next(watched)
    assert list(refuse_duplicates(lambda: iter(passages[:2]), "c.tsv")) == passages[:2]
    (tmp_path / "q").write_text("q1\ta\nq1\tb\n")
    with pytest.raises(InputError, match=r"found the query id q1 twice"):
        list(read_queries(str(tmp_path / "q")))
