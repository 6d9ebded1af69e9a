"""Pre-training objectives beside the papers' example vectors and literal restatements."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig

from denserk.config.pretraining import Decoders, MasterTask
from denserk.config.pretraining import PretrainingObjectiveSettings as Settings
from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.data.masking import IGNORED
from denserk.losses.pretraining import Condenser, DupMae, MaskedLanguageModel, Master, RetroMae
from denserk.models.model_folder import StoredEncoder
from tests.support.tiny_models import WITH_HEADS

LENGTHS = [7, 5]
TASKS = tuple(task.value for task in MasterTask)


def backbone_of(folder):
    return StoredEncoder.read(folder).masked_lm().double().eval()


def random_texts(backbone, lengths, seed=0):
    """Padded texts of random tokens with random labels; position 0 has none."""
    torch.manual_seed(seed)
    shape = len(lengths), max(lengths)
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, backbone.config.vocab_size, shape)
    labelled = mask & (torch.rand(shape) < 0.5)
    labelled[:, 0], labelled[0, 2] = False, True
    labels = torch.randint(5, backbone.config.vocab_size, shape).where(labelled, IGNORED)
    return MaskedTexts(TokenBatch(ids.where(mask, backbone.config.pad_token_id), mask), labels)


def batch_of(backbone, lengths=(8, 5)):
    """What every objective can read: the same texts for the encoder and all decoders."""
    texts = random_texts(backbone, list(lengths))
    width = max(lengths)
    seen = torch.ones(len(lengths), width, width).bool()
    return PretrainingBatch(texts, {}, dict.fromkeys([*TASKS, "retromae"], texts), seen)


def literal_loss(backbone, hidden, labels):
    """Token by token over all positions, through transformers' own head -> (sum, count)."""
    model = backbone.model
    if backbone.config.model_type == "distilbert":
        states = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
        logits = model.vocab_projector(states)
    else:
        logits = (model.cls if hasattr(model, "cls") else model.lm_head)(hidden)
    places = (labels != IGNORED).nonzero().tolist()
    losses = [-F.log_softmax(logits[i, j], 0)[labels[i, j]].item() for i, j in places]
    return sum(losses), len(losses)


def literal_layer(layer, queries, states, seen):
    """One text's layer: (T, H), (T, H), (T, T) bool -> (T, H); exact GELU, no dropout."""
    if hasattr(layer, "sa_layer_norm"):  # DistilBERT's
        own = layer.attention
        query, key, value, output = own.q_lin, own.k_lin, own.v_lin, own.out_lin
        norm, first, second = layer.sa_layer_norm, layer.ffn.lin1, layer.ffn.lin2
        last_norm, heads = layer.output_layer_norm, own.n_heads
    else:
        own, out = layer.attention.self, layer.attention.output
        query, key, value, output = own.query, own.key, own.value, out.dense
        norm, first, second = out.LayerNorm, layer.intermediate.dense, layer.output.dense
        last_norm, heads = layer.output.LayerNorm, own.num_attention_heads
    width = queries.shape[1] // heads
    rows = []
    for i in range(len(queries)):
        context = []
        for part in (slice(h * width, (h + 1) * width) for h in range(heads)):
            scores = key(states[seen[i]])[:, part] @ query(queries[i])[part] / math.sqrt(width)
            context.append(torch.softmax(scores, 0) @ value(states[seen[i]])[:, part])
        attended = norm(output(torch.cat(context)) + queries[i])
        rows.append(last_norm(second(F.gelu(first(attended))) + attended))
    return torch.stack(rows)


def assert_terms(objective, batch, expected):
    terms, counts = objective(batch)[1], objective.counts(batch)
    assert terms.keys() == counts.keys() == expected.keys()
    for name, (total, count) in expected.items():
        assert terms[name].item() == pytest.approx(total)
        assert counts[name].item() == count


def means(objective, batch):
    counts = objective.counts(batch)
    return {name: (term / counts[name]).item() for name, term in objective(batch)[1].items()}


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_masked_language_model(tiny, kind):
    backbone = backbone_of(tiny(kind))
    batch = PretrainingBatch(random_texts(backbone, LENGTHS), {}, {})
    tokens, labels = batch.texts
    objective = MaskedLanguageModel(backbone)
    cls, _ = objective(batch)
    hidden = backbone(tokens)
    assert cls.equal(hidden[:, 0])
    assert_terms(objective, batch, {"mlm": literal_loss(backbone, hidden, labels)})
    theirs = backbone.model(tokens.input_ids, tokens.attention_mask, labels=labels).loss
    assert means(objective, batch)["mlm"] == pytest.approx(theirs.item())


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize(
    ("objective", "settings", "term"),
    [
        (Condenser, Settings(late_mlm=False), "head"),
        (Master, Settings(tasks=(MasterTask.MKP,)), "mkp"),
        (RetroMae, Settings(), "decoder"),
    ],
)
def test_gradients_pass_through_the_bottleneck(tiny, kind, objective, settings, term):
    backbone = backbone_of(tiny(kind))
    trained, batch = objective(backbone, settings).double(), batch_of(backbone)
    batch.visible[:, :, 1:] = False  # RetroMAE's rows see [CLS] alone
    trained(batch)[1][term].backward()
    layers = [*backbone.encoder.get_submodule(backbone.architecture.layers)]
    if objective is not RetroMae:  # its one layer sees no position but [CLS]: keys do not matter
        layers += [layer for head in trained.heads.values() for layer in head.children()]
    for layer in layers:
        weights = [parameter for parameter in layer.parameters() if parameter.dim() == 2]
        assert all(weight.grad is not None and weight.grad.any() for weight in weights)


# The papers' example vectors


def example_backbone(example):
    config = {n: value for n, value in example["config"].items() if n in BertConfig().to_dict()}
    made = BertConfig(**config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tensors = {
        name: torch.tensor(value)
        for name, value in example["weights"].items()
        if name.startswith(("bert.", "cls.")) and isinstance(value, list)
    }
    return StoredEncoder(Path("example"), made, tensors, {}).backbone(with_head=True)


def fill_example(objective, weights):
    names = objective.heads.state_dict().keys()
    objective.heads.load_state_dict({name: torch.tensor(weights[name]) for name in names})


def example_texts(ids, mask, labels):
    tokens = TokenBatch(torch.tensor(ids), torch.tensor(mask).bool())
    return MaskedTexts(tokens, torch.tensor(labels))


def test_condenser_example_vectors(specs):
    example = json.loads((specs / "condenser_example.json").read_text())["head_wiring"]
    settings = Settings(skip_from=1, n_head_layers=1)
    objective = Condenser(example_backbone(example), settings)
    fill_example(objective, example["weights"])
    texts = example_texts(*(example[k] for k in ("input_ids", "attention_mask", "labels")))
    batch, expected = PretrainingBatch(texts, {}, {}), example["expected"]
    cls, states = objective.states(batch)
    real = texts.tokens.attention_mask
    for name, state in (("h_late", states["late"]), ("head_output", states["head"])):
        assert state[real].tolist() == pytest.approx(torch.tensor(expected[name])[real], abs=2e-6)
    assert cls.equal(states["late"][:, 0])
    terms, found = objective(batch)[1], means(objective, batch)
    for name in ("head", "late"):
        total = sum(expected[f"per_token_nll_{name}"])
        assert terms[name].item() == pytest.approx(total, abs=1e-5)
        assert found[name] == pytest.approx(expected[f"loss_{name}"], abs=2e-6)
    assert sum(found.values()) == pytest.approx(expected["loss_total"], abs=3e-6)


def test_master_example_vectors(specs):
    example = json.loads((specs / "master_example.json").read_text())["forward"]
    texts = {name: example_texts(*part.values()) for name, part in example["inputs"].items()}
    batch = PretrainingBatch(
        texts["encoder_main"],
        {"npr": texts["encoder_npr"], "cmp": texts["encoder_cmp"]},
        {task: texts[task] for task in TASKS},
    )
    objective = Master(example_backbone(example), Settings(n_head_layers=1))
    fill_example(objective, example["weights"])
    expected = example["expected"]
    cls, _ = objective(batch)
    assert cls[0].tolist() == pytest.approx(expected["cls_main"][0], abs=2e-6)
    found = means(objective, batch)
    names = {"mlm": "encoder_mlm_main", "mlm_npr": "encoder_mlm_npr", "mlm_cmp": "encoder_mlm_cmp"}
    named = {names.get(name, name): loss for name, loss in found.items()}
    assert named == pytest.approx(expected["losses"], abs=2e-6)
    assert sum(found.values()) == pytest.approx(expected["total"], abs=1e-5)


# Literal restatements


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("skip_from", [0, 1])
def test_condenser_literally(tiny, kind, skip_from):
    backbone = backbone_of(tiny(kind))
    objective = Condenser(backbone, Settings(skip_from=skip_from)).double().eval()
    batch = PretrainingBatch(random_texts(backbone, LENGTHS), {}, {})
    tokens, labels = batch.texts
    layers = backbone.hidden_states(tokens)
    rows = torch.cat([layers[-1][:, :1], layers[skip_from][:, 1:]], 1)
    for layer in objective.heads["head"].children():
        seen = tokens.attention_mask[:, None].expand(-1, 7, -1)
        rows = torch.stack(
            [literal_layer(layer, row, row, see) for row, see in zip(rows, seen, strict=True)]
        )
    states = {"head": rows, "late": layers[-1]}
    expected = {name: literal_loss(backbone, state, labels) for name, state in states.items()}
    assert_terms(objective, batch, expected)


def random_batch(backbone, passes=()):
    texts = [random_texts(backbone, LENGTHS, seed) for seed in range(1 + len(passes) + len(TASKS))]
    named = dict(zip(passes, texts[1:], strict=False))
    return PretrainingBatch(texts[0], named, dict(zip(TASKS, texts[-len(TASKS) :], strict=True)))


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize(
    ("passes", "decoders"), [((), Decoders.SHARED), (("npr", "cmp"), Decoders.SEPARATE)]
)
def test_master_literally(tiny, kind, passes, decoders):
    backbone = backbone_of(tiny(kind))
    objective = Master(backbone, Settings(decoders=decoders)).double().eval()
    batch = random_batch(backbone, passes)
    read = {"": batch.texts, **batch.passes}
    late = {name: backbone(texts.tokens) for name, texts in read.items()}
    expected = {
        f"mlm_{name}".rstrip("_"): literal_loss(backbone, late[name], texts.labels)
        for name, texts in read.items()
    }
    for task, (tokens, labels) in batch.decoders.items():
        cls = late[task if task in passes else ""][:, 0]
        name = "shared" if decoders is Decoders.SHARED else task
        rows = []
        for ids, mask, first in zip(*tokens[:2], cls, strict=True):
            row = torch.cat([first[None], backbone.encoder.embeddings(ids[None])[0, 1:]])
            for layer in objective.heads[f"{name}_decoder"].children():
                row = literal_layer(layer, row, row, mask.expand(len(ids), -1))
            rows.append(row)
        expected[task] = literal_loss(backbone, torch.stack(rows), labels)
    assert_terms(objective, batch, expected)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_retromae_literally(tiny, kind):
    backbone = backbone_of(tiny(kind))
    objective = RetroMae(backbone).double().eval()
    texts = random_texts(backbone, LENGTHS)
    ids, mask, _ = random_texts(backbone, LENGTHS, seed=1).tokens
    labels = ids.where(mask, IGNORED)
    labels[:, 0] = labels[0, 6] = labels[1, 4] = IGNORED
    # a row sees [CLS] and half of the text's other tokens, never itself
    visible = (torch.rand(2, 7, 7) < 0.5) & mask[:, None] & ~torch.eye(7, dtype=torch.bool)
    visible[:, :, 0] = True
    hidden = backbone(texts.tokens)
    embeddings = backbone.encoder.embeddings
    first = backbone.config.pad_token_id + 1 if kind == "roberta" else 0
    positions = embeddings.position_embeddings.weight[first : first + 7]
    (layer,) = objective.heads["decoder"].children()
    rows = []
    for cls, text, seen in zip(hidden[:, 0], ids, visible, strict=True):
        states = torch.stack([cls, *embeddings(text[None])[0, 1:]])
        rows.append(literal_layer(layer, cls + positions, states, seen))
    decoders = {"retromae": MaskedTexts(TokenBatch(ids, mask), labels)}
    expected = {
        "mlm": literal_loss(backbone, hidden, texts.labels),
        "decoder": literal_loss(backbone, torch.stack(rows), labels),
    }
    assert expected["decoder"][1] == sum(LENGTHS) - 2 * len(LENGTHS)
    assert_terms(objective, PretrainingBatch(texts, {}, decoders, visible), expected)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_dupmae_literally(tiny, kind):
    """Liu et al. (2023): mu is the maximum over tokens; the loss is summed over the token set."""
    backbone = backbone_of(tiny(kind))
    settings = Settings(decoder_weight=0.3, bow_weight=2.0)
    texts = random_texts(backbone, LENGTHS)
    ids, mask, _ = random_texts(backbone, LENGTHS, seed=1).tokens
    ids[0, 3] = ids[0, 5] = ids[0, 1]
    labels = ids.where(mask, IGNORED)
    labels[:, 0] = labels[0, 6] = labels[1, 4] = IGNORED
    decoders = {"retromae": MaskedTexts(TokenBatch(ids, mask), labels)}
    batch = PretrainingBatch(texts, {}, decoders, mask[:, None].expand(2, 7, 7))
    objective, hidden = DupMae(backbone, settings).double().eval(), backbone(texts.tokens)
    losses = []
    for states, row in zip(hidden, labels.tolist(), strict=True):
        places = [place for place, token in enumerate(row) if token != IGNORED]
        logits = [backbone.vocabulary_logits(states[place]).tolist() for place in places]
        mu = [max(column) for column in zip(*logits, strict=True)]
        total = sum(map(math.exp, mu))
        losses += [-math.log(math.exp(mu[token]) / total) for token in set(row) - {IGNORED}]
    retromae = RetroMae(backbone).double().eval()
    retromae.load_state_dict(objective.state_dict())
    counts = objective.counts(batch)
    terms = retromae(batch)[1]
    expected = {name: (float(term.item()), counts[name]) for name, term in terms.items()}
    expected["decoder"] = (0.3 * expected["decoder"][0], expected["decoder"][1])
    expected["bow"] = (2.0 * sum(losses), torch.tensor(len(losses)))
    assert len(losses) < expected["decoder"][1]
    assert_terms(objective, batch, expected)
