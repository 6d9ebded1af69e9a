"""Pre-training objectives beside the papers' example vectors and literal restatements."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig

from denserk.config.pretraining import DecoderInit, Decoders, MasterTask
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
    width = max(lengths)
    shape = len(lengths), width
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, backbone.config.vocab_size, shape)
    is_label = mask & (torch.rand(shape) < 0.5)
    is_label[:, 0] = False
    is_label[0, 2] = True
    labels = torch.randint(5, backbone.config.vocab_size, shape).where(is_label, IGNORED)
    padded_ids = ids.where(mask, backbone.config.pad_token_id)
    return MaskedTexts(TokenBatch(padded_ids, mask), labels)


def batch_of(backbone, lengths=(8, 5)):
    """What every objective can read: the same texts for the encoder and all decoders."""
    texts = random_texts(backbone, list(lengths))
    width = max(lengths)
    visible = torch.ones(len(lengths), width, width).bool()
    decoders = dict.fromkeys([*TASKS, "retromae"], texts)
    return PretrainingBatch(texts, {}, decoders, visible)


def vocabulary_logits(backbone, hidden):
    """The scores of all tokens at each position, by transformers' own head."""
    model = backbone.model
    if backbone.config.model_type == "distilbert":
        states = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
        return model.vocab_projector(states)
    if hasattr(model, "cls"):
        return model.cls(hidden)
    return model.lm_head(hidden)


def literal_loss(backbone, hidden, labels):
    """The sum of the losses of all labels, one by one, and the number of labels."""
    logits = vocabulary_logits(backbone, hidden)
    losses = []
    for row, position in (labels != IGNORED).nonzero().tolist():
        log_probabilities = F.log_softmax(logits[row, position], 0)
        losses.append(-log_probabilities[labels[row, position]].item())
    return sum(losses), len(losses)


class LayerModules(NamedTuple):
    """The modules of a transformer's layer, in the order of their use."""

    heads: int
    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    attention_norm: nn.Module
    inner: nn.Module
    outer: nn.Module
    last_norm: nn.Module


def modules_of(layer):
    if hasattr(layer, "sa_layer_norm"):  # DistilBERT's
        attention = layer.attention
        return LayerModules(
            heads=attention.n_heads,
            query=attention.q_lin,
            key=attention.k_lin,
            value=attention.v_lin,
            output=attention.out_lin,
            attention_norm=layer.sa_layer_norm,
            inner=layer.ffn.lin1,
            outer=layer.ffn.lin2,
            last_norm=layer.output_layer_norm,
        )
    attention = layer.attention.self
    return LayerModules(
        heads=attention.num_attention_heads,
        query=attention.query,
        key=attention.key,
        value=attention.value,
        output=layer.attention.output.dense,
        attention_norm=layer.attention.output.LayerNorm,
        inner=layer.intermediate.dense,
        outer=layer.output.dense,
        last_norm=layer.output.LayerNorm,
    )


def literal_layer(layer, queries, states, visible):
    """One text's layer: (T, H), (T, H), (T, T) bool -> (T, H); exact GELU, no dropout."""
    modules = modules_of(layer)
    width = queries.shape[1] // modules.heads
    rows = []
    for query_state, is_visible in zip(queries, visible, strict=True):
        query = modules.query(query_state)
        keys = modules.key(states[is_visible])
        values = modules.value(states[is_visible])
        context = []
        for head in range(modules.heads):
            dimensions = slice(head * width, (head + 1) * width)
            scores = keys[:, dimensions] @ query[dimensions] / math.sqrt(width)
            context.append(torch.softmax(scores, 0) @ values[:, dimensions])
        attended = modules.attention_norm(modules.output(torch.cat(context)) + query_state)
        inner_states = F.gelu(modules.inner(attended))
        rows.append(modules.last_norm(modules.outer(inner_states) + attended))
    return torch.stack(rows)


def assert_terms(objective, batch, expected):
    """Assert the sum and the number of labels of each term."""
    _, terms = objective(batch)
    counts = objective.counts(batch)
    assert terms.keys() == counts.keys() == expected.keys()
    for name, (total, count) in expected.items():
        assert terms[name].item() == pytest.approx(total)
        assert counts[name].item() == count


def means(objective, batch):
    _, terms = objective(batch)
    counts = objective.counts(batch)
    return {name: (term / counts[name]).item() for name, term in terms.items()}


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
    transformers_loss = backbone.model(tokens.input_ids, tokens.attention_mask, labels=labels).loss
    assert means(objective, batch)["mlm"] == pytest.approx(transformers_loss.item())


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
    model = objective(backbone, settings).double()
    batch = batch_of(backbone)
    batch.visible[:, :, 1:] = False  # RetroMAE's rows see [CLS] alone
    _, terms = model(batch)
    terms[term].backward()
    layers = [*backbone.encoder.get_submodule(backbone.architecture.layers)]
    if objective is not RetroMae:  # its one layer sees no position but [CLS]: keys do not matter
        for head in model.heads.values():
            layers += head.children()
    for layer in layers:
        for parameter in layer.parameters():
            if parameter.dim() == 2:
                assert parameter.grad is not None
                assert parameter.grad.any()


# The papers' example vectors


def example_backbone(example):
    known_names = BertConfig().to_dict().keys()
    settings = {name: value for name, value in example["config"].items() if name in known_names}
    config = BertConfig(**settings, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tensors = {
        name: torch.tensor(value)
        for name, value in example["weights"].items()
        if name.startswith(("bert.", "cls.")) and isinstance(value, list)
    }
    return StoredEncoder(Path("example"), config, tensors, {}).backbone(with_head=True)


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
    texts = example_texts(example["input_ids"], example["attention_mask"], example["labels"])
    batch = PretrainingBatch(texts, {}, {})
    expected = example["expected"]
    cls, states = objective.states(batch)
    is_token = texts.tokens.attention_mask
    for name, state in (("h_late", states["late"]), ("head_output", states["head"])):
        expected_states = torch.tensor(expected[name])[is_token]
        assert state[is_token].tolist() == pytest.approx(expected_states, abs=2e-6)
    assert cls.equal(states["late"][:, 0])
    _, terms = objective(batch)
    losses = means(objective, batch)
    for name in ("head", "late"):
        total = sum(expected[f"per_token_nll_{name}"])
        assert terms[name].item() == pytest.approx(total, abs=1e-5)
        assert losses[name] == pytest.approx(expected[f"loss_{name}"], abs=2e-6)
    assert sum(losses.values()) == pytest.approx(expected["loss_total"], abs=3e-6)


def test_master_example_vectors(specs):
    example = json.loads((specs / "master_example.json").read_text())["forward"]
    texts = {name: example_texts(*fields.values()) for name, fields in example["inputs"].items()}
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
    losses = means(objective, batch)
    assert sum(losses.values()) == pytest.approx(expected["total"], abs=1e-5)
    names_in_example = {
        "mlm": "encoder_mlm_main",
        "mlm_npr": "encoder_mlm_npr",
        "mlm_cmp": "encoder_mlm_cmp",
    }
    losses_of_example = {names_in_example.get(name, name): loss for name, loss in losses.items()}
    assert losses_of_example == pytest.approx(expected["losses"], abs=2e-6)


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
    visible = tokens.attention_mask[:, None].expand(-1, 7, -1)
    for layer in objective.heads["head"].children():
        layer_rows = []
        for text_states, text_visible in zip(rows, visible, strict=True):
            layer_rows.append(literal_layer(layer, text_states, text_states, text_visible))
        rows = torch.stack(layer_rows)
    expected = {
        "head": literal_loss(backbone, rows, labels),
        "late": literal_loss(backbone, layers[-1], labels),
    }
    assert_terms(objective, batch, expected)


@pytest.mark.parametrize(("kind", "half"), [("bert", 1), ("modernbert", 2)])
def test_the_head_reads_the_middle_layer_by_default(tiny, kind, half):
    backbone = backbone_of(tiny(kind))
    torch.manual_seed(1)
    objective = Condenser(backbone).double().eval()
    torch.manual_seed(1)
    objective_of_half = Condenser(backbone, Settings(skip_from=half)).double().eval()
    batch = PretrainingBatch(random_texts(backbone, LENGTHS), {}, {})
    assert means(objective, batch) == means(objective_of_half, batch)


@pytest.mark.parametrize(
    ("objective", "settings", "is_normal"),
    [
        (Condenser, Settings(), True),
        (Master, Settings(), True),
        (Master, Settings(decoder_init=DecoderInit.LIBRARY), False),
        (RetroMae, Settings(), True),
    ],
)
def test_new_layers_are_initialised_as_bert_or_as_torch_does(tiny, objective, settings, is_normal):
    model = objective(backbone_of(tiny()), settings)
    for head in model.heads.values():
        assert len(list(head.children())) == (1 if objective is RetroMae else 2)
    weights = []
    for module in model.heads.modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            assert module.bias.abs().max() <= (0 if is_normal else bound)
            # of torch's default, uniform up to the bound, the deviation is bound / sqrt(3)
            deviation = 0.02 if is_normal else bound / math.sqrt(3)
            weights.append(module.weight.flatten() / deviation)
    assert torch.cat(weights).std().item() == pytest.approx(1, rel=0.1)


def random_batch(backbone, passes=()):
    """Other texts for the encoder, each of its passes and each task."""
    encoder_texts = random_texts(backbone, LENGTHS, seed=0)
    texts_of_passes = {}
    for seed, name in enumerate(passes, start=1):
        texts_of_passes[name] = random_texts(backbone, LENGTHS, seed)
    texts_of_decoders = {}
    for seed, task in enumerate(TASKS, start=1 + len(passes)):
        texts_of_decoders[task] = random_texts(backbone, LENGTHS, seed)
    return PretrainingBatch(encoder_texts, texts_of_passes, texts_of_decoders)


def decoded_by_master(backbone, head, tokens, cls_states):
    """Each text's states after the decoder, which reads [CLS] states of the encoder first."""
    decoded = []
    texts = zip(tokens.input_ids, tokens.attention_mask, cls_states, strict=True)
    for ids, mask, cls in texts:
        text_states = torch.cat([cls[None], backbone.encoder.embeddings(ids[None])[0, 1:]])
        visible = mask.expand(len(ids), -1)
        for layer in head.children():
            text_states = literal_layer(layer, text_states, text_states, visible)
        decoded.append(text_states)
    return torch.stack(decoded)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize(
    ("passes", "decoders"), [((), Decoders.SHARED), (("npr", "cmp"), Decoders.SEPARATE)]
)
def test_master_literally(tiny, kind, passes, decoders):
    backbone = backbone_of(tiny(kind))
    objective = Master(backbone, Settings(decoders=decoders)).double().eval()
    batch = random_batch(backbone, passes)
    states = {"mlm": backbone(batch.texts.tokens)}
    expected = {"mlm": literal_loss(backbone, states["mlm"], batch.texts.labels)}
    for name, texts in batch.passes.items():
        states[name] = backbone(texts.tokens)
        expected[f"mlm_{name}"] = literal_loss(backbone, states[name], texts.labels)
    for task, (tokens, labels) in batch.decoders.items():
        states_of_encoder = states[task] if task in passes else states["mlm"]
        head = "shared_decoder" if decoders is Decoders.SHARED else f"{task}_decoder"
        cls_states = states_of_encoder[:, 0]
        decoded = decoded_by_master(backbone, objective.heads[head], tokens, cls_states)
        expected[task] = literal_loss(backbone, decoded, labels)
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
    first_position = backbone.config.pad_token_id + 1 if kind == "roberta" else 0
    positions = embeddings.position_embeddings.weight[first_position : first_position + 7]
    (layer,) = objective.heads["decoder"].children()
    decoded = []
    for cls, text, text_visible in zip(hidden[:, 0], ids, visible, strict=True):
        states = torch.stack([cls, *embeddings(text[None])[0, 1:]])
        decoded.append(literal_layer(layer, cls + positions, states, text_visible))
    decoders = {"retromae": MaskedTexts(TokenBatch(ids, mask), labels)}
    expected = {
        "mlm": literal_loss(backbone, hidden, texts.labels),
        "decoder": literal_loss(backbone, torch.stack(decoded), labels),
    }
    _, label_count = expected["decoder"]
    assert label_count == sum(LENGTHS) - 2 * len(LENGTHS)  # all tokens but [CLS] and [SEP]
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
    objective = DupMae(backbone, settings).double().eval()
    hidden = backbone(texts.tokens)
    bow_losses = []
    for states, tokens in zip(hidden, labels, strict=True):
        logits = backbone.vocabulary_logits(states[tokens != IGNORED]).tolist()
        mu = [max(logits_of_token) for logits_of_token in zip(*logits, strict=True)]
        total = sum(map(math.exp, mu))
        for token in set(tokens.tolist()) - {IGNORED}:
            bow_losses.append(-math.log(math.exp(mu[token]) / total))
    retromae = RetroMae(backbone).double().eval()
    retromae.load_state_dict(objective.state_dict())
    counts = objective.counts(batch)
    _, terms = retromae(batch)
    expected = {
        "mlm": (terms["mlm"].item(), counts["mlm"]),
        "decoder": (0.3 * terms["decoder"].item(), counts["decoder"]),
        "bow": (2.0 * sum(bow_losses), len(bow_losses)),
    }
    assert len(bow_losses) < counts["decoder"]
    assert_terms(objective, batch, expected)
