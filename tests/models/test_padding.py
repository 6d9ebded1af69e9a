"""A text has the same vector alone and in a batch with longer texts: padding is no part of it."""

import json
import shutil
from functools import partial

import numpy as np
import pytest

import denserk
from denserk.commands.app import run
from tests.support.finetuning import write_examples

TEXTS = [
    "the cat",
    "moon",
    "the old river runs to the south and the big dog eats red fish in the night of the house",
    "a red boat on blue water",
]
POOLED = [{"representation": name} for name in ("cls", "mean", "max", "last")]
LATE = [
    *({"representation": "mlr", "reduction": name} for name in ("self-contrastive", "average")),
    *({"representation": "mlr", "reduction": name} for name in ("scalar-mix", "multi-vector")),
    *({"representation": "me-bert", "reduction": name} for name in ("self-contrastive", "average")),
    *({"representation": "me-bert", "reduction": name} for name in ("scalar-mix", "multi-vector")),
    *({"representation": "colbert", "reduction": name} for name in ("self-contrastive", "average")),
]
AGG = [
    *({"agg_kind": name} for name in ("star", "plus", "linear", "average")),
    {"agg_kind": "none", "term_weight": "abs"},  # here all learned weights are negative
    *({"term_weight": name} for name in ("signed", "abs", "one")),
    {"mlm_head": "none"},
]
AGGREGATED = [{"representation": "agg", "agg_dim": "8", "cls_dim": "4", **each} for each in AGG]
OF_BERT = [*POOLED, *LATE, *AGGREGATED]
CASES = [
    *(("bert", settings) for settings in OF_BERT),
    *(("t5", settings) for settings in [*POOLED[1:], *LATE]),
    *(("roberta", settings) for settings in [POOLED[1], *LATE[4:8]]),
    *(("distilbert", settings) for settings in [POOLED[1], *LATE[:4]]),
    ("modernbert", POOLED[1]),
    ("qwen3", POOLED[3]),  # pads on the left
    ("qwen3", POOLED[1]),
]
# it compiles the backbone and the MLM head; what follows is the same code
COMPILED = [
    *(("bert", settings) for settings in OF_BERT),
    *((kind, POOLED[1]) for kind in ("t5", "roberta", "distilbert", "modernbert")),
    ("t5", LATE[6]),
    ("qwen3", POOLED[3]),
]


def named(cases):
    return [" ".join([kind, *settings.values()]) for kind, settings in cases]


@pytest.fixture
def encoders(tiny, tmp_path):
    def load(kind, settings, backend):
        """The same model twice: one text in a batch, and all texts in one."""
        model, options = tiny(kind), settings
        if settings.get("reduction") == "scalar-mix" or settings["representation"] == "agg":
            model, options = trained(model, tmp_path, settings), {}
        options = {**options, "device": "cpu", "backend": backend}
        return [denserk.Encoder.load(model, **options, batch_size=size) for size in (1, 4)]

    return load


def trained(model, tmp_path, settings):
    """A folder whose new layers have been trained a little, as random ones are not loaded."""
    data, output = write_examples(tmp_path / "train.jsonl", range(8)), tmp_path / "trained"
    words = ["finetune", "--model", model, "--train-data", data, "--output", output]
    words += ["--batch-size", 4, "--group-size", 2, "--max-steps", 2, "--lr", 0.01]
    words += ["--seed", 5, "--device", "cpu"]
    for name, value in settings.items():
        words += ["--set", f"{name.replace('_', '-')}={value}"]
    assert run([str(word) for word in words]) == 0
    return output


def check_padding(encoders):
    one, four = encoders
    for encode in ("encode_passages", "encode_queries"):
        alone = np.stack([getattr(one, encode)(text) for text in TEXTS])
        together = getattr(four, encode)(TEXTS)
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
        assert np.abs(alone[0] - alone[2]).max() > 1e-2  # texts differ by more than the tolerance


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=named(CASES))
def test_a_text_alone_has_the_vector_that_it_has_beside_longer_ones(encoders, kind, settings):
    check_padding(encoders(kind, settings, "torch"))


@pytest.mark.slow
@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize(("kind", "settings"), COMPILED, ids=named(COMPILED))
def test_the_same_of_what_openvino_computes(encoders, kind, settings):
    check_padding(encoders(kind, settings, "openvino"))


def test_an_empty_text_of_a_tokenizer_that_adds_no_tokens_has_a_vector(tiny, tmp_path):
    folder = shutil.copytree(tiny("qwen3"), tmp_path / "m")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    load = partial(denserk.Encoder.load, folder, device="cpu", backend="torch")
    one, four = (load(batch_size=size) for size in (1, 4))
    texts = ["", *TEXTS[:3]]
    np.testing.assert_allclose(
        four.encode_passages(texts), one.encode_passages(texts), rtol=1e-4, atol=1e-4
    )
    assert np.isfinite(one.encode_passages("")).all()
