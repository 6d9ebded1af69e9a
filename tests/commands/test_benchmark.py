import shutil
from pathlib import Path

import pytest

from denserk.commands.evaluate import benchmark
from denserk.errors import MismatchError, UsageError
from denserk.io.manifest import Kind, read_manifest
from denserk.tasks.benchmark import evaluate_benchmarks
from tests.support.benchmark_copies import write_beir, write_marco
from tests.support.sentence_transformers_folders import LENGTHS, write_folder


def search(tiny, *names, model="bert", **settings):
    benchmark(names=names, model=tiny(model), output="runs", device="cpu", **settings)
    return evaluate_benchmarks(["runs"], names)


def test_benchmarks_are_searched_and_evaluated(cache, tiny):
    write_beir(cache, "scifact")
    write_beir(cache, "arguana", own_id=True)
    result = search(tiny, "beir/scifact", "beir/arguana")
    assert list(result.results) == ["beir/scifact", "beir/arguana"]
    (scifact_run,) = result.results["beir/scifact"].runs
    assert result.values("beir/scifact", "runs") == scifact_run.summary
    assert list(scifact_run.summary) == ["nDCG@10", "R@100"]
    qids = set()
    for line in Path("runs/arguana.trec").read_text().splitlines():
        qid, _, docid, *_ = line.split()
        qids.add(qid)
        assert docid != qid
    assert qids == {"q1", "q2", "q3"}  # those judged in the split
    manifest = read_manifest("runs/arguana.trec", Kind.RUN)
    assert manifest.made_from["suite"] == {"name": "beir/arguana", "corpus": "beir/arguana"}
    assert read_manifest("runs", Kind.RUNS).contents == {"runs": ["beir/arguana", "beir/scifact"]}


def test_benchmarks_have_the_precision_that_the_model_is_certified_for(
    cache, tiny, cpu_with_bfloat16, monkeypatch
):
    write_beir(cache, "scifact")
    write_beir(cache, "arguana")
    cosines = iter([0.9995])
    monkeypatch.setattr("denserk.models.precision.least_cosine", lambda *_: next(cosines))
    search(tiny, "beir/scifact")
    search(tiny, "beir/arguana", resume=True)
    manifest = read_manifest("runs", Kind.RUNS)
    assert manifest.settings["dtype"] == "bfloat16"
    assert manifest.made_from["model"]["certificate"] == {"texts": 32, "least_cosine": 0.9995}
    for name in ("scifact", "arguana"):
        vectors = read_manifest(f"runs/corpora/beir-{name}/vectors", Kind.VECTORS)
        assert vectors.made_from["model"]["dtype"] == "bfloat16"


def test_a_corpus_is_encoded_once_and_with_its_own_lengths(cache, tiny):
    write_marco(cache)
    search(tiny, "msmarco-dev", "dl19", "msmarco-titled-dev")
    names = sorted(path.name for path in Path("runs/corpora").iterdir())
    assert names == ["msmarco-passage", "msmarco-passage-titled"]
    titled = read_manifest("runs/corpora/msmarco-passage-titled/vectors", Kind.VECTORS)
    text = titled.made_from["model"]["text"]
    assert text["join"] == "sep"
    assert text["passage_max_length"] == 64
    assert Path("runs/dl19.trec").is_file()


def test_texts_have_the_length_of_a_folder_of_sentence_transformers(cache, tiny, tmp_path):
    write_beir(cache, "scifact")
    model = write_folder(tiny(), tmp_path / "model", **{LENGTHS: {"max_seq_length": 20}})
    benchmark(names=("beir/scifact",), model=model, output="runs", device="cpu")
    vectors = read_manifest("runs/corpora/beir-scifact/vectors", Kind.VECTORS)
    assert vectors.made_from["model"]["text"]["passage_max_length"] == 20
    run = read_manifest("runs/scifact.trec", Kind.RUN)
    assert run.made_from["model"]["text"]["query_max_length"] == 20


def test_resume_keeps_finished_benchmarks(cache, tiny, caplog):
    write_beir(cache, "scifact")
    search(tiny, "beir/scifact")
    before = Path("runs/scifact.trec").stat().st_mtime_ns
    write_beir(cache, "nfcorpus")
    caplog.clear()
    search(tiny, "beir/nfcorpus", "beir/scifact", resume=True)
    assert Path("runs/scifact.trec").stat().st_mtime_ns == before
    assert "beir/scifact: finished, kept" in caplog.messages
    Path("runs/scifact.trec").write_text("")
    search(tiny, "beir/scifact", resume=True)
    assert Path("runs/scifact.trec").stat().st_size


def test_another_model_or_depth_is_rejected_without_overwrite(cache, tiny):
    write_beir(cache, "scifact")
    search(tiny, "beir/scifact")
    with pytest.raises(MismatchError, match=r"model\.fingerprint was"):
        search(tiny, "beir/scifact", resume=True, model="distilbert")
    with pytest.raises(MismatchError, match=r"search\.hits was 1000, now 3"):
        search(tiny, "beir/scifact", resume=True, hits=3)
    with pytest.raises(UsageError, match="is not empty"):
        search(tiny, "beir/scifact")
    search(tiny, "beir/scifact", overwrite=True, hits=3)
    assert len(Path("runs/scifact.trec").read_text().splitlines()) == 9


def test_a_resumed_benchmark_keeps_its_precision(cache, tiny, simulated_gpu):
    write_beir(cache, "scifact")
    options = {"names": ("beir/scifact",), "model": tiny(), "output": "runs", "device": "cuda"}

    def precisions():
        """The precision that all runs share, and those of passages and queries."""
        runs = read_manifest("runs", Kind.RUNS)
        vectors = read_manifest("runs/corpora/beir-scifact/vectors", Kind.VECTORS)
        run = read_manifest("runs/scifact.trec", Kind.RUN)
        return (
            runs.settings["dtype"],
            vectors.made_from["model"]["dtype"],
            run.made_from["model"]["dtype"],
        )

    benchmark(**options, dtype="float32")
    Path("runs/scifact.trec").unlink()
    shutil.rmtree("runs/corpora")
    benchmark(**options, resume=True)
    assert precisions() == ("float32", "float32", "float32")
    with pytest.raises(MismatchError, match="dtype was 'float32', now 'bfloat16'"):
        benchmark(**options, resume=True, dtype="bfloat16")
    benchmark(**options, overwrite=True)
    assert precisions() == ("bfloat16", "bfloat16", "bfloat16")
