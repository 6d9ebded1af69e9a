import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from denserk.commands import inspect as doctor
from denserk.commands.app import run
from denserk.errors import MissingExtraError
from denserk.extras import package_folder, require

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture(autouse=True)
def needs(monkeypatch):
    """The requirements of pyproject.toml, in place of those of an older installation."""
    lines = list(PROJECT["dependencies"])
    lines += [f'{line}; extra == "{extra}"' for extra, group in EXTRAS.items() for line in group]
    monkeypatch.setattr(doctor, "requires", lambda _: lines)


def test_a_source_tree_without_metadata_is_checked_by_its_project_file():
    script = (
        "import importlib.metadata as metadata\n"
        "def requires(name):\n"
        "    raise metadata.PackageNotFoundError(name)\n"
        "metadata.requires = requires\n"
        "from denserk.commands.app import run\n"
        "raise SystemExit(run(['doctor']))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    for line in PROJECT["dependencies"]:
        assert f"\n  {Requirement(line).name:<20} " in process.stdout


def test_folders_of_caches_disks_and_memory_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path))
    assert run(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"memory +[\d.]+ GiB available of [\d.]+ GiB", printed)
    assert re.search(rf"datasets +{tmp_path}/cache \([\d.]+ GiB free, not there yet\)", printed)
    assert re.search(rf"ir_datasets +{tmp_path} \([\d.]+ GiB free\)", printed)
    assert "huggingface" in printed


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch, capsys):
    def has_no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("DENSERK_CACHE", "XDG_CACHE_HOME", "IR_DATASETS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", has_no_home)
    assert run(["doctor"]) == 0
    assert "set DENSERK_CACHE to a folder" in capsys.readouterr().out
    assert run(["doctor", "--clear-compiled"]) == 2
    assert run(["index", "--corpus", "beir:scifact", "--type", "bm25", "--output", "index"]) == 2
    assert "set DENSERK_CACHE to a folder" in capsys.readouterr().err


def test_each_missing_package_has_its_fix(monkeypatch, capsys):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    assert run(["doctor"]) == 0
    facts, _, fixes = capsys.readouterr().out.partition("\nFix\n")
    extras = EXTRAS.keys() - {"gpu", "test", "dev", "docs"}
    for line in {*PROJECT["dependencies"]}.union(*map(EXTRAS.get, extras)):
        assert fixes.count(f"pip install '{line}' ") == 1
        assert f"\n  {Requirement(line).name:<20} missing" in facts


@pytest.mark.parametrize("installed", [{"faiss-cpu"}, {"faiss-gpu"}, {"faiss-cpu", "faiss-gpu"}])
def test_two_packages_of_one_module_are_named(monkeypatch, capsys, installed):
    def version_of(name):
        if not name.startswith("faiss"):
            return version(name)
        if name not in installed:
            raise PackageNotFoundError(name)
        return "1.15.1"

    monkeypatch.setattr(doctor, "version", version_of)
    assert run(["doctor"]) == 0
    printed = capsys.readouterr().out
    fix = "pip uninstall faiss-cpu faiss-gpu, then pip install one of them"
    assert (fix in printed) is (len(installed) == 2)


def test_without_torch_and_faiss_nothing_works(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.setattr(doctor, "installed", lambda _: False)
    assert run(["doctor"]) == 1
    assert "pip install --force-reinstall torch" in capsys.readouterr().out


def test_a_missing_extra_names_its_install_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtraError, match="this needs the package faiss") as caught:
        require("faiss", "this")
    assert str(caught.value.hint).startswith("pip install faiss-cpu")
    with pytest.raises(MissingExtraError, match="this needs the package no_such_module"):
        package_folder("no_such_module", "this")


def encoding_without_options(capsys):
    """What `denserk doctor` prints of it."""
    assert run(["doctor"]) == 0
    (line,) = re.findall("^  encode +(.*)$", capsys.readouterr().out, re.MULTILINE)
    return line


def test_how_texts_are_encoded_without_options_is_shown(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    expected = "float32 on cpu, batches of 2,048 tokens, 1 thread tokenises"
    assert encoding_without_options(capsys) == expected


def test_a_gpu_is_shown_with_what_it_computes(capsys, monkeypatch, simulated_gpu):
    properties = SimpleNamespace(name="simulated", total_memory=80 << 30)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    expected = "bfloat16 on cuda, batches of 32,768 tokens, 8 threads tokenise"
    assert encoding_without_options(capsys) == expected
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: False)
    expected = "float32 on cuda, batches of 8,192 tokens, 8 threads tokenise"
    assert encoding_without_options(capsys) == expected


def test_a_gpu_whose_driver_is_too_old_has_its_fix(capsys, monkeypatch):
    """The driver counts GPUs, but CUDA does not start: torch warns, and computes on the CPU."""

    def is_available():
        warnings.warn(
            "CUDA initialization: The driver is too old (12020). Update it.", stacklevel=1
        )
        return False

    def fails(_):
        raise RuntimeError("The driver is too old")

    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_available", is_available)
    monkeypatch.setattr("torch.cuda.get_device_properties", fails)
    assert run(["doctor"]) == 0
    facts, _, fixes = capsys.readouterr().out.partition("\nFix\n")
    assert "none that torch can use" in facts
    assert "float32 on cpu" in facts
    assert "update the GPU's driver" in fixes
    assert "(CUDA initialization: The driver is too old (12020))" in fixes
