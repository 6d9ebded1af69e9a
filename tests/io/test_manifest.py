from dataclasses import replace
from typing import Any

import pytest

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.options import as_json
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    beside,
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


def test_a_manifest_of_a_folder_and_of_a_file(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path, Kind.INDEX) == MANIFEST
    with pytest.raises(MismatchError, match=r"holds index, not vectors"):
        read_manifest(tmp_path, Kind.VECTORS)
    run = tmp_path / "run.trec"
    run.write_text("")
    write_manifest(run, replace(MANIFEST, kind=Kind.RUN))
    assert beside(run) == tmp_path / "run.trec.manifest.json"
    assert read_manifest(run, Kind.RUN).settings == {"engine": "torch"}
    forget_manifest(str(run))
    assert not beside(run).exists()
    assert [has_manifest(name) for name in ("-", "/dev/null", str(run))] == [False, False, True]


def test_an_unfinished_folder_is_rejected_unless_asked_for(tmp_path):
    write_manifest(tmp_path, replace(MANIFEST, complete=False))
    with pytest.raises(MismatchError, match=r"is unfinished") as caught:
        read_manifest(tmp_path, Kind.INDEX)
    assert caught.value.hint == "run that command again with --resume"
    assert not read_manifest(tmp_path, Kind.INDEX, unfinished=True).complete


def test_no_manifest(tmp_path):
    with pytest.raises(UsageError, match=r"has no manifest.json: it is not index"):
        read_manifest(tmp_path, Kind.INDEX)
    with pytest.raises(UsageError, match=r"no such file or folder"):
        read_manifest(tmp_path / "none", Kind.INDEX)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind": "cake"}', '{"kind": "index", "x": 1}'])
def test_a_broken_manifest(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(InputError, match=r"manifest.json: found"):
        read_manifest(tmp_path, Kind.INDEX)


def test_queries_are_distinguished_by_ids_texts_and_order():
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


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("representation", "l2_norm", True, "representation.l2_norm was False, now True"),
        ("text", "join", "sep", "text.join was ' ', now 'sep'"),
    ],
)
def test_what_differs_between_models_is_named(part, name, value, said):
    assert model_differences(MODEL, {**MODEL, part: {**MODEL[part], name: value}}) == [said]


def test_models_that_are_the_same():
    text = {**MODEL["text"], "query_max_length": 64}
    assert model_differences(MODEL, {**MODEL, "name": "moved", "text": text}) == []
    old = {**MODEL, "representation": {"representation": "cls"}}  # before there were more settings
    assert model_differences(old, MODEL) == []
    refuse_other_model(None, MODEL, "x", "hint")
    refuse_other_model(MODEL, None, "x", "hint")
    with pytest.raises(MismatchError, match="x were not made alike: other weights: a and b"):
        refuse_other_model(MODEL, {**MODEL, "name": "b", "fingerprint": "2"}, "x", "hint")
