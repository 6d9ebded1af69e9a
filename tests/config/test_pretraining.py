import pytest

from denserk.config.formats import CorpusSettings
from denserk.config.options import fields_of, typed_values
from denserk.config.pretraining import CLASSES, PretrainingObjective, PretrainSettings, resolve_run


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
