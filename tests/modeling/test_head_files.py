import pytest
import torch
from safetensors.torch import load_file, save_file

from denserk.errors import ModelError
from denserk.modeling.head_files import CONDENSER, MASTER, PUBLISHED_FILE, load_heads, save_heads
from denserk.modeling.stored_model import StoredEncoder
from tests.tiny_models import HIDDEN, WITH_HEADS

MASTER_PUBLISHED = {
    "c_head": "mkp_decoder",
    "query_head": "dor_decoder",
    "gpt_head": "gor_decoder",
    "next_head": "npr_decoder",
    "overlap_head": "cmp_decoder",
}


def stack(folder, count=2):
    return torch.nn.ModuleList(StoredEncoder.read(folder).begin_masked_lm().new_layers(count))


def same(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(mine[n].equal(theirs[n]) for n in mine)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_round_trip(tiny, tmp_path, kind):
    written, read = stack(tiny(kind)), stack(tiny(kind))
    assert not same(written, read)
    save_heads(tmp_path, CONDENSER, {"head": written})
    names = load_file(tmp_path / "condenser_head.safetensors").keys()
    assert {name.split(".")[0] for name in names} == {"head"}
    assert {name.split(".")[1] for name in names} == {"0", "1"}
    path = load_heads(tmp_path, CONDENSER, {"head": read})
    assert path == tmp_path / "condenser_head.safetensors"
    assert same(written, read)


def test_nothing_there(tiny, tmp_path):
    read = stack(tiny())
    before = {name: tensor.clone() for name, tensor in read.state_dict().items()}
    assert load_heads(tmp_path, CONDENSER, {"head": read}) is None
    assert all(tensor.equal(before[name]) for name, tensor in read.state_dict().items())


def test_published_condenser(tiny, tmp_path):
    written, read = stack(tiny()), stack(tiny())
    tensors = {f"c_head.{name}": t for name, t in written.state_dict().items()}
    torch.save(tensors | {"co_target": torch.tensor([1, 0])}, tmp_path / PUBLISHED_FILE)
    assert load_heads(tmp_path, CONDENSER, {"head": read}) == tmp_path / PUBLISHED_FILE
    assert same(written, read)


@pytest.mark.parametrize("asked", [list(MASTER_PUBLISHED.values()), ["dor_decoder"]])
def test_published_master(tiny, tmp_path, asked):
    written = {ours: stack(tiny()) for ours in MASTER_PUBLISHED.values()}
    tensors = {
        f"{theirs}.{name}": tensor
        for theirs, ours in MASTER_PUBLISHED.items()
        for name, tensor in written[ours].state_dict().items()
    }
    torch.save(tensors, tmp_path / PUBLISHED_FILE)
    read = {name: stack(tiny()) for name in asked}
    load_heads(tmp_path, MASTER, read)
    assert all(same(written[name], read[name]) for name in asked)


def test_a_file_of_another_paper(tiny, tmp_path):
    tensors = {f"query_head.{name}": t for name, t in stack(tiny()).state_dict().items()}
    torch.save(tensors, tmp_path / PUBLISHED_FILE)
    with pytest.raises(ModelError, match=r'Missing .*"head\.0.*Unexpected .*"query_head\.0'):
        load_heads(tmp_path, CONDENSER, {"head": stack(tiny())})


def test_another_number_of_layers(tiny, tmp_path):
    save_heads(tmp_path, CONDENSER, {"head": stack(tiny(), 1)})
    with pytest.raises(ModelError, match=r'Missing .*"head\.1'):
        load_heads(tmp_path, CONDENSER, {"head": stack(tiny(), 2)})


def test_another_width(tiny, tmp_path):
    tensors = {f"head.{name}": t for name, t in stack(tiny()).state_dict().items()}
    name = "head.1.output.dense.bias"
    save_file(tensors | {name: torch.zeros(3)}, tmp_path / "condenser_head.safetensors")
    with pytest.raises(ModelError, match=rf"size mismatch for {name}: .*\[3\].*\[{HIDDEN}\]"):
        load_heads(tmp_path, CONDENSER, {"head": stack(tiny())})


def test_nothing_but_tensors_is_unpickled(tiny, tmp_path):
    torch.save({"c_head.0": print}, tmp_path / PUBLISHED_FILE)
    with pytest.raises(ModelError, match="cannot be read as a file of tensors"):
        load_heads(tmp_path, CONDENSER, {"head": stack(tiny())})
