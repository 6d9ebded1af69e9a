"""Crops, halves and frames of texts."""

import math

import numpy as np
import pytest
from datasets import Features, List, Value

from denserk.data.masking import IGNORED
from denserk.data.prepared import Lists, map_rows, open_rows, read_rows
from denserk.data.pretraining_batches import NOTHING, Cropped, Masker, Stage, Use, crop
from tests.data.prepared_texts import PIECES, visit

TEXTS = [[10, 11, 12], list(range(20, 30)), [], [40]]
DRAWS = 6000


@pytest.fixture
def texts(tmp_path):
    return lists(tmp_path, TEXTS)


def lists(folder, texts):
    """Token ids as a column of an Arrow file."""
    features = Features({"input_ids": List(Value("int32"))})
    rows = read_rows(lambda: ({"input_ids": text} for text in texts), features, folder / "read")
    map_rows(rows, dict, features, folder / "texts.arrow")
    return Lists(open_rows(folder / "texts.arrow"), "input_ids")


def cut(text):
    return text.gather(text.values, 0)


def test_short_texts_stay_whole(texts):
    found = crop(texts, np.array([0, 2, 3, NOTHING]), 5, visit(range(4)).draws(0, Use.CROP, 1))
    assert found.lengths.tolist() == [3, 0, 1, 0]
    assert cut(found).tolist() == [[10, 11, 12], [0, 0, 0], [40, 0, 0], [0, 0, 0]]
    assert not found.before.any()
    assert not found.behind.any()


def test_long_texts_keep_a_window_from_a_uniform_place(texts):
    draws = visit(range(DRAWS)).draws(Stage.TEXT, Use.CROP, 1)
    found = crop(texts, np.ones(DRAWS, dtype=np.int64), 7, draws)
    starts, counts = np.unique(cut(found)[:, 0], return_counts=True)
    assert starts.tolist() == [20, 21, 22, 23]
    assert (np.diff(cut(found), axis=1) == 1).all()
    assert (abs(counts - DRAWS / 4) < 5 * math.sqrt(DRAWS * 3 / 16)).all()
    assert (found.before == (cut(found)[:, 0] > 20)).all()
    assert (found.behind == (cut(found)[:, -1] < 29)).all()


def test_no_texts_at_all(tmp_path):
    found = crop(lists(tmp_path, [[]]), np.array([NOTHING]), 5, visit([0]).draws(0, 0, 1))
    assert (found.lengths.tolist(), found.before.tolist(), found.behind.tolist()) == (
        [0],
        [False],
        [False],
    )
    assert found.ids(PIECES).tolist() == [[PIECES.pad_id]]


@pytest.mark.parametrize(
    ("length", "first", "second"), [(5, 2, 3), (7, 3, 4), (18, 9, 9), (2, 1, 1)]
)
def test_halves(length, first, second):
    none = np.zeros(1, dtype=bool)
    text = Cropped(np.arange(100, 120), np.array([1]), np.array([length]), none, none)
    head, tail = text.halves()
    assert cut(head)[0, :first].tolist() == list(range(101, 101 + first))
    assert cut(tail)[0, :second].tolist() == list(range(101 + first, 101 + length))
    assert (head.lengths.tolist(), tail.lengths.tolist()) == ([first], [second])
    assert (head.behind.tolist(), tail.before.tolist()) == ([True], [True])


def test_one_piece_has_no_halves():
    none = np.zeros(1, dtype=bool)
    text = Cropped(np.arange(3), np.array([1]), np.array([1]), none, none)
    assert [half.lengths.tolist() for half in text.halves()] == [[0], [0]]


def test_stages_and_uses_share_no_random_word():
    draws = [visit([7]).draws(s, u, 4)[0] for s in Stage for u in Use]
    assert len(np.unique(np.concatenate(draws))) == 4 * len(Stage) * len(Use)


def test_frames():
    masker = Masker(PIECES, all_mask=False)
    seen, labels = np.array([[10, 11], [12, 0]]), np.array([[IGNORED, 13], [IGNORED, IGNORED]])
    texts = masker.framed(seen, labels, np.array([2, 1]))
    cls_id, sep_id, pad_id = PIECES.cls_id, PIECES.sep_id, PIECES.pad_id
    assert texts.tokens.input_ids.tolist() == [
        [cls_id, 10, 11, sep_id],
        [cls_id, 12, sep_id, pad_id],
    ]
    assert texts.tokens.attention_mask.tolist() == [[True] * 4, [True] * 3 + [False]]
    assert texts.labels.tolist() == [[IGNORED, IGNORED, 13, IGNORED], [IGNORED] * 4]


def test_a_frame_is_as_wide_as_its_longest_text():
    texts = Masker(PIECES, all_mask=False).framed(
        np.zeros((2, 5), int), np.zeros((2, 5), int), np.array([0, 0])
    )
    assert texts.labels.tolist() == [[IGNORED] * 2] * 2
