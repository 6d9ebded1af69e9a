"""The papers' example vectors: losses, searches and pooled vectors of what they print."""

import json

import numpy as np
import pytest
import torch

from denserk.config.encoding import AggKind, AggLayout, ComputeSettings, TermWeight
from denserk.config.retrieval import SearchSettings
from denserk.config.training import ContrastiveKind, Distillation, ObjectiveSettings
from denserk.index.opening import open_index
from denserk.losses.retrieval import RetrievalObjective
from denserk.models.lexical import (
    WEIGHT_RULES,
    SliceLayout,
    VocabularyHead,
    aggregate,
    aggregate_tokens,
)
from denserk.models.representation import PassageVectors
from tests.support.index_folders import vector_folder


@pytest.fixture
def example(specs):
    return lambda paper: json.loads((specs / f"{paper}_example.json").read_text())


def loss_of(queries, passages, settings=None, teacher=None, **options):
    """The loss of queries (B, D) with as many passages each, (P, D) or (P, S, D)."""
    query_vectors = torch.tensor(queries)
    passage_vectors = torch.tensor(passages)
    if passage_vectors.dim() == 2:
        passage_vectors = passage_vectors.unsqueeze(1)
    rows = torch.arange(len(passage_vectors))
    groups = rows.view(len(query_vectors), -1)
    scores = None if teacher is None else torch.tensor(teacher)
    objective = RetrievalObjective(settings or ObjectiveSettings(), **options)
    terms = objective(query_vectors, PassageVectors(passage_vectors), groups, rows, scores)
    return sum(term.item() for term in terms.values())


def test_condenser_fine_tuning(example):
    case = example("condenser")["finetune_contrastive"]
    loss = loss_of(case["query_vectors"], case["passage_vectors"])
    assert loss == pytest.approx(case["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "key"),
    [("kl", "kl_divergence_batchmean"), ("soft-cross-entropy", "soft_label_cross_entropy")],
)
def test_master_distillation(example, kind, key):
    case = example("master")["distillation"]
    settings = ObjectiveSettings(distillation=Distillation(kind), contrastive_weight=0.0)
    # a query vector of 1 and a passage vector of its score have that score as inner product
    passages = np.array(case["student_scores"]).reshape(-1, 1).tolist()
    loss = loss_of([[1.0], [1.0]], passages, settings, case["teacher_scores"])
    assert loss == pytest.approx(case[key], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "key"), [("full", "loss_full"), ("in-batch", "loss_query_passage_only")]
)
def test_simlms_loss(example, kind, key):
    case = example("master")["simlm_contrastive"]
    settings = ObjectiveSettings(temperature=0.02, contrastive=ContrastiveKind(kind))
    loss = loss_of(unit(case["query_vectors"]), unit(case["passage_vectors"]), settings)
    assert loss == pytest.approx(case[key], abs=1e-4)


def unit(rows):
    """Return (N, D) vectors, L2-normalised."""
    vectors = np.array(rows, np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_mlr_losses(example):
    case = example("mlr")["losses"]
    queries = case["query_vectors"]
    passages = case["doc_vectors"]
    last_layers = [layers[0] for layers in passages]
    multi_vector = case["eq3_multi_vector"]["loss"]
    dual_encoder = case["dual_encoder_last_layer"]["loss"]
    assert loss_of(queries, passages) == pytest.approx(multi_vector, abs=1e-5)
    assert loss_of(queries, last_layers) == pytest.approx(dual_encoder, abs=1e-5)
    for weight, total in case["eq7_total"].items():
        settings = ObjectiveSettings(layer_weight=float(weight))
        loss = loss_of(queries, passages, settings, self_contrastive=True)
        assert loss == pytest.approx(total, abs=1e-5)


def test_mlr_retrieval(example, tmp_path):
    case = example("mlr")["losses"]
    expected = example("mlr")["retrieval"]
    queries = np.array(case["query_vectors"], np.float32)
    vectors = np.array(case["doc_vectors"], np.float32)
    folder = vector_folder(tmp_path / "v", "0123", vectors.reshape(-1, 3), size=3)
    settings = SearchSettings(hits=expected["k"])
    searcher = open_index([folder], settings, ComputeSettings(device="cpu")).searcher(settings)
    hits_of_queries = [hits for _, hits in searcher.search("ab", queries)]
    for hits, result in zip(hits_of_queries, expected["results"], strict=True):
        assert [docid for docid, _ in hits] == list(map(str, result["top_k_docs"]))
        assert [score for _, score in hits] == pytest.approx(result["top_k_scores"], abs=1e-5)


def scores_of(text, weights, rule=TermWeight.CLAMP):
    """(1, 10): the vocabulary-wide vector of an example's text."""
    logits = torch.tensor([text["logits"]])
    weights = WEIGHT_RULES[rule](torch.tensor([weights]))
    head = VocabularyHead(lambda states: states, torch.eye(10), torch.zeros(10), None)
    mask = torch.ones(weights.shape, dtype=torch.bool)
    return aggregate(logits, weights, mask, head, signed=rule is TermWeight.SIGNED)


def folded(scores, kind=AggKind.STAR, layout=AggLayout.STRIDED):
    return SliceLayout(10, 5, kind, layout, 0).fold(scores)[0].tolist()


@pytest.mark.parametrize("name", ["q", "p"])
def test_aggretriever(example, name):
    text = example("aggretriever")["texts"][name]
    scores = scores_of(text, text["term_weights"])
    weights = torch.tensor([text["term_weights"]])
    mask = torch.ones(weights.shape, dtype=torch.bool)
    bare = aggregate_tokens(torch.tensor([text["token_ids"]]), weights, mask, 10)
    agg_plus_paired = folded(scores, AggKind.PLUS, AggLayout.PAIRED)
    agg_plus_strided = folded(scores, AggKind.PLUS)
    assert scores[0].tolist() == pytest.approx(text["v"], abs=1e-6)
    assert folded(scores) == pytest.approx(text["agg_star"], abs=1e-6)
    assert agg_plus_paired == pytest.approx(text["agg_plus_paired"], abs=1e-6)
    assert agg_plus_strided == pytest.approx(text["agg_plus_strided"], abs=1e-6)
    assert folded(bare) == pytest.approx(text["without_mlm"]["agg_star"], abs=1e-6)


@pytest.mark.parametrize(("rule", "key"), [("clamp", "relu"), ("signed", "signed"), ("abs", "abs")])
def test_aggretriever_with_negative_term_weights(example, rule, key):
    case = example("aggretriever")["negative_term_weight"]
    text = example("aggretriever")["texts"]["p"]
    scores = folded(scores_of(text, case["term_weights"], TermWeight(rule)))
    assert scores == pytest.approx(case[key]["agg_star"], abs=1e-6)
