from dataclasses import replace
from typing import Any

import pytest

from denserk import __version__
from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.options import as_json
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    beside,
    file_sha256,
    forget_manifest,
    has_manifest,
    model_differences,
    queries_sha256,
    read_manifest,
    refuse_other_model,
    write_manifest,
)
from denserk.records import Query

MANIFEST = Manifest(Kind.INDEX, True, {"engine": "torch"}, {"model": {"name": "m"}}, {"count": 2})


def test_a_manifest_reads_back(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path, Kind.INDEX) == MANIFEST
    assert MANIFEST.version == __version__


def test_a_file_has_its_manifest_beside_it(tmp_path):
    run = tmp_path / "run.trec"
    run.write_text("")
    write_manifest(run, replace(MANIFEST, kind=Kind.RUN))
    assert beside(run) == tmp_path / "run.trec.manifest.json"
    assert read_manifest(run, Kind.RUN).settings == {"engine": "torch"}


def test_an_unfinished_folder_is_refused_unless_asked_for(tmp_path):
    write_manifest(tmp_path, replace(MANIFEST, complete=False))
    with pytest.raises(MismatchError, match=r"is unfinished") as refusal:
        read_manifest(tmp_path, Kind.INDEX)
    assert refusal.value.hint == "run that command again with --resume"
    assert not read_manifest(tmp_path, Kind.INDEX, unfinished=True).complete


def test_a_manifest_of_another_kind_is_refused(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    with pytest.raises(MismatchError, match=r"holds index, not vectors"):
        read_manifest(tmp_path, Kind.VECTORS)


def test_no_manifest(tmp_path):
    with pytest.raises(UsageError, match=r"has no manifest.json: it is not index"):
        read_manifest(tmp_path, Kind.INDEX)
    with pytest.raises(UsageError, match=r"no such file or folder"):
        read_manifest(tmp_path / "none", Kind.INDEX)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '"x"', "{}", '{"kind": "cake"}', '{"kind": "index", "odd": 1}']
)
def test_a_broken_manifest_is_told(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(InputError, match=r"manifest.json: found"):
        read_manifest(tmp_path, Kind.INDEX)


def test_checksum(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert file_sha256(tmp_path / "f").startswith("ba7816bf8f01cfea414140de5dae2223")


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


MODEL: dict[str, Any] = {
    "name": "a",
    "fingerprint": "1",
    "representation": as_json(RepresentationSettings()),
    "text": as_json(TextSettings()),
}


def test_the_same_weights_under_another_name_are_the_same():
    assert model_differences(MODEL, {**MODEL, "name": "moved"}) == []


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("representation", "l2_norm", True, "representation.l2_norm was False, now True"),
        ("representation", "agg_order", "agg-cls", "agg_order was 'cls-agg', now 'agg-cls'"),
        ("text", "join", "sep", "text.join was ' ', now 'sep'"),
    ],
)
def test_what_differs_is_named(part, name, value, said):
    other = {**MODEL, part: {**MODEL[part], name: value}}
    (found,) = model_differences(MODEL, other)
    assert said in found


def test_the_length_of_queries_is_their_own_business():
    other = {**MODEL, "text": {**MODEL["text"], "query_max_length": 64}}
    assert model_differences(MODEL, other) == []


def test_a_setting_that_came_later_has_its_default():
    old = {"name": "a", "fingerprint": "1", "representation": {"representation": "cls"}}
    assert model_differences({**old, "text": MODEL["text"]}, MODEL) == []


def test_other_weights_are_refused():
    with pytest.raises(MismatchError, match="x were not made alike: other weights: a and b"):
        refuse_other_model(MODEL, {**MODEL, "name": "b", "fingerprint": "2"}, "x", "hint")


@pytest.mark.parametrize(("made", "asked"), [(None, MODEL), (MODEL, None)])
def test_what_is_not_known_is_not_refused(made, asked):
    refuse_other_model(made, asked, "x", "hint")
