import pytest
import torch

from denserk.data.batches import MaskedTexts, PretrainingBatch
from denserk.data.masking import IGNORED
from denserk.losses.pretraining import TASKS, Master
from tests.losses.literal_layers import literal_layer
from tests.losses.pretraining_models import (
    backbone_of,
    example_backbone,
    example_texts,
    fill_example,
    literal_loss,
    random_texts,
    read_example,
)
from tests.tiny_models import WITH_HEADS

LENGTHS = [7, 5]


def random_batch(backbone, passes=()):
    texts = [random_texts(backbone, LENGTHS, seed) for seed in range(1 + len(passes) + len(TASKS))]
    named = dict(zip(passes, texts[1:], strict=False))
    return PretrainingBatch(texts[0], named, dict(zip(TASKS, texts[-len(TASKS) :], strict=True)))


def test_example_vectors(specs):
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
def test_literal_restatement(tiny, kind, passes, shared):
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
    assert terms.keys() == expected.keys()
    for name, (total, count) in expected.items():
        assert terms[name].total.item() == pytest.approx(total)
        assert terms[name].count.item() == count
    assert {name: term.count for name, term in terms.items()} == objective.counts(batch)


@pytest.mark.parametrize(
    ("tasks", "names"),
    [
        (["npr", "dor", "gor"], ["mlm", "mlm_npr", "npr", "dor", "gor"]),
        (["cmp", "mkp"], ["mlm", "mlm_cmp", "mkp", "cmp"]),
        (["gor"], ["mlm", "gor"]),
    ],
)
def test_tasks_go_with_their_passes(tiny, tasks, names):
    backbone = backbone_of(tiny())
    whole, some = Master(backbone).double().eval(), Master(backbone, tasks=tasks).double().eval()
    for task in tasks:
        some.decoders[task].load_state_dict(whole.decoders[task].state_dict())
    batch = random_batch(backbone, ("npr", "cmp"))
    terms, reference = some(batch)[1], whole(batch)[1]
    assert list(terms) == names
    assert some.heads().keys() == {f"{task}_decoder" for task in tasks}
    assert all(terms[name].total.equal(reference[name].total) for name in names)


def test_rows_without_a_term(tiny):
    backbone = backbone_of(tiny())
    objective = Master(backbone, tasks=["npr"]).double().eval()
    batch = random_batch(backbone)
    tokens, labels = batch.decoders["npr"]
    labels = labels.clone()
    labels[1] = IGNORED
    batch.decoders["npr"] = MaskedTexts(tokens, labels)
    expected, count = literal_loss(backbone, objective.states(batch)[1]["npr"][:1], labels[:1])
    term = objective(batch)[1]["npr"]
    assert (term.total.item(), term.count.item()) == (pytest.approx(expected), count)
