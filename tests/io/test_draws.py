"""Random draws of queries."""

from collections import Counter

import pytest

from denserk.errors import InputError, UsageError
from denserk.io.draws import describe_draw, draw_beside, draw_order, read_draw, record_draw

QIDS = [f"q{number}" for number in range(20)]


def test_the_order_is_of_the_seed_and_the_ids_alone():
    order = draw_order(QIDS, 1)
    assert sorted(order) == sorted(QIDS)
    assert draw_order(reversed(QIDS), 1) == order
    assert draw_order([*QIDS, *QIDS], 1) == order
    assert draw_order(QIDS, 2) != order


def test_a_subset_keeps_its_order():
    subset = QIDS[::2]
    assert draw_order(subset, 1) == [qid for qid in draw_order(QIDS, 1) if qid in subset]


def test_every_query_is_first_about_equally_often():
    first = Counter(draw_order(["a", "b", "c", "d"], seed)[0] for seed in range(2000))
    assert all(430 < count < 570 for count in first.values())


def test_a_record_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "draw.tsv"
    path.write_text("query-id\tcorpus-id\tscore\n")
    assert draw_beside(str(path)) is None
    draw = record_draw(QIDS, draw_order(QIDS, 7)[:5], 7)
    describe_draw(str(path), draw, {})
    assert read_draw(str(path)) == draw
    path.write_text("filled in")
    assert draw_beside(str(path)) == draw
    assert (draw.seed, draw.queries, draw.drawn) == (7, 20, 5)


def test_a_file_without_a_record_is_no_draw(tmp_path):
    path = tmp_path / "draw.tsv"
    path.write_text("")
    with pytest.raises(UsageError, match="it is not a random draw of queries"):
        read_draw(str(path))


def test_a_broken_record_is_named(tmp_path):
    path = tmp_path / "draw.tsv"
    path.write_text("")
    describe_draw(str(path), record_draw(QIDS, QIDS[:3], 1), {})
    manifest = tmp_path / "draw.tsv.manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 1', '"seed": "one"'))
    with pytest.raises(InputError, match="seed"):
        read_draw(str(path))
