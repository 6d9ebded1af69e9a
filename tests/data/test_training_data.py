import pickle
from pathlib import Path

import pytest

from denserk.config.encoding import TextSettings
from denserk.data import training_data
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_data import SentenceStore, prepare, tokenize_sentences
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.training import read_training
from denserk.records import Passage, Query
from tests.support.console import warnings_of
from tests.support.faults import contents
from tests.support.tiny_models import tiny_tokenizer
from tests.support.toy import PASSAGES, QUERIES, VOCABULARY
from tests.support.training_examples import inline, pairs, run_on


def texts(store):
    """What a store holds: {qid: (query's ids, positives', negatives')}."""

    def ids(rows):
        return [text.tolist() for text in store.passages[rows]]

    return {
        str(store.qids[item]): (
            store.queries[item].tolist(),
            ids(store.positives[item]),
            ids(store.negatives[item]),
        )
        for item in range(len(store))
    }


def expected(examples, tokenizer):
    """The same from records, one text at a time; bare ids are looked up in the toy collection."""

    def ids(candidates):
        return [
            tokenizer.passages([Passage(c.docid, c.text, c.title) if c.text else toy[c.docid]])[0]
            for c in candidates
        ]

    toy = {docid: Passage(docid, text, title) for docid, (title, text) in PASSAGES.items()}
    return {
        e.qid: (
            tokenizer.queries([Query(e.qid, e.query or QUERIES[e.qid])])[0],
            ids(e.positives),
            ids(e.negatives),
        )
        for e in examples
        if e.positives
    }


def ids_of(query, positives, negatives):
    return {
        "query_id": query,
        "query_text": QUERIES[query],
        "positive_document_ids": positives,
        "negative_document_ids": negatives,
    }


@pytest.fixture
def made(tmp_path, tokenizer):

    def call(*files, **options):
        return prepare(run_on(*files, **options), tmp_path / "prepared", tokenizer, tokenizer)

    return call


@pytest.fixture
def sources(toy):
    return {"corpus": str(toy / "corpus.jsonl"), "queries": str(toy / "queries.tsv")}


def test_files_follow_each_other_and_ids_find_their_texts(write, made, toy, sources, tokenizer):
    by_id = [ids_of("q1", ["d3"], ["d1", "d10", "d2"]), ids_of("q2", ["d1", "d5"], ["d3"])]
    triples = toy / "triples.tsv"
    triples.write_text("q3\td4\td1\nq3\td4\td2\n")
    of_texts = [inline(query, 1 + query % 2, query % 4) for query in range(5)]
    files = write(of_texts, "inline.jsonl"), write(by_id), str(triples)
    store = made(*files, **sources)
    examples = [example for file in files for example in read_training(file)]
    assert texts(store) == expected(examples, tokenizer)
    assert store.negative_counts.tolist() == [0, 1, 2, 3, 0, 3, 1, 2]
    # each passage of the corpus once, and those that stand inline
    assert len(store.passages) == len({"d1", "d2", "d3", "d4", "d5", "d10"}) + 13


def test_relevance_judgments_are_the_positives_of_a_list_of_negatives(made, toy, sources, caplog):
    negatives = toy / "negatives.tsv"
    negatives.write_text("q1\td1,d2\nq2\td3\nq9\td3\n")
    store = made(str(negatives), qrels=str(toy / "qrels.txt"), **sources)
    assert store.qids[:].tolist() == ["q1", "q2"]
    assert list(map(len, store.positives[:])) == [1, 2]
    assert warnings_of(caplog) == ["queries without a positive are left out: 1"]


def test_random_negatives_stand_in_for_hard_ones(write, made, tokenizer, caplog):
    context = {"title": "bank", "text": "money", "passage_id": "7"}
    other = {"title": "", "text": "the moon", "passage_id": "8"}
    lists = {"positive_ctxs": [context], "negative_ctxs": [other], "hard_negative_ctxs": []}
    store = made(write([{"question": "river", "answers": [], **lists}]))
    [(_, _, negatives)] = texts(store).values()
    assert negatives == tokenizer.passages([Passage("8", "the moon")])
    assert warnings_of(caplog) == ["queries without a hard negative use their random ones: 1"]


def test_missing_ids_are_named_or_counted(write, made, sources, caplog):
    lines = [
        ids_of("q1", ["d3", "lost"], ["d1", "gone"]),
        ids_of("q2", ["lost"], ["d5"]),
        {**ids_of("q3", ["d4"], ["gone"]), "query_text": "moon"},
        {**ids_of("q1", ["d4"], ["d1"]), "query_id": "q8", "query_text": ""},
    ]
    for some, found in ((lines, "passage lost of query q1"), (lines[3:], "query q8")):
        with pytest.raises(
            InputError, match=f"train.jsonl: found {found}, of which .*has no text"
        ) as error:
            made(write(some), **sources)
        assert "--skip-missing" in (error.value.hint or "")
    caplog.clear()
    store = made(write(lines), skip_missing=True, **sources)
    assert store.qids[:].tolist() == ["q1", "q3"]
    assert list(map(len, store.positives[:])) == [1, 1]
    assert list(store.negative_counts) == [1, 0]
    assert warnings_of(caplog) == [
        "queries without a positive are left out: 1",
        "passages that the corpus lacks are left out: 4",
        "queries without a text are left out: 1",
    ]


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (ids_of("q1", ["d3"], []), "found passage d3 of query q1 without its text", "--corpus"),
        ({**inline(4, 1, 1), "query": ""}, "found query q4 without its text", "--queries"),
        ({**inline(0, 1, 1), "query": 5}, "line 1: found int as query", ""),
        (inline(4, 0, 1), "found no query with a positive", ""),
    ],
)
def test_what_cannot_be_prepared(write, made, tmp_path, line, message, hint):
    with pytest.raises(InputError, match=message) as error:
        made(write([line]))
    assert hint in (error.value.hint or "")
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


@pytest.fixture
def train(write):
    return write([inline(query, 1, 3, scored=True) for query in range(4)])


def test_nothing_is_prepared_twice(train, tmp_path, tokenizer, monkeypatch, caplog):
    folder = tmp_path / "prepared"
    store = prepare(run_on(train), folder, tokenizer, tokenizer)
    other = prepare(run_on(train), tmp_path / "two", tokenizer, tokenizer)
    assert contents(folder) == contents(other.folder)
    monkeypatch.setattr(training_data, "training", None)
    assert len(prepare(run_on(train), folder, tokenizer, tokenizer)) == len(store) == 4
    assert caplog.messages.count(f"{train}: training data in the format tevatron") == 2
    assert not [note for note in caplog.messages if "again" in note]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": "other"}, "file 1.sha256 was"),
        ({"length": 17}, "passage.passage_max_length was 16, now 17"),
        ({"words": [*VOCABULARY[:-2], *VOCABULARY[:-3:-1]]}, "passage.tokenizer was"),
    ],
)
def test_what_differs_is_logged_and_prepared_again(
    train, tmp_path, tokenizer, change, message, caplog
):
    folder = tmp_path / "prepared"
    prepare(run_on(train), folder, tokenizer, tokenizer)
    if "text" in change:
        Path(train).write_bytes(Path(train).read_bytes().replace(b"the", b"and"))
    settings = TextSettings(query_max_length=12, passage_max_length=change.get("length", 16))
    backend = tiny_tokenizer("bert", change.get("words", VOCABULARY))
    changed = TextTokenizer(backend, settings)
    inputs = run_on(train)
    caplog.clear()
    with pytest.raises(MismatchError, match=message):
        prepare(inputs, folder, tokenizer, changed, replace_outdated=False)
    again = prepare(inputs, folder, tokenizer, changed)
    assert message in caplog.messages[0]
    fresh = prepare(inputs, tmp_path / "fresh", tokenizer, changed)
    assert contents(again.folder) == contents(fresh.folder)


def test_standard_input_is_never_taken_for_the_same(train, made, monkeypatch, caplog):
    for _ in range(2):
        with Path(train).open("rb") as handle:
            monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": handle}))
            made("-")
    assert "standard input may hold something else" in caplog.messages[1]


def test_pairs(write, tmp_path, tokenizer):
    files = [write(pairs(7), "a.jsonl"), write(pairs(3), "b.jsonl")]
    store = tokenize_sentences(files, tmp_path / "data", tokenizer, size=2, label_scale=5)
    given = [*pairs(7), *pairs(3)]
    assert (len(store), store.pad_id) == (10, tokenizer.pad_id)
    assert store.labels.tolist() == [float(pair["label"]) for pair in given]
    wanted = [pair[name] for pair in given for name in ("sentence1", "sentence2")]
    found = pickle.loads(pickle.dumps(store)).sentences[range(20)]
    assert [ids.tolist() for ids in found] == tokenizer.sentences(wanted)


@pytest.mark.parametrize("label", [1.5, -1.25])
def test_a_label_beyond_the_scale(write, tmp_path, tokenizer, label):
    file = write([*pairs(1, label=1), *pairs(1, label=label)])
    with pytest.raises(InputError, match=rf"found the label {label} of pair 2; expected labels up"):
        tokenize_sentences([file], tmp_path / "data", tokenizer, size=2)
    assert not (tmp_path / "data").exists()
    with pytest.raises(UsageError):
        SentenceStore(tmp_path / "data")
