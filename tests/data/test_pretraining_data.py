"""Text -> prepared folders: blocks, spans and passages; what is told of broken or lacking text."""

import math
import pickle
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from denserk.config.pretraining import PretrainingObjective, RawText, Spans, TextUnitSettings
from denserk.data.pretraining_data import Layout, PretrainingStore, prepare
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.manifest import Kind, Manifest, write_manifest
from denserk.io.pretraining_text import Expansion
from tests.conftest import VOCABULARY
from tests.data.prepared_texts import SEP, store_of
from tests.expansions import write_expansions
from tests.reporters import Heard
from tests.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer("bert", VOCABULARY)
DOCUMENTS = [
    ("r-0", "River", "The old river runs. The boat falls! The fish sings."),
    ("r-1", "River", "the cat sleeps in the house."),
    ("x", "", ""),
    ("m-0", "Moon", "the moon rises."),
]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"_id": i, "title": t, "text": x} for i, t, x in DOCUMENTS]
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return str(path)


def pieces(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def rows(store):
    return [store.texts[row].tolist() for row in range(len(store.texts))]


def prepared(corpus, folder, objective, **options):
    units = TextUnitSettings(max_length=options.pop("max_length", 12), short_blocks=0.0)
    return prepare([corpus], folder, TOKENIZER, objective, units=units, **options)


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
    store = prepared(corpus, tmp_path / "p", PretrainingObjective.CONDENSER, max_length=max_length)
    sentences = [
        ["River", "The old river runs.", "The boat falls!", "The fish sings."],
        ["River", "the cat sleeps in the house."],
        ["Moon", "the moon rises."],
    ]
    expected = [
        block
        for document in sentences
        for block in packed([pieces(sentence) for sentence in document], max_length - 2)
    ]
    assert rows(store) == expected


def test_documents_of_one_span_are_dropped(corpus, tmp_path):
    store = prepared(corpus, tmp_path / "p", PretrainingObjective.COCONDENSER, max_length=9)
    assert len(store) == 2
    assert store.document_ends[0] == 0
    assert all(store.document_ends[1:] - store.document_ends[:-1] >= 2)


def test_passages_know_their_neighbours_and_expansions(corpus, tmp_path):
    expansions = tmp_path / "expansions.jsonl"
    write_expansions(expansions, [Expansion("r-1", ("cat house", "cat"), ("the dog eats",))])
    store = prepared(
        *(corpus, tmp_path / "p", PretrainingObjective.MASTER),
        max_length=40,
        expansions=str(expansions),
    )
    separator = TOKENIZER.sep_token_id
    told = [(t, x) for _, t, x in DOCUMENTS if x]
    assert rows(store) == [[*pieces(t), separator, *pieces(x)] for t, x in told]
    assert store.neighbours.astype(bool).tolist() == [True, True, False]
    assert store.expanded.tolist() == [False, True, False]
    expected = [*pieces("cat house"), separator, *pieces("cat"), separator]
    assert store.queries[1].tolist() == expected
    assert store.next[1].tolist() == pieces("the dog eats")


def test_prepared_text_is_used_again_until_something_differs(corpus, tmp_path):
    first = prepared(corpus, tmp_path / "p", PretrainingObjective.CONDENSER)
    before = (first.folder / "texts.arrow").stat().st_mtime_ns
    prepared(corpus, tmp_path / "p", PretrainingObjective.CONDENSER)
    assert (first.folder / "texts.arrow").stat().st_mtime_ns == before
    other = prepared(corpus, tmp_path / "p", PretrainingObjective.CONDENSER, max_length=8)
    assert len(other) != len(rows(first)) or rows(other) != rows(first)


def test_another_tokenizer_is_refused(corpus, tmp_path):
    store = prepared(corpus, tmp_path / "p", PretrainingObjective.MLM)
    with pytest.raises(MismatchError, match="another tokenizer"):
        store.refuse_other("other")


MLM, CONDENSER, COCONDENSER, MASTER, RETROMAE = PretrainingObjective


def jsonl(path, *records):
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return str(path)


def told(corpus, folder, objective, **options):
    """Prepared text, and what was told of it."""
    heard = Heard()
    return prepared(corpus, folder, objective, **options), heard


def cut_as(corpus, folder, objective, **settings):
    units = TextUnitSettings(short_blocks=0.0, **settings)
    return prepare([corpus], folder, TOKENIZER, objective, units=units)


def test_packing_of_the_example(tmp_path, specs):
    for case in orjson.loads((specs / "condenser_example.json").read_bytes())["span_packing"]:
        sentences = [" ".join(["moon"] * count) for count in case["sentence_token_counts"]]
        (tmp_path / "text.txt").write_text("\n".join(sentences))
        units = TextUnitSettings(
            max_length=case["max_len"], short_blocks=0.0, raw_text=RawText.PARAGRAPHS
        )
        source = [str(tmp_path / "text.txt")]
        store = prepare(source, tmp_path / "p", TOKENIZER, CONDENSER, units=units)
        assert store.texts.lengths().tolist() == case["block_token_counts"]


def test_a_tenth_of_the_blocks_is_shorter(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(["moon"] * 60_000))
    units = TextUnitSettings(max_length=22, raw_text=RawText.PARAGRAPHS)
    store = prepare([str(tmp_path / "text.txt")], tmp_path / "p", TOKENIZER, CONDENSER, units=units)
    lengths = store.texts.lengths()[:-1]
    short = (lengths < 20).sum()
    expected = 0.1 * 19 / 20  # a drawn limit may be the whole length
    count = len(lengths)
    assert abs(short - expected * count) < 5 * math.sqrt(expected * count)
    assert set(lengths.tolist()) == set(range(1, 21))


def test_blocks_are_the_same_however_documents_are_batched(corpus, tmp_path, monkeypatch):
    units = TextUnitSettings(max_length=8, short_blocks=0.9)
    found = []
    for batch in (1, 2, 1024):
        monkeypatch.setattr("denserk.data.pretraining_data.BATCH", batch)
        folder = tmp_path / str(batch)
        found.append(rows(prepare([corpus], folder, TOKENIZER, CONDENSER, units=units)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("objective", PretrainingObjective)
def test_documents_without_text_are_left_out_and_counted(corpus, tmp_path, objective):
    store, heard = told(corpus, tmp_path / "p", objective)
    assert store.contents["documents"] == 4
    assert "documents without text are left out: 1" in heard.warnings
    _, again = told(corpus, tmp_path / "p", objective)
    assert heard.warnings == 2 * again.warnings  # of a folder that is used again, too


def test_documents_of_one_span_are_told(corpus, tmp_path):
    _, heard = told(corpus, tmp_path / "p", COCONDENSER, max_length=9)
    assert "documents of fewer than two spans are left out: 1" in heard.warnings


def test_no_document_of_two_spans(corpus, tmp_path):
    with pytest.raises(InputError, match="4 documents, none with two spans of 98 tokens") as error:
        prepared(corpus, tmp_path / "p", COCONDENSER, max_length=100)
    assert "smaller --max-length" in str(error.value.hint)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("objective", PretrainingObjective)
def test_documents_without_any_text(tmp_path, objective):
    source = jsonl(tmp_path / "c.jsonl", {"_id": "1", "text": " "}, {"_id": "2", "text": "\u200b"})
    with pytest.raises(InputError, match="found 2 documents without text"):
        prepared(source, tmp_path / "p", objective)
    assert not (tmp_path / "p").exists()


def test_fixed_windows(tmp_path):
    source = jsonl(tmp_path / "c.jsonl", {"_id": "1", "text": "the old moon. the sun rises"})
    store = cut_as(source, tmp_path / "p", COCONDENSER, max_length=5, spans=Spans.FIXED)
    whole = pieces("the old moon. the sun rises")
    assert rows(store) == [whole[:3], whole[3:6], whole[6:]]


@pytest.mark.parametrize("spans", Spans)
def test_a_document_becomes_passages_each_with_its_title(tmp_path, spans):
    sentences = ["The old river runs to the south.", "A boat falls.", "The big fish sings."]
    record = {"_id": "d", "title": "River", "text": " ".join(sentences)}
    source = jsonl(tmp_path / "c.jsonl", record, {"_id": "e", "text": "the moon"})
    expansions = tmp_path / "x.jsonl"
    write_expansions(expansions, [Expansion("d#1", ("fish",), ()), Expansion("e", ("sun",), ())])
    units = TextUnitSettings(max_length=14, spans=spans)
    given = str(expansions)
    store = prepare([source], tmp_path / "p", TOKENIZER, MASTER, units=units, expansions=given)
    head = [*pieces("River"), TOKENIZER.sep_token_id]
    *of_river, last = rows(store)
    assert last == pieces("the moon")
    assert all(row[: len(head)] == head and len(row) <= 12 for row in of_river)
    bodies = [row[len(head) :] for row in of_river]
    assert list(chain(*bodies)) == pieces(record["text"])
    if spans is Spans.SENTENCES:
        assert bodies == packed([pieces(sentence) for sentence in sentences], 12 - len(head))
    assert store.neighbours.tolist() == [*[1] * (len(of_river) - 1), -1, 0]
    assert np.flatnonzero(store.expanded).tolist() == [1, len(of_river)]


def test_a_title_that_is_nothing_is_no_passage_and_no_title(tmp_path):
    records = [{"_id": "1", "title": "\u200b", "text": "The moon. The sun."}]
    source = jsonl(tmp_path / "c.jsonl", *records)
    assert rows(cut_as(source, tmp_path / "a", MASTER)) == [pieces("The moon. The sun.")]
    short = cut_as(source, tmp_path / "b", MASTER, max_length=6, spans=Spans.SENTENCES)
    assert rows(short) == [pieces("the moon."), pieces("the sun.")]


def test_documents_cut_already_stay_as_they_are(tmp_path):
    spans = ["the old moon rises. a star.", "the cat sleeps", " "]
    source = jsonl(tmp_path / "c.jsonl", {"spans": spans}, {"spans": ["the sun"]})
    store = prepared(source, tmp_path / "a", COCONDENSER, max_length=6)
    assert rows(store) == [pieces(span) for span in spans[:2]]
    assert store.contents["short"] == 1
    passages = prepared(source, tmp_path / "b", MASTER)
    assert rows(passages) == [*rows(store), pieces("the sun")]
    assert passages.neighbours.tolist() == [1, -1, 0]


def test_byte_level_pieces_begin_words_at_a_sentences_start(tmp_path):
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *pre_tokenizers.ByteLevel.alphabet()]
    backend = Tokenizer(models.BPE({name: i for i, name in enumerate(sorted(names))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    roles = dict(zip(("cls", "pad", "sep", "unk", "mask"), names, strict=False))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{role}_token": name for role, name in roles.items()}
    )
    source = jsonl(tmp_path / "c.jsonl", {"_id": "1", "text": "Go on. It is so! No."})
    store = prepare([source], tmp_path / "p", tokenizer, CONDENSER)
    assert tokenizer.decode(store.texts[0]) == "Go on. It is so! No."


OTHER = tiny_tokenizer("bert", VOCABULARY[:-3])


def test_ids_of_another_tokenizer(tmp_path):
    ids = [{"text": [len(TOKENIZER) - 1]}]
    source = jsonl(tmp_path / "ids.jsonl", *ids)
    assert rows(prepared(source, tmp_path / "p", MLM)) == [[len(TOKENIZER) - 1]]
    with pytest.raises(
        InputError, match=r"line 1: found token id \d+; expected ids below"
    ) as error:
        prepare([source], tmp_path / "q", OTHER, MLM)
    assert "tokenizer" in str(error.value.hint)


def test_a_folder_of_ids_of_another_tokenizer(tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    jsonl(folder / "tokens.jsonl", {"text": [7]})
    settings = {"tokenizer": "f00", "name": "that-model"}
    write_manifest(folder, Manifest(Kind.TOKENS, complete=True, settings=settings))
    with pytest.raises(MismatchError, match=r"token ids of another tokenizer \(that-model\)"):
        prepared(str(folder), tmp_path / "p", MLM)


def test_text_is_prepared_again_for_another_tokenizer(corpus, tmp_path):
    prepare([corpus], tmp_path / "p", TOKENIZER, MLM)
    heard = Heard()
    store = prepare([corpus], tmp_path / "p", OTHER, MLM)
    (note,) = [note for note in heard.notes if "is prepared again" in note]
    assert note.startswith(f"{tmp_path / 'p'} is prepared again: tokenizer was ")
    store.refuse_other(store._tokenizer)


@pytest.mark.parametrize(
    ("objective", "record", "expected"),
    [
        (MASTER, {"spans": [[7], [8]]}, r'passages for master: \{"text": \[ids\]\}'),
        (COCONDENSER, {"text": [7]}, r"documents for cocondenser"),
        (MLM, {"text": [7, "moon"]}, "a list of whole numbers as text"),
        (MLM, {"text": [-1]}, "a list of whole numbers as text"),
    ],
)
def test_ids_of_another_shape(tmp_path, objective, record, expected):
    source = jsonl(tmp_path / "ids.jsonl", {"text": [7]} if objective is MLM else record, record)
    with pytest.raises(InputError, match=expected):
        prepared(source, tmp_path / "p", objective)


def test_a_changed_corpus_is_prepared_again_and_told(corpus, tmp_path):
    first = rows(prepared(corpus, tmp_path / "p", MASTER))
    with Path(corpus).open("ab") as out:
        out.write(b'{"_id": "n", "title": "", "text": "a new night"}\n')
    store, heard = told(corpus, tmp_path / "p", MASTER)
    assert rows(store) == [*first, pieces("a new night")]
    assert len([note for note in heard.notes if "is prepared again: " in note]) == 1


def test_passages_without_an_expansion_and_expansions_without_a_passage(corpus, tmp_path):
    expansions = tmp_path / "x.jsonl"
    write_expansions(expansions, [Expansion(i, ("moon",), ()) for i in ("r-1", "none", "nobody")])
    _, heard = told(corpus, tmp_path / "p", MASTER, expansions=str(expansions))
    assert heard.warnings[-2:] == [
        "passages without an expansion: 2",
        "expansions of passages that the corpus lacks: 2",
    ]


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ([Expansion("other", ("moon",), ())], "found expansions of 1 other passages"),
        (
            [Expansion("r-0", (), ()), Expansion("r-0", ("a",), ())],
            "docid of expansion 1 again at 2",
        ),
    ],
)
def test_expansions_that_do_not_fit(corpus, tmp_path, made, found):
    expansions = tmp_path / "x.jsonl"
    write_expansions(expansions, made)
    with pytest.raises(InputError, match=found):
        prepared(corpus, tmp_path / "p", MASTER, expansions=str(expansions))
    assert not (tmp_path / "p").exists()


def test_no_such_input(tmp_path):
    with pytest.raises(UsageError):
        prepared(str(tmp_path / "none.jsonl"), tmp_path / "p", MLM)


def test_two_sources_are_one_corpus(corpus, tmp_path):
    other = jsonl(tmp_path / "other.jsonl", {"_id": "o", "text": "a star"})
    store = prepare([corpus, other], tmp_path / "p", TOKENIZER, MLM)
    assert rows(store)[-1] == pieces("a star")
    assert store.contents["documents"] == 5


def test_a_folder_of_something_else_is_left_alone(corpus, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear all")
    with pytest.raises((UsageError, MismatchError, InputError)):
        prepared(corpus, tmp_path / "mine", MLM)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear all"


def test_spans_of_documents(tmp_path):
    source = jsonl(tmp_path / "c.jsonl", *({"spans": [[7] * n, [8] * n]} for n in (1, 2, 3)))
    store = prepared(source, tmp_path / "p", COCONDENSER)
    assert [list(pair) for pair in pairwise(store.document_ends)] == [[0, 2], [2, 4], [4, 6]]
    assert len(store) == 3


def test_nothing_to_read(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError):
        prepared(str(tmp_path / "empty.jsonl"), tmp_path / "p", PretrainingObjective.MLM)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("told", "neighbours"),
    [
        ([("1", "A"), ("2", "A"), ("3", "A")], [1, 1, -1]),
        ([("1", "A"), ("2", "B"), ("3", "A")], [0, 0, 0]),
        ([("1", ""), ("2", ""), ("3", "-"), ("4", "-")], [0, 0, 0, 0]),
        ([("d#0", ""), ("d#1", ""), ("e#0", ""), ("e#1", "")], [1, -1, 1, -1]),
        ([("#0", ""), ("#1", "")], [0, 0]),
        ([("d#0", "A"), ("d#1", "B")], [1, -1]),
    ],
)
@pytest.mark.parametrize("batch", [2, 512])
def test_neighbours(tmp_path, monkeypatch, told, neighbours, batch):
    monkeypatch.setattr("denserk.data.pretraining_data.BATCH", batch)
    records = [{"_id": docid, "title": title, "text": "moon"} for docid, title in told]
    store = prepared(jsonl(tmp_path / "c.jsonl", *records), tmp_path / "p", MASTER)
    assert store.neighbours.tolist() == neighbours
    assert store.contents["with_neighbour"] == sum(number != 0 for number in neighbours)


def test_an_expansion_of_the_record_itself_wins(tmp_path):
    store = store_of(tmp_path, [{"text": [7]}, {"text": [9], "queries": [[4], [5]], "next": [[3]]}])
    assert store.expanded.tolist() == [False, True]
    assert store.queries[1].tolist() == [4, SEP, 5, SEP]
    assert store.next[1].tolist() == [3]


def test_a_layout_for_every_objective():
    assert {objective: Layout.of(objective).value for objective in PretrainingObjective} == {
        "mlm": "blocks",
        "condenser": "blocks",
        "retromae": "blocks",
        "cocondenser": "spans",
        "master": "passages",
    }


@pytest.mark.parametrize(
    ("objective", "record", "items"),
    [("mlm", {"text": [7]}, "blocks"), ("cocondenser", {"spans": [[7], [8]]}, "documents")],
)
def test_a_store_says_what_it_holds(tmp_path, objective, record, items):
    store = store_of(tmp_path, [record] * 3, PretrainingObjective(objective))
    again = pickle.loads(pickle.dumps(store))
    assert (len(store), store.items, len(again), again.items) == (3, items, 3, items)
    assert again.texts[0].tolist() == [7]


def test_a_store_of_nothing_and_of_something_else(tmp_path):
    with pytest.raises(UsageError):
        PretrainingStore(tmp_path / "none")
    with pytest.raises((UsageError, MismatchError)):
        PretrainingStore(tmp_path)


@pytest.mark.parametrize(("entries", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_large_vocabularies_take_four_bytes(tmp_path, entries, dtype):
    words = [f"w{number}" for number in range(entries - 5)]
    (tmp_path / "c.txt").write_text(words[-1])
    tokenizer, objective = tiny_tokenizer("bert", words), PretrainingObjective.MLM
    store = prepare([str(tmp_path / "c.txt")], tmp_path / "p", tokenizer, objective)
    assert store.texts[0].dtype == dtype
    assert store.texts[0].tolist() == [entries - 1]
