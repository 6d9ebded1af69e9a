import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from denserk.config.encoding import (
    ComputeSettings,
    MlmHead,
    ModelLayout,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError, OutputError
from denserk.models.model_folder import (
    CONDENSER,
    MASTER,
    PUBLISHED_FILE,
    convert_model,
    load_heads,
    save_heads,
    save_model,
)
from denserk.models.stored_model import StoredEncoder, read_model_folder
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.peers import run_pyserini
from tests.tiny_models import BACKBONES, HIDDEN, MASKED_LM, WITH_HEADS, write_tiny_aggretriever

CPU = ComputeSettings(device="cpu")
PASSAGES = [Passage("a", "the old river", "Moon"), Passage("b", ""), Passage("c", "cat dog fish")]
IDS = torch.tensor([[2, 9, 14, 30, 3]])
TEXT = TextSettings(query_max_length=9, passage_max_length=20, join="sep", query_prefix="the ")


def vectors(folder):
    encoder = TextEncoder.load(str(folder), compute=CPU)
    queries = encoder.encode_queries([Query(p.docid, p.text) for p in PASSAGES])
    return np.concatenate([encoder.encode_passages(PASSAGES), queries])


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_saved_model_has_the_vectors_and_the_settings_it_had(tiny, tmp_path, kind):
    settings = RepresentationSettings(Representation.MEAN, l2_norm=True)
    text = TextSettings(passage_max_length=20, query_prefix="the ")
    encoder, _ = read_model_folder(tiny(kind)).build(settings)
    save_model(tmp_path / "m", encoder, load_tokenizer(tiny(kind)), text)
    stored = read_model_folder(tmp_path / "m")
    assert (stored.layout, stored.representation, stored.text) == ("denserk", settings, text)
    overrides = {"representation": "mean", "l2_norm": True}
    before = TextEncoder.load(
        str(tiny(kind)), overrides, {"passage_max_length": 20, "query_prefix": "the "}, CPU
    )
    assert (vectors(tmp_path / "m")[:3] == before.encode_passages(PASSAGES)).all()


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_transformers_loads_an_aggretriever_folder_heads_included(tiny, tiny_agg, kind):
    folder = tiny_agg(kind)
    masked = getattr(transformers, MASKED_LM[kind])
    with torch.no_grad():
        expected = masked.from_pretrained(tiny(kind)).eval()(IDS)
        for auto in (transformers.AutoModelForMaskedLM, masked):
            model, report = auto.from_pretrained(folder, output_loading_info=True)
            assert set(report["missing_keys"]) == set()
            got = model.eval()(IDS)
            assert got.logits.equal(expected.logits)
        base, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
        assert all("pooler" in name for name in report["missing_keys"])
        assert base.eval()(IDS).last_hidden_state.equal(got.hidden_states[-1])


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_the_files_of_an_aggretriever_folder(tiny_agg, kind):
    folder = tiny_agg(kind)
    tensors = load_file(folder / "model.safetensors")
    heads = {"tok_proj.weight", "tok_proj.bias", "cls_proj.weight", "cls_proj.bias"}
    config = json.loads((folder / "config.json").read_text())
    assert heads < tensors.keys()
    assert sum(name.endswith(("decoder.weight", "projector.weight")) for name in tensors) == 1
    assert not any(name.startswith(f"{kind}.{kind}") for name in tensors)
    assert config["output_hidden_states"] is True
    assert "_name_or_path" not in config
    pickled = torch.load(folder / "pytorch_model.bin", weights_only=True)
    assert pickled.keys() == heads
    assert all(pickled[name].equal(tensors[name]) for name in heads)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert (tokenizer["truncation"], tokenizer["padding"]) == (None, None)


def test_saving_twice_gives_the_same_bytes(tiny, tmp_path):
    folders = []
    for name in "ab":
        settings = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=6)
        folders.append(write_tiny_aggretriever(tmp_path / name, tiny(), settings))
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes(), path.name


def test_two_sides_with_weights_of_their_own(tiny, tmp_path):
    settings = RepresentationSettings()
    query, passage = (
        read_model_folder(tiny("bert", seed=seed)).build(settings)[0] for seed in (7, 8)
    )
    save_model(tmp_path / "m", passage, load_tokenizer(tiny()), TEXT, query)
    assert {p.name for p in (tmp_path / "m").iterdir()} == {
        *("query", "document", "denserk.json"),
        *("modules.json", "config_sentence_transformers.json", "README.md"),
    }
    stored = read_model_folder(tmp_path / "m")
    assert not stored.shared
    both = vectors(tmp_path / "m")
    assert (both[:3] == vectors(tmp_path / "m/document")[:3]).all()
    assert (both[3:] == vectors(tmp_path / "m/query")[3:]).all()
    assert (both[3:] != vectors(tmp_path / "m/document")[3:]).any()


def test_a_trained_fresh_head_is_a_head_like_any_other(tiny_agg, tmp_path):
    stored = read_model_folder(tiny_agg())
    encoder, _ = stored.build(stored.representation)
    fresh = RepresentationSettings(
        Representation.AGG, agg_dim=20, cls_dim=6, mlm_head=MlmHead.FRESH
    )
    encoder.settings = fresh
    save_model(tmp_path / "m", encoder, load_tokenizer(tiny_agg()), TEXT)
    assert read_model_folder(tmp_path / "m").representation.mlm_head is MlmHead.PRETRAINED


def test_a_folder_that_cannot_be_written(tiny, tmp_path):
    encoder, _ = read_model_folder(tiny()).build(RepresentationSettings())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be written"):
        save_model(tmp_path / "file", encoder, load_tokenizer(tiny()), TEXT)


def test_an_interrupted_save_leaves_nothing_that_loads(tiny, tmp_path, monkeypatch):
    from denserk.errors import ModelError
    from denserk.models import model_folder

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model_folder, "write_config", stop)
    encoder, _ = read_model_folder(tiny()).build(RepresentationSettings())
    with pytest.raises(KeyboardInterrupt):
        save_model(tmp_path / "m", encoder, load_tokenizer(tiny()), TEXT)
    with pytest.raises(ModelError, match=r"no config.json"):
        read_model_folder(tmp_path / "m")


PYSERINI_SCRIPT = """
import json, sys
from pyserini.encode import _aggretriever as port
for name in ("BertAggretrieverEncoder", "DistlBertAggretrieverEncoder"):
    setattr(getattr(port, name), "all_tied_weights_keys", {})
folder, texts = sys.argv[1], json.loads(sys.argv[2])
passages = port.AggretrieverDocumentEncoder(folder, device="cpu")
queries = port.AggretrieverQueryEncoder(folder, device="cpu")
print(json.dumps([
    [passages.encode([text], max_length=20)[0].tolist() for text in texts],
    [queries.encode(text, max_length=9).tolist() for text in texts],
]))
"""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("layout", [ModelLayout.DENSERK, ModelLayout.AGGRETRIEVER_PYSERINI])
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_pyserini_makes_the_same_vectors(bert_vocabulary, tmp_path, kind, layout):
    settings = RepresentationSettings(Representation.AGG)
    folder = write_tiny_aggretriever(
        tmp_path / f"aggretriever-{kind}",
        bert_vocabulary(kind),
        settings,
        {"passage_max_length": 20, "query_max_length": 9},
    )
    texts = ["the old river runs", "cat dog fish water boat tree house sun moon star"]
    peer_folder = tmp_path / f"{kind}-for-pyserini"
    convert_model(str(folder), peer_folder, layout)
    output = run_pyserini(PYSERINI_SCRIPT, peer_folder, json.dumps(texts), folder=tmp_path)
    passages, queries = json.loads(output.splitlines()[-1])
    encoder = TextEncoder.load(str(folder), compute=CPU)
    ours = (
        encoder.encode_passages([Passage("d", t) for t in texts]),
        encoder.encode_queries([Query("q", t) for t in texts]),
    )
    np.testing.assert_allclose(ours[0], passages, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours[1], queries, rtol=0, atol=1e-5)
    assert encoder.dimension == 768


def test_models_are_read_without_pyserini_or_sentence_transformers(tiny_agg):
    script = (
        "import sys; from denserk.models.text_encoder import TextEncoder; "
        f"TextEncoder.load({str(tiny_agg())!r}); "
        "print(sorted({'pyserini', 'sentence_transformers', 'faiss', 'jnius'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


MASTER_PUBLISHED = {
    "c_head": "mkp_decoder",
    "query_head": "dor_decoder",
    "gpt_head": "gor_decoder",
    "next_head": "npr_decoder",
    "overlap_head": "cmp_decoder",
}


def stack(folder, count=2):
    return torch.nn.ModuleList(StoredEncoder.read(folder).begin_masked_lm().new_layers(count))


def same(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(mine[n].equal(theirs[n]) for n in mine)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_round_trip(tiny, tmp_path, kind):
    written, read = stack(tiny(kind)), stack(tiny(kind))
    assert not same(written, read)
    save_heads(tmp_path, CONDENSER, {"head": written})
    names = load_file(tmp_path / "condenser_head.safetensors").keys()
    assert {name.split(".")[0] for name in names} == {"head"}
    assert {name.split(".")[1] for name in names} == {"0", "1"}
    path = load_heads(tmp_path, CONDENSER, {"head": read})
    assert path == tmp_path / "condenser_head.safetensors"
    assert same(written, read)


def test_nothing_there(tiny, tmp_path):
    read = stack(tiny())
    before = {name: tensor.clone() for name, tensor in read.state_dict().items()}
    assert load_heads(tmp_path, CONDENSER, {"head": read}) is None
    assert all(tensor.equal(before[name]) for name, tensor in read.state_dict().items())


def test_published_condenser(tiny, tmp_path):
    written, read = stack(tiny()), stack(tiny())
    tensors = {f"c_head.{name}": t for name, t in written.state_dict().items()}
    torch.save(tensors | {"co_target": torch.tensor([1, 0])}, tmp_path / PUBLISHED_FILE)
    assert load_heads(tmp_path, CONDENSER, {"head": read}) == tmp_path / PUBLISHED_FILE
    assert same(written, read)


@pytest.mark.parametrize("asked", [list(MASTER_PUBLISHED.values()), ["dor_decoder"]])
def test_published_master(tiny, tmp_path, asked):
    written = {ours: stack(tiny()) for ours in MASTER_PUBLISHED.values()}
    tensors = {
        f"{theirs}.{name}": tensor
        for theirs, ours in MASTER_PUBLISHED.items()
        for name, tensor in written[ours].state_dict().items()
    }
    torch.save(tensors, tmp_path / PUBLISHED_FILE)
    read = {name: stack(tiny()) for name in asked}
    load_heads(tmp_path, MASTER, read)
    assert all(same(written[name], read[name]) for name in asked)


def test_a_file_of_another_paper(tiny, tmp_path):
    tensors = {f"query_head.{name}": t for name, t in stack(tiny()).state_dict().items()}
    torch.save(tensors, tmp_path / PUBLISHED_FILE)
    with pytest.raises(ModelError, match=r'Missing .*"head\.0.*Unexpected .*"query_head\.0'):
        load_heads(tmp_path, CONDENSER, {"head": stack(tiny())})


def test_another_number_of_layers(tiny, tmp_path):
    save_heads(tmp_path, CONDENSER, {"head": stack(tiny(), 1)})
    with pytest.raises(ModelError, match=r'Missing .*"head\.1'):
        load_heads(tmp_path, CONDENSER, {"head": stack(tiny(), 2)})


def test_another_width(tiny, tmp_path):
    tensors = {f"head.{name}": t for name, t in stack(tiny()).state_dict().items()}
    name = "head.1.output.dense.bias"
    save_file(tensors | {name: torch.zeros(3)}, tmp_path / "condenser_head.safetensors")
    with pytest.raises(ModelError, match=rf"size mismatch for {name}: .*\[3\].*\[{HIDDEN}\]"):
        load_heads(tmp_path, CONDENSER, {"head": stack(tiny())})


def test_nothing_but_tensors_is_unpickled(tiny, tmp_path):
    torch.save({"c_head.0": print}, tmp_path / PUBLISHED_FILE)
    with pytest.raises(ModelError, match="cannot be read as a file of tensors"):
        load_heads(tmp_path, CONDENSER, {"head": stack(tiny())})
