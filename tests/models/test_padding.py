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
POOLED = {pooling: {"representation": pooling} for pooling in ("cls", "mean", "max", "last")}


def reductions_of(representation, *reductions):
    return [{"representation": representation, "reduction": reduction} for reduction in reductions]


WITHOUT_PARAMETERS = ("self-contrastive", "average")
ALL_REDUCTIONS = (*WITHOUT_PARAMETERS, "scalar-mix", "multi-vector")
MLR = reductions_of("mlr", *ALL_REDUCTIONS)
ME_BERT = reductions_of("me-bert", *ALL_REDUCTIONS)
COLBERT = reductions_of("colbert", *WITHOUT_PARAMETERS)
AGG = [
    {"representation": "agg", "agg_dim": "8", "cls_dim": "4", **settings}
    for settings in (
        {"agg_kind": "star"},
        {"agg_kind": "plus"},
        {"agg_kind": "linear"},
        {"agg_kind": "average"},
        {"agg_kind": "none", "term_weight": "abs"},  # here all learned weights are negative
        {"term_weight": "signed"},
        {"term_weight": "abs"},
        {"term_weight": "one"},
        {"mlm_head": "none"},
    )
]
OF_BERT = [*POOLED.values(), *MLR, *ME_BERT, *COLBERT, *AGG]
OF_T5 = [POOLED["mean"], POOLED["max"], POOLED["last"], *MLR, *ME_BERT, *COLBERT]
CASES = [
    *[("bert", settings) for settings in OF_BERT],
    *[("t5", settings) for settings in OF_T5],
    *[("roberta", settings) for settings in [POOLED["mean"], *ME_BERT]],
    *[("distilbert", settings) for settings in [POOLED["mean"], *MLR]],
    ("modernbert", POOLED["mean"]),
    ("qwen3", POOLED["last"]),  # pads on the left
    ("qwen3", POOLED["mean"]),
]
# it compiles the backbone and the MLM head; what follows is the same code
COMPILED = [
    *[("bert", settings) for settings in OF_BERT],
    *[(kind, POOLED["mean"]) for kind in ("t5", "roberta", "distilbert", "modernbert")],
    ("t5", ME_BERT[2]),
    ("qwen3", POOLED["last"]),
]


def names_of(cases):
    return [" ".join([kind, *settings.values()]) for kind, settings in cases]


@pytest.fixture
def encoders(tiny, tmp_path):
    def load(kind, settings, backend):
        """The same model twice: one text in a batch, and all texts in one."""
        has_new_layers = settings.get("reduction") == "scalar-mix"
        if has_new_layers or settings["representation"] == "agg":
            model = trained(tiny(kind), tmp_path, settings)
            settings = {}
        else:
            model = tiny(kind)
        load = partial(denserk.Encoder.load, model, **settings, device="cpu", backend=backend)
        return load(batch_size=1), load(batch_size=4)

    return load


def trained(model, tmp_path, settings):
    """A folder whose new layers have been trained a little, as random ones are not loaded."""
    data = write_examples(tmp_path / "train.jsonl", range(8))
    output = tmp_path / "trained"
    words = ["finetune", "--model", model, "--train-data", data, "--output", output]
    words += ["--batch-size", 4, "--group-size", 2, "--max-steps", 2, "--lr", 0.01]
    words += ["--seed", 5, "--device", "cpu"]
    for name, value in settings.items():
        words += ["--set", f"{name.replace('_', '-')}={value}"]
    assert run([str(word) for word in words]) == 0
    return output


def check_padding(single_text_encoder, batch_encoder):
    for method in ("encode_passages", "encode_queries"):
        encode_alone = getattr(single_text_encoder, method)
        alone = np.stack([encode_alone(text) for text in TEXTS])
        together = getattr(batch_encoder, method)(TEXTS)
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
        assert np.abs(alone[0] - alone[2]).max() > 1e-2  # texts differ by more than the tolerance


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=names_of(CASES))
def test_a_text_alone_has_the_vector_that_it_has_beside_longer_ones(encoders, kind, settings):
    check_padding(*encoders(kind, settings, "torch"))


@pytest.mark.slow
@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize(("kind", "settings"), COMPILED, ids=names_of(COMPILED))
def test_the_same_of_what_openvino_computes(encoders, kind, settings):
    check_padding(*encoders(kind, settings, "openvino"))


def test_an_empty_text_of_a_tokenizer_that_adds_no_tokens_has_a_vector(tiny, tmp_path):
    folder = shutil.copytree(tiny("qwen3"), tmp_path / "m")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    load = partial(denserk.Encoder.load, folder, device="cpu", backend="torch")
    batch_encoder = load(batch_size=4)
    single_text_encoder = load(batch_size=1)
    texts = ["", *TEXTS[:3]]
    np.testing.assert_allclose(
        batch_encoder.encode_passages(texts),
        single_text_encoder.encode_passages(texts),
        rtol=1e-4,
        atol=1e-4,
    )
    assert np.isfinite(single_text_encoder.encode_passages("")).all()
