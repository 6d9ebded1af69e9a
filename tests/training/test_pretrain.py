import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from denserk.config.encoding import Representation
from denserk.config.pretraining import NprKind, PretrainingObjective, PretrainingPreset
from denserk.errors import ModelError
from denserk.losses.pretraining import Condenser, Master
from denserk.models.model_folder import read_model_folder
from denserk.training import run_folder
from tests.support.console import warnings_of
from tests.support.finetuning import AGG, log_of, tune, weights, write_examples
from tests.support.pretraining import train, write_expansions

HEAD_FILES = {
    "condenser": "condenser_head.safetensors",
    "cocondenser": "condenser_head.safetensors",
    "master": "master_decoders.safetensors",
    "retromae": "retromae_decoder.safetensors",
    "dupmae": "retromae_decoder.safetensors",
}


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "corpus": corpus,
        "expansions": write_expansions(folder / "expansions.jsonl"),
        "examples": write_examples(folder / "train.jsonl", range(8)),
    }


def options_of(data, objective, **options):
    return ({"expansions": data["expansions"]} if objective == "master" else {}) | options


def losses(output):
    entries = [entry for entry in log_of(output) if "loss" in entry]
    return [
        {name[5:]: value for name, value in entry.items() if name.startswith("loss_")}
        for entry in entries
    ]


@pytest.fixture(scope="module")
def trained(tiny, data, tmp_path_factory):
    """`trained(objective, kind)`: the folder of a run, made once."""
    root = tmp_path_factory.mktemp("trained")

    def folder(objective, kind="bert"):
        path = root / f"{objective}-{kind}"
        if not path.exists():
            options = options_of(data, objective, seed=7)  # the first batch is not an easy one
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(run_folder, "save_if_installed", lambda *_: None)
                train(path, data["corpus"], objective, tiny(kind), **options)
        return path

    return folder


KINDS = [(objective, "bert") for objective in PretrainingObjective] + [
    *(("condenser", "roberta"), ("cocondenser", "distilbert")),
    *(("master", "roberta"), ("retromae", "distilbert"), ("dupmae", "roberta")),
]


@pytest.mark.parametrize(("objective", "kind"), KINDS)
def test_every_objective_learns_and_the_folder_loads_whole(tiny, trained, objective, kind):
    folder = trained(objective, kind)
    terms = losses(folder)
    assert len(terms) == 6
    assert sum(terms[-1].values()) < sum(terms[0].values())
    assert weights(folder) != weights(tiny(kind))
    for auto in (AutoModelForMaskedLM, AutoModel):
        info = auto.from_pretrained(folder, output_loading_info=True)[1]
        assert all("pooler" in name for name in info["missing_keys"])
        assert auto is AutoModel or not info["unexpected_keys"]
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (folder, tiny(kind)))
    assert ours("the cat")["input_ids"] == theirs("the cat")["input_ids"]
    heads = {path.name for path in folder.glob("*.safetensors")} - {"model.safetensors"}
    assert heads == ({HEAD_FILES[objective]} if objective in HEAD_FILES else set())
    layout = read_model_folder(folder)
    assert layout.passage.has_mlm_head
    assert not layout.has_settings


CLS = {"representation": Representation.CLS}


@pytest.mark.parametrize(
    ("objective", "options"), [("mlm", AGG), ("retromae", AGG), ("condenser", CLS)]
)
def test_finetune_starts_from_it(trained, data, tmp_path, objective, options):
    folder = trained(objective)
    tune(tmp_path / "out", folder, data["examples"], **options, max_steps=1, lr=1e-12)
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "out"))
    if options is CLS:  # an encoder alone has no prefix
        before = {name.removeprefix("bert."): tensor for name, tensor in before.items()}
    kept = before.keys() & after.keys()
    assert ("cls.predictions.transform.dense.weight" in kept) is (options is AGG)
    assert {name for name in before if "embeddings" in name or "layer" in name} <= kept
    for name in kept:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({"tasks": ("mkp", "cmp", "npr")}, {"mlm", "mkp", "cmp", "npr"}),
        ({"tasks": ("npr",), "npr": NprKind.HALF}, {"mlm", "mlm_npr", "npr"}),
        ({"tasks": ("cmp",), "preset": PretrainingPreset.RELEASED}, {"mlm", "mlm_cmp", "cmp"}),
    ],
)  # fmt: skip
def test_tasks_bring_their_passes_along(tiny, data, tmp_path, options, terms):
    train(tmp_path / "out", data["corpus"], "master", tiny(), **options, max_steps=1)
    assert [found.keys() for found in losses(tmp_path / "out")] == [terms]
    decoders = {n.partition(".")[0] for n in load_file(tmp_path / "out" / HEAD_FILES["master"])}
    assert decoders == {f"{task}_decoder" for task in options["tasks"]}


def test_kept_steps_are_models(tiny, data, tmp_path):
    options = {"keep_steps": (1, 3), "keep_checkpoints": 1}
    train(tmp_path / "out", data["corpus"], "condenser", tiny(), **options)
    steps = tmp_path / "out.training" / "steps"
    assert sorted(path.name for path in steps.iterdir()) == ["step-1", "step-3"]
    assert weights(steps / "step-1") != weights(steps / "step-3")
    result = train(tmp_path / "next", data["corpus"], "cocondenser", steps / "step-3", max_steps=1)
    assert result.steps == 1
    tune(tmp_path / "tuned", steps / "step-1", data["examples"], max_steps=1, **CLS)


def continue_training(output, corpus, objective, model, **options):
    """Train a step that changes nothing."""
    train(output, corpus, objective, model, **{"lr": 1e-12, "max_steps": 1, **options})


def as_authors(folder, copy, names, extra=()):
    """The authors' layout: the heads' layers by their names in `model.pt`, in place of ours."""
    copy.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (copy / file).write_bytes((folder / file).read_bytes())
    (ours,) = {path.name for path in folder.glob("*.safetensors")} - {"model.safetensors"}
    tensors = {}
    for name, tensor in load_file(folder / ours).items():
        head, _, rest = name.partition(".")
        tensors[f"{names[head]}.{rest}"] = tensor
    torch.save(tensors | dict(extra), copy / "model.pt")
    return copy


CONDENSER, MASTER = (
    {ours: theirs for theirs, ours in kind.published_heads.items()} for kind in (Condenser, Master)
)


@pytest.mark.parametrize("published", [False, True], ids=["ours", "authors"])
@pytest.mark.parametrize(
    ("before", "after", "names"),
    [("condenser", "cocondenser", CONDENSER), ("master", "master", MASTER)],
)
def test_training_continues_with_the_heads(
    trained, data, tmp_path, caplog, before, after, names, published
):
    start = folder = trained(before)
    if published:
        start = as_authors(folder, tmp_path / "authors", names, {"co_target": torch.arange(8)})
    caplog.clear()
    continue_training(tmp_path / "out", data["corpus"], after, start, **options_of(data, after))
    file = "model.pt" if published else HEAD_FILES[after]
    assert f"{', '.join(names)}: from {start / file}" in caplog.messages
    assert warnings_of(caplog) == []
    found, expected = (load_file(path / HEAD_FILES[after]) for path in (tmp_path / "out", folder))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-9)


def test_a_head_that_is_missing_is_warned_of(tiny, data, tmp_path, caplog):
    continue_training(tmp_path / "out", data["corpus"], "cocondenser", tiny())
    (warning,) = warnings_of(caplog)
    assert f"{tiny()} has no {HEAD_FILES['condenser']}" in warning


def test_decoders_of_another_kind_are_rejected(trained, data, tmp_path, caplog):
    folder, options = trained("master"), {"n_head_layers": 3, "tasks": ("mkp",)}
    with pytest.raises(ModelError, match=r"mkp_decoder\.2") as error:
        continue_training(tmp_path / "out", data["corpus"], "master", folder, **options)
    assert "--set fresh-heads=yes" in str(error.value.hint)
    options |= {"fresh_heads": True}
    continue_training(tmp_path / "out", data["corpus"], "master", folder, **options)
    assert "mkp_decoder: randomly initialised" in caplog.messages
