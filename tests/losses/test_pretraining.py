"""Pre-training objectives beside the papers' example vectors and literal restatements."""

import pytest
import torch
from safetensors.torch import save_file

from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.data.masking import IGNORED
from denserk.errors import ModelError
from denserk.losses.pretraining import (
    PUBLISHED_FILE,
    STANDARD_DEVIATION,
    TASKS,
    Bottleneck,
    Condenser,
    MaskedLanguageModel,
    Master,
    RetroMae,
    token_loss,
)
from tests.losses.pretraining_models import (
    backbone_of,
    example_backbone,
    example_texts,
    fill_example,
    literal_layer,
    literal_loss,
    only,
    random_texts,
    read_example,
)
from tests.tiny_models import HIDDEN, WITH_HEADS, write_tiny

OBJECTIVES = [MaskedLanguageModel, Condenser, Master, RetroMae]
LENGTHS = [7, 5]


def assert_terms(terms, expected):
    """`expected`: (sum, count) of every term."""
    assert terms.keys() == expected.keys()
    for name, (total, count) in expected.items():
        assert terms[name].total.item() == pytest.approx(total)
        assert terms[name].count.item() == count


def batch_of(backbone, lengths=(8, 5)):
    """What every objective can read: the same texts for the encoder and all decoders."""
    texts = random_texts(backbone, list(lengths))
    width = max(lengths)
    seen = torch.ones(len(lengths), width, width).bool()
    return PretrainingBatch(texts, {}, dict.fromkeys([*TASKS, "retromae"], texts), seen)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_masked_language_model(tiny, kind):
    backbone = backbone_of(tiny(kind))
    batch = only(random_texts(backbone, [7, 5]))
    tokens, labels = batch.texts
    cls, terms = MaskedLanguageModel(backbone)(batch)
    hidden = backbone(tokens)
    assert cls.equal(hidden[:, 0])
    assert_terms(terms, {"mlm": literal_loss(backbone, hidden, labels)})
    theirs = backbone.model(tokens.input_ids, tokens.attention_mask, labels=labels).loss
    assert terms["mlm"].total.item() / terms["mlm"].count.item() == pytest.approx(theirs.item())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chunks_add_up_and_counts_need_no_forward_pass(tiny, objective):
    backbone = backbone_of(tiny())
    trained, whole = objective(backbone).double().eval(), batch_of(backbone, [8, 5, 3])
    terms = trained(whole)[1]
    assert trained.counts(whole) == {name: term.count for name, term in terms.items()}
    (ids, mask), labels = whole.texts
    parts = []
    for rows in (slice(0, 1), slice(1, 3)):
        texts = MaskedTexts(TokenBatch(ids[rows], mask[rows]), labels[rows])
        seen = torch.ones(len(texts.labels), 8, 8).bool()
        named = dict.fromkeys(whole.decoders, texts)
        parts.append(trained(PretrainingBatch(texts, {}, named, seen))[1])
    for name, term in terms.items():
        assert term.total.item() == pytest.approx(sum(part[name].total.item() for part in parts))
        assert term.count.item() == sum(part[name].count.item() for part in parts)


def test_a_text_without_labels_costs_nothing(tiny):
    backbone = backbone_of(tiny())
    tokens, labels = random_texts(backbone, [4])
    loss = token_loss(backbone, backbone(tokens), torch.full_like(labels, IGNORED))
    assert (loss.total.item(), loss.count.item()) == (0.0, 0)
    loss.total.backward()
    assert not backbone.encoder.embeddings.word_embeddings.weight.grad.any()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_half_precision_sums_in_float32(tiny, objective):
    backbone = backbone_of(tiny()).float()
    trained, batch = objective(backbone).eval(), batch_of(backbone)
    exact = trained(batch)[1]
    with torch.autocast("cpu", torch.bfloat16):
        terms = trained(batch)[1]
    for name, term in terms.items():
        assert term.total.dtype == torch.float32
        assert term.total.item() == pytest.approx(exact[name].total.item(), rel=0.02)
        assert not term.total.equal(exact[name].total)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize(
    ("objective", "options", "term"),
    [
        (Condenser, {"late_mlm": False}, "head"),
        (Master, {"tasks": ["mkp"]}, "mkp"),
        (RetroMae, {}, "decoder"),
    ],
)
def test_gradients_pass_through_the_bottleneck(tiny, kind, objective, options, term):
    backbone = backbone_of(tiny(kind))
    trained, batch = objective(backbone, **options).double(), batch_of(backbone)
    assert batch.visible is not None
    batch.visible[:, :, 1:] = False  # RetroMAE's rows see [CLS] alone
    trained(batch)[1][term].total.backward()
    layers = [*backbone.encoder.get_submodule(backbone.architecture.layers)]
    if objective is not RetroMae:  # its one layer sees no position but [CLS]: keys do not matter
        layers += [layer for head in trained.heads().values() for layer in head.children()]
    for layer in layers:
        weights = [parameter for parameter in layer.parameters() if parameter.dim() == 2]
        assert all(weight.grad is not None and weight.grad.any() for weight in weights)


@pytest.mark.parametrize("objective", [Condenser, Master, RetroMae])
def test_heads_are_kept(tiny, tmp_path, objective):
    backbone = backbone_of(tiny())
    written, read = (objective(backbone).eval() for _ in range(2))
    assert read.load_heads(tmp_path) is None
    written.save_heads(tmp_path)
    assert read.load_heads(tmp_path) == tmp_path / written.head_file
    batch = batch_of(backbone)
    terms, again = written.double()(batch)[1], read.double()(batch)[1]
    assert all(again[name].total.equal(term.total) for name, term in terms.items())


def same(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(mine[n].equal(theirs[n]) for n in mine)


def test_published_heads(tiny, tmp_path):
    backbone = backbone_of(tiny())
    written, read = Condenser(backbone), Condenser(backbone)
    tensors = {f"c_head.{name}": t for name, t in written.head.state_dict().items()}
    torch.save(tensors | {"co_target": torch.tensor([1, 0])}, tmp_path / PUBLISHED_FILE)
    assert not same(written.head, read.head)
    assert read.load_heads(tmp_path) == tmp_path / PUBLISHED_FILE
    assert same(written.head, read.head)
    master = Master(backbone)
    theirs = {their: master.heads()[own] for their, own in Master.published_heads.items()}
    torch.save(torch.nn.ModuleDict(theirs).state_dict(), tmp_path / PUBLISHED_FILE)
    for tasks in (TASKS, ["dor"]):
        again = Master(backbone, tasks=tasks)
        again.load_heads(tmp_path)
        assert all(same(head, master.heads()[name]) for name, head in again.heads().items())


def test_heads_that_do_not_fit(tiny, tmp_path):
    backbone = backbone_of(tiny())

    def rejected(message):
        with pytest.raises(ModelError, match=message):
            Condenser(backbone).load_heads(tmp_path)

    torch.save({"c_head.0": print}, tmp_path / PUBLISHED_FILE)
    rejected("cannot be read as a file of tensors")
    tensors = Condenser(backbone).head.state_dict()
    torch.save({f"query_head.{n}": t for n, t in tensors.items()}, tmp_path / PUBLISHED_FILE)
    rejected(r'Missing .*"head\.0')
    Condenser(backbone, head_layers=3).save_heads(tmp_path)
    rejected(r'Unexpected .*"head\.2')
    name = "1.output.dense.bias"
    tensors = {f"head.{n}": t for n, t in (tensors | {name: torch.zeros(3)}).items()}
    save_file(tensors, tmp_path / "condenser_head.safetensors")
    rejected(rf"size mismatch for head\.{name}: .*\[3\].*\[{HIDDEN}\]")


def test_weights_begin_as_berts(tmp_path):
    backbone = backbone_of(write_tiny(tmp_path / "wide", "bert", ["[PAD]", "a"], hidden=128))
    for library in (False, True):
        stack = Bottleneck(backbone, 1, library_init=library)
        for name, tensor in stack.state_dict().items():
            if tensor.dim() == 2:
                bound = tensor.shape[1] ** -0.5  # uniform in +- 1 / sqrt(fan-in)
                expected = bound / 3**0.5 if library else STANDARD_DEVIATION
                assert tensor.std().item() == pytest.approx(expected, rel=0.05), name
            elif "LayerNorm.weight" in name:
                assert (tensor == 1).all()
            elif "LayerNorm.bias" in name or not library:
                assert (tensor == 0).all()


# Condenser


def test_condenser_example_vectors(specs):
    example = read_example(specs / "condenser_example.json", "head_wiring")
    objective = Condenser(
        example_backbone(example["config"], example["weights"]), skip_from=1, head_layers=1
    )
    fill_example(objective, example["weights"])
    batch = only(example_texts(*(example[k] for k in ("input_ids", "attention_mask", "labels"))))
    expected = example["expected"]
    cls, states = objective.states(batch)
    real = batch.texts.tokens.attention_mask
    for name, state in (("h_late", states["late"]), ("head_output", states["head"])):
        assert state[real].tolist() == pytest.approx(torch.tensor(expected[name])[real], abs=2e-6)
    assert cls.equal(states["late"][:, 0])
    terms = objective(batch)[1]
    for name in ("head", "late"):
        total, count = terms[name].total, terms[name].count
        assert total.item() == pytest.approx(sum(expected[f"per_token_nll_{name}"]), abs=1e-5)
        assert (total / count).item() == pytest.approx(expected[f"loss_{name}"], abs=2e-6)
    both = sum((term.total / term.count).item() for term in terms.values())
    assert both == pytest.approx(expected["loss_total"], abs=3e-6)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("skip_from", [0, 1, 2])
def test_condenser_literally(tiny, kind, skip_from):
    backbone = backbone_of(tiny(kind))
    objective = Condenser(backbone, skip_from=skip_from).double().eval()
    batch = only(random_texts(backbone, LENGTHS))
    tokens, labels = batch.texts
    layers = backbone.hidden_states(tokens)
    rows = torch.cat([layers[-1][:, :1], layers[skip_from][:, 1:]], 1)
    for layer in objective.head:
        seen = tokens.attention_mask[:, None].expand(-1, 7, -1)
        rows = torch.stack(
            [literal_layer(layer, row, row, see) for row, see in zip(rows, seen, strict=True)]
        )
    expected = {
        name: literal_loss(backbone, hidden, labels)
        for name, hidden in (("head", rows), ("late", layers[-1]))
    }
    assert_terms(objective(batch)[1], expected)


@pytest.mark.parametrize("skip_from", [-1, 3])
def test_layers_that_are_not_there(tiny, skip_from):
    with pytest.raises(ModelError, match=f"layer {skip_from}: the backbone has layers 0"):
        Condenser(backbone_of(tiny()), skip_from=skip_from)


# MASTER


def random_batch(backbone, passes=()):
    texts = [random_texts(backbone, LENGTHS, seed) for seed in range(1 + len(passes) + len(TASKS))]
    named = dict(zip(passes, texts[1:], strict=False))
    return PretrainingBatch(texts[0], named, dict(zip(TASKS, texts[-len(TASKS) :], strict=True)))


def test_master_example_vectors(specs):
    example = read_example(specs / "master_example.json", "forward")
    texts = {name: example_texts(*part.values()) for name, part in example["inputs"].items()}
    batch = PretrainingBatch(
        texts["encoder_main"],
        {"npr": texts["encoder_npr"], "cmp": texts["encoder_cmp"]},
        {task: texts[task] for task in TASKS},
    )
    backbone = example_backbone(example["config"], example["weights"])
    objective = Master(backbone, decoder_layers=1)
    fill_example(objective, example["weights"])
    expected = example["expected"]
    cls, terms = objective(batch)
    assert cls[0].tolist() == pytest.approx(expected["cls_main"][0], abs=2e-6)
    found = {name: (term.total / term.count).item() for name, term in terms.items()}
    names = {"mlm": "encoder_mlm_main", "mlm_npr": "encoder_mlm_npr", "mlm_cmp": "encoder_mlm_cmp"}
    named = {names.get(name, name): loss for name, loss in found.items()}
    assert named == pytest.approx(expected["losses"], abs=2e-6)
    assert sum(found.values()) == pytest.approx(expected["total"], abs=1e-5)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("passes", [(), ("npr", "cmp")])
@pytest.mark.parametrize("shared", [False, True])
def test_master_literally(tiny, kind, passes, shared):
    backbone = backbone_of(tiny(kind))
    objective = Master(backbone, shared=shared).double().eval()
    batch = random_batch(backbone, passes)
    read = {"": batch.texts, **batch.passes}
    late = {name: backbone(texts.tokens) for name, texts in read.items()}
    expected = {
        f"mlm_{name}".rstrip("_"): literal_loss(backbone, late[name], texts.labels)
        for name, texts in read.items()
    }
    for task, (tokens, labels) in batch.decoders.items():
        cls = late[task if task in passes else ""][:, 0]
        rows = []
        for ids, mask, first in zip(*tokens, cls, strict=True):
            row = torch.cat([first[None], backbone.encoder.embeddings(ids[None])[0, 1:]])
            for layer in objective.decoders["shared" if shared else task].children():
                row = literal_layer(layer, row, row, mask.expand(len(ids), -1))
            rows.append(row)
        expected[task] = literal_loss(backbone, torch.stack(rows), labels)
    terms = objective(batch)[1]
    assert_terms(terms, expected)
    assert {name: term.count for name, term in terms.items()} == objective.counts(batch)


def test_tasks_go_with_their_passes(tiny):
    tasks, names = ["npr", "dor"], ["mlm", "mlm_npr", "npr", "dor"]
    backbone = backbone_of(tiny())
    whole, some = Master(backbone).double().eval(), Master(backbone, tasks=tasks).double().eval()
    for task in tasks:
        some.decoders[task].load_state_dict(whole.decoders[task].state_dict())
    batch = random_batch(backbone, ("npr", "cmp"))
    terms, reference = some(batch)[1], whole(batch)[1]
    assert list(terms) == names
    assert some.heads().keys() == {f"{task}_decoder" for task in tasks}
    assert all(terms[name].total.equal(reference[name].total) for name in names)


# RetroMAE


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_retromae_literally(tiny, kind):
    backbone = backbone_of(tiny(kind))
    objective = RetroMae(backbone).double().eval()
    texts = random_texts(backbone, LENGTHS)
    ids, mask = random_texts(backbone, LENGTHS, seed=1).tokens
    labels = ids.where(mask, IGNORED)
    labels[:, 0] = labels[0, 6] = labels[1, 4] = IGNORED
    # a row sees [CLS] and half of the text's other tokens, never itself
    visible = (torch.rand(2, 7, 7) < 0.5) & mask[:, None] & ~torch.eye(7, dtype=torch.bool)
    visible[:, :, 0] = True
    hidden = backbone(texts.tokens)
    embeddings = backbone.encoder.embeddings
    first = backbone.config.pad_token_id + 1 if backbone.config.model_type == "roberta" else 0
    positions = embeddings.position_embeddings.weight[first : first + 7]
    rows = []
    for cls, text, seen in zip(hidden[:, 0], ids, visible, strict=True):
        states = torch.stack([cls, *embeddings(text[None])[0, 1:]])
        rows.append(literal_layer(objective.decoder[0], cls + positions, states, seen))
    decoders = {"retromae": MaskedTexts(TokenBatch(ids, mask), labels)}
    expected = {
        "mlm": literal_loss(backbone, hidden, texts.labels),
        "decoder": literal_loss(backbone, torch.stack(rows), labels),
    }
    assert expected["decoder"][1] == sum(LENGTHS) - 2 * len(LENGTHS)
    assert_terms(objective(PretrainingBatch(texts, {}, decoders, visible))[1], expected)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_cross_layer_drops_attention_in_training(tiny, kind):
    backbone = backbone_of(tiny(kind))
    layer = backbone.encoder.get_submodule(backbone.architecture.layers)[0]
    states, seen = torch.randn(1, 9, HIDDEN, dtype=torch.float64), torch.ones(1, 9, 9).bool()
    for part in layer.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    (layer.attention if kind == "distilbert" else layer.attention.self).dropout.p = 0.5
    runs = [backbone.run_cross_layer(layer.train(), states, states, seen) for _ in range(2)]
    assert not runs[0].allclose(runs[1])
