"""The papers' example vectors by command line: tiny models that give the examples' states."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from denserk.commands.app import run as denserk
from denserk.config.encoding import Representation, RepresentationSettings
from tests.tiny_models import tiny_tokenizer, write_tiny_aggretriever
from tests.training.finetuning import log_of

pytestmark = pytest.mark.slow
MEAN = "--representation", "mean"
QUERIES, PASSAGES = ["alpha", "beta"], ["one", "two", "three", "four", "five", "six"]


def command(*words):
    assert denserk([*map(str, words), "--quiet"]) == 0


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_lookup(folder, vectors):
    """A T5 encoder whose mean state of a word, in layers 0, 1 and 2, is (vectors[word], 0, ...).

    The embedding of a word holds its first vector and an indicator, by which each layer adds the
    difference to the next vector. The last norm keeps the three dimensions; a fourth fills the
    root mean square up to 1. The mean is over the word and an end token whose vectors are 0.
    """
    tokenizer = tiny_tokenizer("t5", list(vectors))
    hidden, scale, count = 4 + len(tokenizer), 10.0, len(tokenizer)
    config = T5Config(
        vocab_size=count, d_model=hidden, d_kv=1, d_ff=count, num_layers=2, num_heads=1,
        dropout_rate=0.0, feed_forward_proj="relu",
    )  # fmt: skip
    model: Any = T5EncoderModel(config)
    states = torch.zeros(3, count, hidden)  # (layer, token, dimension)
    states[:, :, 4:] = torch.eye(count)
    for word, layers in vectors.items():
        states[:, tokenizer.convert_tokens_to_ids(word), :3] = 2 * torch.tensor(layers)
    states[2, :, :3] /= scale
    epsilon = config.layer_norm_epsilon
    states[2, :, 3] = (hidden * (1 - epsilon) - states[2].square().sum(-1)).sqrt()
    norms = (states.square().mean(-1, keepdim=True) + epsilon).sqrt()
    with torch.no_grad():
        model.shared.weight.copy_(states[0])
        for number, block in enumerate(model.encoder.block):
            block.layer[0].SelfAttention.o.weight.zero_()
            feed = block.layer[1]
            feed.layer_norm.weight.copy_(torch.cat([torch.zeros(4), torch.ones(count)]))
            feed.DenseReluDense.wi.weight.copy_(torch.eye(hidden)[4:])
            change = (states[number + 1] - states[number]) * norms[number]
            feed.DenseReluDense.wo.weight.copy_(change.T)
        kept = torch.zeros(hidden)
        kept[:3] = scale
        model.encoder.final_layer_norm.weight.copy_(kept)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lookup(tmp_path, queries, passages):
    """A lookup model of these vectors, one or three a passage; the query's stand in all layers."""
    vectors = {word: [vector] * 3 for word, vector in zip(QUERIES, queries, strict=False)}
    for word, layers in zip(PASSAGES, passages, strict=False):
        # index 0 of the example is the last layer
        vectors[word] = layers[::-1] if isinstance(layers[0], list) else [layers] * 3
    return write_lookup(tmp_path / "lookup", vectors)


def first_loss(tmp_path, model, *options, scores=None, group=2):
    """The loss of a first training step over two queries with `group` passages each."""
    rows = []
    for number, query in enumerate(QUERIES):
        texts = [
            {"docid": f"p{i}", "title": "", "text": PASSAGES[i]}
            | ({} if scores is None else {"score": scores[number][i - number * group]})
            for i in range(number * group, (number + 1) * group)
        ]
        rows.append(
            {
                "query_id": f"q{number}",
                "query": query,
                "positive_passages": texts[:1],
                "negative_passages": texts[1:],
            }
        )
    data = write_lines(tmp_path / "train.jsonl", rows)
    output = tmp_path / f"trained-{len(list(tmp_path.iterdir()))}"
    command(
        *("finetune", "--model", model, "--train-data", data, "--output", output),
        *("--group-size", group, "--batch-size", 2, "--max-steps", 1, *options),
    )
    return log_of(output)[0]["loss"]


def test_condenser_fine_tuning(specs, tmp_path):
    case = json.loads((specs / "condenser_example.json").read_text())["finetune_contrastive"]
    model = lookup(tmp_path, case["query_vectors"], case["passage_vectors"])
    loss = first_loss(tmp_path, model, *MEAN)
    assert loss == pytest.approx(case["loss"], abs=1e-4)


def test_master_distillation_and_simlms_loss(specs, tmp_path):
    paper = json.loads((specs / "master_example.json").read_text())
    case = paper["distillation"]
    students = [[0.0, 0.0, score] for row in case["student_scores"] for score in row]
    (tmp_path / "teacher").mkdir()
    model = lookup(tmp_path / "teacher", [[0.0, 0.0, 1.0]] * 2, students)
    for name, expected in (
        ("kl", case["kl_divergence_batchmean"]),
        ("soft-cross-entropy", case["soft_label_cross_entropy"]),
    ):
        teacher = "--distillation", name, "--set", "contrastive-weight=0"
        scores = case["teacher_scores"]
        loss = first_loss(tmp_path, model, *MEAN, *teacher, scores=scores, group=3)
        assert loss == pytest.approx(expected, abs=1e-4)
    case = paper["simlm_contrastive"]
    model = lookup(tmp_path, case["query_vectors"], case["passage_vectors"])
    for kind, expected in (
        ("full", case["loss_full"]), ("in-batch", case["loss_query_passage_only"])
    ):  # fmt: skip
        options = "--l2-norm", "--temperature", "0.02", "--set", f"contrastive={kind}"
        loss = first_loss(tmp_path, model, *MEAN, *options)
        assert loss == pytest.approx(expected, abs=1e-3)


def test_mlr(specs, tmp_path):
    paper = json.loads((specs / "mlr_example.json").read_text())
    case, found = paper["losses"], paper["retrieval"]
    model = lookup(tmp_path, case["query_vectors"], case["doc_vectors"])
    layers = "--representation", "mlr", "--layers", "2,1,0"
    several = *layers, "--reduction", "multi-vector"
    single = *layers, "--reduction", "self-contrastive"
    for options, expected in (
        (several, case["eq3_multi_vector"]["loss"]),
        *(((*single, "--set", f"layer-weight={w}"), v) for w, v in case["eq7_total"].items()),
        ((*layers, "--reduction", "average"), case["average_pooling"]["loss"]),
        (MEAN, case["dual_encoder_last_layer"]["loss"]),
    ):
        assert first_loss(tmp_path, model, *options) == pytest.approx(expected, abs=1e-4)
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("".join(f"{i}\t{word}\n" for i, word in enumerate(PASSAGES[:4])))
    topics = tmp_path / "topics.tsv"
    topics.write_text("".join(f"{i}\t{word}\n" for i, word in enumerate(QUERIES)))
    vectors, index, run = (tmp_path / name for name in ("vectors", "index", "run.trec"))
    command("encode", "--model", model, "--corpus", corpus, "--output", vectors, *several)
    command("index", "--input", vectors, "--output", index)
    hits = "--hits", found["k"], "--output", run
    command("search", "--index", index, "--topics", topics, *hits)
    lines = [line.split() for line in run.read_text().splitlines()]
    expected = [
        (str(query), str(docid), pytest.approx(score, abs=1e-5))
        for query, result in enumerate(found["results"])
        for docid, score in zip(result["top_k_docs"], result["top_k_scores"], strict=True)
    ]
    assert [(qid, docid, float(score)) for qid, _, docid, _, score, _ in lines] == expected


def encoded(tmp_path, model, texts, *options):
    corpus = tmp_path / "texts.tsv"
    corpus.write_text("".join(f"{i}\t{text}\n" for i, text in enumerate(texts)))
    output = tmp_path / "vectors.jsonl"
    jsonl = "--output-format", "jsonl", "--output", output
    command("encode", "--model", model, "--corpus", corpus, *jsonl, *options)
    return [json.loads(line)["vector"] for line in output.read_text().splitlines()]


@pytest.mark.parametrize("paper", ["condenser", "master"])
def test_backbones_after_pretraining(specs, tmp_path, paper):
    part = {"condenser": "head_wiring", "master": "forward"}[paper]
    case = json.loads((specs / f"{paper}_example.json").read_text())[part]
    if paper == "condenser":
        texts, expected = case["input_ids"], [state[0] for state in case["expected"]["h_late"]]
    else:
        names = "main", "npr", "cmp"
        texts = [case["inputs"][f"encoder_{name}"]["ids"][0] for name in names]
        expected = [case["expected"][f"cls_{name}"][0] for name in names]
    tokenizer = tiny_tokenizer("bert", ["red", "green", "blue", "old"])
    order = [0, 4, 1, 2, 3, 5, 6, 7, 8]  # the example's ids in this tokenizer's order; 4 is unused
    config = {k: v for k, v in case["config"].items() if k in BertConfig().to_dict()}
    model = BertForMaskedLM(BertConfig(**config))
    weights = {n: torch.tensor(v) for n, v in case["weights"].items() if isinstance(v, list)}
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        weights[name] = weights[name][order]
    model.load_state_dict(weights, strict=False)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    kept = [[order.index(i) for i in ids if i][1:-1] for ids in texts]  # without [CLS] and [SEP]
    words = [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in kept]
    found = encoded(tmp_path, tmp_path / "model", words, "--representation", "cls")
    np.testing.assert_allclose(found, expected, atol=5e-6)


def write_aggretriever(folder, ids, logits, weights, cls):
    """A model of 10 tokens: tokens `ids` have these logits and term weights, and [CLS] `cls`.

    The state of each token is a row of an orthogonal matrix, from which linear maps compute any
    values. The transform of the MLM head is linear: far above 0, GELU is the identity.
    """
    named = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 3, "[SEP]": 4, "[MASK]": 6}
    hidden, tokens = 32, [*ids, named["[SEP]"]]
    backend = Tokenizer(WordLevel(named | {f"w{i}": i for i in (2, 5, 7, 8, 9)}, "[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(n, named[n]) for n in ("[CLS]", "[SEP]")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=8,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip
    config = BertConfig(
        vocab_size=10, hidden_size=hidden, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=4, max_position_embeddings=8,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    torch.manual_seed(0)
    random = torch.randn(hidden, 12, dtype=torch.float64)
    random[:, 0] = 1  # the other columns have mean 0, as a layer norm leaves them
    columns = torch.linalg.qr(random).Q * hidden**0.5
    states, filler = columns[:, 1:11].T, columns[:, 11]
    targets = torch.cat([torch.tensor(logits, dtype=torch.float64), torch.zeros(1, 10)])
    left = (1 - targets.square().sum(1, keepdim=True) / hidden**2).sqrt()
    transformed = targets @ states / hidden + left * filler
    head = model.cls.predictions.transform
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for name, parameter in model.named_parameters():
            if name.endswith("LayerNorm.weight"):
                parameter.fill_(1)
        model.bert.embeddings.word_embeddings.weight.copy_(states)
        head.dense.weight.copy_(transformed.T @ states[tokens] / hidden)
        head.dense.bias.fill_(20)
    plain = folder.with_name("plain")
    model.save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    first = states[named["[CLS]"]] / hidden
    heads = {
        "tok_proj.weight": (torch.tensor([weights], dtype=torch.float64) @ states[ids]) / hidden,
        "tok_proj.bias": torch.zeros(1),
        "cls_proj.weight": torch.outer(torch.tensor(cls, dtype=torch.float64), first),
        "cls_proj.bias": torch.zeros(len(cls)),
    }
    settings = RepresentationSettings(Representation.AGG, agg_dim=5, cls_dim=len(cls))
    floats = {name: tensor.float() for name, tensor in heads.items()}
    return write_tiny_aggretriever(folder, plain, settings, heads=floats)


@pytest.mark.parametrize("name", ["q", "p"])
def test_aggretriever(specs, tmp_path, name):
    example = json.loads((specs / "aggretriever_example.json").read_text())
    text, cls = example["texts"][name], example["concatenation"]["cls"][name]
    ids, weights = text["token_ids"], text["term_weights"]
    words = [" ".join(f"w{i}" for i in ids)]
    model = write_aggretriever(tmp_path / "model", ids, text["logits"], weights, cls)
    plus = "--set", "agg-kind=plus", "--set"
    for options, expected in (
        ((), text["agg_star"]),
        ((*plus, "agg-layout=paired"), text["agg_plus_paired"]),
        ((*plus, "agg-layout=strided"), text["agg_plus_strided"]),
        (("--set", "mlm-head=none"), text["without_mlm"]["agg_star"]),
    ):
        (found,) = encoded(tmp_path, model, words, *options, "--overwrite")
        assert found == pytest.approx([*cls, *expected], abs=1e-5)


@pytest.mark.parametrize(("rule", "key"), [("clamp", "relu"), ("signed", "signed"), ("abs", "abs")])
def test_aggretriever_with_negative_term_weights(specs, tmp_path, rule, key):
    example = json.loads((specs / "aggretriever_example.json").read_text())
    text, case = example["texts"]["p"], example["negative_term_weight"]
    arguments = text["token_ids"], text["logits"], case["term_weights"], [0.0]
    model = write_aggretriever(tmp_path / "model", *arguments)
    words = [" ".join(f"w{i}" for i in text["token_ids"])]
    (found,) = encoded(tmp_path, model, words, "--set", f"term-weight={rule}")
    assert found == pytest.approx([0.0, *case[key]["agg_star"]], abs=1e-5)
