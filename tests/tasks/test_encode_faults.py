import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from denserk.commands.app import run
from tests.support.faults import contents, denserk, limit_file_size
from tests.support.training_examples import jsonl

COMMAND = ["encode", "--device", "cpu", "--threads", "1"]


@pytest.fixture
def corpus(tmp_path):
    records = ({"_id": f"d{n}", "text": f"the river {n} runs south"} for n in range(400))
    return jsonl(tmp_path / "corpus.jsonl", records)


def test_weights_that_are_no_numbers(tiny, tmp_path, capsys, corpus):
    broken = shutil.copytree(tiny(), tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    name = "bert.embeddings.LayerNorm.bias"
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    assert run(command(broken, corpus, tmp_path / "v")) == 1
    lines = capsys.readouterr().err.splitlines()
    (error,) = [line for line in lines if line.startswith("error: ")]
    assert "a vector of d0 that is not finite" in error


def command(model, corpus, output, *options):
    files = ["--model", str(model), "--corpus", str(corpus), "--output", str(output)]
    return [*COMMAND, *files, "--block-size", "50", *options]


@pytest.mark.slow
def test_a_file_size_limit_loses_no_finished_block(tiny, corpus, tmp_path):
    def encode(name, *options, **process_options):
        return denserk(*command(tiny(), corpus, tmp_path / name, *options), **process_options)

    assert encode("whole").returncode == 0
    size = (tmp_path / "whole" / "block-00000.npy").stat().st_size
    stopped = encode("v", preexec_fn=lambda: limit_file_size(size - 1))
    assert stopped.returncode == 1
    assert "cannot be written" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert encode("v", "--resume").returncode == 0
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")
