import json
import math
from itertools import chain, pairwise

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from denserk.config.pretraining import RawText, Spans, TextUnitSettings
from denserk.data.masking import SubwordTokens, words_of
from denserk.data.pretraining_data import FREQUENCIES, prepare, write_tokens
from denserk.errors import InputError
from denserk.io.pretraining_text import TOKENS, Expansion
from tests.support.console import warnings_of
from tests.support.faults import contents
from tests.support.prepared_texts import (
    COCONDENSER,
    CONDENSER,
    MASTER,
    MLM,
    SEP,
    ids_of,
    run_of,
    store_of,
)
from tests.support.prepared_texts import TOKENIZER as MASTER_TOKENIZER
from tests.support.tiny_models import tiny_tokenizer
from tests.support.toy import VOCABULARY
from tests.support.training_examples import jsonl, write_expansions

TOKENIZER = tiny_tokenizer("bert", VOCABULARY)
SMALLER_TOKENIZER = tiny_tokenizer("bert", VOCABULARY[:-3])
DOCUMENTS = [
    ("r-0", "River", "The old river runs. The boat falls! The fish sings."),
    ("r-1", "River", "the cat sleeps in the house."),
    ("x", "", ""),
    ("m-0", "Moon", "the moon rises."),
]


@pytest.fixture
def corpus(tmp_path):
    records = [{"_id": i, "title": t, "text": x} for i, t, x in DOCUMENTS]
    return jsonl(tmp_path / "corpus.jsonl", records)


def tokens(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def rows(store):
    return [store.texts[row].tolist() for row in range(len(store.texts))]


def prepared(
    corpus, folder, objective, *, tokenizer=TOKENIZER, expansions=None, max_length=12, **units
):
    """The prepared text of a corpus; `units` are settings of how it is cut."""
    settings = TextUnitSettings(max_length=max_length, **{"short_blocks": 0.0, **units})
    run = run_of([corpus], objective, units=settings, expansions=expansions)
    return prepare(run, folder, tokenizer)


def packed(sentences, room):
    """Condenser's packing, one sentence at a time."""
    blocks: list[list[int]] = []
    block: list[int] = []
    for sentence in sentences:
        if block and len(block) + len(sentence) > room:
            blocks.append(block)
            block = []
        block = block + sentence
    return [*blocks, block] if block else blocks


@pytest.mark.parametrize("max_length", [8, 12, 40])
def test_blocks_are_packed_sentences_and_end_with_their_document(corpus, tmp_path, max_length):
    store = prepared(corpus, tmp_path / "p", CONDENSER, max_length=max_length)
    sentences = [
        ["River", "The old river runs.", "The boat falls!", "The fish sings."],
        ["River", "the cat sleeps in the house."],
        ["Moon", "the moon rises."],
    ]
    blocks = (packed(map(tokens, document), max_length - 2) for document in sentences)
    assert rows(store) == list(chain(*blocks))


def test_packing_of_the_example(tmp_path, specs):
    for case in orjson.loads((specs / "condenser_example.json").read_bytes())["span_packing"]:
        sentences = [" ".join(["moon"] * count) for count in case["sentence_token_counts"]]
        (tmp_path / "text.txt").write_text("\n".join(sentences))
        options = {"max_length": case["max_len"], "raw_text": RawText.PARAGRAPHS}
        store = prepared(str(tmp_path / "text.txt"), tmp_path / "p", CONDENSER, **options)
        assert list(map(len, rows(store))) == case["block_token_counts"]


def test_a_tenth_of_the_blocks_is_shorter(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(["moon"] * 60_000))
    options = {"max_length": 22, "raw_text": RawText.PARAGRAPHS, "short_blocks": 0.1}
    store = prepared(str(tmp_path / "text.txt"), tmp_path / "p", CONDENSER, **options)
    lengths = np.array(list(map(len, rows(store)))[:-1])
    expected = 0.1 * 19 / 20 * len(lengths)  # a drawn limit may be the whole length
    assert abs((lengths < 20).sum() - expected) < 5 * math.sqrt(expected)
    assert set(lengths.tolist()) == set(range(1, 21))


@pytest.mark.parametrize("objective", [MLM, COCONDENSER, MASTER])
def test_documents_without_text_are_left_out_and_counted(corpus, tmp_path, objective, caplog):
    store = prepared(corpus, tmp_path / "p", objective)
    assert store.contents["documents"] == 4
    warnings = warnings_of(caplog)
    assert "documents without text are left out: 1" in warnings
    caplog.clear()
    assert rows(prepared(corpus, tmp_path / "p", objective)) == rows(store)
    assert warnings_of(caplog) == warnings  # of a folder that is used again, too
    prepared(corpus, tmp_path / "q", objective)
    assert contents(tmp_path / "q") == contents(tmp_path / "p")


def test_documents_of_one_span_are_left_out(corpus, tmp_path, caplog):
    store = prepared(corpus, tmp_path / "p", COCONDENSER, max_length=9)
    assert len(store) == 2
    for start, end in pairwise(store.document_ends):
        assert end - start >= 2
    assert "documents of fewer than two spans are left out: 1" in warnings_of(caplog)
    with pytest.raises(InputError, match="3 of fewer than two spans of 98 tokens") as caught:
        prepared(corpus, tmp_path / "q", COCONDENSER, max_length=100)
    assert "smaller --max-length" in str(caught.value.hint)
    assert not (tmp_path / "q").exists()


def test_documents_without_any_text(tmp_path):
    records = [{"_id": "1", "text": " "}, {"_id": "2", "text": "\u200b"}]
    source = jsonl(tmp_path / "c.jsonl", records)
    with pytest.raises(InputError, match="found 2 documents, 2 of them without text"):
        prepared(source, tmp_path / "p", MASTER)
    (tmp_path / "c.jsonl").write_text("")
    with pytest.raises(InputError):
        prepared(source, tmp_path / "p", MLM)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("spans", Spans)
def test_a_document_becomes_passages_each_with_its_title(tmp_path, spans):
    sentences = ["The old river runs to the south.", "A boat falls.", "The big fish sings."]
    record = {"_id": "d", "title": "River", "text": " ".join(sentences)}
    source = jsonl(tmp_path / "c.jsonl", [record, {"_id": "e", "text": "the moon"}])
    expansions = tmp_path / "x.jsonl"
    write_expansions(expansions, [Expansion("d#1", ("fish",), ()), Expansion("e", ("sun",), ())])
    options = {"max_length": 14, "spans": spans, "expansions": str(expansions)}
    store = prepared(source, tmp_path / "p", MASTER, **options)
    title = [*tokens("River"), TOKENIZER.sep_token_id]
    *river_passages, moon_passage = rows(store)
    assert moon_passage == tokens("the moon")
    bodies = []
    for passage in river_passages:
        assert len(passage) <= 12
        assert passage[: len(title)] == title
        bodies.append(passage[len(title) :])
    assert list(chain(*bodies)) == tokens(record["text"])
    if spans is Spans.SENTENCES:
        assert bodies == packed(map(tokens, sentences), 12 - len(title))
    followed = [1] * (len(river_passages) - 1)
    assert store.neighbours.tolist() == [*followed, -1, 0]
    assert np.flatnonzero(store.expanded).tolist() == [1, len(river_passages)]


def test_documents_cut_already_stay_as_they_are(tmp_path):
    documents = [
        {"spans": ["the old moon rises. a star.", "the cat sleeps", " "]},
        {"spans": ["the sun"]},
    ]
    source = jsonl(tmp_path / "c.jsonl", documents)
    moon = tokens("the old moon rises. a star.")
    cat = tokens("the cat sleeps")
    sun = tokens("the sun")
    spans = prepared(source, tmp_path / "a", COCONDENSER, max_length=6)
    assert rows(spans) == [moon, cat]
    assert spans.contents["short"] == 1
    passages = prepared(source, tmp_path / "b", MASTER)
    assert rows(passages) == [moon, cat, sun]
    assert passages.neighbours.tolist() == [1, -1, 0]


def test_byte_level_tokens_begin_words_at_a_sentences_start(tmp_path):
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *pre_tokenizers.ByteLevel.alphabet()]
    backend = Tokenizer(models.BPE({name: i for i, name in enumerate(sorted(names))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    roles = dict(zip(("cls", "pad", "sep", "unk", "mask"), names, strict=False))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{role}_token": name for role, name in roles.items()}
    )
    source = jsonl(tmp_path / "c.jsonl", [{"_id": "1", "text": "Go on. It is so! No."}])
    store = prepare(run_of([source], CONDENSER), tmp_path / "p", tokenizer)
    assert tokenizer.decode(store.texts[0]) == "Go on. It is so! No."
    [words] = words_of(store.texts[0][None], SubwordTokens.of(tokenizer))
    expected_words = ("Go", " on.", " It", " is", " so!", " No.")
    assert np.bincount(words).tolist() == list(map(len, expected_words))


def test_ids_of_another_tokenizer(tmp_path):
    source = jsonl(tmp_path / "ids.jsonl", [{"text": [len(TOKENIZER) - 1]}])
    assert rows(prepared(source, tmp_path / "p", MLM)) == [[len(TOKENIZER) - 1]]
    with pytest.raises(InputError, match=r"line 1: found token id \d+") as caught:
        prepared(source, tmp_path / "q", MLM, tokenizer=SMALLER_TOKENIZER)
    assert "tokenizer" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("objective", "records", "expected"),
    [
        (MASTER, [{"spans": [[7], [8]]}], "found spans; expected .* for master"),
        (COCONDENSER, [{"text": [7]}], "found one text; expected .* for cocondenser"),
        (MLM, [{"text": [7]}, {"text": [7, "moon"]}], "a list of whole numbers as text"),
    ],
)
def test_ids_in_another_format(tmp_path, objective, records, expected):
    with pytest.raises(InputError, match=expected):
        prepared(jsonl(tmp_path / "ids.jsonl", records), tmp_path / "p", objective)


def test_passages_find_their_expansions(corpus, tmp_path, caplog):
    expansions = tmp_path / "x.jsonl"
    expansion = Expansion("r-1", ("cat house", "cat"), ("the dog eats", "no"))
    write_expansions(expansions, [expansion])
    store = prepared(corpus, tmp_path / "p", MASTER, max_length=40, expansions=str(expansions))
    assert warnings_of(caplog)[-1] == "passages without an expansion: 2"
    separator = TOKENIZER.sep_token_id
    passages = [[*tokens(title), separator, *tokens(text)] for _, title, text in DOCUMENTS if text]
    assert rows(store) == passages
    assert store.expanded.tolist() == [False, True, False]
    assert store.queries[1].tolist() == [*tokens("cat house"), separator, *tokens("cat"), separator]
    assert store.next[1].tolist() == tokens("the dog eats")


@pytest.mark.parametrize("docids", [["other"], ["r-0", "r-0"], ["m-0", "r-0"]])
def test_expansions_that_do_not_fit(corpus, tmp_path, docids):
    expansions = tmp_path / "x.jsonl"
    write_expansions(expansions, [Expansion(docid, ("moon",), ()) for docid in docids])
    with pytest.raises(InputError, match=f"x.jsonl: found an expansion of {docids[-1]}, which"):
        prepared(corpus, tmp_path / "p", MASTER, expansions=str(expansions))
    assert not (tmp_path / "p").exists()


def test_neighbours(tmp_path):
    documents = {  # (id, title): offset of the neighbour
        ("1", "A"): 1,
        ("2", "A"): 1,
        ("3", "A"): -1,
        ("4", "B"): 0,
        ("5", "A"): 0,
        ("6", ""): 0,
        ("7", ""): 0,
        ("8", "-"): 0,
        ("9", "-"): 0,
        ("d#0", ""): 1,
        ("d#1", ""): -1,
        ("e#0", "A"): 1,
        ("e#1", "B"): -1,
        ("#0", ""): 0,
        ("#1", ""): 0,
    }
    records = [{"_id": docid, "title": title, "text": "moon"} for docid, title in documents]
    store = prepared(jsonl(tmp_path / "c.jsonl", records), tmp_path / "p", MASTER)
    assert store.neighbours.tolist() == list(documents.values())
    assert store.contents["with_neighbour"] == 7


def test_large_vocabularies_take_four_bytes(tmp_path):
    words = [f"w{number}" for number in range(65_532)]
    (tmp_path / "c.txt").write_text(words[-1])
    tokenizer = tiny_tokenizer("bert", words)
    store = prepared(str(tmp_path / "c.txt"), tmp_path / "p", MLM, tokenizer=tokenizer)
    assert rows(store) == [[65_536]]


TEXTS = ids_of("the fran ##ce [SEP] runs"), ids_of("a cat"), ids_of("capital song the")
RECORDS = {
    MLM: [{"text": text} for text in TEXTS],
    COCONDENSER: [{"spans": [TEXTS[0], TEXTS[1]]}, {"spans": [TEXTS[2], TEXTS[1], TEXTS[0]]}],
    MASTER: [
        {"text": TEXTS[0], "queries": [ids_of("a cat"), ids_of("song")], "next": [ids_of("the")]},
        {"text": TEXTS[1]},
        {"text": TEXTS[2], "queries": [], "next": []},
    ],
}


def lines(folder):
    return [json.loads(line) for line in (folder / TOKENS).read_text().splitlines()]


@pytest.mark.parametrize("objective", RECORDS, ids=str)
def test_tokens_that_are_written_are_read_back(tmp_path, objective):
    store = store_of(tmp_path / "a", RECORDS[objective], objective)
    folder = tmp_path / "tokens"
    write_tokens(store, folder, "a model", SEP)
    assert lines(folder) == RECORDS[objective]
    if objective is MASTER:
        frequencies = json.loads((folder / FREQUENCIES).read_text())
        words = ["fran##ce", "runs", "a", "cat", "capital", "song"]
        assert frequencies == {"the": 2, **dict.fromkeys(words, 1)}
    prepared(str(folder), tmp_path / "b", objective, max_length=40, tokenizer=MASTER_TOKENIZER)
    assert data_files(tmp_path / "b") == data_files(store.folder)


def data_files(folder):
    """The content of the files of prepared text, without the manifest, which names the source."""
    return {name: data for name, data in contents(folder).items() if name != "manifest.json"}
