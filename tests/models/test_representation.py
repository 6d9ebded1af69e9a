import pytest
import torch
import transformers

from denserk.config.encoding import (
    AggKind,
    AggLayout,
    AggOrder,
    MlmHead,
    Representation,
    RepresentationSettings,
    TermWeight,
)
from denserk.data.batches import pad
from denserk.errors import ModelError
from denserk.models import lexical
from denserk.models.representation import NEEDS_CLS, POOLINGS, SEVERAL_VECTORS, needs_mlm_head
from denserk.models.slice_layout import SliceLayout
from denserk.models.stored_model import read_model_folder
from tests import oracles
from tests.tiny_models import MASKED_LM, WITH_HEADS

TEXTS = [[2, 9, 14, 30, 8, 3], [2, 17, 3], [2, 3], [2, 9, 9, 9, 40, 41, 42, 3]]
CASES = [
    {},
    {"agg_kind": AggKind.PLUS},
    {"agg_kind": AggKind.PLUS, "agg_layout": AggLayout.PAIRED},
    {"agg_layout": AggLayout.RANDOM, "agg_seed": 5},
    {"agg_kind": AggKind.NONE},
    {"term_weight": TermWeight.SIGNED},
    {"term_weight": TermWeight.ABS},
    {"term_weight": TermWeight.ONE, "cls_dim": 0},
    {"mlm_head": MlmHead.NONE},
    {"agg_order": AggOrder.AGG_CLS, "cls_dim": 16},
    {"agg_kind": AggKind.LINEAR},
    {"agg_kind": AggKind.AVERAGE},
    {"agg_dim": 0},
]


def literal(kind, folder, settings, heads, ids):
    """The vector of one text: transformers' own model, then the equations in plain Python."""
    model = getattr(transformers, MASKED_LM[kind]).from_pretrained(folder).eval()
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
        layout = SliceLayout.build(
            vocabulary, settings.agg_dim, settings.agg_kind, settings.agg_layout, settings.agg_seed
        )
        agg = oracles.folded(v, layout)
    return agg + cls if settings.agg_order is AggOrder.AGG_CLS else cls + agg


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("kind", WITH_HEADS)
def test_aggretriever_is_the_paper_s_equations(kind, options, tiny, tiny_agg, monkeypatch):
    stored = read_model_folder(tiny_agg(kind, **options))
    settings = stored.representation
    encoder, _ = stored.build(settings)
    expected = [literal(kind, tiny(kind), settings, stored.passage.heads, ids) for ids in TEXTS]
    batch = pad(TEXTS, pad_id=1 if kind == "roberta" else 0)
    monkeypatch.setitem(lexical.ROWS, "cpu", 4)
    with torch.inference_mode():
        encoded = encoder(batch)
    torch.testing.assert_close(encoded, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert encoded.shape[1] == encoder.dimension
    torch.testing.assert_close(encoder(batch).detach(), encoded, rtol=0, atol=1e-6)


def test_every_representation_has_its_row():
    rows = {*POOLINGS, *SEVERAL_VECTORS, Representation.AGG}
    assert rows == set(Representation) - {Representation.CROSS_ENCODER}


@pytest.mark.parametrize("representation", NEEDS_CLS)
def test_t5_has_no_cls(tiny, representation):
    stored = read_model_folder(tiny("t5"))
    with pytest.raises(ModelError, match=r"which a t5 backbone does not have") as caught:
        stored.build(RepresentationSettings(representation))
    assert "--representation mean" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, True),
        ({"agg_kind": AggKind.AVERAGE}, False),
        ({"agg_dim": 0}, False),
        ({"agg_dim": 0, "agg_kind": AggKind.NONE}, True),
        ({"mlm_head": MlmHead.NONE}, False),
        ({"mlm_head": MlmHead.FRESH}, True),
    ],
)
def test_when_the_head_is_needed(options, needed):
    assert needs_mlm_head(RepresentationSettings(Representation.AGG, **options)) is needed


def test_an_untrained_term_weight_is_refused(tiny):
    stored = read_model_folder(tiny("bert"))
    with pytest.raises(ModelError, match=r"no trained cls_proj\.bias, .*tok_proj\.weight"):
        stored.build(RepresentationSettings(Representation.AGG))
    weightless = RepresentationSettings(
        Representation.AGG, term_weight=TermWeight.ONE, cls_dim=0, agg_dim=20
    )
    assert stored.build(weightless)[1].dimension == 20


def test_a_fresh_head_is_for_training(tiny_agg):
    stored = read_model_folder(tiny_agg("bert"))
    with pytest.raises(ModelError, match="fresh is for training"):
        stored.build(RepresentationSettings(Representation.AGG, mlm_head=MlmHead.FRESH))


def test_another_dimension_than_the_trained_one_is_refused(tiny_agg):
    stored = read_model_folder(tiny_agg("bert", cls_dim=6))
    with pytest.raises(ModelError, match=r"size mismatch for cls_proj.weight"):
        stored.build(RepresentationSettings(Representation.AGG, cls_dim=8, agg_dim=20))


def test_a_folder_without_its_head_is_refused(tiny):
    stored = read_model_folder(tiny("bert", head=False))
    with pytest.raises(ModelError, match="saved without its masked-language-model head"):
        stored.build(RepresentationSettings(Representation.AGG))
