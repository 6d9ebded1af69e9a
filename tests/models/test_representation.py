"""Representations against the papers' equations, spec example vectors and transformers' states."""

import json

import pytest
import torch
import transformers

from denserk.config.encoding import (
    AggKind,
    AggLayout,
    AggOrder,
    MlmHead,
    Reduction,
    Representation,
    RepresentationSettings,
    TermWeight,
)
from denserk.data.batches import pad
from denserk.errors import ModelError
from denserk.losses.retrieval import contrastive_loss
from denserk.models import lexical
from denserk.models.lexical import SliceLayout
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import (
    PassageVectors,
    ScalarMix,
    average_vectors,
    first_tokens,
    max_similarity,
    pool_mean,
    vector_scores,
)
from tests.support import oracles
from tests.support.tiny_models import WITH_HEADS

TEXTS = [[2, 9, 14, 30, 8, 3], [2, 17, 3], [2, 3], [2, 9, 9, 9, 40, 41, 42, 3]]
BATCH = pad(TEXTS, pad_id=0)
STATES = torch.tensor(
    [[[1.0, -2.0], [3.0, -6.0], [9.0, 9.0]], [[1.0, 1.0], [2.0, -1.0], [6.0, -3.0]]]
)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def literal(folder, settings, heads, ids):
    """The vector of one text: transformers' own model, then the equations in plain Python."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    hidden, logits = out.hidden_states[-1][0], out.logits[0]
    vocabulary = logits.shape[-1]

    def linear(name, vector):
        return (heads[f"{name}.weight"] @ vector + heads[f"{name}.bias"]).tolist()

    cls = linear("cls_proj", hidden[0]) if "cls_proj.weight" in heads else []
    rule, count = settings.term_weight, len(ids) - 1
    weights = [0.0] * count
    if "tok_proj.weight" in heads:
        weights = [linear("tok_proj", state)[0] for state in hidden[1:]]
    if settings.mlm_head is MlmHead.NONE:
        v = oracles.token_scores(ids[1:], weights, [True] * count, rule, vocabulary)
    else:
        v = oracles.vocabulary_scores(logits[1:].tolist(), weights, [True] * count, rule)
    if settings.agg_kind is AggKind.NONE:
        return v
    if settings.agg_dim == 0:
        agg = []
    elif settings.agg_kind is AggKind.LINEAR:
        agg = linear("agg_proj", torch.tensor(v))
    elif settings.agg_kind is AggKind.AVERAGE:
        agg = linear("agg_proj", hidden[1:].mean(dim=0))
    else:
        layout = SliceLayout(
            vocabulary, settings.agg_dim, settings.agg_kind, settings.agg_layout, settings.agg_seed
        )
        agg = oracles.folded(v, layout)
    return agg + cls if settings.agg_order is AggOrder.AGG_CLS else cls + agg


CASES = [
    *((kind, {}) for kind in WITH_HEADS),
    ("bert", {"agg_kind": AggKind.PLUS, "agg_layout": AggLayout.PAIRED}),
    ("bert", {"agg_layout": AggLayout.RANDOM, "agg_seed": 5}),
    ("bert", {"agg_kind": AggKind.NONE}),
    ("bert", {"term_weight": TermWeight.SIGNED}),
    ("roberta", {"term_weight": TermWeight.ABS}),
    ("bert", {"term_weight": TermWeight.ONE, "cls_dim": 0}),
    ("distilbert", {"mlm_head": MlmHead.NONE}),
    ("bert", {"agg_order": AggOrder.AGG_CLS, "cls_dim": 16}),
    ("bert", {"agg_kind": AggKind.LINEAR}),
    ("bert", {"agg_kind": AggKind.AVERAGE}),
    ("bert", {"agg_dim": 0}),
]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_aggretriever_is_the_paper_s_equations(kind, options, tiny, tiny_agg, monkeypatch):
    stored = read_model_folder(tiny_agg(kind, **options))
    settings = stored.representation
    encoder, _ = stored.build(settings)
    expected = [literal(tiny(kind), settings, stored.passage.heads, ids) for ids in TEXTS]
    batch = pad(TEXTS, pad_id=1 if kind == "roberta" else 0)
    monkeypatch.setitem(lexical.ROWS, "cpu", 4)
    with torch.inference_mode():
        encoded = encoder(batch)
    torch.testing.assert_close(encoded, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert encoded.shape[1] == encoder.dimension
    torch.testing.assert_close(encoder(batch).detach(), encoded, rtol=0, atol=1e-6)


def test_vectors_are_never_made_through_random_layers(tiny, tiny_agg):
    agg = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=8)
    fresh = RepresentationSettings(Representation.AGG, mlm_head=MlmHead.FRESH)
    mixed = RepresentationSettings(Representation.MLR, reduction=Reduction.SCALAR_MIX)
    for folder, settings, message in (
        (tiny("bert"), agg, r"no trained cls_proj\.bias, .*tok_proj\.weight"),
        (tiny("bert"), mixed, r"no trained scalar_mix\.scalar_parameters"),
        (tiny("bert", head=False), agg, "has no masked-language-model head"),
        (tiny_agg("bert"), fresh, "mlm-head=fresh was given: a new head is random"),
        (tiny_agg("bert", cls_dim=6), agg, "size mismatch for cls_proj.weight"),
    ):
        with pytest.raises(ModelError, match=message):
            read_model_folder(folder).build(settings)


def states_of(folder, model=transformers.AutoModel):
    loaded = model.from_pretrained(folder, output_hidden_states=True).eval()
    with torch.no_grad():
        return loaded(BATCH.input_ids, BATCH.attention_mask.long()).hidden_states


def encoder(folder, representation, **settings):
    return read_model_folder(folder).passage.build(
        RepresentationSettings(Representation(representation), **settings)
    )


def test_mlr_is_the_cls_of_each_layer_last_first(tiny):
    states = states_of(tiny())
    made = encoder(tiny(), "mlr", layers=(0, 1, 2), reduction=Reduction.MULTI_VECTOR)
    with torch.no_grad():
        found, query = made.stored_vectors(BATCH), made(BATCH)
    for place, layer in enumerate((2, 1, 0)):
        torch.testing.assert_close(found[:, place], states[layer][:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(query, states[2][:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("normed", [False, True])
def test_mlr_on_t5_means_over_tokens(tiny, normed):
    states = states_of(tiny("t5"), transformers.T5EncoderModel)
    reduction = Reduction.MULTI_VECTOR
    made = encoder(tiny("t5"), "mlr", reduction=reduction, norm_intermediate=normed)
    with torch.no_grad():
        found = made.stored_vectors(BATCH)
        norm = made.backbone.encoder.encoder.final_layer_norm
        middle = norm(states[1]) if normed else states[1]
    for row, real in enumerate(BATCH.attention_mask):
        expected = torch.stack([states[2][row][real].mean(0), middle[row][real].mean(0)])
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-5)


def test_what_each_reduction_trains_and_keeps(tiny):
    last, before = (states_of(tiny())[layer][:, 0] for layer in (2, 1))
    both, mean = torch.stack([last, before], 1), ((last + before) / 2).unsqueeze(1)
    for reduction, trained, kept in (
        (Reduction.SELF_CONTRASTIVE, both, last.unsqueeze(1)),
        (Reduction.MULTI_VECTOR, both, both),
        (Reduction.AVERAGE, mean, mean),
    ):
        made = encoder(tiny(), "mlr", reduction=reduction)
        with torch.no_grad():
            torch.testing.assert_close(made.passage_vectors(BATCH).values, trained)
            torch.testing.assert_close(made.stored_vectors(BATCH), kept)
        assert made.vectors_per_passage == kept.shape[1]


def test_me_bert_repeats_the_first_vector_of_a_short_passage_and_colbert_averages(tiny):
    hidden = states_of(tiny())[2]
    with torch.no_grad():
        several = encoder(tiny(), "me-bert", vectors=4, reduction=Reduction.MULTI_VECTOR)
        found = several.stored_vectors(BATCH)
        averaged = encoder(tiny(), "colbert", reduction=Reduction.AVERAGE).stored_vectors(BATCH)
    torch.testing.assert_close(found[0], hidden[0, :4])
    torch.testing.assert_close(found[1], hidden[1][[0, 1, 2, 0]])
    for row, real in enumerate(BATCH.attention_mask):
        torch.testing.assert_close(averaged[row, 0], hidden[row][real].mean(0))


@pytest.fixture
def example(specs):
    return json.loads((specs / "mlr_example.json").read_text())


def test_reductions_of_the_example(example):
    losses = example["losses"]
    queries, documents = (
        torch.tensor(losses[name], dtype=torch.float64) for name in ("query_vectors", "doc_vectors")
    )
    mix = ScalarMix(3).double()
    torch.testing.assert_close(mix(documents), average_vectors(documents))
    mix.scalar_parameters.data = torch.tensor(
        losses["scalar_mix"]["parameters"], dtype=torch.float64
    )
    for name, found in (
        ("average_pooling", average_vectors(documents)),
        ("scalar_mix", mix(documents).detach()),
    ):
        expected = torch.tensor(losses[name]["doc_vectors"], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        loss = contrastive_loss(queries @ found.T, torch.tensor(losses["targets"]))
        assert loss.item() == pytest.approx(losses[name]["loss"], abs=1e-6)


def test_token_vectors_of_the_example(example):
    case = example["t5_mean_pooling"]
    states = torch.tensor([case["token_states"]])
    for part in (case, case["all_padding_case"]):
        mean = pool_mean(states, torch.tensor([part["attention_mask"]]).bool())
        assert mean[0].tolist() == part["mean_vector"]
    case = example["token_level_variant"]
    mask = torch.tensor([case["attention_mask"]]).bool()
    passage = PassageVectors(torch.tensor([case["token_vectors"]]), mask)
    scores = vector_scores(torch.tensor([case["query"]]), passage.values)
    assert max_similarity(scores, passage.mask).item() == case["max_sim"]


def test_first_tokens():
    found = first_tokens(STATES, MASK, 4, by_cls=True)
    assert found.mask is not None
    assert found.mask.tolist() == [[True, True, False, False], [True, True, True, False]]
    torch.testing.assert_close(found.values[:, :3], STATES)
    without_cls = first_tokens(STATES, MASK, 2, by_cls=False)
    assert without_cls.values[0].tolist() == [[2.0, -4.0], [1.0, -2.0]]  # the mean comes first
    hidden = torch.ones(1, 512, 1, dtype=torch.bfloat16)
    hidden[0, 0] = 300.0  # summed in float32
    assert pool_mean(hidden, torch.ones(1, 512).bool()).item() == pytest.approx(811 / 512)
