import json
import shutil

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.config.encoding import ComputeSettings, Representation
from denserk.errors import ModelError
from denserk.models.stored_model import read_model_folder
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query

ST, LENGTHS = "sentence_transformers.models.", "sentence_bert_config.json"


def make(source, target, *, modules=("Transformer", "Pooling", "Normalize"), **files):
    """A folder as sentence-transformers writes it; `files` replace or add JSON files."""
    shutil.copytree(source, target)
    chain = [
        {"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{name}", "type": ST + name}
        for i, name in enumerate(modules)
    ]
    contents = {
        "modules.json": chain,
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": False},
        **files,
    }
    for name, content in contents.items():
        path = target / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return target


def test_pooling_norm_and_length_are_read(tiny, tmp_path):
    stored = read_model_folder(make(tiny(), tmp_path / "m"))
    assert stored.layout == "sentence-transformers"
    assert stored.representation.representation is Representation.MEAN
    assert stored.representation.l2_norm
    assert (stored.text.query_max_length, stored.text.passage_max_length) == (20, 20)
    bare = read_model_folder(make(tiny(), tmp_path / "b", modules=("Transformer", "Pooling")))
    assert not bare.representation.l2_norm
    assert bare.fingerprint() != stored.fingerprint()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode": "cls"}, Representation.CLS),
        ({"pooling_mode": ["max"]}, Representation.MAX),
        ({"pooling_mode": "lasttoken", "include_prompt": True}, Representation.LAST),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Representation.CLS),
        ({}, Representation.MEAN),
    ],
)
def test_poolings(tiny, tmp_path, config, expected):
    folder = make(tiny(), tmp_path / "m", **{"1_Pooling/config.json": config})
    assert read_model_folder(folder).representation.representation is expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense")}, "Transformer, Pooling, Dense"),
        ({"modules": ("Transformer",)}, "chains the modules Transformer,"),
        ({"modules": ("Router",)}, "Router"),
        ({"1_Pooling/config.json": {"pooling_mode": "weightedmean"}}, "pools by weightedmean"),
        ({"1_Pooling/config.json": {"pooling_mode": ["cls", "mean"]}}, "pools by cls and mean"),
        ({"1_Pooling/config.json": {"include_prompt": False}}, "leaves the prompt out"),
        ({"sentence_bert_config.json": {"do_lower_case": True}}, "lower-cases"),
        ({"sentence_bert_config.json": {"query_expansion": {"length": 9}}}, "expands queries"),
        ({"sentence_bert_config.json": {"transformer_task": "fill-mask"}}, "fill-mask"),
    ],
)
def test_what_denserk_does_not_do_is_refused_by_name(tiny, tmp_path, change, words):
    with pytest.raises(ModelError, match=words):
        read_model_folder(make(tiny(), tmp_path / "m", **change))


@pytest.mark.parametrize(
    ("prompts", "query", "passage"),
    [
        ({"prompts": {"query": "the ", "document": "a "}}, "the ", "a "),
        ({"prompts": {"query": "the ", "passage": "a "}}, "the ", "a "),
        ({"prompts": {"any": "old "}, "default_prompt_name": "any"}, "old ", "old "),
        ({"prompts": {"any": "old "}, "default_prompt_name": None}, "", ""),
        ({"prompts": {}}, "", ""),
    ],
)
def test_prompts_become_prefixes(tiny, tmp_path, prompts, query, passage):
    folder = make(tiny(), tmp_path / "m", **{"config_sentence_transformers.json": prompts})
    text = read_model_folder(folder).text
    assert (text.query_prefix, text.passage_prefix) == (query, passage)


def test_without_a_length_the_tokenizer_s_limit_holds(tiny, tmp_path):
    folder = make(tiny(), tmp_path / "m", **{"sentence_bert_config.json": {}})
    assert read_model_folder(folder).text.passage_max_length == 64


def test_lengths_of_the_two_tasks_are_read(tiny, tmp_path):
    lengths = {"max_seq_length": 20, "query_length": 9}
    text = read_model_folder(make(tiny(), tmp_path / "a", **{LENGTHS: lengths})).text
    assert (text.query_max_length, text.passage_max_length) == (9, 20)
    lengths = {"max_seq_length": 20, "document_length": 12}
    text = read_model_folder(make(tiny(), tmp_path / "b", **{LENGTHS: lengths})).text
    assert (text.query_max_length, text.passage_max_length) == (20, 12)


def saved(source, target, *options):
    """What `denserk convert` writes."""
    words = ("convert", source, target, "--kind", "model", "--to", "denserk", *options)
    assert run([str(word) for word in words]) == 0
    return target


def test_the_files_that_are_saved(tiny, tmp_path):
    options = ("--query-prefix", "the ", "--passage-prefix", "a ", "--passage-max-length", "500")
    folder = saved(tiny(), tmp_path / "m", "--representation", "last", "--l2-norm", *options)
    names = ("modules.json", "1_Pooling/config.json", LENGTHS, "config_sentence_transformers.json")
    chain, pooling, lengths, prompts = (json.loads((folder / n).read_text()) for n in names)
    assert [(m["path"], m["type"]) for m in chain] == [
        ("", ST + "Transformer"),
        ("1_Pooling", ST + "Pooling"),
        ("2_Normalize", ST + "Normalize"),
    ]
    assert pooling["word_embedding_dimension"] == 16
    assert [key for key, value in pooling.items() if value is True] == [
        "pooling_mode_lasttoken",
        "include_prompt",
    ]
    assert lengths == {"max_seq_length": 64, "do_lower_case": False, "query_length": 32}
    assert prompts["prompts"] == {"query": "the ", "document": "a "}
    assert prompts["default_prompt_name"] == "document"
    bare = saved(tiny(), tmp_path / "b", "--representation", "mean", "--query-max-length", "128")
    assert [m["type"] for m in json.loads((bare / "modules.json").read_text())] == [
        ST + "Transformer",
        ST + "Pooling",
    ]
    assert "query_length" not in json.loads((bare / LENGTHS).read_text())


def test_a_saved_folder_is_replaced_whole_but_not_what_a_user_put_into_it(tiny, tmp_path):
    folder = saved(tiny(), tmp_path / "m", "--representation", "mean")
    saved(
        tiny(), folder, "--representation", "mean", "--set", "normalize-quotes=yes", "--overwrite"
    )
    assert not (folder / "1_Pooling").exists()
    saved(tiny(), folder, "--representation", "mean", "--overwrite")
    (folder / "1_Pooling/notes.txt").write_text("mine")
    words = ("convert", tiny(), folder, "--kind", "model", "--to", "denserk", "--overwrite")
    assert run([str(word) for word in words]) == 2
    assert (folder / "1_Pooling/notes.txt").read_text() == "mine"


def test_denserk_reads_its_own_file_and_not_these(tiny, tmp_path):
    folder = saved(tiny(), tmp_path / "m", "--representation", "cls", "--query-prefix", "the ")
    before = read_model_folder(folder)
    for path in folder.rglob("*"):
        if path.name in ("modules.json", LENGTHS, "config_sentence_transformers.json", "README.md"):
            path.write_text("[]")
    (folder / "1_Pooling/config.json").unlink()
    after = read_model_folder(folder)
    assert (after.representation, after.text) == (before.representation, before.text)
    assert after.fingerprint() == before.fingerprint()


def test_the_model_card(tiny, tmp_path):
    options = ("--l2-norm", "--query-prefix", "a|b\nc: ", "--set", "join=sep")
    card = (
        saved(tiny(), tmp_path / "m", "--representation", "mean", *options) / "README.md"
    ).read_text()
    assert '| Base model | `"bert-True-7"` |' in card
    assert "| Embedding | `mean`, L2-normalised, 16 dimensions |" in card
    assert r'| Query | at most 32 tokens, prefix `"a\|b\nc: "` |' in card
    assert "A passage is its title and text, joined by the tokenizer's separator token." in card
    assert "`encode_query` reads 32 tokens; `encode` reads 64" in card
    assert "trust_remote_code" not in card
    assert "licen" not in card.lower()
    assert str(tmp_path) not in card


def test_a_transformer_in_a_folder_of_its_own(tiny, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(tiny(), folder / "0_Transformer")
    chain = [
        {"path": "0_Transformer", "type": ST + "Transformer"},
        {"path": "1_Pooling", "type": ST + "Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(chain))
    with pytest.raises(ModelError, match=r"config.json is missing"):
        read_model_folder(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    assert read_model_folder(folder).representation.representation is Representation.CLS


@pytest.mark.peer
@pytest.mark.parametrize("mode", ["cls", "mean", "max", "lasttoken"])
def test_vectors_are_those_of_sentence_transformers(tiny, tmp_path, mode):
    st = pytest.importorskip("sentence_transformers")
    folder = make(
        tiny(head=False),
        tmp_path / "m",
        **{
            "1_Pooling/config.json": {"embedding_dimension": 16, "pooling_mode": mode},
            "config_sentence_transformers.json": {"prompts": {"query": "the ", "document": "a "}},
        },
    )
    texts = ["river boat", "", "moon " * 50, "the old cat sleeps"]
    ours = TextEncoder.load(str(folder), compute=ComputeSettings(device="cpu"))
    theirs = st.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(
        ours.encode_passages([Passage("d", t) for t in texts]),
        theirs.encode_document(texts),
        rtol=0,
        atol=1e-5,
    )
    np.testing.assert_allclose(
        ours.encode_queries([Query("q", t) for t in texts]),
        theirs.encode_query(texts),
        rtol=0,
        atol=1e-5,
    )
