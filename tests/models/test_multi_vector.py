import json

import numpy as np
import pytest
import torch
from transformers import AutoModel

from denserk.config.encoding import (
    ComputeSettings,
    EncodeSettings,
    Reduction,
    Representation,
    RepresentationSettings,
)
from denserk.config.formats import CorpusSettings
from denserk.config.retrieval import IndexPaths, SearchPaths, SearchSettings
from denserk.data.batches import pad
from denserk.errors import ModelError, UsageError
from denserk.index.build import build_index
from denserk.index.search import search
from denserk.io.vector_folder import open_vectors
from denserk.losses.functional import contrastive_loss
from denserk.models.pooling import PassageVectors, max_similarity, pool_mean, vector_scores
from denserk.models.representation import ScalarMix, average_vectors, first_tokens, storage_order
from denserk.models.stored_model import read_model_folder
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from denserk.tasks.encode import encode
from tests.conftest import PASSAGES, QUERIES

BATCH = pad([[2, 8, 9, 10, 3], [2, 11, 3], [2, 12, 13, 14, 3]], 0)


def states_of(folder):
    """Every layer's states, by transformers' own class."""
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(
            input_ids=BATCH.input_ids,
            attention_mask=BATCH.attention_mask.long(),
            output_hidden_states=True,
        ).hidden_states


def encoder(folder, **settings):
    return read_model_folder(folder).passage.build(RepresentationSettings(**settings))


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_mlr_is_the_cls_of_each_layer_last_first(tiny, kind):
    states = states_of(tiny(kind))
    made = encoder(
        tiny(kind),
        representation=Representation.MLR,
        layers=(0, 1, 2),
        reduction=Reduction.MULTI_VECTOR,
    )
    with torch.no_grad():
        found, query = made.stored_vectors(BATCH), made(BATCH)
    for place, layer in enumerate((2, 1, 0)):
        torch.testing.assert_close(found[:, place], states[layer][:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(query, states[2][:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("normed", [False, True])
def test_mlr_on_t5_means_over_tokens(tiny, normed):
    from transformers import T5EncoderModel

    model = T5EncoderModel.from_pretrained(tiny("t5")).eval()
    made = encoder(
        tiny("t5"),
        representation=Representation.MLR,
        reduction=Reduction.MULTI_VECTOR,
        norm_intermediate=normed,
    )
    with torch.no_grad():
        states = model(
            BATCH.input_ids, BATCH.attention_mask.long(), output_hidden_states=True
        ).hidden_states
        found = made.stored_vectors(BATCH)
        middle = model.encoder.final_layer_norm(states[1]) if normed else states[1]
    for row in range(3):
        real = BATCH.attention_mask[row]
        expected = torch.stack([states[2][row][real].mean(0), middle[row][real].mean(0)])
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-5)


def test_what_each_reduction_trains_and_keeps(tiny):
    last, before = (states_of(tiny())[layer][:, 0] for layer in (2, 1))
    expected = {
        Reduction.SELF_CONTRASTIVE: (torch.stack([last, before], 1), last.unsqueeze(1)),
        Reduction.MULTI_VECTOR: (torch.stack([last, before], 1),) * 2,
        Reduction.AVERAGE: (((last + before) / 2).unsqueeze(1),) * 2,
    }
    for reduction, (trained, kept) in expected.items():
        made = encoder(tiny(), representation=Representation.MLR, reduction=reduction)
        with torch.no_grad():
            torch.testing.assert_close(made.passage_vectors(BATCH).values, trained)
            torch.testing.assert_close(made.stored_vectors(BATCH), kept)
        assert made.vectors_per_passage == kept.shape[1]


def test_a_short_passage_repeats_its_first_vector(tiny):
    hidden = states_of(tiny())[2]
    made = encoder(
        tiny(), representation=Representation.ME_BERT, vectors=4, reduction=Reduction.MULTI_VECTOR
    )
    with torch.no_grad():
        found = made.stored_vectors(BATCH)
    torch.testing.assert_close(found[0], hidden[0, :4])
    torch.testing.assert_close(found[1], hidden[1][[0, 1, 2, 0]])


def test_colbert_averages_real_tokens(tiny):
    hidden = states_of(tiny())[2]
    made = encoder(tiny(), representation=Representation.COLBERT, reduction=Reduction.AVERAGE)
    with torch.no_grad():
        found = made.stored_vectors(BATCH)[:, 0]
    for row in range(3):
        torch.testing.assert_close(found[row], hidden[row][BATCH.attention_mask[row]].mean(0))


@pytest.mark.parametrize("reduction", [Reduction.SCALAR_MIX, Reduction.MULTI_VECTOR])
def test_colbert_cannot_be_mixed(reduction):
    with pytest.raises(UsageError, match="--reduction"):
        RepresentationSettings(Representation.COLBERT, reduction=reduction)


def test_a_mix_needs_its_trained_weights(tiny):
    with pytest.raises(ModelError, match=r"no trained scalar_mix\.scalar_parameters"):
        encoder(tiny(), representation=Representation.MLR, reduction=Reduction.SCALAR_MIX)


def test_layers_beyond_the_backbone(tiny):
    with pytest.raises(ModelError, match="the layers 0 to 2"):
        encoder(tiny(), representation=Representation.MLR, layers=(2, 3))


def test_search_over_several_vectors_is_the_maximum(tiny, toy):
    override = {"representation": "me-bert", "vectors": 3, "reduction": "multi-vector"}
    settings = EncodeSettings(
        model=str(tiny()), corpus=str(toy / "corpus.jsonl"), output=str(toy / "v"), block_size=4
    )
    encode(settings, CorpusSettings(), override, {}, ComputeSettings(device="cpu"))
    assert open_vectors(toy / "v").count == 3 * len(PASSAGES)
    build_index(IndexPaths(input=(str(toy / "v"),), output=str(toy / "idx")))
    run = toy / "run.trec"
    paths = SearchPaths(index=(str(toy / "idx"),), topics=str(toy / "queries.tsv"), output=str(run))
    search(paths, SearchSettings(hits=4), compute=ComputeSettings(device="cpu"))

    model = TextEncoder.load(str(tiny()), override, {}, ComputeSettings(device="cpu"))
    passages = [Passage(d, text, title) for d, (title, text) in PASSAGES.items()]
    vectors = model.encode_passages(passages).reshape(len(passages), 3, -1)
    queries = model.encode_queries([Query(*pair) for pair in QUERIES.items()])
    best = np.einsum("qd,psd->qps", queries, vectors).max(2)
    found = [line.split() for line in run.read_text().splitlines()]
    for row, qid in enumerate(QUERIES):
        order = sorted(range(len(passages)), key=lambda p: (-best[row, p], passages[p].docid))[:4]
        lines = [line for line in found if line[0] == qid]
        assert [line[2] for line in lines] == [passages[p].docid for p in order]
        np.testing.assert_allclose([float(line[4]) for line in lines], best[row, order], rtol=1e-5)


@pytest.mark.parametrize(
    ("layers", "order"),
    [((), (12, 11)), ((10, 12), (12, 10)), ((12,), (12,)), ((0, 6, 12), (12, 6, 0))],
)
def test_storage_order(layers, order):
    assert storage_order(layers, 12) == order


@pytest.mark.parametrize("layers", [(10, 11), (12, 13), (-1, 12), (12, 12)])
def test_impossible_layers(layers):
    with pytest.raises(ModelError, match="--layers"):
        storage_order(layers, 12)


@pytest.fixture
def example(specs):
    return json.loads((specs / "mlr_example.json").read_text())


def loss_of(example, passages):
    queries = torch.tensor(example["query_vectors"], dtype=torch.float64)
    return contrastive_loss(queries @ passages.T, torch.tensor(example["targets"])).item()


def test_average_of_the_example(example):
    losses = example["losses"]
    vectors = average_vectors(torch.tensor(losses["doc_vectors"], dtype=torch.float64))
    expected = torch.tensor(losses["average_pooling"]["doc_vectors"], dtype=torch.float64)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-6)
    assert loss_of(losses, vectors) == pytest.approx(losses["average_pooling"]["loss"], abs=1e-6)


def test_scalar_mix_of_the_example(example):
    losses = example["losses"]
    mix = ScalarMix(3).double()
    documents = torch.tensor(losses["doc_vectors"], dtype=torch.float64)
    torch.testing.assert_close(mix(documents), average_vectors(documents))
    mix.scalar_parameters.data = torch.tensor(
        losses["scalar_mix"]["parameters"], dtype=torch.float64
    )
    with torch.no_grad():
        found = mix(documents)
    expected = torch.tensor(losses["scalar_mix"]["doc_vectors"], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert loss_of(losses, found) == pytest.approx(losses["scalar_mix"]["loss"], abs=1e-6)


def test_mean_of_a_backbone_without_cls(example):
    case = example["t5_mean_pooling"]
    states = torch.tensor([case["token_states"]])
    for mask, expected in (
        (case["attention_mask"], case["mean_vector"]),
        (case["all_padding_case"]["attention_mask"], case["all_padding_case"]["mean_vector"]),
    ):
        assert pool_mean(states, torch.tensor([mask]).bool())[0].tolist() == expected


def test_masked_vectors_take_no_part_in_the_average():
    vectors = torch.tensor([[[1.0], [3.0], [9.0]]])
    assert average_vectors(vectors, torch.tensor([[True, True, False]])).item() == 2.0


HIDDEN = torch.arange(1, 13, dtype=torch.float32).reshape(2, 3, 2)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def test_first_tokens_mask_what_a_short_passage_lacks():
    found = first_tokens(HIDDEN, MASK, 4, by_cls=True)
    assert found.values.shape == (2, 4, 2)
    assert found.mask is not None
    assert found.mask.tolist() == [[True, True, False, False], [True, True, True, False]]
    torch.testing.assert_close(found.values[:, :3], HIDDEN)


def test_without_cls_the_mean_comes_first():
    found = first_tokens(HIDDEN, MASK, 2, by_cls=False)
    assert found.values[0].tolist() == [[2.0, 3.0], [1.0, 2.0]]
    assert found.values[1].tolist() == [[9.0, 10.0], [7.0, 8.0]]


def test_one_first_token_is_cls():
    found = first_tokens(HIDDEN, MASK, 1, by_cls=True)
    torch.testing.assert_close(found.values[:, 0], HIDDEN[:, 0])


def test_token_level_example(specs):
    case = json.loads((specs / "mlr_example.json").read_text())["token_level_variant"]
    passage = PassageVectors(
        torch.tensor([case["token_vectors"]]), torch.tensor([case["attention_mask"]]).bool()
    )
    scores = vector_scores(torch.tensor([case["query"]]), passage.values)
    assert max_similarity(scores, passage.mask).item() == case["max_sim"]
