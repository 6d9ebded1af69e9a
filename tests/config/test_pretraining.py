import pytest

from denserk.config.formats import CorpusSettings
from denserk.config.options import fields_of, typed_values
from denserk.config.pretraining import (
    CLASSES,
    NprKind,
    PretrainingObjective,
    PretrainSettings,
    resolve_run,
)
from denserk.errors import UsageError


def resolved(objective, **options):
    objective = PretrainingObjective(objective)
    settings = PretrainSettings(objective=objective, model="m", corpus=("c",), output="o")
    return resolve_run(settings, CorpusSettings(), options)


@pytest.mark.parametrize("objective", PretrainingObjective)
def test_a_config_file_repeats_the_run(objective):
    run = resolved(objective)
    config = typed_values("", run.config(), PretrainSettings, CorpusSettings, *CLASSES)
    given = {name: config[name] for name in fields_of(*CLASSES) if name in config}
    assert resolved(objective, **given) == run


@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        ("mlm", {"spans": "fixed", "lm_scale": 2.0}, "--spans, --set lm-scale: not used by --obj"),
        ("condenser", {"npr": NprKind.HALF}, "--set npr: not used by --objective condenser"),
        ("master", {"cmp_encoder_rate": 0.5}, "one encoder pass has one rate"),
        ("master", {"frequency_dict": "f"}, "TF-IDF needs document frequencies"),
    ],
)
def test_what_cannot_be(objective, options, message):
    with pytest.raises(UsageError, match=message):
        resolved(objective, **options)
