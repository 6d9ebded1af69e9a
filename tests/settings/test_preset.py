import dataclasses

from denserk.settings.preset import CLASSES, OWNERS, Preset, Source, marked


def test_no_field_belongs_to_two_classes():
    names = [field.name for cls in CLASSES for field in dataclasses.fields(cls)]
    assert len(names) == len(set(names)) == len(OWNERS)


def test_values_stand_by_class_and_sources_by_field():
    preset = Preset(
        "paper-data",
        "Paper",
        "some data",
        Source.PAPER,
        "weights",
        "queries",
        {"lr": 1e-5, "seed": 7, "epochs": 2},
        marked(Source.GUESS, "seed"),
    )
    assert preset.values == {
        "OptimizerSettings": {"lr": 1e-5, "epochs": 2},
        "SamplingSettings": {"seed": 7},
    }
    assert [preset.source_of(name) for name in ("lr", "seed")] == [Source.PAPER, Source.GUESS]
