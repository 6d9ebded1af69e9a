import pytest
import torch

from tests.benchmarks import gpu_aggregation, gpu_encoding, gpu_training
from tests.benchmarks.gpu_machine import Machine

ROWS = {
    gpu_aggregation: ["encoding, kernels", "training, kernels", "kernels, chunks of"],
    gpu_encoding: ["CLS, --plain", "CLS", "AGG, --plain", "AGG"],
    gpu_training: ["cls, plain", "cls", "agg, plain", "agg"],
}


@pytest.mark.parametrize("benchmark", ROWS, ids=lambda module: module.__name__)
def test_their_code_runs_on_small_models(benchmark, capsys):
    benchmark.main(["--device", "cpu", "--tiny"])
    said = capsys.readouterr().out.splitlines()
    for row in ROWS[benchmark]:
        assert [line for line in said if line.startswith(f"{row} ")]


def test_without_a_gpu_they_refuse_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU is seen, and this measures one"):
        Machine.asked_for("Measures.", [])


def test_claims_that_do_not_hold_are_told():
    good = gpu_encoding.Found(1.0, 0.5, 0.05, 0.0, 0.9999)
    found = {"CLS": good, "AGG": good._replace(seconds=1.2), "sentence-transformers": good}
    assert gpu_encoding.failures(found) == ["1.0 times sentence-transformers, claimed 3.0"]
    found["sentence-transformers"] = good._replace(seconds=4.0)
    assert gpu_encoding.failures(found) == []
    assert len(gpu_encoding.failures({"CLS": good._replace(idle=0.2), "AGG": good})) == 1
