from contextlib import nullcontext
from dataclasses import replace

import pytest

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.options import as_json
from denserk.errors import MismatchError
from denserk.io.manifest import (
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


TEXT, REPRESENTATION = as_json(TextSettings()), as_json(RepresentationSettings())
MODEL = {"name": "a", "fingerprint": "1", "representation": REPRESENTATION, "text": TEXT}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (MODEL, {**MODEL, "name": "moved", "text": {**TEXT, "query_max_length": 64}}, ""),
        (MODEL, {**MODEL, "text": {**TEXT, "join": "sep"}}, "text.join was ' ', now 'sep'"),
        ({**MODEL, "representation": {"representation": "cls"}}, MODEL, ""),  # fewer settings then
        (None, MODEL, ""),
        (MODEL, None, ""),
        (MODEL, {**MODEL, "name": "b", "fingerprint": "2"}, "x were .*: other weights: a and b"),
    ],
)
def test_vectors_of_two_models(one, other, said):
    with pytest.raises(MismatchError, match=said) if said else nullcontext():
        refuse_other_model(one, other, "x", "hint")
