"""Pre-training objectives in general, and the layers that they add to a backbone."""

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
from denserk.models.backbone import Backbone
from tests.losses.pretraining_models import backbone_of, literal_loss, only, random_texts
from tests.tiny_models import HIDDEN, WITH_HEADS, write_tiny

OBJECTIVES = [MaskedLanguageModel, Condenser, Master, RetroMae]


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
    expected, count = literal_loss(backbone, hidden, labels)
    assert cls.equal(hidden[:, 0])
    assert terms["mlm"].total.item() == pytest.approx(expected)
    assert terms["mlm"].count.item() == count
    theirs = backbone.model(tokens.input_ids, tokens.attention_mask, labels=labels).loss
    assert (terms["mlm"].total / count).item() == pytest.approx(theirs.item())


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


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_only_labelled_positions_meet_the_vocabulary(tiny, monkeypatch, objective):
    backbone = backbone_of(tiny())
    rows = []
    project = Backbone.vocabulary_logits

    def counted(self, hidden):
        rows.append(len(hidden))
        return project(self, hidden)

    monkeypatch.setattr(Backbone, "vocabulary_logits", counted)
    terms = objective(backbone).double()(batch_of(backbone, (9, 5)))[1]
    assert rows == [int(term.count) for term in terms.values()]
    assert max(rows) < 14


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


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_a_bottleneck_does_not_see_padding(tiny, kind):
    backbone = backbone_of(tiny(kind))
    stack = Bottleneck(backbone, 2).double().eval()
    torch.manual_seed(0)
    cls, stream = torch.randn(1, HIDDEN).double(), torch.randn(1, 6, HIDDEN).double()
    mask = torch.tensor([[True] * 4 + [False] * 2])
    whole = stack(backbone, cls, stream, mask)
    alone = stack(backbone, cls, stream[:, :4], mask[:, :4])
    assert whole[:, :4].allclose(alone)
    assert not stack(backbone, cls, stream, torch.ones_like(mask))[:, :4].allclose(alone)


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
