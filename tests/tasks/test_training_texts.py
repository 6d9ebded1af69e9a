import pytest

from denserk.errors import InputError, UsageError
from denserk.records import Candidate, TrainingExample
from denserk.tasks.training_texts import TextFiller


def filler(toy, lines="q1\td3\td1\nq2\td1\td4\n", corpus=True, queries=True):
    (toy / "triples.tsv").write_text(lines)
    return TextFiller(
        str(toy / "triples.tsv"),
        None,
        str(toy / "corpus.jsonl") if corpus else None,
        str(toy / "queries.tsv") if queries else None,
    )


def test_ids_become_texts_and_titles(toy):
    first, second = filler(toy).examples()
    assert first == TrainingExample(
        "q1",
        "cat in a house",
        (Candidate("d3", "the cat sleeps in the house"),),
        (Candidate("d1", "the old river runs to the south", "River"),),
    )
    assert second.query == "river boat"


def test_only_what_is_named_is_held(toy):
    texts = filler(toy)
    list(texts.examples())
    assert texts._passages.keys() == {"d1", "d3", "d4"}
    assert texts._texts.keys() == {"q1", "q2"}


@pytest.mark.parametrize(("corpus", "queries"), [(True, False), (False, True), (False, False)])
def test_each_side_is_filled_on_its_own(corpus, queries, toy):
    for example in filler(toy, corpus=corpus, queries=queries).examples():
        assert bool(example.query) is queries
        assert bool(example.positives[0].text) is corpus


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("q1\td3\tx1\nq1\td3\tx2\n", "no passages with 2 of the ids"),
        ("q9\td3\td1\n", "(q9); expected all its queries"),
    ],
)
def test_ids_that_the_collection_lacks_are_named(lines, told, toy):
    with pytest.raises(InputError) as caught:
        list(filler(toy, lines).examples())
    assert told in str(caught.value)


def test_a_stream_cannot_be_read_twice(toy):
    with pytest.raises(UsageError, match="twice"):
        list(TextFiller("-", None, str(toy / "corpus.jsonl"), None).examples())


def test_texts_that_are_there_stay(toy):
    line = '{"query_id":"q1","query":"own","positive_passages":[{"docid":"d3","text":"own text"}]}'
    (example,) = filler(toy, line + "\n").examples()
    assert (example.query, example.positives[0].text) == ("own", "own text")
