from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data import referenced_texts
from denserk.data.referenced_texts import DIGEST, Texts, sort_unique
from denserk.data.token_store import ArrayWriter, Ragged
from denserk.errors import InputError
from denserk.formats.id_ledger import digest
from denserk.records import Query
from denserk.reporting import Progress


def numbers(texts):
    """A tokenizer of digits."""
    return [[int(word) for word in text.text.split()] for text in texts]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.setattr(referenced_texts, "BLOCK", 3)
    (tmp_path / "scratch").mkdir()
    return Texts(tmp_path, tmp_path / "scratch", "queries", numbers, 100)


def tokens(folder):
    ragged = Ragged(folder, "queries")
    return [ragged[row].tolist() for row in range(len(ragged))]


@pytest.mark.parametrize("part", [8, 16, 1 << 19])
@given(st.lists(st.integers(0, 30)))
def test_digests_are_sorted_and_unique(tmp_path_factory, part, ids):
    folder = tmp_path_factory.mktemp("digests")
    writer = ArrayWriter(folder / "all.npy", DIGEST)
    digests = [digest(str(number)) for number in ids]
    writer.append(np.array(digests, dtype=DIGEST))
    writer.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(referenced_texts, "PART", part)
        found = sort_unique(folder / "all.npy", folder / "sorted.npy")
    assert found.tobytes() == b"".join(sorted(set(digests)))


def test_inline_texts_and_references_share_the_rows(tmp_path, texts):
    slots = [texts.add(Query("", str(n))) for n in range(5)]
    slots += [texts.refer(f"q{n % 4}") for n in range(6)]
    slots += [texts.add(Query("", "5"))]
    assert slots == [0, 1, 2, 3, 4, -1, -2, -3, -4, -5, -6, 5]
    corpus = [Query(f"q{n}", f"{n + 10} {n}") for n in range(9, 0, -1)]
    texts.find(corpus, "corpus.tsv", Progress())
    rows = texts.rows_of(np.array(slots))
    assert rows.tolist() == [0, 1, 2, 3, 4, -1, 8, 7, 6, -1, 8, 5]
    assert [texts.id_of(slot) for slot in (-1, -5, -6)] == ["q0", "q0", "q1"]
    assert tokens(tmp_path) == [[0], [1], [2], [3], [4], [5], [13, 3], [12, 2], [11, 1]]
    assert (texts.count, texts.tokens) == (9, 12)
    texts.close()


def test_rows_may_be_asked_for_piece_by_piece(texts):
    slots = np.array([texts.refer(f"q{n}") for n in range(7)])
    texts.find([Query(f"q{n}", "1") for n in range(7)], "corpus.tsv", Progress())
    pieces = [texts.rows_of(piece) for piece in np.array_split(slots, 3)]
    texts.close()
    assert np.concatenate(pieces).tolist() == list(range(7))


def test_the_corpus_is_read_no_further_than_needed(texts):
    def corpus():
        for number in range(3):
            yield Query(f"q{number}", "1")
        raise AssertionError("read on")

    texts.refer("q1")
    texts.find(corpus(), "corpus.tsv", Progress())
    texts.close()


def test_an_id_that_comes_twice_is_refused(texts):
    texts.refer("q1")
    texts.refer("q9")
    corpus = [Query("q1", "1"), Query("q0", "1"), Query("q1", "2")]
    with (
        closing(texts),
        pytest.raises(InputError, match=r"corpus.tsv: found the id q1 twice"),
    ):
        texts.find(corpus, "corpus.tsv", Progress())


@pytest.mark.parametrize(("size", "dtype"), [(65536, "uint16"), (65537, "int32")])
def test_token_ids_take_as_little_room_as_they_can(tmp_path, size, dtype):
    texts = Texts(tmp_path, tmp_path, "queries", numbers, size)
    texts.add(Query("", str(size - 1)))
    texts.find([], "-", Progress())
    texts.close()
    stored = Ragged(tmp_path, "queries").values
    assert stored.dtype == dtype
    assert stored.tolist() == [size - 1]
