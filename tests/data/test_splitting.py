import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.sentences import sentence_spans
from denserk.data.splitting import DocumentSplitter, word_spans
from denserk.errors import InputError
from denserk.records import Passage

# texts of words between any white space, with sentences among them
TEXTS = st.text(" \n\t\u00a0\u3000ab.C。", max_size=60)
SIZES = st.integers(1, 6).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))


def passages_of(text, size, stride, spans=word_spans, docid="d", delimiter="#"):
    splitter = DocumentSplitter(spans, size, stride, delimiter, "corpus.jsonl")
    document = Passage(docid, text, "a title", {"url": "u"})
    return splitter, list(splitter.split([document]))


@given(TEXTS, SIZES)
def test_passages_of_words_begin_a_stride_apart_and_end_with_the_document(text, sizes):
    size, stride = sizes
    words = text.split()
    _, passages = passages_of(text, size, stride)
    assert [passage.docid for passage in passages] == [f"d#{n}" for n in range(len(passages))]
    covered = 0
    for number, passage in enumerate(passages):
        start = number * stride
        # the words in order, and no word of the document between two passages
        assert passage.text.split() == words[start : start + size]
        assert start <= covered
        covered = start + len(passage.text.split())
    assert covered == len(words)
    if words:
        assert text.rstrip().endswith(passages[-1].text)
        # all but the last end before the document does
        assert (len(passages) - 2) * stride + size < len(words) or len(passages) == 1


@pytest.mark.parametrize("find_spans", [word_spans, sentence_spans])
@given(text=TEXTS, sizes=SIZES)
def test_passages_are_slices_from_the_first_unit_to_the_last(find_spans, text, sizes):
    size, stride = sizes
    spans = list(find_spans(text))
    expected = [] if spans else [""]
    end = 0
    for start in range(0, len(spans), stride):
        if end < len(spans):
            end = min(start + size, len(spans))
            text_start, _ = spans[start]
            _, text_end = spans[end - 1]
            expected.append(text[text_start:text_end])
    _, passages = passages_of(text, size, stride, find_spans)
    assert [passage.text for passage in passages] == expected


def test_title_and_fields_are_kept_and_a_document_without_text_is_one_passage():
    _, passages = passages_of("one two three", 2, 1)
    assert passages == [
        Passage("d#0", "one two", "a title", {"url": "u"}),
        Passage("d#1", "two three", "a title", {"url": "u"}),
    ]
    for spans in (word_spans, sentence_spans):
        for text in ("", " \n "):
            _, passages = passages_of(text, 2, 2, spans)
            assert passages == [Passage("d#0", "", "a title", {"url": "u"})]


def test_counts():
    splitter, _ = passages_of(" one  two three", 2, 2)
    assert splitter.documents == 1
    assert splitter.characters == 13
    assert splitter.longest == 8
    assert splitter.mean_unit == 11 / 3
    splitter_of_nothing, _ = passages_of("", 2, 2)
    assert splitter_of_nothing.mean_unit == 0


@pytest.mark.parametrize(
    ("docid", "delimiter", "document"), [("a#b", "#", "a"), ("a:", "::", "a"), ("#", "#", "")]
)
def test_an_id_that_a_search_would_cut_elsewhere_is_rejected(docid, delimiter, document):
    message = f"the document id {docid!r}, which search --max-passage would read as {document!r}"
    with pytest.raises(InputError, match=message) as caught:
        passages_of("text", 2, 2, docid=docid, delimiter=delimiter)
    assert "--set max-passage-delimiter=TEXT" in str(caught.value.hint)
    _, passages = passages_of("text", 2, 2, docid=docid, delimiter="/")
    assert passages[0].docid == f"{docid}/0"


def test_documents_are_split_one_after_the_other():
    read_numbers = []

    def documents():
        for number in range(3):
            read_numbers.append(number)
            yield Passage(str(number), "one two three")

    splitter = DocumentSplitter(word_spans, 1, 1, "#", "corpus.jsonl")
    passages = splitter.split(documents())
    assert next(passages).docid == "0#0"
    assert read_numbers == [0]
    assert len(list(passages)) == 8
