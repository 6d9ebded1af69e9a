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


def reference_vector(folder, settings, heads, ids):
    """The vector of one text: transformers' own model, then the equations in plain Python."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    hidden = output.hidden_states[-1][0]
    logits = output.logits[0]
    lexical_part = reference_lexical_part(settings, heads, ids, hidden, logits)
    if settings.agg_kind is AggKind.NONE:
        return lexical_part
    cls_part = []
    if "cls_proj.weight" in heads:
        cls_part = linear(heads, "cls_proj", hidden[0])
    if settings.agg_order is AggOrder.AGG_CLS:
        return lexical_part + cls_part
    return cls_part + lexical_part


def reference_lexical_part(settings, heads, ids, hidden, logits):
    """The part beside that of [CLS], from the states and logits of a text."""
    if settings.agg_dim == 0:
        return []
    if settings.agg_kind is AggKind.AVERAGE:
        return linear(heads, "agg_proj", hidden[1:].mean(dim=0))
    scores = reference_scores(settings, heads, ids, hidden, logits)
    if settings.agg_kind is AggKind.NONE:
        return scores
    if settings.agg_kind is AggKind.LINEAR:
        return linear(heads, "agg_proj", torch.tensor(scores))
    layout = SliceLayout(
        len(scores), settings.agg_dim, settings.agg_kind, settings.agg_layout, settings.agg_seed
    )
    return oracles.folded(scores, layout)


def reference_scores(settings, heads, ids, hidden, logits):
    """A number for each token of the vocabulary."""
    positions = len(ids) - 1  # all but [CLS]
    mask = [True] * positions
    weights = [0.0] * positions
    if "tok_proj.weight" in heads:
        weights = [linear(heads, "tok_proj", state)[0] for state in hidden[1:]]
    if settings.mlm_head is MlmHead.NONE:
        return oracles.token_scores(ids[1:], weights, mask, settings.term_weight, logits.shape[-1])
    return oracles.vocabulary_scores(logits[1:].tolist(), weights, mask, settings.term_weight)


def linear(heads, name, vector):
    """What the linear layer of a name makes of a vector."""
    return (heads[f"{name}.weight"] @ vector + heads[f"{name}.bias"]).tolist()


CASES = [
    *[(kind, {}) for kind in WITH_HEADS],
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
    heads = stored.passage.heads
    expected = [reference_vector(tiny(kind), settings, heads, ids) for ids in TEXTS]
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
    mlr = encoder(tiny(), "mlr", layers=(0, 1, 2), reduction=Reduction.MULTI_VECTOR)
    with torch.no_grad():
        passage_vectors = mlr.stored_vectors(BATCH)
        query_vectors = mlr(BATCH)
    expected = torch.stack([states[layer][:, 0] for layer in (2, 1, 0)], dim=1)
    torch.testing.assert_close(passage_vectors, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(query_vectors, states[2][:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "t5"])
@pytest.mark.parametrize("reduction", Reduction)
def test_mlr_of_the_last_layer_alone_is_the_dual_encoder(tiny, kind, reduction):
    dual_encoder = encoder(tiny(kind), "mean" if kind == "t5" else "cls")
    stored = read_model_folder(tiny(kind)).passage
    settings = RepresentationSettings(Representation.MLR, layers=(2,), reduction=reduction)
    mlr = stored.build(settings, train=True).eval()  # a scalar mix is new
    with torch.no_grad():
        expected = dual_encoder(BATCH)
        torch.testing.assert_close(mlr(BATCH), expected)
        for vectors in (mlr.passage_vectors(BATCH).values, mlr.stored_vectors(BATCH)):
            torch.testing.assert_close(vectors, expected.unsqueeze(1))


@pytest.mark.parametrize("layers", [(0, 2), (2, 0)])
def test_the_order_in_which_layers_are_named_does_not_matter(tiny, layers):
    mlr = encoder(tiny(), "mlr", layers=layers, reduction=Reduction.MULTI_VECTOR)
    states = states_of(tiny())
    with torch.no_grad():
        vectors = mlr.stored_vectors(BATCH)
    torch.testing.assert_close(vectors[:, 0], states[2][:, 0])
    torch.testing.assert_close(vectors[:, 1], states[0][:, 0])


@pytest.mark.parametrize("layers", [(0, 1), (1, 1, 2), (2, 3)])
def test_layers_that_are_no_set_with_the_last_are_rejected(tiny, layers):
    with pytest.raises(ModelError, match="the last must be among those named, each once"):
        encoder(tiny(), "mlr", layers=layers)


def test_new_heads_of_aggretriever_are_initialised_by_torch(tiny):
    settings = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=50)
    torch.manual_seed(0)
    agg = read_model_folder(tiny()).passage.build(settings, train=True)
    heads = agg.representation.state_dict()
    assert heads.keys() == {"cls_proj.weight", "cls_proj.bias", "tok_proj.weight", "tok_proj.bias"}
    bound = agg.backbone.config.hidden_size**-0.5
    assert max(tensor.abs().max() for tensor in heads.values()) <= bound
    # of a uniform distribution
    assert heads["cls_proj.weight"].std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


@pytest.mark.parametrize("normed", [False, True])
def test_mlr_on_t5_means_over_tokens(tiny, normed):
    states = states_of(tiny("t5"), transformers.T5EncoderModel)
    reduction = Reduction.MULTI_VECTOR
    mlr = encoder(tiny("t5"), "mlr", reduction=reduction, norm_intermediate=normed)
    with torch.no_grad():
        vectors = mlr.stored_vectors(BATCH)
        middle = states[1]
        if normed:
            middle = mlr.backbone.encoder.encoder.final_layer_norm(middle)
    for row, is_real in enumerate(BATCH.attention_mask):
        expected = [states[2][row][is_real].mean(0), middle[row][is_real].mean(0)]
        torch.testing.assert_close(vectors[row], torch.stack(expected), rtol=0, atol=1e-5)


def test_what_each_reduction_trains_and_keeps(tiny):
    states = states_of(tiny())
    last = states[2][:, 0]
    last_two = torch.stack([last, states[1][:, 0]], dim=1)
    mean = last_two.mean(dim=1, keepdim=True)
    for reduction, trained, indexed in (
        (Reduction.SELF_CONTRASTIVE, last_two, last.unsqueeze(1)),
        (Reduction.MULTI_VECTOR, last_two, last_two),
        (Reduction.AVERAGE, mean, mean),
    ):
        mlr = encoder(tiny(), "mlr", reduction=reduction)
        with torch.no_grad():
            torch.testing.assert_close(mlr.passage_vectors(BATCH).values, trained)
            torch.testing.assert_close(mlr.stored_vectors(BATCH), indexed)
        assert mlr.vectors_per_passage == indexed.shape[1]


def test_me_bert_repeats_the_first_vector_of_a_short_passage_and_colbert_averages(tiny):
    hidden = states_of(tiny())[2]
    me_bert = encoder(tiny(), "me-bert", vectors=4, reduction=Reduction.MULTI_VECTOR)
    colbert = encoder(tiny(), "colbert", reduction=Reduction.AVERAGE)
    with torch.no_grad():
        vectors = me_bert.stored_vectors(BATCH)
        averages = colbert.stored_vectors(BATCH)
    torch.testing.assert_close(vectors[0], hidden[0, :4])
    torch.testing.assert_close(vectors[1], hidden[1][[0, 1, 2, 0]])
    for row, is_real in enumerate(BATCH.attention_mask):
        torch.testing.assert_close(averages[row, 0], hidden[row][is_real].mean(0))


@pytest.fixture
def example(specs):
    return json.loads((specs / "mlr_example.json").read_text())


def test_reductions_of_the_example(example):
    losses = example["losses"]
    queries = torch.tensor(losses["query_vectors"], dtype=torch.float64)
    documents = torch.tensor(losses["doc_vectors"], dtype=torch.float64)
    targets = torch.tensor(losses["targets"])
    mix = ScalarMix(3).double()
    torch.testing.assert_close(mix(documents), average_vectors(documents))
    parameters = losses["scalar_mix"]["parameters"]
    mix.scalar_parameters.data = torch.tensor(parameters, dtype=torch.float64)
    for name, vectors in (
        ("average_pooling", average_vectors(documents)),
        ("scalar_mix", mix(documents).detach()),
    ):
        expected = torch.tensor(losses[name]["doc_vectors"], dtype=torch.float64)
        torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-6)
        loss = contrastive_loss(queries @ vectors.T, targets)
        assert loss.item() == pytest.approx(losses[name]["loss"], abs=1e-6)


def test_token_vectors_of_the_example(example):
    pooling = example["t5_mean_pooling"]
    states = torch.tensor([pooling["token_states"]])
    for case in (pooling, pooling["all_padding_case"]):
        mean = pool_mean(states, torch.tensor([case["attention_mask"]]).bool())
        assert mean[0].tolist() == case["mean_vector"]
    case = example["token_level_variant"]
    mask = torch.tensor([case["attention_mask"]]).bool()
    passage = PassageVectors(torch.tensor([case["token_vectors"]]), mask)
    scores = vector_scores(torch.tensor([case["query"]]), passage.values)
    assert max_similarity(scores, passage.mask).item() == case["max_sim"]


def test_first_tokens():
    vectors = first_tokens(STATES, MASK, 4, by_cls=True)
    assert vectors.mask is not None
    assert vectors.mask.tolist() == [[True, True, False, False], [True, True, True, False]]
    torch.testing.assert_close(vectors.values[:, :3], STATES)
    without_cls = first_tokens(STATES, MASK, 2, by_cls=False)
    assert without_cls.values[0].tolist() == [[2.0, -4.0], [1.0, -2.0]]  # the mean comes first


def test_a_mean_is_summed_in_float32():
    hidden = torch.ones(1, 512, 1, dtype=torch.bfloat16)
    hidden[0, 0] = 300.0
    assert pool_mean(hidden, torch.ones(1, 512).bool()).item() == pytest.approx(811 / 512)
