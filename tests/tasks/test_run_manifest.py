import pytest

from denserk.formats.manifest import beside
from denserk.records import Query
from denserk.tasks.run_manifest import forget_manifest, has_manifest, queries_sha256


@pytest.mark.parametrize(("output", "expected"), [("-", False), ("/dev/null", False), ("r", True)])
def test_files_have_a_manifest_and_streams_have_none(tmp_path, output, expected):
    named = output if output != "r" else str(tmp_path / "r")
    assert has_manifest(named) is expected
    forget_manifest(named)  # nothing to forget is fine


def test_an_old_manifest_goes(tmp_path):
    run = str(tmp_path / "run")
    beside(run).write_text("{}")
    forget_manifest(run)
    assert not beside(run).exists()


def test_queries_are_told_apart_by_ids_texts_and_order():
    one, two = Query("1", "a"), Query("2", "a")
    assert queries_sha256([one, two]) == queries_sha256([one, two._replace(answers=("x",))])
    others = [[two, one], [one], [one, Query("2", "b")]]
    assert len({queries_sha256(queries) for queries in ([one, two], *others)}) == 4
