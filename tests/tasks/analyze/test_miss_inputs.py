"""What a run of `analyze misses` was made from."""

from denserk.io.manifest import Kind, Manifest, write_manifest
from denserk.tasks.analyze.miss_inputs import recorded_indexes


def test_indexes_are_those_of_all_runs_that_still_exist_each_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bm25", "dense"):
        (tmp_path / name).mkdir()
        write_manifest(name, Manifest(Kind.INDEX, True, {}, {}))
    write_manifest("a.trec", Manifest(Kind.RUN, True, {}, {"index": {"name": "bm25"}}))
    indexes = [{"name": "dense"}, {"name": "gone"}, {"name": "bm25"}]
    write_manifest("b.trec", Manifest(Kind.RUN, True, {}, {"index": indexes}))
    runs = [{"name": "a.trec"}, {"name": "b.trec"}, {"name": "unknown.trec"}]
    write_manifest("fused.trec", Manifest(Kind.RUN, True, {}, {"runs": runs}))
    assert recorded_indexes("fused.trec") == ("bm25", "dense")
    assert recorded_indexes("unknown.trec") == ()
