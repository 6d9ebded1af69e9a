from contextlib import nullcontext
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


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (MODEL, {**MODEL, "name": "moved", "text": as_json(TextSettings(query_max_length=64))}, ""),
        (
            MODEL,
            {**MODEL, "text": as_json(TextSettings(join="sep"))},
            "text.join was ' ', now 'sep'",
        ),
        ({**MODEL, "representation": {"representation": "cls"}}, MODEL, ""),  # fewer settings then
        (None, MODEL, ""),
        (MODEL, None, ""),
        (MODEL, {**MODEL, "name": "b", "fingerprint": "2"}, "x were .*: other weights: a and b"),
    ],
)
def test_vectors_of_two_models(one, other, said):
    with pytest.raises(MismatchError, match=said) if said else nullcontext():
        refuse_other_model(one, other, "x", "hint")
