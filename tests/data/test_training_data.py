"""Training data in every format, prepared: what is kept, rejected, left out, and used again."""

import gzip
import pickle
from itertools import chain
from pathlib import Path

import numpy as np
import orjson
import pytest

from denserk.config.encoding import TextSettings
from denserk.data import training_data
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_data import TrainingStore, line_of, prepare
from denserk.errors import InputError, MismatchError, OutputError, UsageError
from denserk.io import passage_texts
from denserk.io.corpus import read_passages
from denserk.io.manifest import Kind, Manifest, read_manifest, write_manifest
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.io.training import read_training
from denserk.records import Passage, Query
from tests.conftest import PASSAGES, QUERIES, VOCABULARY
from tests.data.conftest import inline, words
from tests.reporters import Heard
from tests.tiny_models import tiny_tokenizer


def texts(store, tokenizer):
    """What a store holds, by decoding nothing: {qid: (query's ids, positives', negatives')}."""

    def ids(rows):
        return [store.passages[row].tolist() for row in rows]

    return {
        store.qid(item): (
            store.queries[item].tolist(),
            ids(store.positives(item)),
            ids(store.negatives(item)),
        )
        for item in range(len(store))
    }


def expected(examples, tokenizer, passages=None, queries=None):
    """The same from records, one text at a time; bare ids are looked up."""

    def ids(candidates):
        found = [
            (passages or {}).get(c.docid) or Passage(c.docid, c.text, c.title) for c in candidates
        ]
        return [tokenizer.passages([passage])[0] for passage in found]

    return {
        e.qid: (
            tokenizer.queries([Query(e.qid, e.query or (queries or {})[e.qid])])[0],
            ids(e.positives),
            ids(e.negatives),
        )
        for e in examples
        if e.positives
    }


def ids_of(query, positives, negatives):
    """A query in Tevatron's shape by id."""
    return {
        "query_id": query,
        "query_text": QUERIES[query],
        "positive_document_ids": positives,
        "negative_document_ids": negatives,
    }


@pytest.fixture(autouse=True, params=[4096, 3])
def batches(request, monkeypatch):
    """Batches that hold everything, and batches of three."""
    monkeypatch.setattr(training_data, "BATCH", request.param)
    monkeypatch.setattr(passage_texts, "BLOCK", request.param)


@pytest.fixture
def made(tmp_path, tokenizer):
    """`made(*files, ...)`: prepares them in the test's folder."""

    def call(*files, **options):
        return prepare(files, tmp_path / "prepared", tokenizer, tokenizer, **options)

    return call


def test_files_follow_each_other(write, made, tokenizer):
    first = write([inline(query, 1 + query % 2, query % 4) for query in range(5)])
    second = write([inline(query, 2, 2) for query in range(5, 9)], "more.jsonl")
    store = made(first, second)
    examples = [*read_training(first), *read_training(second)]
    assert texts(store, tokenizer) == expected(examples, tokenizer)
    assert [store.qid(item) for item in range(len(store))] == [f"q{n}" for n in range(9)]
    assert list(store.negative_counts) == [0, 1, 2, 3, 0, 2, 2, 2, 2]


def test_ids_find_their_texts(write, made, toy, tokenizer):
    corpus, queries = str(toy / "corpus.jsonl"), str(toy / "queries.tsv")
    by_id = [ids_of("q1", ["d3"], ["d1", "d10", "d2"]), ids_of("q2", ["d1", "d5"], ["d3"])]
    triples = toy / "triples.tsv"
    triples.write_text("q3\td4\td1\nq3\td4\td2\nq1\td3\td5\n")
    mixed = write([inline(0, 1, 2)], "inline.jsonl")
    files = write(by_id), str(triples), mixed
    store = made(*files, corpus=corpus, queries=queries)
    examples = [example for file in files for example in read_training(file)]
    passages = {docid: Passage(docid, text, title) for docid, (title, text) in PASSAGES.items()}
    wanted = expected(examples, tokenizer, passages, QUERIES)
    wanted["q1"] = wanted.pop("q1")  # of the triples, which come last
    found = texts(store, tokenizer)
    assert found == wanted
    assert len(store) == 5
    # each passage of the corpus once, and those that stand inline
    assert len(store.passages) == len({"d1", "d2", "d3", "d4", "d5", "d10"}) + 3


def test_judgements_are_the_positives_of_a_list_of_negatives(made, toy, tokenizer):
    negatives = toy / "negatives.tsv"
    negatives.write_text("q1\td1,d2\nq2\td3\nq9\td3\n")
    heard = Heard()
    store = made(
        str(negatives),
        corpus=str(toy / "corpus.jsonl"),
        queries=str(toy / "queries.tsv"),
        qrels=str(toy / "qrels.txt"),
    )
    assert [store.qid(item) for item in range(len(store))] == ["q1", "q2"]
    assert list(store.positive_counts) == [1, 2]
    assert heard.warnings == ["queries without a positive are left out: 1"]


def test_genuine_samples(shared_data, made, tokenizer):
    names = "dpr-nq-dev.json.gz", "pos-neg-nq.jsonl.gz", "pos-neg-msmarco.jsonl.gz"
    files = [str(shared_data / "format-samples" / name) for name in names]
    store = made(*files)
    examples = [example for file in files for example in read_training(file)]
    assert len(store) == len(examples) == 25
    for item, example in enumerate(examples):
        alone = expected([example], tokenizer)[example.qid]
        assert store.queries[item].tolist() == alone[0]
        assert [store.passages[row].tolist() for row in store.positives(item)] == alone[1]
        assert [store.passages[row].tolist() for row in store.negatives(item)] == alone[2]
        scores = [c.score for c in (*example.positives, *example.negatives)]
        found = store.scores[item]
        np.testing.assert_array_equal(found, np.array(scores, dtype=np.float32))


@pytest.mark.slow
def test_a_genuine_collection_by_id(shared_data, write, made, tokenizer, batches, request):
    if request.node.callspec.params["batches"] == 3:
        pytest.skip("one size of blocks is enough here")
    folder = shared_data / "nq-qed"
    corpus, topics = str(folder / "corpus.jsonl.gz"), str(folder / "queries.jsonl.gz")
    qrels = read_qrels_map(str(folder / "qrels" / "train.tsv"))
    queries = {query.qid: query for query in read_queries(topics)}
    docids = [passage.docid for passage in read_passages(corpus)]
    named = {
        qid: (list(judged), [docids[(number * 31 + n * 17) % len(docids)] for n in range(5)])
        for number, (qid, judged) in enumerate(qrels.items())
    }
    examples = [
        {
            "query_id": qid,
            "query_text": queries[qid].text,
            "positive_document_ids": positives,
            "negative_document_ids": negatives,
        }
        for qid, (positives, negatives) in named.items()
    ]
    store = made(write(examples), corpus=corpus)
    assert len(store) == len(qrels) == 7167
    assert len(store.passages) == len({d for lists in named.values() for d in chain(*lists)})
    passages = {passage.docid: passage for passage in read_passages(corpus)}
    for item in range(0, len(store), 700):
        positives, negatives = named[store.qid(item)]
        texts = [passages[docid] for docid in positives + negatives]
        rows = *store.positives(item), *store.negatives(item)
        stored = [store.passages[row].tolist() for row in rows]
        assert stored == tokenizer.passages(texts)


def test_random_negatives_stand_in_for_hard_ones(write, made, tokenizer):
    context = {"title": "bank", "text": "money", "passage_id": "7"}
    other = {"title": "", "text": "the moon", "passage_id": "8"}
    lists = {"positive_ctxs": [context], "negative_ctxs": [other], "hard_negative_ctxs": []}
    heard = Heard()
    store = made(write([{"question": "river", "answers": [], **lists}]))
    [(_, _, negatives)] = texts(store, tokenizer).values()
    assert negatives == tokenizer.passages([Passage("8", "the moon")])
    assert heard.warnings == ["queries without a hard negative use their random ones: 1"]


def test_queries_without_positives_are_left_out_and_counted(write, made):
    heard = Heard()
    store = made(write([inline(0, 0, 3), inline(1, 1, 0), inline(2, 1, 3)]))
    assert [store.qid(item) for item in range(len(store))] == ["q1", "q2"]
    assert heard.warnings == ["queries without a positive are left out: 1"]
    assert store.contents["without_negatives"] == 1


def test_a_passage_that_the_corpus_lacks_is_named(write, made, toy):
    lines = [ids_of("q1", ["d3"], ["d1"]), ids_of("q2", ["d1"], ["d5", "nowhere"])]
    with pytest.raises(InputError, match=r"found the id nowhere of query q2, which .*") as error:
        made(write(lines), corpus=str(toy / "corpus.jsonl"))
    assert error.value.line == 2
    assert str(error.value.path).endswith("train.jsonl")
    assert "--skip-missing" in (error.value.hint or "")


def test_a_query_that_the_queries_lack_is_named(made, toy):
    triples = toy / "triples.tsv"
    triples.write_text("q3\td4\td1\nq7\td4\td2\n")
    with pytest.raises(InputError, match=r"triples.tsv, line 2: found the id q7, which") as error:
        made(str(triples), corpus=str(toy / "corpus.jsonl"), queries=str(toy / "queries.tsv"))
    assert error.value.line == 2


def test_missing_ids_are_counted_when_asked(write, made, toy):
    lines = [
        ids_of("q1", ["d3", "lost"], ["d1", "gone"]),
        ids_of("q2", ["lost"], ["d5"]),
        {**ids_of("q3", ["d4"], ["gone"]), "query_text": "moon"},
        {**ids_of("q1", ["d4"], ["d1"]), "query_id": "q8", "query_text": ""},
    ]
    heard = Heard()
    store = made(
        write(lines),
        corpus=str(toy / "corpus.jsonl"),
        queries=str(toy / "queries.tsv"),
        skip_missing=True,
    )
    assert [store.qid(item) for item in range(len(store))] == ["q1", "q3"]
    assert list(store.positive_counts) == [1, 1]
    assert list(store.negative_counts) == [1, 0]
    assert heard.warnings == [
        "queries without a positive are left out: 1",
        "passages that the corpus lacks are left out: 4",
        "queries without a text are left out: 1",
    ]


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (ids_of("q1", ["d3"], []), "line 1: found passage d3 without its text", "--corpus"),
        ({**inline(4, 1, 1), "query": ""}, "line 1: found query q4 without its text", "--queries"),
        ({**inline(0, 1, 1), "query": 5}, "line 1: found int as query", None),
        (inline(4, 0, 1), "found no query with a positive", None),
    ],
)
def test_what_cannot_be_prepared(write, made, tmp_path, line, message, hint):
    with pytest.raises(InputError, match=message) as error:
        made(write([line]))
    assert (hint or "") in (error.value.hint or "")
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


@pytest.mark.parametrize("score", ["NaN", "1e999", "1e39", '"NaN"'])
def test_scores_are_numbers_in_float32(tmp_path, made, score):
    good = orjson.dumps(inline(0, 1, 1, scored=True)).decode()
    bad = good.replace('"score":0.0}', f'"score":{score}}}')
    (tmp_path / "train.jsonl").write_text(f"{good}\n{bad.replace('q0', 'q1')}\n")
    with pytest.raises(InputError, match="line 2: found"):
        made(str(tmp_path / "train.jsonl"))


@pytest.mark.parametrize("form", [None, "tevatron"])
def test_an_empty_file_is_refused(write, made, form):
    with pytest.raises(InputError, match=r"empty.jsonl: found (nothing|no training examples)"):
        made(write([inline(0, 1, 1)]), write([], "empty.jsonl"), form=form)


def test_a_broken_line_is_named(write, made, tmp_path):
    path = write([inline(query, 1, 1) for query in range(4)])
    lines = (tmp_path / "train.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "train.jsonl").write_bytes(b"".join([*lines[:2], lines[2][:30] + b"\n", lines[3]]))
    with pytest.raises(InputError, match=r"train.jsonl, line 3: found a line that is not JSON"):
        made(path)


def test_a_missing_score_is_named(write, made):
    lines = [inline(0, 1, 1, scored=True), inline(1, 1, 2, scored=True)]
    del lines[1]["negative_passages"][1]["score"]
    expected = "line 2: found no teacher's score of passage d1-2 for query q1"
    with pytest.raises(InputError, match=expected) as error:
        made(write(lines), require_scores=True)
    assert "--teacher" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("wanted", "line"), [(("q1", "d3"), 2), (("d1",), 1), (("q1", "d9"), None), (("d",), None)]
)
@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_found_by_whole_words(tmp_path, wanted, line, packed):
    text = b'{"query_id": "q10", "ids": ["d1","d3"]}\nq1\td2,d3,d4\n'
    path = tmp_path / ("lines.gz" if packed else "lines")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert line_of(str(path), *wanted) == line


def test_a_stream_has_no_lines_to_look_up():
    assert line_of("-", "q1") is None


def test_the_fixture_makes_texts_of_their_own():
    assert len({words(number, 5) for number in range(2000)}) == 2000


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def train(write):
    return write([inline(query, 1, 3, scored=True) for query in range(4)])


def test_nothing_is_prepared_twice(train, tmp_path, tokenizer, monkeypatch):
    folder = tmp_path / "prepared"
    prepare([train], folder, tokenizer, tokenizer)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(training_data, "read_training", None)
    heard = Heard()
    assert len(prepare([train], folder, tokenizer, tokenizer)) == 4
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert heard.notes == []


def test_the_same_inputs_give_the_same_bytes(train, tmp_path, tokenizer):
    for name in ("one", "two"):
        prepare([train], tmp_path / name, tokenizer, tokenizer)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def other_file(train, tokenizer):
    Path(train).write_bytes(Path(train).read_bytes().replace(b"the", b"and"))
    return [train], tokenizer, {}


def other_settings(train, tokenizer):
    longer = TextSettings(query_max_length=12, passage_max_length=17)
    return [train], TextTokenizer(tiny_tokenizer("bert", VOCABULARY), longer), {}


def other_vocabulary(train, tokenizer):
    swapped = tiny_tokenizer("bert", [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]])
    return [train], TextTokenizer(swapped, tokenizer.settings), {}


def more_files(train, tokenizer):
    return [train, train], tokenizer, {}


def other_choice(train, tokenizer):
    return [train], tokenizer, {"skip_missing": True}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other_file, "file 1.sha256 was"),
        (other_settings, "passage.passage_max_length was 16, now 17"),
        (other_vocabulary, "passage.tokenizer was"),
        (more_files, "file 2 was None"),
        (other_choice, "skip_missing was False, now True"),
    ],
)
def test_what_differs_is_told_and_prepared_again(train, tmp_path, tokenizer, change, told):
    folder = tmp_path / "prepared"
    prepare([train], folder, tokenizer, tokenizer)
    sources, changed, options = change(train, tokenizer)
    heard = Heard()
    again = prepare(sources, folder, tokenizer, changed, **options)
    assert told in heard.notes[0]
    fresh = prepare(sources, tmp_path / "fresh", tokenizer, changed, **options)
    assert contents(again.folder) == contents(fresh.folder)


def test_scores_are_missed_in_a_prepared_folder_too(write, tmp_path, tokenizer):
    train = write([inline(0, 1, 1, scored=True), inline(1, 1, 1)])
    folder = tmp_path / "prepared"
    assert prepare([train], folder, tokenizer, tokenizer).contents["unscored"] == 2
    with pytest.raises(InputError, match="no teacher's score of passage d1-0 for query q1"):
        prepare([train], folder, tokenizer, tokenizer, require_scores=True)


def test_a_failure_leaves_what_was_there(train, tmp_path, tokenizer, monkeypatch):
    folder = tmp_path / "prepared"
    prepare([train], folder, tokenizer, tokenizer)
    before = contents(folder)
    Path(train).write_text("nothing of the kind\n")
    with pytest.raises(InputError):
        prepare([train], folder, tokenizer, tokenizer)
    assert contents(folder) == before
    assert {path.name for path in tmp_path.iterdir()} == {"prepared", "train.jsonl"}


def test_a_full_disk_is_told(train, tmp_path, tokenizer, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training_data, "map_rows", full)
    with pytest.raises(OutputError, match="no room left on the disk"):
        prepare([train], tmp_path / "prepared", tokenizer, tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


def test_other_folders_are_left_alone(train, tmp_path, tokenizer):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("dear diary")
    with pytest.raises(UsageError, match="it is not training data that denserk wrote"):
        prepare([train], folder, tokenizer, tokenizer)
    write_manifest(folder, Manifest(Kind.INDEX, complete=True))
    with pytest.raises(MismatchError, match="holds index, not training data"):
        prepare([train], folder, tokenizer, tokenizer)
    assert (folder / "notes.txt").read_text() == "dear diary"


def test_no_such_file(tmp_path, tokenizer):
    with pytest.raises(UsageError, match=r"nowhere.jsonl: no such file"):
        prepare([str(tmp_path / "nowhere.jsonl")], tmp_path / "prepared", tokenizer, tokenizer)


def test_the_manifest_says_what_it_was_made_from(train, toy, tmp_path, tokenizer):
    folder = tmp_path / "prepared"
    prepare([train], folder, tokenizer, tokenizer, corpus=str(toy))
    manifest = read_manifest(folder, Kind.TRAINING)
    assert manifest.made_from["file 1"]["name"] == train
    assert set(manifest.made_from["corpus"]["sha256"]) == {
        "corpus.jsonl",
        "qrels.txt",
        "queries.tsv",
    }
    assert manifest.settings["passage"]["passage_max_length"] == 16
    assert manifest.contents["examples"] == 4
    assert manifest.contents["passages"] == 16


def test_standard_input_is_never_taken_for_the_same(train, tmp_path, tokenizer, monkeypatch):
    heard = Heard()
    for _ in range(2):
        with Path(train).open("rb") as handle:
            monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": handle}))
            prepare(["-"], tmp_path / "prepared", tokenizer, tokenizer)
    assert "standard input may hold something else" in heard.notes[1]


def test_a_store_is_its_folder_to_another_process(train, tmp_path, tokenizer):
    store = prepare([train], tmp_path / "prepared", tokenizer, tokenizer)
    packed = pickle.dumps(store)
    assert len(packed) < 500
    other = pickle.loads(packed)
    assert other.qid(3) == "q3"
    assert other.negatives(3).tolist() == store.negatives(3).tolist() == [13, 14, 15]


def test_another_folder_is_no_store(tmp_path):
    with pytest.raises(UsageError, match="it is not training data that denserk wrote"):
        TrainingStore(tmp_path)


def test_data_of_an_older_version_is_rejected(train, tmp_path, tokenizer):
    folder = tmp_path / "prepared"
    folder.mkdir()
    write_manifest(folder, Manifest(Kind.TRAINING, complete=True, settings={"layout": 2}))
    with pytest.raises(MismatchError, match="was prepared by another version of denserk") as error:
        prepare([train], folder, tokenizer, tokenizer)
    assert "--overwrite" in (error.value.hint or "")
