"""Entropies beside a slow restatement: Condenser's Figure 2, one text, head and token at a time."""

import csv
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from denserk.commands.app import run
from denserk.config.analysis import AttentionEntropySettings, WinningVectorSettings
from denserk.config.encoding import (
    Backend,
    ComputeSettings,
    ModelOptions,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.formats import DETECTED
from denserk.data.batches import pad
from denserk.data.tokenization import load_tokenizer
from denserk.errors import MismatchError, ModelError
from denserk.models.model_folder import StoredEncoder, read_model_folder
from denserk.models.saving import save_model
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from denserk.tasks.analyze.attention_entropy import attention_entropy, layer_entropies, row_entropy
from denserk.tasks.analyze.winning_vectors import choose_pairs, winning_vectors
from tests.support.console import warnings_of
from tests.support.toy import PASSAGES, QRELS, QUERIES

KINDS = ["bert", "roberta", "distilbert", "electra"]
TEXTS = [[2, 9, 14, 30, 8, 3], [2, 17, 3], [2, 20, 21, 22, 23, 24, 25, 26, 3], [2, 3]]


def backbone_of(folder):
    return StoredEncoder.read(folder).backbone().double()


def literal_entropies(backbone, text):
    """[CLS] entropy of each layer: queries, keys and their softmax by hand, in Python's numbers."""
    states = backbone.hidden_states(pad([text], pad_id=0))
    old = backbone.architecture.model_type == "distilbert"  # its own names
    layers = backbone.encoder.get_submodule("transformer.layer" if old else "encoder.layer")
    found = []
    for layer, hidden in zip(layers, states[:-1], strict=True):
        own = layer.attention
        query, key = (own.q_lin, own.k_lin) if old else (own.self.query, own.self.key)
        asking, asked = query(hidden[0, 0]).tolist(), key(hidden[0]).tolist()
        size = len(asking) // backbone.config.num_attention_heads
        heads = []
        for begin in range(0, len(asking), size):
            places = range(begin, begin + size)
            scores = [sum(asking[i] * row[i] for i in places) / math.sqrt(size) for row in asked]
            total = sum(math.exp(score) for score in scores)
            p = [math.exp(score) / total for score in scores]
            heads.append(-sum(each * math.log(each) for each in p))
        found.append(sum(heads) / len(heads))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_alone_and_padded_as_the_literal_restatement(tiny, kind):
    backbone = backbone_of(tiny(kind))
    expected = torch.tensor([literal_entropies(backbone, text) for text in TEXTS])
    together = layer_entropies(backbone, pad(TEXTS, backbone.config.pad_token_id))
    assert together == pytest.approx(expected.numpy(), abs=1e-6)
    for text, row in zip(TEXTS, together, strict=True):
        assert layer_entropies(backbone, pad([text], 0))[0] == pytest.approx(row, abs=1e-12)


def test_the_example_of_the_specification(specs):
    example = json.loads((specs / "condenser_example.json").read_text())["cls_attention_entropy"]
    layers = []
    for number in (1, 2):
        rows = torch.tensor(example[f"cls_attention_layer{number}"])
        layers.append(row_entropy(rows, rows[:, 0] > 0))
    expected = torch.tensor(example["entropy_layer_example_head"], dtype=torch.float64)
    assert torch.stack(layers).allclose(expected, atol=1e-5)
    means = [float(layer.mean()) for layer in layers]
    assert means == pytest.approx(example["per_layer_mean"], abs=1e-5)


def measured(tmp_path, *models, compute=None, **more):
    chosen = {"max_length": 64, "output": str(tmp_path / "e.csv"), **more}
    settings = AttentionEntropySettings(model=tuple(map(str, models)), **chosen)
    more = {"compute": compute} if compute else {}
    return attention_entropy(settings, **more)


TORCH = ComputeSettings(backend=Backend.TORCH)


def alone(folder, passages, length=64):
    """(P, L): each passage in a batch of its own."""
    text = {"passage_max_length": length}
    side = TextEncoder(str(folder), text=text, compute=TORCH).sides["passage"]
    ids = side.tokenizer.sentences([f"{title} {body}" for title, body in passages])
    return np.concatenate([layer_entropies(side.encoder.backbone, pad([i], 0)) for i in ids])


def curve(found, label):
    return [row["entropy"] for row in found if row["label"] == label]


@pytest.mark.parametrize("tokens", [1, 30, 8192])
def test_a_curve_is_the_mean_over_passages_each_read_alone(tiny, toy, tmp_path, tokens):
    pytest.importorskip("matplotlib")
    compute, corpus = ComputeSettings(batch_tokens=tokens), str(toy / "corpus.jsonl")
    found = measured(tmp_path, f"own={tiny()}", corpus=corpus, compute=compute)
    each = alone(tiny(), PASSAGES.values())
    assert curve(found, "own") == pytest.approx(each.mean(0), abs=1e-6)
    assert [row["deviation"] for row in found] == pytest.approx(each.std(0), abs=1e-6)
    with (tmp_path / "e.csv").open() as lines:
        header, *rows = csv.reader(lines)
    columns = "label model corpus passages seed max_length layer entropy deviation"
    assert header == columns.split()
    expected = ["own", str(tiny()), corpus, "6", "42", "64"]
    assert [row[:7] for row in rows] == [[*expected, "1"], [*expected, "2"]]
    assert [float(row[7]) for row in rows] == pytest.approx(curve(found, "own"), abs=1e-6)
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")


def test_separate_encoders_and_a_model_without_cls(tiny, toy, tmp_path):
    queries, passages = (read_model_folder(tiny(seed=seed)).passage for seed in (8, 7))
    both = [side.build(RepresentationSettings()) for side in (passages, queries)]
    save_model(tmp_path / "both", both[0], load_tokenizer(tiny()), TextSettings(), query=both[1])
    corpus = str(toy / "corpus.jsonl")
    found = measured(tmp_path, f"both={tmp_path / 'both'}", f"p={tiny()}", corpus=corpus)
    assert curve(found, "both") == curve(found, "p")
    with pytest.raises(ModelError, match=r"a t5 backbone has no \[CLS\] token"):
        measured(tmp_path, tiny("t5"), corpus=corpus)


def test_models_may_follow_one_option(tiny, toy, tmp_path, capsys):
    first, second = f"a={tiny()}", f"b={tiny(seed=8)}"
    asked = ["analyze", "attention-entropy", "--corpus", str(toy / "corpus.jsonl"), "--quiet"]
    asked += ["--max-length", "64", "--output", str(tmp_path / "e.csv"), "--overwrite", "--model"]
    for models in ([first, second], [first, "--model", second]):
        assert run([*asked, *models]) == 0
        header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
        assert (header, [row[0] for row in rows]) == (["layer", "a", "b"], ["1", "2"])
        assert all(0 < float(value) < 4.2 for row in rows for value in row[1:])


POSITIVE = [(qid, docid) for qid, judged in QRELS.items() for docid in judged]
ALL = [(qid, docid) for qid in QUERIES for docid in PASSAGES]
MLR = {"representation": "mlr", "layers": [0, 1, 2]}
ME_BERT = {"representation": "me-bert", "vectors": 4}
COLBERT = {"representation": "colbert"}


def counted(toy, *models, representation=MLR, compute=None, **more):
    run = "".join(f"{q} Q0 {d} 1 {n} t\n" for q in QUERIES for n, d in enumerate(PASSAGES))
    (toy / "run.trec").write_text(run)
    chosen = {"qrels": str(toy / "qrels.txt"), "output": str(toy / "l.csv"), **more}
    given = {"topics": str(toy / "queries.tsv"), "corpus": str(toy / "corpus.jsonl"), **chosen}
    settings = WinningVectorSettings(model=tuple(map(str, models)), **given)
    compute = compute or ComputeSettings(device="cpu")
    return winning_vectors(
        settings, ModelOptions(representation, {"passage_max_length": 64}, compute)
    )


def literal(folder, representation, pairs, names):
    """Each pair by itself: the vector of the passage, alone in its batch, with the best product."""
    text, compute = {"passage_max_length": 64}, ComputeSettings(device="cpu")
    encoder = TextEncoder(str(folder), representation, text, compute)
    side, wins = encoder.sides["passage"], dict.fromkeys(names, 0)
    for qid, docid in pairs:
        query = encoder.encode_queries([Query(qid, QUERIES[qid])])[0]
        title, body = PASSAGES[docid]
        (ids,) = side.tokenizer.passages([Passage(docid, body, title)])
        with torch.inference_mode():
            batch = pad([ids], side.tokenizer.pad_id)
            values, mask = side.encoder.passage_vectors(batch)
        real = values[0] if mask is None else values[0][mask[0]]
        wins[names[int(np.argmax(real.numpy() @ query))]] += 1
    return wins


@pytest.mark.parametrize(
    ("kind", "made", "tokens", "names"),
    [
        ("bert", MLR | {"reduction": "multi-vector"}, 8192, "210"),
        ("bert", MLR | {"reduction": "self-contrastive"}, 1, "210"),
        ("bert", ME_BERT, 8192, "0123"),
        ("t5", ME_BERT, 8192, ["mean", *"012"]),
        ("bert", COLBERT, 8192, None),
    ],
)
def test_wins_are_counted_pair_by_pair(tiny, toy, kind, made, tokens, names):
    compute = ComputeSettings(device="cpu", batch_tokens=tokens)
    run = str(toy / "run.trec")
    found = counted(toy, f"m={tiny(kind)}", representation=made, compute=compute, run=run)
    for passages, pairs in (("positive", POSITIVE), ("retrieved", ALL)):
        rows = [row for row in found if row["passages"] == passages]
        wins = {row["vector"]: row["wins"] for row in rows}
        assert wins == literal(tiny(kind), made, pairs, names or list(map(str, range(len(wins)))))
        assert {row["pairs"] for row in rows} == {len(pairs)}
        assert sum(row["share"] for row in rows) == pytest.approx(1)
    if made["representation"] == "mlr":
        assert list(wins) == ["0", "1", "2"]
        assert {row["kind"] for row in found} == {"layer"}
    else:
        assert sum(count > 0 for count in wins.values()) > 1  # or it would show little


@pytest.mark.parametrize(
    "made", [{"representation": "cls"}, MLR | {"reduction": "average"}, ME_BERT | {"vectors": 1}]
)
def test_a_single_vector_has_no_maximum_to_win(tiny, toy, made):
    with pytest.raises(ModelError, match="m gives a passage one vector: there is no maximum"):
        counted(toy, f"m={tiny()}", representation=made)


RUN = "q1 Q0 d5 1 1 t\nq1 Q0 d3 2 3 t\nq1 Q0 d1 3 2 t\nq3 Q0 d10 1 1 t\nq3 Q0 d1 2 1 t\n"


def chosen(toy, **more):
    (toy / "run.trec").write_text(RUN)
    files = {n: str(toy / f) if n in ("qrels", "run") else f for n, f in more.items()}
    given: dict[str, Any] = {"model": ("m",), "topics": str(toy / "queries.tsv"), **files}
    settings = WinningVectorSettings(corpus=str(toy / "corpus.jsonl"), **given)
    queries, passages, sets = choose_pairs(settings, None, DETECTED)
    named = {
        name: sorted(f"{queries[q].qid} {passages[p].docid}" for q, p in rows)
        for name, rows in sets.items()
    }
    return {name: " ".join(rows) for name, rows in named.items()}


QRELS_FILE, RUN_FILE = {"qrels": "qrels.txt"}, {"run": "run.trec"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (QRELS_FILE, {"positive": "q1 d3 q2 d1 q2 d5 q3 d4"}),
        (QRELS_FILE | {"relevance_level": 2}, {"positive": "q2 d1"}),
        (RUN_FILE | {"depth": 2}, {"retrieved": "q1 d1 q1 d3 q3 d1 q3 d10"}),
        (
            QRELS_FILE | RUN_FILE | {"depth": 1},  # the queries that both have
            {"positive": "q1 d3 q3 d4", "retrieved": "q1 d3 q3 d10"},
        ),
    ],
)
def test_pairs_from_a_grade_on_and_the_best_of_a_run(toy, options, expected):
    assert chosen(toy, **options) == expected


def test_a_judgment_that_is_repeated_is_one_pair(toy):
    (toy / "more.txt").write_text("q1 0 d3 1\nq1 0 d3 1\n")
    assert chosen(toy, qrels="more.txt") == {"positive": "q1 d3"}


def test_passages_that_the_corpus_lacks(toy, caplog):
    (toy / "more.txt").write_text("q1 0 d3 1\nq1 0 x1 1\nq2 0 x2 1\n")
    assert chosen(toy, qrels="more.txt") == {"positive": "q1 d3"}
    assert "left out: 2 of 3 ('x1', 'x2')" in warnings_of(caplog)[0]
    for qrels in ("zz 0 d1 1\n", "q1 0 d1 0\n", "q1 0 x1 1\n"):
        (toy / "more.txt").write_text(qrels)
        with pytest.raises(MismatchError, match="has a positive passage in"):
            chosen(toy, qrels="more.txt")
