import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from denserk.commands.app import run
from denserk.config.encoding import (
    ComputeSettings,
    MlmHead,
    Representation,
    RepresentationSettings,
)
from denserk.data.batches import pad
from denserk.errors import ModelError
from denserk.losses.pretraining import RetroMae
from denserk.models.model_folder import StoredEncoder, read_model_folder
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.support.finetuning import write_examples
from tests.support.tiny_models import BACKBONES, HIDDEN, OTHERS
from tests.support.toy import WORDS

CPU = ComputeSettings(device="cpu")
TEXTS = ["river boat", "the old cat sleeps", "moon", " ".join(WORDS[:30])]
WITH_HEAD = ("xlm-roberta", "mpnet", "deberta-v2", "modernbert")


def states_of(folder, kind, text):
    """transformers' own states of one text, without padding: (T, H)."""
    classes = {
        "dpr-question": transformers.DPRQuestionEncoder,
        "dpr-context": transformers.DPRContextEncoder,
    }
    model = classes.get(kind, transformers.AutoModel).from_pretrained(folder).eval()
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        output = model(ids.input_ids, output_hidden_states=True)
    if kind in classes:
        assert output.pooler_output.equal(output.hidden_states[-1][:, 0])
    return output.hidden_states[-1][0]


POOLINGS = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.amax(0),
    "last": lambda states: states[-1],
}


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        *[(kind, "cls") for kind in OTHERS],
        *[("mpnet", pooling) for pooling in POOLINGS],
        ("qwen3", "last"),
    ],
)
def test_vectors_are_the_states_of_transformers_pooled_by_hand(tiny, kind, pooling):
    folder = tiny(kind)
    expected = torch.stack([POOLINGS[pooling](states_of(folder, kind, text)) for text in TEXTS])
    assert expected.std(0).min() > 0.01
    encoder = TextEncoder(str(folder), {"representation": pooling}, compute=CPU)
    passages = [Passage(str(i), text) for i, text in enumerate(TEXTS)]
    queries = [Query(str(i), text) for i, text in enumerate(TEXTS)]
    for vectors in (encoder.encode_passages(passages), encoder.encode_queries(queries)):
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-5)


def test_the_last_token_of_a_decoder_is_its_tokenizer_s_own_end(tiny):
    stored = read_model_folder(tiny("qwen3"))
    assert stored.representation.representation == "last"
    tokenizer = TextEncoder(str(tiny("qwen3")), compute=CPU).sides["passage"].tokenizer
    ids = tokenizer.passages([Passage("a", "river boat"), Passage("b", " ".join(WORDS * 9))])
    assert [text_ids[-1] for text_ids in ids] == [0, 0]
    assert len(ids[1]) == 64
    for name in ("cls", "agg"):
        with pytest.raises(ModelError, match="which a qwen3 backbone does not have"):
            TextEncoder(str(tiny("qwen3")), {"representation": name}, compute=CPU)


@pytest.mark.parametrize("kind", [*OTHERS, "qwen3"])
def test_two_steps_of_training_and_sentence_transformers(tiny, kind, tmp_path):
    """The saved folder holds an ordinary model, which other libraries open with equal vectors."""
    data = write_examples(tmp_path / "train.jsonl", range(8))
    folder = tmp_path / "m"
    words = ["finetune", "--model", str(tiny(kind)), "--train-data", data, "--output", str(folder)]
    words += ["--max-steps", "2", "--batch-size", "4", "--group-size", "2", "--device", "cpu"]
    assert run([*words, "--lr", "0.01"]) == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == ("bert" if kind.startswith("dpr") else kind)
    stored = read_model_folder(folder)
    assert stored.representation.representation == ("last" if kind == "qwen3" else "cls")
    passages = [Passage(str(i), text) for i, text in enumerate(TEXTS)]
    trained = TextEncoder(str(folder), compute=CPU).encode_passages(passages)
    before = TextEncoder(str(tiny(kind)), compute=CPU).encode_passages(passages)
    assert np.abs(trained - before).max() > 1e-3
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.padding_side == ("left" if kind == "qwen3" else "right")
    st = pytest.importorskip("sentence_transformers")
    theirs = st.SentenceTransformer(str(folder), device="cpu").encode_document(TEXTS)
    np.testing.assert_allclose(trained, theirs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", WITH_HEAD)
def test_the_masked_language_model_head_is_that_of_transformers(tiny, kind):
    batch = pad([[2, 9, 14, 30, 8, 3], [2, 17, 3]], pad_id=0)
    backbone = StoredEncoder.read(tiny(kind)).masked_lm().eval()
    model = transformers.AutoModelForMaskedLM.from_pretrained(tiny(kind)).eval()
    with torch.inference_mode():
        expected = model(batch.input_ids, batch.attention_mask.long()).logits
        logits = backbone.vocabulary_logits(backbone(batch))
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize(
    ("kind", "missing"), [("t5", "[CLS] token"), ("electra", "masked-language-model head")]
)
def test_what_lacks_a_part_of_bert_cannot_be_pre_trained(tiny, kind, missing):
    with pytest.raises(ModelError, match="cannot be pre-trained: it has no") as caught:
        StoredEncoder.read(tiny(kind)).masked_lm()
    assert missing in caught.value.message


def test_agg_of_a_head_that_is_not_known_leaves_it_out(tiny):
    stored = StoredEncoder.read(tiny("electra"))
    settings = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=4)
    with pytest.raises(ModelError, match="of the backbone 'electra' is not supported") as caught:
        stored.build(settings, train=True)
    assert "--set mlm-head=none" in str(caught.value.hint)
    without_head = replace(settings, mlm_head=MlmHead.NONE)
    encoder = stored.build(without_head, train=True)
    assert encoder(pad([[2, 9, 14, 3]], pad_id=0)).shape == (1, 24)


@pytest.mark.parametrize("lengths", [(6, 3, 1), (4, 4, 4)])
@pytest.mark.parametrize("kind", [*BACKBONES, *OTHERS])
def test_states_are_the_same_bits_where_padding_is_known(tiny, kind, lengths):
    stored = StoredEncoder.read(tiny(kind))
    backbone = stored.backbone().eval()
    batch = pad([range(5, 5 + length) for length in lengths], pad_id=0)
    assert batch.has_padding is (lengths == (6, 3, 1))
    unknown = batch._replace(has_padding=None)
    with torch.inference_mode():
        expected = backbone.hidden_states(unknown)
        assert all(map(torch.equal, backbone.hidden_states(batch), expected))
        # of MLR, the query has these states and the passage those of the last layer
        assert torch.equal(backbone(batch), expected[-1])
        if not backbone.architecture.layers:
            return
        layers = [layer.eval() for layer in backbone.new_layers(1)]
        expected_after = backbone.run_layers(layers, expected[0], unknown)
        assert torch.equal(backbone.run_layers(layers, expected[0], batch), expected_after)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_an_encoder_that_is_configured_as_a_decoder_stays_causal(tiny, kind, tmp_path):
    folder = shutil.copytree(tiny(kind), tmp_path / "causal")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"is_decoder": True}))
    backbone = StoredEncoder.read(folder).backbone().eval()
    with torch.inference_mode():
        alone = backbone(pad([[2, 9, 14]], pad_id=1))
        beside_a_longer = backbone(pad([[2, 9, 14], [2, 9, 14, 30, 8, 3]], pad_id=1))
    torch.testing.assert_close(beside_a_longer[:, :3], alone.expand(2, -1, -1))


def test_attention_of_a_batch_with_known_padding(tiny):
    backbone = StoredEncoder.read(tiny("bert")).backbone().eval()
    batch = pad([[2, 9, 14, 30, 8, 3], [2, 17, 3]], pad_id=0)
    with torch.inference_mode():
        for attention in backbone.attention_maps(batch):
            assert (attention[1, :, :, 3:] == 0).all()
            torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:-1]))


def test_modernbert_is_pre_trained(tiny, toy, tmp_path):
    words = ["pretrain", "--objective", "condenser", "--model", str(tiny("modernbert"))]
    words += ["--corpus", str(toy / "corpus.jsonl"), "--max-length", "32", "--device", "cpu"]
    words += ["--max-steps", "2", "--batch-size", "2", "--output", str(tmp_path / "m")]
    assert run(words) == 0
    assert transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match="absolute positions, which a modernbert backbone"):
        RetroMae(StoredEncoder.read(tmp_path / "m").masked_lm())


def test_layers_of_modernbert_are_those_of_its_encoder(tiny):
    batch = pad([[2, 9, 14, 30, 8, 3], [2, 17, 3]], pad_id=0)
    backbone = StoredEncoder.read(tiny("modernbert")).masked_lm().eval()
    states = backbone.hidden_states(batch)
    last_layer = backbone.encoder.layers[3]
    assert last_layer.attention_type == "full_attention"
    with torch.inference_mode():
        states_after = backbone.run_layers([last_layer], states[3], batch)
    is_real = batch.attention_mask
    torch.testing.assert_close(states_after[is_real], states[4][is_real])
    with pytest.raises(ModelError, match="a mpnet backbone cannot be given decoder layers"):
        StoredEncoder.read(tiny("mpnet")).masked_lm().new_layers(1)


def test_what_is_no_encoder_of_text_is_rejected(tmp_path):
    config = transformers.BartConfig(
        vocab_size=50, d_model=HIDDEN, encoder_layers=1, decoder_layers=1
    )
    transformers.BartModel(config).save_pretrained(tmp_path / "bart")
    with pytest.raises(ModelError, match="'bart' is not supported: its encoder cannot be loaded"):
        StoredEncoder.read(tmp_path / "bart").backbone()
    projected = transformers.DPRConfig(
        vocab_size=50, hidden_size=HIDDEN, num_attention_heads=2, projection_dim=4
    )
    transformers.DPRQuestionEncoder(projected).save_pretrained(tmp_path / "dpr")
    with pytest.raises(ModelError, match="projects its vectors"):
        StoredEncoder.read(tmp_path / "dpr")
