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
from tests.support.tiny_models import without_dropout

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
    """Options of a run; MASTER reads generated text."""
    if objective == "master":
        options["expansions"] = data["expansions"]
    return options


def terms_by_step(output):
    """The terms of the loss of each step, by name."""
    return [terms_of(entry) for entry in log_of(output) if "loss" in entry]


def terms_of(entry):
    terms = {}
    for name, value in entry.items():
        if name.startswith("loss_"):
            terms[name.removeprefix("loss_")] = value
    return terms


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


KINDS = [
    *((objective, "bert") for objective in PretrainingObjective),
    ("condenser", "roberta"),
    ("cocondenser", "distilbert"),
    ("master", "roberta"),
    ("retromae", "distilbert"),
    ("dupmae", "roberta"),
]


@pytest.mark.parametrize(("objective", "kind"), KINDS)
def test_every_objective_learns_and_the_folder_loads_whole(tiny, trained, objective, kind):
    folder = trained(objective, kind)
    terms = terms_by_step(folder)
    assert len(terms) == 6
    assert sum(terms[-1].values()) < sum(terms[0].values())
    assert weights(folder) != weights(tiny(kind))
    for auto_class in (AutoModelForMaskedLM, AutoModel):
        _, info = auto_class.from_pretrained(folder, output_loading_info=True)
        assert all("pooler" in name for name in info["missing_keys"])
        assert auto_class is AutoModel or not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected_tokenizer = AutoTokenizer.from_pretrained(tiny(kind))
    assert tokenizer("the cat")["input_ids"] == expected_tokenizer("the cat")["input_ids"]
    files = {"model.safetensors"}
    if objective in HEAD_FILES:
        files.add(HEAD_FILES[objective])
    assert {path.name for path in folder.glob("*.safetensors")} == files
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
    before = load_file(folder / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    if options is CLS:  # an encoder alone has no prefix
        before = {name.removeprefix("bert."): tensor for name, tensor in before.items()}
    common_names = before.keys() & after.keys()
    assert ("cls.predictions.transform.dense.weight" in common_names) is (options is AGG)
    encoder_names = {name for name in before if "embeddings" in name or "layer" in name}
    assert encoder_names <= common_names
    for name in common_names:
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
    [terms_of_step] = terms_by_step(tmp_path / "out")
    assert terms_of_step.keys() == terms
    tensors = load_file(tmp_path / "out" / HEAD_FILES["master"])
    decoders = {name.partition(".")[0] for name in tensors}
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


def write_authors_layout(folder, copy, head_file, published_heads):
    """Copy a folder, its heads in `model.pt` by the authors' names, with a tensor beside them."""
    copy.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (copy / file).write_bytes((folder / file).read_bytes())
    published_names = {name: published for published, name in published_heads.items()}
    tensors = {"co_target": torch.arange(8)}
    for name, tensor in load_file(folder / head_file).items():
        head, _, name_in_head = name.partition(".")
        tensors[f"{published_names[head]}.{name_in_head}"] = tensor
    torch.save(tensors, copy / "model.pt")


@pytest.mark.parametrize("layout", ["ours", "authors"])
@pytest.mark.parametrize(
    ("objective", "next_objective", "published_heads"),
    [
        ("condenser", "cocondenser", Condenser.published_heads),
        ("master", "master", Master.published_heads),
    ],
)
def test_training_continues_with_the_heads(
    trained, data, tmp_path, caplog, objective, next_objective, published_heads, layout
):
    folder = trained(objective)
    head_file = HEAD_FILES[objective]
    start = folder
    file_that_is_read = folder / head_file
    if layout == "authors":
        start = tmp_path / "authors"
        file_that_is_read = start / "model.pt"
        write_authors_layout(folder, start, head_file, published_heads)
    caplog.clear()
    options = options_of(data, next_objective)
    continue_training(tmp_path / "out", data["corpus"], next_objective, start, **options)
    heads = ", ".join(published_heads.values())
    assert f"{heads}: from {file_that_is_read}" in caplog.messages
    assert warnings_of(caplog) == []
    tensors = load_file(tmp_path / "out" / head_file)
    expected = load_file(folder / head_file)
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=1e-9)


def test_a_head_that_is_missing_is_warned_of(tiny, data, tmp_path, caplog):
    continue_training(tmp_path / "out", data["corpus"], "cocondenser", tiny())
    (warning,) = warnings_of(caplog)
    assert f"{tiny()} has no {HEAD_FILES['condenser']}" in warning


def test_decoders_of_another_kind_are_rejected(trained, data, tmp_path, caplog):
    folder = trained("master")
    options = {"n_head_layers": 3, "tasks": ("mkp",)}
    with pytest.raises(ModelError, match=r"mkp_decoder\.2") as caught:
        continue_training(tmp_path / "out", data["corpus"], "master", folder, **options)
    assert "--set fresh-heads=yes" in str(caught.value.hint)
    options |= {"fresh_heads": True}
    continue_training(tmp_path / "out", data["corpus"], "master", folder, **options)
    assert "mkp_decoder: randomly initialised" in caplog.messages


def test_the_head_alone_learns(tiny, data, tmp_path):
    train(tmp_path / "out", data["corpus"], "mlm", tiny(), head_only=True, lr=0.1)
    terms = terms_by_step(tmp_path / "out")
    assert terms[-1]["mlm"] < terms[0]["mlm"]
    before = load_file(tiny() / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("cls.predictions.") for name in changed)


def test_an_encoder_that_is_not_trained_has_no_dropout(tiny, data, tmp_path):
    starts = {"with": tiny(), "without": without_dropout(tiny(), tmp_path / "without-dropout")}
    losses = []
    for name, start in starts.items():
        options = {"head_only": True, "max_steps": 1, "lr": 1e-12}
        train(tmp_path / name, data["corpus"], "mlm", start, **options)
        losses.append(terms_by_step(tmp_path / name)[0]["mlm"])
    assert losses[0] == losses[1]
