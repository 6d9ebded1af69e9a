import pytest

from denserk.commands.train import finetune
from denserk.config.analysis import AttentionEntropySettings, WinningVectorSettings
from denserk.config.encoding import (
    ComputeSettings,
    EncodeSettings,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.formats import GenerateSettings
from denserk.config.mining import MiningPaths, MiningSettings
from denserk.config.options import as_json, from_json
from denserk.config.retrieval import (
    CollectionSettings,
    FusionSettings,
    IndexSettings,
    MilvusIndexSettings,
    SearchPaths,
    SearchSettings,
)
from denserk.errors import InputError, UsageError

REQUIRED_VALUES = {
    AttentionEntropySettings: {"model": ("a",), "corpus": "c"},
    EncodeSettings: {"model": "m", "corpus": "c", "output": "o"},
    GenerateSettings: {"corpus": "c", "output": "o", "queries_model": "m"},
    MiningPaths: {"train": "t", "run": ("r",), "corpus": "c", "output": "o"},
    SearchPaths: {"index": ("i",), "topics": "t", "output": "o"},
    WinningVectorSettings: {"model": ("a",), "topics": "q", "corpus": "c", "qrels": "j"},
}


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (AttentionEntropySettings, {"model": ("a", "x/a", "a")}, "duplicate model labels"),
        (CollectionSettings, {"collection": "a-b"}, "letters, digits and _"),
        (ComputeSettings, {"dtype": "float16", "bf16": True}, "--dtype float16 contradicts"),
        (EncodeSettings, {"shard_id": 2, "shard_num": 2}, "--shard-id 2 of --shard-num 2"),
        (EncodeSettings, {"corpus": "-", "shard_num": 2}, "needs a corpus that can be counted"),
        (EncodeSettings, {"resume": True, "output_format": "jsonl"}, "--update need"),
        (EncodeSettings, {"output": "-"}, "--output - needs"),
        (GenerateSettings, {"output": "-", "resume": True}, "--resume needs a file"),
        (GenerateSettings, {"join": "sep"}, "join=sep: these models read plain text"),
        (IndexSettings, {"engine": "milvus", "metric": "l2"}, "--metric inner only"),
        (IndexSettings, {"engine": "bm25s"}, "--engine bm25s does not support --type flat"),
        (IndexSettings, {"engine": "faiss", "type": "bm25"}, "--engine faiss does not support"),
        (IndexSettings, {"engine": "torch", "factory": "PQ8"}, "--engine torch supports"),
        (MilvusIndexSettings, {"milvus_params": ("M",)}, "milvus-params=M: not NAME=VALUE"),
        (MiningPaths, {"corpus": None}, "--output-format tevatron"),
        (MiningSettings, {"range_min": 200}, "--range-min 200 is not below"),
        (MiningSettings, {"keep_gold": False}, "keep-gold=no needs"),
        (
            RepresentationSettings,
            {"representation": "agg", "agg_dim": 0, "cls_dim": 0},
            "no vector",
        ),
        (SearchPaths, {"index": (), "engine": "faiss"}, "--engine faiss"),
        (SearchSettings, {"prf_depth": 5}, "--prf-depth needs --prf"),
        (SearchSettings, {"prf": "average", "prf_beta": 1.0}, "prf-beta: only for --prf rocchio"),
        (SearchSettings, {"prf": "rocchio", "prf_negatives": 3}, "is not below --prf-depth 3"),
        (TextSettings, {"fields": ("a", "b", "c"), "join": "pair"}, "at most two fields"),
    ],
)
def test_contradictory_settings_are_rejected(settings, values, message):
    with pytest.raises(UsageError, match=message):
        from_json(settings, REQUIRED_VALUES.get(settings, {}) | values)


@pytest.mark.parametrize("uri", ["http://me:secret@host:19530", "http://host:1?token=secret"])
def test_an_address_with_a_secret_is_rejected_without_showing_it(uri):
    with pytest.raises(UsageError, match="--uri") as caught:
        CollectionSettings(uri)
    assert "secret" not in caught.value.message
    assert "DENSERK_MILVUS_TOKEN" in (caught.value.hint or "")


def test_weights_of_runs():
    assert FusionSettings().weights_of(3) == (1, 1, 1)
    assert FusionSettings(alpha=0.3).weights_of(2) == (0.3, 0.7)


@pytest.mark.parametrize("settings", [FusionSettings(weights=(1, 2)), FusionSettings(alpha=0.3)])
def test_two_weights_for_three_runs_are_rejected(settings):
    with pytest.raises(UsageError, match="2 weights for 3 runs"):
        settings.weights_of(3)


@pytest.mark.parametrize(
    ("models", "labels"),
    [
        (("runs/a", "Luyu/condenser", "mean"), ["a", "condenser", "mean"]),
        (("BERT=runs/a", "fine tuned=runs/b/"), ["BERT", "fine tuned"]),
        (("runs/a", "old/a", "x/b/"), ["runs/a", "old/a", "b"]),
        (("runs/lr=1e-4", "./k=v", "."), ["lr=1e-4", "k=v", "."]),
    ],
)
def test_models_are_called_by_label_or_folder(models, labels):
    labelled = AttentionEntropySettings(model=models, corpus="c").labelled
    assert [label for label, _ in labelled] == labels
    for option, (label, model) in zip(models, labelled, strict=True):
        assert option in (model, f"{label}={model}")


@pytest.mark.parametrize("weights", ["0.5, 2", [0.5, 2], ("0.5", "2")])
def test_values_from_text_yaml_and_python_are_read_back_from_json(weights):
    settings = from_json(FusionSettings, {"weights": weights, "method": "linear"})
    assert list(settings.weights or ()) == [0.5, 2]
    assert from_json(FusionSettings, as_json(settings)) == settings


def test_all_mistakes_are_reported_together():
    with pytest.raises(UsageError) as caught:
        from_json(FusionSettings, {"method": "sum", "width": 2, "rrf_k": True, "weights": 3})
    message = caught.value.message
    assert "method: found 'sum', expected rrf or linear" in message
    assert "weights: found 3, expected a list" in message
    assert "width is not a setting" in message
    assert "rrf_k: found True, expected a whole number" in message


@pytest.mark.parametrize(
    "text",
    ["model: [a\n", "model: \x07\n", "model: a\n b: c\n", "model: " + "[" * 3000, "a: 1\na: 2\n"],
)
def test_an_error_of_a_yaml_file_is_one_line_that_names_it(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        finetune(config=path)
    assert "broken.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)
