"""The cards of models: what the hub reads, which models they name, and that they name no path."""

import json
import re
import shutil

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load

from denserk.config.encoding import PACKAGED, PUBLISHED, ModelLayout
from denserk.errors import UsageError
from denserk.io.model_files import find_model
from denserk.models.layouts import convert_model
from denserk.models.model_card import NO_ORIGIN, Origin, origin_of, read_metadata
from tests.support.finetuning import run_of, tune, write_examples
from tests.support.pretraining import train as pretrain
from tests.support.pretraining import write_corpus

MEAN = {"representation": "mean", "max_steps": 2}
CARD = """---
base_model: {base}
license: mit
language: [en, de]
---
# A model
"""


@pytest.fixture
def train_file(tmp_path):
    return write_examples(tmp_path / "train.jsonl", range(8))


@pytest.fixture
def published(tiny, tmp_path):
    """`published(base="a/b")`: a copy of a tiny model with a card."""

    def write(name="published", base="owner/base-model"):
        folder = shutil.copytree(tiny("bert"), tmp_path / name)
        (folder / "README.md").write_text(CARD.format(base=base))
        return folder

    return write


def card_of(folder):
    """The card of a folder, whose metadata huggingface_hub reads without a complaint."""
    card = ModelCard.load(folder / "README.md")
    assert card.data.to_dict() == metadata_load(folder / "README.md")
    rows = [line for line in card.text.splitlines() if line.startswith("|")]
    assert not [row for row in rows if "||" in row.replace(r"\|", "")]
    assert card.content.endswith("\n")
    return card


def assert_no_path(folder, *secrets):
    """No folder or file of this machine is named in a card."""
    text = (folder / "README.md").read_text()
    for secret in (str(folder.parent), folder.parent.name, '"train.jsonl"', *secrets):
        assert secret not in text


def test_a_model_of_the_hub_is_the_base_model(tmp_path):
    assert origin_of("owner/name", tmp_path).name == "owner/name"
    cached = tmp_path / "models--owner--a--name" / "snapshots" / "0123"
    cached.mkdir(parents=True)
    assert origin_of(str(cached), cached).name == "owner/a--name"
    alone = tmp_path / "models--bert-base-uncased" / "snapshots" / "0123"
    alone.mkdir(parents=True)
    assert origin_of(str(alone), alone).name == "bert-base-uncased"


def test_a_link_to_a_package_is_the_model_in_it(tmp_path):
    pytest.importorskip(PACKAGED[PUBLISHED["minilm"]].module)
    name, folder = find_model("minilm")
    link = tmp_path / "all-MiniLM-L6-v2"
    link.symlink_to(folder)
    expected = Origin(name, "apache-2.0", ("en",))
    assert origin_of(str(link), link) == origin_of(name, folder) == expected


def test_a_folder_is_described_by_its_card(published, train_file, tmp_path):
    folder = published()
    expected = Origin("owner/base-model", "mit", ("en", "de"))
    assert origin_of(str(folder), folder) == expected
    tune(tmp_path / "out", folder, train_file, **MEAN)
    card = card_of(tmp_path / "out")
    assert card.data.base_model == "owner/base-model"
    assert card.data.license == "mit"
    assert card.data.language == ["en", "de"]
    assert "| Licence | mit |" in card.text
    assert_no_path(tmp_path / "out", "published")
    # the chain is followed: a model of a model, with neither on the hub
    tune(tmp_path / "next", tmp_path / "out", train_file, **MEAN)
    assert card_of(tmp_path / "next").data.base_model == "owner/base-model"
    convert_model(str(tmp_path / "next"), tmp_path / "last", ModelLayout.DENSERK)
    assert card_of(tmp_path / "last").data.license == "mit"


def test_without_a_card_the_record_of_its_training_leads_to_the_base(
    published, train_file, tmp_path
):
    tune(tmp_path / "out", published(), train_file, **MEAN)
    (tmp_path / "out" / "README.md").unlink()
    origin = origin_of(str(tmp_path / "out"), tmp_path / "out")
    assert origin == Origin("owner/base-model", "mit", ("en", "de"))


def test_records_that_lead_in_a_circle(tmp_path):
    for name, start in (("one", "two"), ("two", "one")):
        (tmp_path / name).mkdir()
        record = {"paths": "relative", "finetune": {"model": f"../{start}"}}
        (tmp_path / name / "training.json").write_text(json.dumps(record))
    assert origin_of(str(tmp_path / "one"), tmp_path / "one") == NO_ORIGIN


@pytest.mark.parametrize(
    "text",
    ["", "no metadata", "---\n- a list\n---\n", "---\na: [\n---\n", "---\nlicense: 7\n---\n"],
)
def test_a_broken_card_says_nothing(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    assert origin_of(str(tmp_path), tmp_path) == NO_ORIGIN


def test_a_name_of_a_folder_here_is_none_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "README.md").write_text(CARD.format(base="owner/name"))
    assert origin_of(".", tmp_path).name == ""


def test_a_model_of_unknown_origin_says_so(tiny, train_file, tmp_path):
    tune(tmp_path / "out", tiny("bert"), train_file, **MEAN)
    card = card_of(tmp_path / "out")
    assert card.data.base_model is None
    assert card.data.license is None
    assert "Base model" not in card.text
    assert "add `license` to the metadata" in card.text
    assert card.data.library_name == "sentence-transformers"
    assert card.data.pipeline_tag == "sentence-similarity"
    assert {"denserk", "sentence-transformers"} <= set(card.data.tags)
    assert_no_path(tmp_path / "out", tiny("bert").name)


def test_the_licence_is_a_setting_that_a_resumed_run_may_change(published, train_file, tmp_path):
    start = published()
    for name in ("apache-2.0", "cc-by-4.0"):
        tune(tmp_path / "out", start, train_file, **MEAN, license=name, resume=True)
        assert card_of(tmp_path / "out").data.license == name
    with pytest.raises(UsageError, match="license=Apache License"):
        run_of(tmp_path / "out", "m", train_file, license="Apache License 2")


def test_a_multi_vector_model_is_not_said_to_open_elsewhere(tiny, train_file, tmp_path):
    options = {"representation": "mlr", "reduction": "multi-vector", "max_steps": 2}
    tune(tmp_path / "out", tiny("bert"), train_file, **options)
    card = card_of(tmp_path / "out")
    assert card.data.library_name == "denserk"
    assert "sentence-transformers" not in card.data.tags


@pytest.mark.parametrize("kind", ["linear", "published"])
def test_a_cross_encoder_has_a_card(tiny, tiny_reranker, train_file, tmp_path, kind):
    start = tiny("bert") if kind == "linear" else tiny_reranker("bert")
    options = {"representation": "cross-encoder", "max_steps": 2, "license": "mit"}
    options |= {"dev_data": train_file, "eval_steps": 2}
    tune(tmp_path / "out", start, train_file, **options)
    card = card_of(tmp_path / "out")
    assert card.data.pipeline_tag == "text-ranking"
    assert card.data.license == "mit"
    assert (card.data.library_name == "sentence-transformers") is (kind == "published")
    assert ("sentence-transformers cannot open it" in card.text) is (kind == "linear")
    assert ('CrossEncoder("MODEL", max_length=64)' in card.text) is (kind == "published")
    assert {result.task_type for result in card.data.eval_results} == {"text-ranking"}
    assert "| Steps | 2 |" in card.text
    assert_no_path(tmp_path / "out", start.name)


def test_a_pretrained_model_has_a_card_that_leads_on(published, train_file, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    pretrain(tmp_path / "out", corpus, "condenser", published(), license="cc-by-4.0")
    card = card_of(tmp_path / "out")
    assert card.data.to_dict() == {
        "base_model": "owner/base-model",
        "license": "cc-by-4.0",
        "language": ["en", "de"],
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["denserk", "condenser"],
    }
    assert re.search(r"\| Steps \| 6 \|", card.text)
    assert_no_path(tmp_path / "out", "corpus.jsonl", "published")
    tune(tmp_path / "tuned", tmp_path / "out", train_file, **MEAN)
    values = read_metadata(tmp_path / "tuned" / "README.md")
    assert (values["base_model"], values["license"]) == ("owner/base-model", "cc-by-4.0")


def test_a_model_from_nothing_has_no_base(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    options = {"architecture": "tiny", "vocabulary_size": 200, "max_steps": 1}
    pretrain(tmp_path / "out", corpus, "mlm", **options)
    assert card_of(tmp_path / "out").data.base_model is None
