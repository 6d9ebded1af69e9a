import pytest

from denserk.errors import UsageError
from denserk.settings.encoding import AggPreset, Representation, RepresentationSettings
from denserk.settings.models import (
    AGG_PRESETS,
    ENCODER_CLASSES,
    PUBLISHED_MODELS,
    WITHOUT_WEIGHTS,
    Pooling,
    RepresentationShorthands,
    published,
)
from denserk.settings.options import changed


def test_the_table_of_published_weights():
    assert {m.name: m.hub_name for m in PUBLISHED_MODELS} == {
        "agg": "castorini/aggretriever-cocondenser",
        "agg-distilbert": "castorini/aggretriever-distilbert",
        "cocondenser": "Luyu/co-condenser-marco-retriever",
        "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    }
    assert published("nothing") is None
    assert not {m.name for m in PUBLISHED_MODELS} & WITHOUT_WEIGHTS.keys()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"encoder_class": "aggretriever"}, {"representation": "agg"}),
        ({"encoder_class": "contriever"}, {"representation": "mean", "l2_norm": False}),
        ({"encoder_class": "sentence"}, {"representation": "mean", "l2_norm": True}),
        ({"encoder_class": "sentence-transformers"}, {}),
        ({"encoder_class": "auto"}, {"representation": "cls"}),
        ({"encoder_class": "auto", "pooling": Pooling.MEAN}, {"representation": "mean"}),
        ({"pooling": Pooling.CLS}, {"representation": "cls"}),
        ({"agg_preset": AggPreset.PAPER}, {"term_weight": "abs", "agg_layout": "random"}),
    ],
)
def test_what_other_words_mean(given, expected):
    assert RepresentationShorthands(**given).overrides({}) == expected


def test_options_beside_them_are_kept_and_may_not_contradict():
    short = RepresentationShorthands(pooling=Pooling.MEAN)
    given = {"l2_norm": True, "representation": Representation.MEAN}
    assert short.overrides(given) == given
    with pytest.raises(UsageError, match="--pooling mean contradicts representation agg"):
        short.overrides({"representation": Representation.AGG})


@pytest.mark.parametrize("name", ["dpr", "tct_colbert", "ance", "splade"])
def test_other_encoder_classes_are_refused_by_name(name):
    with pytest.raises(UsageError, match=f"--encoder-class {name}"):
        RepresentationShorthands(encoder_class=name)


def test_every_row_fits_the_settings():
    assert set(AGG_PRESETS) == set(AggPreset)
    for fields in (*ENCODER_CLASSES.values(), *AGG_PRESETS.values()):
        changed(RepresentationSettings(), fields)
