import orjson
import pytest

from denserk.data.pretraining_preparation import prepare
from denserk.errors import InputError, MismatchError
from denserk.formats.expansions import Expansion, write_expansions
from denserk.settings.pretraining import PretrainingObjective, TextUnitSettings
from tests.conftest import VOCABULARY
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
    assert (store.expansion_rows >= 0).tolist() == [False, True, False]
    row = int(store.expansion_rows[1])
    expected = [*pieces("cat house"), separator, *pieces("cat"), separator]
    assert store.queries[row].tolist() == expected
    assert store.next[row].tolist() == pieces("the dog eats")


def test_prepared_text_is_used_again_until_something_differs(corpus, tmp_path):
    first = prepared(corpus, tmp_path / "p", PretrainingObjective.CONDENSER)
    before = (first.folder / "texts.npy").stat().st_mtime_ns
    prepared(corpus, tmp_path / "p", PretrainingObjective.CONDENSER)
    assert (first.folder / "texts.npy").stat().st_mtime_ns == before
    other = prepared(corpus, tmp_path / "p", PretrainingObjective.CONDENSER, max_length=8)
    assert len(other) != len(rows(first)) or rows(other) != rows(first)


def test_another_tokenizer_is_refused(corpus, tmp_path):
    store = prepared(corpus, tmp_path / "p", PretrainingObjective.MLM)
    with pytest.raises(MismatchError, match="another tokenizer"):
        store.refuse_other("other")


def test_nothing_to_read(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError):
        prepared(str(tmp_path / "empty.jsonl"), tmp_path / "p", PretrainingObjective.MLM)
    assert not (tmp_path / "p").exists()
