from dataclasses import replace

import pytest

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.options import as_json
from denserk.errors import InputError, MismatchError
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    beside,
    forget_manifest,
    model_differences,
    read_manifest,
    refuse_other_model,
    write_manifest,
)

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


def test_an_unfinished_folder_is_rejected_unless_asked_for(tmp_path):
    write_manifest(tmp_path, replace(MANIFEST, complete=False))
    with pytest.raises(MismatchError, match=r"is unfinished") as caught:
        read_manifest(tmp_path, Kind.INDEX)
    assert caught.value.hint == "run that command again with --resume"
    assert not read_manifest(tmp_path, Kind.INDEX, unfinished=True).complete


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "index", "x": 1}'])
def test_a_broken_manifest(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(InputError, match=r"manifest.json: found"):
        read_manifest(tmp_path, Kind.INDEX)


MODEL = {
    "name": "a",
    "fingerprint": "1",
    "representation": as_json(RepresentationSettings()),
    "text": as_json(TextSettings()),
}


def test_models_that_are_the_same_and_others():
    text = as_json(TextSettings(query_max_length=64))
    assert model_differences(MODEL, {**MODEL, "name": "moved", "text": text}) == []
    other = {**MODEL, "text": as_json(TextSettings(join="sep"))}
    assert model_differences(MODEL, other) == ["text.join was ' ', now 'sep'"]
    old = {**MODEL, "representation": {"representation": "cls"}}  # before there were more settings
    assert model_differences(old, MODEL) == []
    refuse_other_model(None, MODEL, "x", "hint")
    refuse_other_model(MODEL, None, "x", "hint")
    with pytest.raises(MismatchError, match="x were not made alike: other weights: a and b"):
        refuse_other_model(MODEL, {**MODEL, "name": "b", "fingerprint": "2"}, "x", "hint")
