import pytest

from denserk.config.formats import CorpusSettings
from denserk.config.options import select, typed_values
from denserk.config.pretraining import CLASSES, PretrainingObjective, PretrainSettings, resolve_run


@pytest.mark.parametrize("objective", PretrainingObjective)
def test_a_config_file_repeats_the_run(objective):
    settings = PretrainSettings(objective=objective, model="m", corpus=("c",), output="o")
    run = resolve_run(settings, CorpusSettings(), {})
    config = typed_values("", run.config(), PretrainSettings, CorpusSettings, *CLASSES)
    assert resolve_run(settings, CorpusSettings(), select(config, *CLASSES)) == run
