import os
import subprocess
import sys
from pathlib import Path

import pytest

from denserk.extras import installed

CASES = Path(__file__).with_name("kernel_cases.py")
pytestmark = pytest.mark.skipif(
    not installed("triton"), reason="triton is not installed: no kernels to interpret"
)


def run_cases(**environment):
    """The cases in a process of their own: Triton reads its settings when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=CASES.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_interpreted_kernels_equal_the_literal_form():
    run_cases(TRITON_INTERPRET="1", DEVICE="cpu", OMP_NUM_THREADS="1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_kernels_compile_for_gpus_that_are_not_there(kind, tmp_path, monkeypatch):
    """The interpreter takes Python that the compiler does not."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    triton = pytest.importorskip("triton")
    wide = triton.language.float32
    from denserk.modeling import lexical_kernels as kernels

    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    integers = dict.fromkeys(["starts", "texts", "winners"], "*i32")
    pointers = {"logits": f"*{kind}", **integers}
    sizes = dict.fromkeys(["columns", "modulus", "dropped", "layers"], "i32")
    row = {"width": 4096, "wide": wide}
    tile = {"tall": 16, "width": 128, "wide": wide}
    for kernel, fixed in [
        (kernels.log_sum_exp, row),
        (kernels.logit_gradients, row),
        (kernels.maxima, tile | {"folding": "star", "with_winners": False}),
        (kernels.maxima, tile | {"folding": "plus", "with_winners": False}),
        (kernels.maxima, tile | {"folding": "none", "with_winners": True, "layers": 1}),
    ]:
        names = kernel.arg_names
        signature = {
            name: "constexpr" if name in fixed else (pointers | sizes).get(name, "*fp32")
            for name in names
        }
        constants = {(names.index(name),): value for name, value in fixed.items()}
        source = triton.compiler.ASTSource(kernel, signature, constants)
        made = triton.compile(source, target=target, options={"enable_fp_fusion": False})
        assert made.asm["cubin"]


@pytest.mark.gpu
def test_compiled_kernels_equal_the_literal_form():
    run_cases(TRITON_INTERPRET="0", DEVICE="cuda")
