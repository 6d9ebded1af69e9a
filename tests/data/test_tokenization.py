from concurrent.futures import ThreadPoolExecutor

import pytest

from denserk.config.encoding import TextSettings
from denserk.data.tokenization import TextTokenizer, load_tokenizer, query_input
from denserk.errors import ModelError
from denserk.records import Passage, Query
from tests.support.tiny_models import tiny_tokenizer
from tests.support.toy import VOCABULARY

RIVER = Passage("d1", "runs south", "River")


def tokens(kind="bert", *passages, **settings):
    tokenizer = tiny_tokenizer(kind, VOCABULARY)
    ids = TextTokenizer(tokenizer, TextSettings(**settings)).passages(passages)
    return [" ".join(tokenizer.convert_ids_to_tokens(text)) for text in ids]


@pytest.mark.parametrize(
    ("kind", "join", "expected"),
    [
        ("bert", " ", "[CLS] river runs south [SEP]"),
        ("bert", " - ", "[CLS] river - runs south [SEP]"),
        ("bert", "sep", "[CLS] river [SEP] runs south [SEP]"),
        ("bert", "pair", "[CLS] river [SEP] runs south [SEP]"),
        ("roberta", "sep", "<s> river </s> runs south </s>"),
        ("roberta", "pair", "<s> river </s> </s> runs south </s>"),
        ("t5", "pair", "river </s> runs south </s>"),
    ],
)
def test_title_and_text_are_joined(kind, join, expected):
    assert tokens(kind, RIVER, join=join) == [expected]


@pytest.mark.parametrize("join", [" ", " - ", "sep", "pair"])
def test_an_empty_title_leaves_no_trace(join):
    assert tokens("bert", Passage("d", "runs", " \t"), join=join) == ["[CLS] runs [SEP]"]


def test_truncation_keeps_the_first_tokens():
    passage = Passage("d", "the cat sleeps in the house", "moon star sun")
    assert tokens("bert", passage, passage_max_length=6) == ["[CLS] moon star sun the [SEP]"]
    assert tokens("bert", passage, passage_max_length=9, join="pair") == [
        "[CLS] moon star sun [SEP] the cat sleeps [SEP]"
    ]


def test_queries_have_their_own_length_prefix_and_quotes():
    settings = TextSettings(query_max_length=4, query_prefix="the ", normalize_quotes=True)
    tokenizer = tiny_tokenizer("bert", VOCABULARY)
    ids = TextTokenizer(tokenizer, settings).queries([Query("q", "cat in house")])
    assert tokenizer.convert_ids_to_tokens(ids[0]) == ["[CLS]", "the", "cat", "[SEP]"]
    assert query_input(Query("q", " cat\u2019s "), settings) == "the cat's"


def test_ids_are_those_of_transformers():
    tokenizer = tiny_tokenizer("bert", VOCABULARY)
    texts = ["The cat, the dog!", "", "unknown Ω words", "a" * 300]
    expected = tokenizer(texts, truncation=True, max_length=20)["input_ids"]
    text_tokenizer = TextTokenizer(tokenizer, TextSettings(passage_max_length=20))
    assert text_tokenizer.passages([Passage("d", text) for text in texts]) == expected


def test_limits_hold_whoever_tokenised_before():
    tokenizer = tiny_tokenizer("bert", VOCABULARY)
    short = TextTokenizer(tokenizer, TextSettings(passage_max_length=4))
    long = TextTokenizer(tokenizer, TextSettings(passage_max_length=9))
    text = "the cat sleeps in the house " * 3
    passage = Passage("d", text)
    for _ in range(2):
        assert [len(ids) for ids in short.passages([passage])] == [4]
        assert [len(ids) for ids in long.passages([passage])] == [9]
        assert [len(ids) for ids in short.subword_tokens([text])] == [18]
        tokenizer(["cat"], truncation=True, max_length=3)


@pytest.mark.parametrize(("limit", "expected"), [(4, "the cat"), (5, "the cat sleeps")])
def test_a_tokenizer_that_cuts_at_the_left_is_made_to_cut_at_the_right(limit, expected):
    tokenizer = tiny_tokenizer("bert", VOCABULARY)
    tokenizer.backend_tokenizer.enable_truncation(4, direction="left")
    text_tokenizer = TextTokenizer(tokenizer, TextSettings(passage_max_length=limit))
    [ids] = text_tokenizer.passages([Passage("d", "the cat sleeps in the house")])
    assert tokenizer.decode(ids) == f"[CLS] {expected} [SEP]"


def test_several_threads_tokenise_at_once():
    tokenizer = TextTokenizer(tiny_tokenizer("bert", VOCABULARY), TextSettings())
    blocks = [[Passage("d", f"cat {n} dog {i}") for i in range(50)] for n in range(40)]
    expected = [tokenizer.passages(block) for block in blocks]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.passages, blocks)) == expected


def test_tokenizers_that_cannot_be_used(tmp_path):
    with pytest.raises(ModelError, match="no separator token"):
        tokens("t5", RIVER, join="sep")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="no tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert "tokenizer.json" in str(caught.value.hint)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tokenizer(tmp_path)
