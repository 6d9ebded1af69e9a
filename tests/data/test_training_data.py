import pickle
from pathlib import Path

import pytest

from denserk.config.encoding import TextSettings
from denserk.data import training_data
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_data import SentenceStore, prepare, tokenize_sentences
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.training import read_training
from denserk.records import Passage, Query, TrainingExample
from tests.support.console import warnings_of
from tests.support.faults import contents
from tests.support.tiny_models import tiny_tokenizer
from tests.support.toy import PASSAGES, QUERIES, VOCABULARY
from tests.support.training_examples import inline, pairs, run_on


def tokens_by_qid(store):
    """What a store holds: the token ids of each query, of its positives and of its negatives."""
    tokens = {}
    for item in range(len(store)):
        positives = [ids.tolist() for ids in store.passages[store.positives[item]]]
        negatives = [ids.tolist() for ids in store.passages[store.negatives[item]]]
        tokens[str(store.qids[item])] = (store.queries[item].tolist(), positives, negatives)
    return tokens


def expected_tokens(examples, tokenizer):
    """The same from records, one text at a time."""
    tokens = {}
    for example in examples:
        if example.positives:
            query = Query(example.qid, example.query or QUERIES[example.qid])
            [query_ids] = tokenizer.queries([query])
            positives = [tokens_of_candidate(c, tokenizer) for c in example.positives]
            negatives = [tokens_of_candidate(c, tokenizer) for c in example.negatives]
            tokens[example.qid] = (query_ids, positives, negatives)
    return tokens


def tokens_of_candidate(candidate, tokenizer):
    """The token ids of a passage; one without a text is of the toy collection."""
    passage = Passage(candidate.docid, candidate.text, candidate.title)
    if not candidate.text:
        title, text = PASSAGES[candidate.docid]
        passage = Passage(candidate.docid, text, title)
    [token_ids] = tokenizer.passages([passage])
    return token_ids


def example_of_ids(qid, positives, negatives):
    return {
        "query_id": qid,
        "query_text": QUERIES[qid],
        "positive_document_ids": positives,
        "negative_document_ids": negatives,
    }


@pytest.fixture
def prepare_files(tmp_path, tokenizer):
    """`prepare_files(*files, **options)`: the store of training files."""

    def call(*files, **options):
        return prepare(run_on(*files, **options), tmp_path / "prepared", tokenizer, tokenizer)

    return call


@pytest.fixture
def toy_texts(toy):
    """The options that name the texts of the toy collection."""
    return {"corpus": str(toy / "corpus.jsonl"), "queries": str(toy / "queries.tsv")}


def test_files_follow_each_other_and_ids_find_their_texts(
    write, prepare_files, toy, toy_texts, tokenizer
):
    examples_with_texts = [inline(query, 1 + query % 2, query % 4) for query in range(5)]
    examples_of_ids = [
        example_of_ids("q1", ["d3"], ["d1", "d10", "d2"]),
        example_of_ids("q2", ["d1", "d5"], ["d3"]),
    ]
    triples = toy / "triples.tsv"
    triples.write_text("q3\td4\td1\nq3\td4\td2\n")
    files = [write(examples_with_texts, "inline.jsonl"), write(examples_of_ids), str(triples)]
    store = prepare_files(*files, **toy_texts)
    examples: list[TrainingExample] = []
    for file in files:
        examples += read_training(file)
    assert tokens_by_qid(store) == expected_tokens(examples, tokenizer)
    assert store.negative_counts.tolist() == [0, 1, 2, 3, 0, 3, 1, 2]
    # each passage of the corpus once, and those that stand inline
    assert len(store.passages) == len({"d1", "d2", "d3", "d4", "d5", "d10"}) + 13


def test_relevance_judgments_are_the_positives_of_a_list_of_negatives(
    prepare_files, toy, toy_texts, caplog
):
    negatives = toy / "negatives.tsv"
    negatives.write_text("q1\td1,d2\nq2\td3\nq9\td3\n")
    store = prepare_files(str(negatives), qrels=str(toy / "qrels.txt"), **toy_texts)
    assert store.qids[:].tolist() == ["q1", "q2"]
    assert [len(rows) for rows in store.positives[:]] == [1, 2]
    assert warnings_of(caplog) == ["queries without a positive are left out: 1"]


def test_random_negatives_stand_in_for_hard_ones(write, prepare_files, tokenizer, caplog):
    example = {
        "question": "river",
        "answers": [],
        "positive_ctxs": [{"title": "bank", "text": "money", "passage_id": "7"}],
        "negative_ctxs": [{"title": "", "text": "the moon", "passage_id": "8"}],
        "hard_negative_ctxs": [],
    }
    store = prepare_files(write([example]))
    [(_, _, negatives)] = tokens_by_qid(store).values()
    assert negatives == tokenizer.passages([Passage("8", "the moon")])
    assert warnings_of(caplog) == ["queries without a hard negative use their random ones: 1"]


WITHOUT_SOME_TEXTS = [
    example_of_ids("q1", ["d3", "lost"], ["d1", "gone"]),
    example_of_ids("q2", ["lost"], ["d5"]),
    {**example_of_ids("q3", ["d4"], ["gone"]), "query_text": "moon"},
    {**example_of_ids("q1", ["d4"], ["d1"]), "query_id": "q8", "query_text": ""},
]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (WITHOUT_SOME_TEXTS, "found passage lost of query q1, of which .*corpus.jsonl has no text"),
        (WITHOUT_SOME_TEXTS[3:], "found query q8, of which .*queries.tsv has no text"),
    ],
)
def test_missing_texts_are_named(write, prepare_files, toy_texts, examples, message):
    with pytest.raises(InputError, match=message) as caught:
        prepare_files(write(examples), **toy_texts)
    assert "--skip-missing" in str(caught.value.hint)


def test_missing_texts_are_left_out_and_counted(write, prepare_files, toy_texts, caplog):
    store = prepare_files(write(WITHOUT_SOME_TEXTS), skip_missing=True, **toy_texts)
    assert store.qids[:].tolist() == ["q1", "q3"]
    assert [len(rows) for rows in store.positives[:]] == [1, 1]
    assert store.negative_counts.tolist() == [1, 0]
    assert warnings_of(caplog) == [
        "queries without a positive are left out: 1",
        "passages that the corpus lacks are left out: 4",
        "queries without a text are left out: 1",
    ]


@pytest.mark.parametrize(
    ("example", "message", "hint"),
    [
        (example_of_ids("q1", ["d3"], []), "passage d3 of query q1 without its text", "--corpus"),
        ({**inline(4, 1, 1), "query": ""}, "query q4 without its text", "--queries"),
        ({**inline(0, 1, 1), "query": 5}, "line 1: found a number as query", ""),
        (inline(4, 0, 1), "no query with a positive", ""),
    ],
)
def test_data_that_cannot_be_prepared_leaves_no_folder(
    write, prepare_files, tmp_path, example, message, hint
):
    with pytest.raises(InputError, match=message) as caught:
        prepare_files(write([example]))
    assert hint in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


@pytest.fixture
def train(write):
    return write([inline(query, 1, 3, scored=True) for query in range(4)])


def test_equal_data_is_prepared_once(train, tmp_path, tokenizer, monkeypatch, caplog):
    folder = tmp_path / "prepared"
    store = prepare(run_on(train), folder, tokenizer, tokenizer)
    other_store = prepare(run_on(train), tmp_path / "two", tokenizer, tokenizer)
    assert contents(folder) == contents(other_store.folder)
    # nothing is read any more
    monkeypatch.setattr(training_data, "training", None)
    assert len(prepare(run_on(train), folder, tokenizer, tokenizer)) == len(store) == 4
    assert not [message for message in caplog.messages if "again" in message]


def other_text(train):
    Path(train).write_bytes(Path(train).read_bytes().replace(b"the", b"and"))


TOKENIZER_WITH_OTHER_IDS = tiny_tokenizer("bert", [*VOCABULARY[:-2], *VOCABULARY[:-3:-1]])


@pytest.mark.parametrize(
    ("change_file", "passage_max_length", "backend", "message"),
    [
        (other_text, 16, tiny_tokenizer("bert", VOCABULARY), "file 1.sha256 was"),
        (None, 17, tiny_tokenizer("bert", VOCABULARY), "passage.passage_max_length was 16, now 17"),
        (None, 16, TOKENIZER_WITH_OTHER_IDS, "passage.tokenizer was"),
    ],
    ids=["text", "length", "tokenizer"],
)
def test_outdated_data_is_prepared_again_and_the_difference_logged(
    train, tmp_path, tokenizer, change_file, passage_max_length, backend, message, caplog
):
    folder = tmp_path / "prepared"
    prepare(run_on(train), folder, tokenizer, tokenizer)
    if change_file is not None:
        change_file(train)
    settings = TextSettings(query_max_length=12, passage_max_length=passage_max_length)
    passage_tokenizer = TextTokenizer(backend, settings)
    with pytest.raises(MismatchError, match=message):
        prepare(run_on(train), folder, tokenizer, passage_tokenizer, replace_outdated=False)
    caplog.clear()
    prepare(run_on(train), folder, tokenizer, passage_tokenizer)
    assert message in caplog.messages[0]
    prepare(run_on(train), tmp_path / "fresh", tokenizer, passage_tokenizer)
    assert contents(folder) == contents(tmp_path / "fresh")


def test_standard_input_is_never_taken_for_the_same(train, prepare_files, monkeypatch, caplog):
    for _ in range(2):
        with Path(train).open("rb") as handle:
            monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": handle}))
            prepare_files("-")
    assert "standard input may hold something else" in caplog.messages[1]


def test_pairs_of_several_files_follow_each_other(write, tmp_path, tokenizer):
    files = [write(pairs(7), "a.jsonl"), write(pairs(3), "b.jsonl")]
    store = tokenize_sentences(files, tmp_path / "data", tokenizer, size=2, label_scale=5)
    expected_pairs = [*pairs(7), *pairs(3)]
    assert len(store) == 10
    assert store.pad_id == tokenizer.pad_id
    assert store.labels.tolist() == [float(pair["label"]) for pair in expected_pairs]
    sentences = []
    for pair in expected_pairs:
        sentences += [pair["sentence1"], pair["sentence2"]]
    store_of_worker = pickle.loads(pickle.dumps(store))
    token_ids = [ids.tolist() for ids in store_of_worker.sentences[range(20)]]
    assert token_ids == tokenizer.sentences(sentences)


@pytest.mark.parametrize("label", [1.5, -1.25])
def test_a_label_beyond_the_scale_is_rejected(write, tmp_path, tokenizer, label):
    file = write([*pairs(1, label=1), *pairs(1, label=label)])
    with pytest.raises(InputError, match=f"the label {label} of pair 2") as caught:
        tokenize_sentences([file], tmp_path / "data", tokenizer, size=2)
    assert "--set label-scale" in str(caught.value.hint)
    assert not (tmp_path / "data").exists()
    with pytest.raises(UsageError):
        SentenceStore(tmp_path / "data")
