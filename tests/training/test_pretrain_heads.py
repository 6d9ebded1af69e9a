"""The layers beside a backbone: continued where they lie, told where they begin anew."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from denserk.config.pretraining import Decoders, MasterPreset
from denserk.errors import ModelError
from denserk.training import run_folder
from denserk.training.pretrain import pretrain
from tests.reporters import Heard
from tests.training.pretraining import run_of, train, write_corpus, write_expansions

CONDENSER_FILE, MASTER_FILE = "condenser_head.safetensors", "master_decoders.safetensors"
STILL: dict[str, Any] = {"lr": 1e-12, "max_steps": 1}
"""A step that moves no weight visibly, so that what was read can be told."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "corpus": write_corpus(folder / "corpus.jsonl"),
        "expansions": write_expansions(folder / "expansions.jsonl"),
    }


@pytest.fixture(scope="module")
def trained(tiny, data, tmp_path_factory):
    """`trained(objective)`: the folder of a run, made once and copied for each test."""
    root = tmp_path_factory.mktemp("trained")

    def folder(objective, **options):
        path = root / objective
        if not path.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(run_folder, "save_if_installed", lambda *_: None)
                train(path, data["corpus"], objective, tiny(), max_steps=2, **options)
        return path

    return folder


def begun(output, corpus, objective, model, **options):
    """What a run without visible steps tells."""
    heard = Heard()
    pretrain(run_of(output, corpus, objective, model, **(STILL | options)))
    return heard


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-9)


def as_authors(folder, copy, names, extra=()):
    """The authors' layout: the heads' layers by their names in `model.pt`, in place of ours."""
    copy.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (copy / file).write_bytes((folder / file).read_bytes())
    (ours,) = {path.name for path in folder.glob("*.safetensors")} - {"model.safetensors"}
    tensors = {}
    for name, tensor in load_file(folder / ours).items():
        head, _, rest = name.partition(".")
        tensors[f"{names[head]}.{rest}"] = tensor
    torch.save(tensors | dict(extra), copy / "model.pt")
    return copy


@pytest.mark.parametrize("published", [False, True], ids=["ours", "authors"])
def test_cocondenser_takes_the_condensers_head(trained, data, tmp_path, published):
    start = folder = trained("condenser")
    if published:
        extra = {"co_target": torch.arange(8)}
        start = as_authors(folder, tmp_path / "authors", {"head": "c_head"}, extra)
    heard = begun(tmp_path / "out", data["corpus"], "cocondenser", start)
    file = "model.pt" if published else CONDENSER_FILE
    assert f"head: from {start / file}" in heard.notes
    assert not heard.warnings
    assert_close(load_file(folder / CONDENSER_FILE), load_file(tmp_path / "out" / CONDENSER_FILE))


def test_a_head_that_is_missing_is_warned_of(tiny, data, tmp_path):
    heard = begun(tmp_path / "out", data["corpus"], "cocondenser", tiny())
    (warning,) = heard.warnings
    assert f"{tiny()} has no {CONDENSER_FILE}" in warning
    assert "harms" in warning


AUTHORS = {
    "mkp_decoder": "c_head",
    "cmp_decoder": "overlap_head",
    "npr_decoder": "next_head",
    "dor_decoder": "query_head",
    "gor_decoder": "gpt_head",
}


@pytest.mark.parametrize("published", [False, True], ids=["ours", "authors"])
def test_master_continues_with_its_decoders(trained, data, tmp_path, published):
    options = {"expansions": data["expansions"], "preset": MasterPreset.RELEASED}
    start = folder = trained("master", **options)
    if published:
        start = as_authors(folder, tmp_path / "authors", AUTHORS)
    heard = begun(tmp_path / "out", data["corpus"], "master", start, **options)
    assert not heard.warnings
    assert any(note.startswith("mkp_decoder, cmp_decoder") for note in heard.notes)
    assert_close(load_file(folder / MASTER_FILE), load_file(tmp_path / "out" / MASTER_FILE))


@pytest.mark.parametrize(
    ("options", "phrase"),
    [({"decoders": Decoders.SHARED}, "shared_decoder"), ({"n_head_layers": 3}, "mkp_decoder.2")],
)
def test_decoders_of_another_kind_are_refused(trained, data, tmp_path, options, phrase):
    folder = trained("master", expansions=data["expansions"], preset=MasterPreset.RELEASED)
    options["tasks"] = ("mkp",)
    with pytest.raises(ModelError, match=phrase) as error:
        begun(tmp_path / "out", data["corpus"], "master", folder, **options)
    assert "--set", "fresh-heads=yes" in str(error.value.hint)
    heard = begun(tmp_path / "out", data["corpus"], "master", folder, fresh_heads=True, **options)
    assert any("new, from random weights (--set fresh-heads=yes)" in note for note in heard.notes)
    after = load_file(tmp_path / "out" / MASTER_FILE)
    assert any(name.startswith(phrase) for name in after)


@pytest.mark.parametrize("objective", ["mlm", "retromae", "condenser"])
def test_other_objectives_files_are_left_alone(trained, data, tmp_path, objective):
    start = trained("master", expansions=data["expansions"], preset=MasterPreset.RELEASED)
    heard = begun(tmp_path / "out", data["corpus"], objective, start)
    assert not (tmp_path / "out" / MASTER_FILE).exists()
    assert not any(MASTER_FILE in note for note in heard.notes)
