"""RetroMAE's views against a restatement of section 3.3, row by row."""

import math
from itertools import count

import numpy as np
import pytest

from denserk.data.masking import words_of
from denserk.data.pretraining_batches import SAMPLES, Cropped, Stage, Use, visible_tokens
from tests.data.prepared_texts import PIECES, ids_of, visit, words_from

TEXTS = [
    ids_of("the old fran ##ce [SEP] play ##ing a guitar ##ist ##s [UNK] runs"),
    ids_of("song"),
    ids_of("[SEP] the guitar"),
    ids_of("moon sun " * 15),
]


def cropped(texts):
    """Texts one after another in one array."""
    lengths = np.array([len(text) for text in texts])
    none = np.zeros(len(texts), dtype=bool)
    values = np.concatenate([np.array(text) for text in texts])
    return Cropped(values, np.cumsum(lengths) - lengths, lengths, none, none)


def views(texts, rate, items=None, epoch=0):
    text = cropped(texts)
    words = words_of(text.ids(PIECES), PIECES)
    keys = visit(range(len(texts)) if items is None else items, epoch)
    return visible_tokens(text, words, rate, keys).numpy()


def hidden_by_rows(visible, length):
    """What each row of a text does not see, itself aside: sets of places from 0."""
    return [
        frozenset(j - 1 for j in range(1, length + 1) if not visible[i, j] and j != i)
        for i in range(1, length + 1)
    ]


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.9])
def test_views_keep_the_law(rate):
    found = views(TEXTS, rate)
    longest = max(map(len, TEXTS))
    assert found.shape == (len(TEXTS), longest + 2, longest + 2)
    for text, visible in zip(TEXTS, found, strict=True):
        length = len(text)
        budget = max(1, round(rate * (length + 2)))
        words = words_from(text)
        specials = set(range(length)) - {place for word in words for place in word}
        assert visible[:, 0].all()
        assert not visible[:, length + 2 :].any()
        assert not visible[length + 2 :, 1:].any()
        assert visible[: length + 1, length + 1].all()  # [SEP], by all but itself
        assert not visible[length + 1, length + 1]
        assert not any(visible[i, i] for i in range(1, length + 1))
        for i, hidden in enumerate(hidden_by_rows(visible, length)):
            assert not hidden & specials
            # the row's own place is hidden either way, so its word may be whole with it or without
            for sample in (hidden, hidden | {i}):
                whole = all(sample >= set(w) or not sample & set(w) for w in words)
                left = budget - len(sample)
                if whole and left >= 0 and all(len(w) > left for w in words if w[0] not in sample):
                    break
            else:
                pytest.fail(f"row {i} of {text}: {sorted(hidden)} is no sample")


def test_views_restated():
    """The same random words, one sample and one row at a time."""
    rate, epoch = 0.5, 3
    found = views(TEXTS, rate, items=range(5, 9), epoch=epoch)
    for item, text, visible in zip(count(5), TEXTS, found, strict=False):
        length, words = len(text), words_from(text)
        samples = min(length + 2, SAMPLES)
        keys = visit([item], epoch)
        size = samples * len(words)
        halves = keys.draws(Stage.RETROMAE, Use.WORDS, (size + 1) // 2).view(np.uint32)[0]
        numbers = halves[:size].reshape(samples, -1)
        hidden = []
        for row in numbers.tolist():
            sample: set[int] = set()
            for _, word in sorted(zip(row, words, strict=True)):
                if len(sample) + len(word) <= round(rate * (length + 2)):
                    sample |= set(word)
            hidden.append(sample)
        chosen = keys.draws(Stage.RETROMAE, Use.VIEWS, length + 2)[0] % np.uint64(samples)
        for i, number in enumerate(chosen.tolist()):
            for j in range(length + 2):
                expected = j == 0 or (j != i and (j - 1) not in hidden[number])
                assert visible[i, j] == expected, (item, i, j)


def test_a_text_is_viewed_alike_in_any_company():
    together, alone = views(TEXTS, 0.5), views(TEXTS[:1], 0.5)
    length = len(TEXTS[0]) + 2
    assert (together[0, :length, :length] == alone[0]).all()


def test_pairs_are_hidden_at_the_rate():
    text = ids_of("moon sun " * 10)
    found = views([text] * 200, 0.5)[:, 1:21, 1:21]
    apart = ~np.eye(20, dtype=bool)
    share = found[:, apart].mean()
    # 11 of 20 words are hidden (a half of 22); samples of one text are shared by about two rows
    deviation = math.sqrt(0.45 * 0.55 / (200 * 20))
    assert abs(share - 9 / 20) < 5 * deviation


def test_there_are_at_most_256_samples():
    text = ids_of("moon " * 400)
    found = views([text], 0.5)[0]
    assert len(set(hidden_by_rows(found, 400))) > 150
    assert SAMPLES == 256
