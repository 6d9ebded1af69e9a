"""`--dtype auto` from end to end: in the log, in manifests, along the chain and when resumed."""

import json

import pytest
import torch

from denserk.commands.app import run
from denserk.config.encoding import (
    Backend,
    ComputeSettings,
    Dtype,
    DtypeChoice,
    EncodeSettings,
    ModelOptions,
)
from denserk.io.manifest import Kind, read_any_manifest, read_manifest
from denserk.tasks.encode import as_in_earlier_work, in_float32_for_int8, load_encoder_of_all
from tests.support.console import warnings_of
from tests.support.faults import contents


@pytest.fixture
def folder(toy, tiny, monkeypatch):
    monkeypatch.chdir(toy)
    (toy / "model").symlink_to(tiny())
    return toy


def encode(output, *options, device="cuda"):
    command = "encode --model model --representation cls --corpus corpus.jsonl --block-size 2"
    return run([*command.split(), "--output", output, "--device", device, *options])


def search(index, *options, device="cuda"):
    """Search, and return the precision of the queries."""
    command = "search --topics queries.tsv --output run.trec --overwrite --index"
    assert run([*command.split(), index, "--device", device, *options]) == 0
    return read_manifest("run.trec", Kind.RUN).made_from["model"]["dtype"]


def recorded(output):
    """The manifest's precision, as setting and of the model."""
    manifest = read_any_manifest(f"{output}/manifest.json")
    model = manifest.made_from["model"]
    assert model["head_dtype"] == model["dtype"]
    assert manifest.settings["dtype"] == model["dtype"]
    return model["dtype"]


def change_manifest(path, model):
    """Overwrite fields of the model in a manifest; None removes them."""
    manifest = json.loads(path.read_text())
    manifest["made_from"]["model"] |= model
    path.write_text(json.dumps(manifest))


def test_a_gpu_encodes_in_bfloat16_and_a_cpu_in_float32(folder, simulated_gpu, caplog):
    assert encode("gpu") == 0
    assert any(message.startswith("computing in bfloat16 on cuda") for message in caplog.messages)
    assert recorded("gpu") == "bfloat16"
    assert read_any_manifest("gpu/manifest.json").settings["batch_tokens"] == 32_768
    assert encode("exact", "--dtype", "float32") == 0
    assert recorded("exact") == "float32"
    caplog.clear()
    assert encode("cpu", device="cpu") == 0
    assert "computing in float32 on the CPU" in caplog.messages
    assert recorded("cpu") == "float32"


def test_the_number_of_tokenising_threads_is_in_the_log(folder, simulated_gpu, monkeypatch, caplog):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(5)))
    workers = []

    def prefetch(work, items, count):
        workers.append(count)
        return map(work, items)

    monkeypatch.setattr("denserk.tasks.encode.prefetch", prefetch)
    for options in ((), ("--workers", "2"), ("--device", "cpu")):
        encode("v", *options, "--overwrite", device="auto")
    assert workers == [4, 2, 1]
    messages = [message for message in caplog.messages if message.startswith("tokenising")]
    assert messages == ["tokenising on 4 threads (--workers)"]


def test_resuming_and_updating_keep_precision_and_batches(folder, simulated_gpu, caplog):
    """A folder that an earlier version started on a GPU: float32, batches of 8,192 tokens."""
    assert encode("whole", "--dtype", "float32", "--batch-tokens", "5000") == 0
    assert encode("part", "--dtype", "float32", "--batch-tokens", "5000") == 0
    journal = folder / "part" / "blocks.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    path = folder / "part" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "complete": False, "contents": {}}))
    caplog.clear()
    assert encode("part", "--resume") == 0
    assert "computing in float32, as before" in caplog.messages
    assert contents(folder / "part") == contents(folder / "whole")
    assert encode("later", "--update", "whole") == 0
    assert recorded("later") == "float32"
    assert encode("other", "--update", "whole", "--bf16") == 1


@pytest.mark.parametrize("name", ["dtype", "backend"])
def test_vectors_that_record_no_way_of_computing_are_of_torch_in_float32(
    folder, simulated_gpu, name
):
    assert encode("v", "--dtype", "float32", "--backend", "torch") == 0
    change_manifest(folder / "v" / "manifest.json", {name: None})
    compute = as_in_earlier_work(ComputeSettings(), read_manifest("v", Kind.VECTORS))
    assert compute.dtype is DtypeChoice.FLOAT32
    assert compute.backend is Backend.TORCH


def test_a_manifest_of_impossible_batches_is_named(folder, capsys):
    assert encode("v", device="cpu") == 0
    path = folder / "v" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"]["batch_tokens"] = "many"
    path.write_text(json.dumps(manifest))
    capsys.readouterr()
    assert encode("later", "--update", "v", device="cpu") == 1
    message = capsys.readouterr().err
    assert "settings.batch_tokens that is 'many'; expected a number from 1 on" in message


def test_float16_of_a_gpu_is_not_resumed_on_a_cpu(folder, simulated_gpu, capsys):
    assert encode("v", "--dtype", "float16") == 0
    capsys.readouterr()
    assert encode("v", "--resume", device="cpu") == 1
    assert "device was 'cuda', now 'cpu'" in capsys.readouterr().err


def test_index_rejects_folders_of_mixed_precision(folder, simulated_gpu, capsys, caplog):
    shards = []
    for number, dtype in enumerate(("float32", "float32", "auto")):
        shards += ["--input", f"s{number}"]
        shard = ("--shard-num", "3", "--shard-id", str(number))
        assert encode(f"s{number}", "--dtype", dtype, *shard) == 0
    capsys.readouterr()
    assert run(["index", *shards, "--output", "index"]) == 1
    message = capsys.readouterr().err
    assert "different precisions: float32 ('s0', 's1') and bfloat16 ('s2')" in message
    assert "encode the passages of 's2' again: denserk encode --dtype float32" in message
    assert not (folder / "index").exists()
    caplog.clear()
    assert search("s?", "--model", "model") == "float32"
    (warning,) = [text for text in warnings_of(caplog) if "precisions" in text]
    assert warning.endswith("and bfloat16 ('s2'), and so differ by rounding")
    # what records no precision is not compared
    change_manifest(folder / "s2" / "manifest.json", {"dtype": None, "head_dtype": None})
    assert run(["index", *shards, "--output", "index"]) == 0


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_queries_follow_the_index_where_the_device_has_its_precision(
    folder, simulated_gpu, monkeypatch, caplog, device
):
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: True)
    assert encode("v") == 0
    assert search("v", device=device) == "bfloat16"
    assert (
        "queries are encoded in bfloat16, as v was; --dtype chooses another precision"
        in caplog.messages
    )
    assert search("v", "--dtype", "float32", device=device) == "float32"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_queries_are_in_float32_where_bfloat16_is_emulated(
    folder, simulated_gpu, monkeypatch, caplog, device
):
    assert encode("v") == 0
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    caplog.clear()
    assert search("v", device=device) == "float32"
    processor = "the CPU" if device == "cpu" else "cuda"
    assert (
        "queries are encoded in float32: v was encoded in bfloat16, for which "
        f"{processor} has no instructions" in caplog.messages
    )
    assert not warnings_of(caplog)
    assert search("v", "--bf16", device=device) == "bfloat16"


def test_queries_of_an_index_that_records_no_precision_are_in_float32(
    folder, simulated_gpu, caplog
):
    assert encode("v", "--dtype", "float32") == 0
    change_manifest(folder / "v" / "manifest.json", {"dtype": None, "head_dtype": None})
    assert search("v") == "float32"
    assert "queries are encoded in float32: v records no precision" in caplog.messages


def test_reranking_records_the_precision_that_was_chosen(folder, simulated_gpu, tiny_reranker):
    assert encode("v", "--dtype", "float32") == 0
    search("v")
    rerank = "rerank --run run.trec --topics queries.tsv --corpus corpus.jsonl --output r.trec"
    command = [*rerank.split(), "--model", str(tiny_reranker()), "--device", "cuda", "--overwrite"]
    for options, dtype in (((), "bfloat16"), (("--dtype", "float32"), "float32")):
        assert run([*command, *options]) == 0
        assert read_manifest("r.trec", Kind.RUN).made_from["model"]["dtype"] == dtype


def test_generation_is_resumed_in_its_precision(folder, writer, simulated_gpu):
    command = ["generate", "--corpus", "corpus.jsonl", "--queries-model", str(writer("t5"))]
    command += ["--num-queries", "1", "--device", "cuda", "--output", "g.jsonl"]
    assert run([*command, "--dtype", "float32"]) == 0
    assert run([*command, "--resume"]) == 0
    assert run([*command, "--resume", "--bf16"]) == 1
    assert run([*command, "--overwrite"]) == 0
    assert read_manifest("g.jsonl", Kind.EXPANSIONS).settings["dtype"] == "bfloat16"


def test_int8_on_a_gpu_names_the_option_that_is_missing(folder, simulated_gpu, capsys):
    assert encode("v", "--int8") == 2
    error = "error: --int8 is for the CPU, not for cuda\n  add --device cpu\n"
    assert capsys.readouterr().err.endswith(error)


def search_agg(index, *options, device="cpu"):
    """Search vectors of agg, and return the precisions of the queries."""
    search(index, *options, device=device)
    model = read_manifest("run.trec", Kind.RUN).made_from["model"]
    return model["dtype"], model["head_dtype"]


def test_the_log_names_the_precision_of_the_queries_head(
    folder, tiny_agg, simulated_gpu, monkeypatch, caplog
):
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: True)
    command = ["encode", "--model", str(tiny_agg()), "--corpus", "corpus.jsonl", "--output", "v"]
    assert run([*command, "--device", "cpu", "--set", "head-dtype=bfloat16"]) == 0
    caplog.clear()
    assert search_agg("v") == ("float32", "bfloat16")
    same = "queries are encoded in float32, head bfloat16, as v was"
    assert any(message.startswith(same) for message in caplog.messages)
    message = "queries are encoded in float32; v was encoded in float32, head bfloat16"
    for options, device in ((("--set", "head-dtype=float32"), "cpu"), ((), "cuda")):
        caplog.clear()
        assert search_agg("v", *options, device=device) == ("float32", "float32")
        assert message in caplog.messages


CERTIFIED = "computing in bfloat16 on the CPU: cosines to float32 are at least"


@pytest.fixture
def once(monkeypatch, cpu_with_bfloat16):
    """Count the certificates that are made; a CPU that multiplies bfloat16."""
    cosines = []

    def least_cosine(reduced, exact):
        cosines.append(0.9995)
        return cosines[-1]

    monkeypatch.setattr("denserk.models.precision.least_cosine", least_cosine)
    return cosines


def interrupt(folder):
    """Leave the first block of a folder of vectors, as a killed command would."""
    journal = folder / "blocks.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    manifest = json.loads((folder / "manifest.json").read_text())
    unfinished = {**manifest, "complete": False, "contents": {}}
    (folder / "manifest.json").write_text(json.dumps(unfinished))


def certificate(output):
    return read_any_manifest(f"{output}/manifest.json").made_from["model"].get("certificate")


def test_a_cpu_with_bfloat16_records_its_certificate(folder, cpu_with_bfloat16, caplog):
    assert encode("v", device="cpu") == 0
    assert recorded("v") == "bfloat16"
    assert certificate("v")["texts"] == 32
    assert certificate("v")["least_cosine"] >= 0.999
    assert any(message.startswith(CERTIFIED) for message in caplog.messages)
    assert encode("exact", "--dtype", "float32", device="cpu") == 0
    assert (recorded("exact"), certificate("exact")) == ("float32", None)


def test_resuming_and_updating_keep_the_precision_of_a_cpu(folder, once, monkeypatch, caplog):
    for name in ("whole", "part"):
        assert encode(name, device="cpu") == 0
    assert len(once) == 2
    interrupt(folder / "part")
    caplog.clear()
    assert encode("part", "--resume", device="cpu") == 0
    assert "computing in bfloat16, as before" in caplog.messages
    assert contents(folder / "part") == contents(folder / "whole")
    interrupt(folder / "part")
    assert encode("part", "--resume", "--bf16", device="cpu") == 0
    assert contents(folder / "part") == contents(folder / "whole")
    assert encode("later", "--update", "whole", device="cpu") == 0
    assert (recorded("later"), certificate("later")) == ("bfloat16", certificate("whole"))
    assert encode("other", "--update", "whole", "--dtype", "float32", device="cpu") == 1
    assert len(once) == 2


def test_a_cpu_without_bfloat16_resumes_in_it_and_says_so(folder, once, monkeypatch, caplog):
    assert encode("whole", device="cpu") == 0
    assert encode("part", device="cpu") == 0
    interrupt(folder / "part")
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: False)
    caplog.clear()
    assert encode("part", "--resume", device="cpu") == 0
    assert (
        "computing in bfloat16, as before; to start over in float32: --overwrite --dtype float32"
        in caplog.messages
    )
    assert any("no bfloat16 instructions" in text for text in warnings_of(caplog))
    assert contents(folder / "part") == contents(folder / "whole")


def test_float32_that_a_certificate_chose_is_resumed(folder, once, monkeypatch, caplog):
    monkeypatch.setattr("denserk.models.precision.least_cosine", lambda *_: 0.79)
    for name in ("whole", "part"):
        assert encode(name, device="cpu") == 0
    assert (recorded("part"), certificate("part")["least_cosine"]) == ("float32", 0.79)
    interrupt(folder / "part")
    caplog.clear()
    assert encode("part", "--resume", device="cpu") == 0
    assert contents(folder / "part") == contents(folder / "whole")
    assert "computing in float32, as before" in caplog.messages
    assert once == []


def test_a_folder_of_a_version_without_certificates_stays_in_float32(folder, once):
    assert encode("v", "--dtype", "float32", device="cpu") == 0
    interrupt(folder / "v")
    assert encode("v", "--resume", device="cpu") == 0
    assert recorded("v") == "float32"
    assert search("v", device="cpu") == "float32"
    assert once == []


def test_shards_of_a_cpu_have_one_precision(folder, once):
    for number in range(2):
        shard = ("--shard-num", "2", "--shard-id", str(number))
        assert encode(f"s{number}", *shard, device="cpu") == 0
        assert recorded(f"s{number}") == "bfloat16"
    assert run(["index", "--input", "s0", "--input", "s1", "--output", "index"]) == 0
    assert search("index", device="cpu") == "bfloat16"
    assert len(once) == 2


def test_shards_of_cpus_with_and_without_bfloat16_are_rejected(folder, once, monkeypatch, capsys):
    assert encode("s0", "--shard-num", "2", "--shard-id", "0", device="cpu") == 0
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: False)
    assert encode("s1", "--shard-num", "2", "--shard-id", "1", device="cpu") == 0
    capsys.readouterr()
    assert run(["index", "--input", "s0", "--input", "s1", "--output", "index"]) == 1
    assert "denserk encode --dtype" in capsys.readouterr().err


def test_queries_follow_the_index_without_a_certificate(folder, once, monkeypatch, caplog):
    assert encode("v", device="cpu") == 0
    assert search("v", device="cpu") == "bfloat16"
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: False)
    caplog.clear()
    assert search("v", device="cpu") == "float32"
    assert (
        "queries are encoded in float32: v was encoded in bfloat16, for which the CPU has no "
        "instructions" in caplog.messages
    )
    assert len(once) == 1


def test_other_processes_follow_the_main_one(folder, once, monkeypatch):
    settings = EncodeSettings(model="model", corpus="corpus.jsonl", output="v")
    chosen = {"texts": 32, "least_cosine": 0.79}
    monkeypatch.setattr("denserk.models.distributed.world", lambda: (1, 2))
    monkeypatch.setattr(
        "denserk.models.distributed.from_main_process", lambda _: (Dtype.FLOAT32, chosen)
    )
    encoder = load_encoder_of_all(settings, ModelOptions())
    assert (encoder.dtype, encoder.certificate) == (Dtype.FLOAT32, chosen)
    monkeypatch.setattr("denserk.models.distributed.world", lambda: (0, 2))
    monkeypatch.setattr("denserk.models.distributed.from_main_process", lambda work: work())
    assert load_encoder_of_all(settings, ModelOptions()).dtype is Dtype.BFLOAT16
    assert len(once) == 1


def test_attention_is_read_in_float32_on_a_cpu(folder, once):
    command = "analyze attention-entropy --model model --corpus corpus.jsonl --max-length 32"
    assert run([*command.split(), "--device", "cpu", "--output", "e.csv"]) == 0
    assert once == []


def test_int8_is_of_a_model_in_float32(cpu_with_bfloat16, monkeypatch, caplog):
    monkeypatch.setattr("denserk.models.processor.has_amx", lambda: False)
    assert in_float32_for_int8(ComputeSettings()).dtype is DtypeChoice.FLOAT32
    assert caplog.messages == []
    monkeypatch.setattr("denserk.models.processor.has_amx", lambda: True)
    in_bfloat16 = ComputeSettings(dtype=DtypeChoice.BFLOAT16)
    assert in_float32_for_int8(in_bfloat16) == in_bfloat16
    assert caplog.messages == [
        "--int8: this CPU multiplies bfloat16 as fast (AMX); --dtype bfloat16 is closer to float32"
    ]
