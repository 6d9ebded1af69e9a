import json
from typing import Any

import numpy as np
import pytest
import torch

from denserk.config.encoding import (
    AggKind,
    ComputeSettings,
    ModelLayout,
    Representation,
    RepresentationSettings,
    TermWeight,
    TextSettings,
)
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError
from denserk.models.layouts import convert_model
from denserk.models.model_folder import read_model_folder
from denserk.models.saving import save_model
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.support.peers import run_pyserini
from tests.support.tiny_models import write_tiny_aggretriever

CPU = ComputeSettings(device="cpu")
LENGTHS: dict[str, Any] = {"query_max_length": 32, "passage_max_length": 64}
PYSERINI = ModelLayout.AGGRETRIEVER_PYSERINI
AUTHORS = ModelLayout.AGGRETRIEVER_AUTHORS


@pytest.mark.parametrize("layout", [PYSERINI, AUTHORS])
def test_there_and_back(tiny_agg, tmp_path, layout, caplog):
    source = tiny_agg("distilbert", agg_dim=640, cls_dim=128)
    converted = tmp_path / "converted"
    convert_model(str(source), converted, layout, text=LENGTHS)
    assert caplog.messages[-1] == (
        f"{layout} does not record agg-kind star, agg-dim 640, agg-order cls-agg, lengths 32 and 64"
    )
    stored = read_model_folder(converted)
    assert stored.representation == read_model_folder(source).representation
    restored = tmp_path / "restored"
    convert_model(str(converted), restored, ModelLayout.DENSERK, text=LENGTHS)
    for name in ("model.safetensors", "config.json"):
        assert (restored / name).read_bytes() == (source / name).read_bytes()


def test_two_sides_go_through_the_authors_layout(tiny_agg, tmp_path):
    stored = read_model_folder(tiny_agg())
    query, passage = stored.build(stored.representation, untie=True)
    with torch.no_grad():
        for parameter in query.parameters():
            parameter.mul_(1.1)
    source = tmp_path / "source"
    save_model(source, passage, load_tokenizer(tiny_agg()), TextSettings(**LENGTHS), query)
    converted = tmp_path / "converted"
    convert_model(str(source), converted, AUTHORS)
    folders = {path.name for path in converted.iterdir() if path.is_dir()}
    assert folders == {"query_model", "passage_model"}
    restored = tmp_path / "restored"
    convert_model(str(converted), restored, ModelLayout.DENSERK, {"agg_dim": 20}, LENGTHS)
    for name in ("query/model.safetensors", "document/model.safetensors"):
        assert (restored / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize(
    ("kind", "options", "layout", "message"),
    [
        ("bert", {}, PYSERINI, "agg-dim is 20, not 640; cls-dim is 6, not 128"),
        ("bert", {"term_weight": TermWeight.ABS}, AUTHORS, "term-weight is abs, not clamp"),
        ("bert", {"agg_kind": AggKind.AVERAGE}, AUTHORS, "agg-kind is average"),
        ("roberta", {"agg_dim": 640, "cls_dim": 128}, PYSERINI, "its backbone is roberta"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(tiny_agg, tmp_path, kind, options, layout, message):
    with pytest.raises(ModelError, match=message) as caught:
        convert_model(str(tiny_agg(kind, **options)), tmp_path / "m", layout)
    assert "--to denserk" in str(caught.value.hint)
    assert not (tmp_path / "m").exists()


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
@pytest.mark.parametrize("layout", [ModelLayout.DENSERK, PYSERINI])
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_pyserini_makes_the_same_vectors(bert_vocabulary, tmp_path, kind, layout):
    settings = RepresentationSettings(Representation.AGG)
    lengths = {"passage_max_length": 20, "query_max_length": 9}
    name = tmp_path / f"aggretriever-{kind}"
    folder = write_tiny_aggretriever(name, bert_vocabulary(kind), settings, lengths)
    texts = ["the old river runs", "cat dog fish water boat tree house sun moon star"]
    peer_folder = tmp_path / f"{kind}-for-pyserini"
    convert_model(str(folder), peer_folder, layout)
    output = run_pyserini(PYSERINI_SCRIPT, peer_folder, json.dumps(texts), folder=tmp_path)
    passages, queries = json.loads(output.splitlines()[-1])
    encoder = TextEncoder(str(folder), compute=CPU)
    vectors = encoder.encode_passages([Passage("d", text) for text in texts])
    np.testing.assert_allclose(vectors, passages, rtol=0, atol=1e-5)
    vectors = encoder.encode_queries([Query("q", text) for text in texts])
    np.testing.assert_allclose(vectors, queries, rtol=0, atol=1e-5)
