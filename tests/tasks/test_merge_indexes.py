import json
import subprocess
import sys

import pytest

from denserk.errors import MismatchError, UsageError
from denserk.formats.manifest import Kind, file_sha256, read_manifest
from denserk.settings.retrieval import IndexType, Metric
from tests.faults import Stopped, contents, stopped_at
from tests.index.merging import (
    VECTORS,
    index,
    settings_for,
    write_parts,
    write_shards,
)
from tests.reporters import Heard

pytest.importorskip("faiss")
IVF = settings_for("IVF9,PQ4x4")


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("metric", Metric)
def test_a_merged_index_is_that_of_one_build_with_its_recall(tmp_path, metric, size):
    kind = settings_for("IVF9,PQ4x4", metric=metric)
    parts = write_parts(tmp_path, kind, size)
    shards = [tmp_path / "shards" / part.name for part in parts]
    plain = settings_for(metric=metric)
    whole = index(tmp_path / "one", tuple(shards), plain, trained_as=str(parts[0]))
    reporter = Heard()
    merged = index(tmp_path / "merged", (tmp_path / "parts" / "*",), plain)
    for name in ("index", "docid"):
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert (merged.count, merged.recall) == (whole.count, whole.recall)
    assert merged.count == len(VECTORS) // size
    assert "of its own vectors as queries" in reporter.notes[-1]
    told, expected = (read_manifest(tmp_path / n, Kind.INDEX) for n in ("merged", "one"))
    assert told.contents == expected.contents
    assert told.settings == expected.settings
    assert told.made_from["vectors"] == expected.made_from["vectors"]
    assert told.made_from["model"] == {"name": "m", "fingerprint": "1"}
    assert [part["name"] for part in told.made_from["indexes"]] == [str(part) for part in parts]


def move(tmp_path):
    (tmp_path / "shards" / "1").rename(tmp_path / "elsewhere")


def rename_a_passage(tmp_path):
    (tmp_path / "shards" / "1" / "block-00000.docid").write_text(
        "".join(f"x{n}\n" for n in range(10))
    )
    journal = tmp_path / "shards" / "1" / "blocks.jsonl"
    lines = [json.loads(line) | {"sha256": {}} for line in journal.read_text().splitlines()]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    manifest = tmp_path / "shards" / "1" / "manifest.json"
    told = json.loads(manifest.read_text())
    told["contents"]["journal_sha256"] = file_sha256(journal)
    manifest.write_text(json.dumps(told))


def forget(tmp_path):
    for path in (tmp_path / "parts").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        manifest["made_from"]["vectors"] = ["-"]
        path.write_text(json.dumps(manifest))


def leave_out(tmp_path):
    path = tmp_path / "parts" / "2" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["made_from"]["vectors"] = []
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (move, "shards/1: no such file"),
        (rename_a_passage, "shards/1 holds other vectors by now"),
        (forget, "the vectors were read from a stream"),
        (leave_out, "fewer vectors are at hand than were indexed"),
    ],
)
def test_the_recall_of_the_parts_is_told_where_vectors_are_not_at_hand(tmp_path, change, reason):
    parts = write_parts(tmp_path, IVF)
    change(tmp_path)
    reporter = Heard()
    merged = index(tmp_path / "merged", (tmp_path / "parts" / "*",))
    assert merged.recall is None
    told = [read_manifest(part, Kind.INDEX).contents["recall"] for part in parts]
    assert reporter.notes[-1].startswith("recall is not measured: ")
    assert reason in reporter.notes[-1]
    assert f"its parts find {min(told):.1%} to {max(told):.1%} " in reporter.notes[-1]
    kept = read_manifest(tmp_path / "merged", Kind.INDEX).contents
    assert kept["recall_of_parts"] == told
    assert "recall" not in kept


def test_merged_indexes_are_merged_again(tmp_path):
    parts = write_parts(tmp_path, IVF)
    whole = index(tmp_path / "whole", tuple(parts))
    index(tmp_path / "half", tuple(parts[:2]))
    again = index(tmp_path / "again", (tmp_path / "half", parts[2]))
    assert again.recall == whole.recall
    assert (tmp_path / "again" / "index").read_bytes() == (tmp_path / "whole/index").read_bytes()


def test_stopped_and_resumed_replaced_and_left_alone(tmp_path):
    parts = write_parts(tmp_path, IVF)
    index(tmp_path / "whole", tuple(parts))
    for step in range(4):  # manifest, ids, index, manifest
        folder = tmp_path / f"stopped{step}"
        with stopped_at(step), pytest.raises(Stopped):
            index(folder, tuple(parts))
        if step:
            with pytest.raises(MismatchError, match="unfinished"):
                read_manifest(folder, Kind.INDEX)
        index(folder, tuple(parts), resume=True)
        assert contents(folder) == contents(tmp_path / "whole")
    with pytest.raises(UsageError, match="not empty"):
        index(tmp_path / "whole", tuple(parts))
    reporter = Heard()
    index(tmp_path / "whole", tuple(parts), resume=True)
    assert reporter.notes[-1].endswith("is finished: nothing to do")
    with pytest.raises(MismatchError, match="made with other settings"):
        index(tmp_path / "whole", tuple(parts[:2]), resume=True)
    assert index(tmp_path / "whole", tuple(parts[:2]), overwrite=True).count == 510


@pytest.mark.parametrize(
    ("given", "paths", "message"),
    [
        ({"factory": "IVF8,SQ8"}, {}, "--factory IVF8,SQ8: "),
        ({"type": IndexType.HNSW}, {}, "--type hnsw: "),
        ({"metric": Metric.L2}, {}, "--metric is l2"),
        ({}, {"trained_as": "parts/0"}, "--trained-as parts/0 is for vectors"),
    ],
)
def test_what_a_merge_cannot_do_is_refused(tmp_path, given, paths, message):
    parts = write_parts(tmp_path, IVF)
    with pytest.raises((UsageError, MismatchError), match=message):
        index(tmp_path / "whole", tuple(parts), settings_for(**given), **paths)
    assert not (tmp_path / "whole").exists()


def test_an_output_that_the_pattern_matches_is_refused(tmp_path):
    parts = write_parts(tmp_path, IVF)
    index(tmp_path / "parts" / "3", (parts[0], parts[2]))
    with pytest.raises(UsageError, match="both input and output"):
        index(tmp_path / "parts" / "3", (tmp_path / "parts" / "*",), overwrite=True)


def test_parts_of_two_models_are_refused(tmp_path):
    parts = write_parts(tmp_path, IVF)
    manifest = json.loads((parts[1] / "manifest.json").read_text())
    manifest["made_from"]["model"] = {"name": "n", "fingerprint": "2"}
    (parts[1] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(MismatchError, match="other weights: m and n"):
        index(tmp_path / "whole", tuple(parts))


@pytest.mark.parametrize("size", [1, 2])
def test_flat_indexes_are_vectors_and_keep_what_is_known_of_them(tmp_path, size):
    shards = write_shards(tmp_path, size)
    for shard in shards:
        index(tmp_path / "flat" / shard.name, (shard,))
    index(tmp_path / "merged", (tmp_path / "flat" / "*",))
    index(tmp_path / "one", tuple(shards))
    for name in ("index", "docid"):
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    merged, one = (read_manifest(tmp_path / n, Kind.INDEX) for n in ("merged", "one"))
    assert merged.contents == one.contents
    assert merged.made_from["model"] == one.made_from["model"]
    manifest = json.loads((tmp_path / "flat" / "1" / "manifest.json").read_text())
    manifest["complete"] = False
    (tmp_path / "flat" / "1" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(MismatchError, match="flat/1 is unfinished"):
        index(tmp_path / "again", (tmp_path / "flat" / "*",))


@pytest.mark.slow
def test_machines_index_their_shards_and_one_merges_them(tmp_path):
    """Each command is a process of its own, as on machines that share a file system."""
    shards = write_shards(tmp_path)
    index(tmp_path / "trained", (shards[2],), settings_for("PCA4,IVF9,SQ8"))
    command = [sys.executable, "-m", "denserk", "index", "--threads", "1"]
    machines = [
        subprocess.Popen(
            [
                *command,
                "--input",
                f"shards/{n}",
                "--trained-as",
                "trained",
                "--output",
                f"parts/{n}",
            ],
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        for n in range(3)
    ]
    assert [machine.wait() for machine in machines] == [0, 0, 0]
    merging = [*command, "--input", "parts/*", "--output", "whole"]
    done = subprocess.run(merging, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "PCA4,IVF9,SQ8 finds " in done.stderr
    index(tmp_path / "one", tuple(shards), trained_as=str(tmp_path / "trained"))
    for name in ("index", "docid"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
