"""What manifests name is found from any folder, also after a move; nothing names the machine."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from denserk.commands.inspect import reproduce
from denserk.commands.retrieve import encode, fuse, index, rerank, search
from denserk.commands.train import finetune, mine_negatives, pretrain
from denserk.errors import DenserkError, MismatchError, UsageError
from denserk.io.runs import read_run_scores
from tests.support.tiny_models import write_tiny
from tests.support.toy import PASSAGES, QRELS, QUERIES, VOCABULARY, write_toy

TRAINED = {"batch_size": 3, "group_size": 2, "max_steps": 2, "lr": 1e-3, "device": "cpu"}


def write_training_data(path: Path) -> None:
    with path.open("w") as out:
        for qid, text in QUERIES.items():
            positive = " ".join(PASSAGES[next(iter(QRELS[qid]))])
            line = {"query": text, "positive": positive, "negative": PASSAGES["d10"][1]}
            out.write(json.dumps(line) + "\n")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A tree with a model, data, vectors, indexes and runs, built from the folder `work` in it."""
    tree = tmp_path_factory.mktemp("built") / "tree"
    tree.mkdir()
    write_toy(tree / "data")
    write_tiny(tree / "models" / "base", "bert", VOCABULARY)
    (tree / "work").mkdir()
    before = Path.cwd()
    os.chdir(tree / "work")
    encode(model="../models/base", corpus="../data/corpus.jsonl", output="passages", device="cpu")
    index(input="passages", output="../indexes/flat")
    index(corpus="../data/corpus.jsonl", output="../indexes/terms", type="bm25")
    search(index="../indexes/flat", topics="../data/queries.tsv", output="../runs/dense")
    search(index="../indexes/terms", topics="../data/queries.tsv", output="../runs/terms")
    fuse(runs=["../runs/dense", "../runs/terms"], output="../runs/fused")
    os.chdir(before)
    return tree


@pytest.fixture
def tree(built, tmp_path, monkeypatch):
    """A copy of the tree, in a place where it was not built; the working directory is outside."""
    shutil.copytree(built, tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "moved"


def manifest_of(path: Path) -> Path:
    return path / "manifest.json" if path.is_dir() else path.with_name(f"{path.name}.manifest.json")


def as_older_version(path: Path, folder: Path) -> None:
    """Rewrite a manifest as versions without the marker did: names from a working directory."""
    file = manifest_of(path)
    manifest = json.loads(file.read_text())
    assert manifest.pop("paths") == "relative to this file"

    def renamed(value):
        if isinstance(value, dict):
            return {key: renamed(item) for key, item in value.items()}
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if isinstance(value, str) and value.startswith(("./", "../")):
            return os.path.relpath(file.parent / value, folder)
        return value

    file.write_text(json.dumps({**manifest, "made_from": renamed(manifest["made_from"])}))


@pytest.mark.parametrize("folder", ["elsewhere", "moved", "moved/work", "moved/indexes/flat"])
def test_an_index_finds_its_model_and_passages_from_any_folder(
    tree, built, folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path / folder)
    flat = os.path.relpath(tree / "indexes" / "flat")
    for name in (flat, str(tree / "indexes" / "flat")):
        search(index=name, topics=str(tree / "data" / "queries.tsv"), output=str(tmp_path / "run"))
        expected = read_run_scores(built / "runs" / "dense")
        assert read_run_scores(tmp_path / "run") == expected
        (tmp_path / "run").unlink()
        search(index=name, query=["river boat"])
        assert PASSAGES["d5"][1] in capsys.readouterr().out


@pytest.mark.parametrize("run", ["dense", "terms", "fused"])
def test_a_moved_tree_is_reproduced_from_any_folder(tree, built, run):
    shutil.move(built, built.with_name("away"))
    try:
        reproduce(run=str(tree / "runs" / run), from_step="vectors")
        reproduce(run=f"../moved/runs/{run}", from_step="vectors")
    finally:
        shutil.move(built.with_name("away"), built)


def test_folders_of_a_tree_that_is_reached_through_a_link(tree, tmp_path, capsys):
    (tmp_path / "elsewhere" / "link").symlink_to(tree / "indexes")
    search(index="link/flat", query=["river boat"])
    index(corpus="../moved/data/corpus.jsonl", output="link/again", type="bm25")
    for name in ("link/again", str(tree / "indexes" / "again")):
        search(index=name, query=["river boat"])
    assert capsys.readouterr().out.count(PASSAGES["d5"][1]) == 3


def test_a_link_to_a_corpus_is_named_itself(tree):
    corpus = tree / "data" / "corpus.jsonl"
    corpus.rename(tree.parent / "large.jsonl")
    corpus.symlink_to("../../large.jsonl")
    index(corpus=str(corpus), output=str(tree / "indexes" / "again"), type="bm25")
    manifest = json.loads((tree / "indexes" / "again" / "manifest.json").read_text())
    assert manifest["made_from"] == {"texts": "../../data/corpus.jsonl"}


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize(
    ("gone", "option", "typed"),
    [
        ("models/base", "model", "--model"),
        ("data/corpus.jsonl", "corpus", "--corpus"),
        ("work/passages", None, "--corpus"),
    ],
)
def test_an_input_that_is_gone_is_named_with_what_to_type(
    tree, monkeypatch, capsys, gone, option, typed, is_older
):
    monkeypatch.chdir(tree / "work")
    if is_older:
        for folder in ("../indexes/flat", "passages"):
            as_older_version(Path(folder), Path.cwd())
    new_path = shutil.move(tree / gone, tree.parent / "gone")
    lookup = {"index": "../indexes/flat", "query": ["river boat"]}
    with pytest.raises(UsageError) as caught:
        search(**lookup)
    message = str(caught.value)
    assert "manifest.json names " in message
    assert str(tree / gone) in message
    assert typed in str(caught.value.hint)
    if option is not None:
        search(**lookup, **{option: new_path})
        assert PASSAGES["d5"][1] in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["moved/work", "elsewhere"])
def test_names_in_older_manifests_are_looked_for_from_the_working_directory(
    tree, folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path / folder)
    for path in ("indexes/flat", "work/passages", "runs/dense"):
        as_older_version(tree / path, Path.cwd())
    search(index=str(tree / "indexes" / "flat"), query=["river boat"])
    assert PASSAGES["d5"][1] in capsys.readouterr().out
    reproduce(run=str(tree / "runs" / "dense"), from_step="vectors")


def test_names_in_older_manifests_are_looked_for_in_their_folder_first(tree, capsys):
    (tree / "data" / "manifest.json").unlink(missing_ok=True)
    for path in ("indexes/flat", "work/passages"):
        as_older_version(tree / path, (tree / path))
    Path("corpus.jsonl").write_text('{"_id": "d5", "text": "another corpus"}\n')
    manifest = manifest_of(tree / "work" / "passages")
    shutil.copy(tree / "data" / "corpus.jsonl", tree / "work" / "passages" / "corpus.jsonl")
    manifest.write_text(manifest.read_text().replace("../../data/corpus.jsonl", "corpus.jsonl"))
    search(index=str(tree / "indexes" / "flat"), query=["river boat"])
    out = capsys.readouterr().out
    assert PASSAGES["d5"][1] in out
    assert "another corpus" not in out


def test_names_that_are_no_paths_stay_as_they_are(tree, monkeypatch, tmp_path):
    package = pytest.importorskip("ir_datasets")
    data = tree / "data"
    dataset = package.create_dataset(*map(str, (data / "queries.tsv",) * 2))
    monkeypatch.setitem(package.registry._registered, "denserk-toy/test", dataset)
    index(corpus="irds:denserk-toy/test", output="terms", type="bm25")
    manifest = json.loads(Path("terms/manifest.json").read_text())
    assert manifest["made_from"] == {"texts": "irds:denserk-toy/test"}


@pytest.mark.parametrize("relative", [True, False])
def test_another_spelling_of_an_input_is_the_same_input(tree, relative, caplog):
    caplog.set_level("INFO")
    source = Path("../moved/data/corpus.jsonl")
    index(corpus=source, output="terms", type="bm25")
    other_spelling = source if relative else source.resolve()
    index(corpus=other_spelling, output=str(Path("terms").resolve()), type="bm25", resume=True)
    assert "nothing to do" in caplog.text
    Path("linked.jsonl").symlink_to(source.resolve())
    index(corpus="linked.jsonl", output="terms", type="bm25", resume=True)
    shutil.copy(source, "corpus.jsonl")
    with pytest.raises(MismatchError, match="texts was"):
        index(corpus="corpus.jsonl", output="terms", type="bm25", resume=True)


@pytest.fixture(scope="module")
def published(tmp_path_factory, tiny_reranker):
    """A tree whose every folder and run was made by commands with absolute paths."""
    tree = tmp_path_factory.mktemp("published") / "tree"
    tree.mkdir()
    write_toy(tree / "data")
    write_training_data(tree / "data" / "train.jsonl")
    write_tiny(tree / "base", "bert", VOCABULARY)
    shutil.copytree(tiny_reranker(), tree / "scorer")
    corpus, queries, train = (
        str(tree / "data" / name) for name in ("corpus.jsonl", "queries.tsv", "train.jsonl")
    )

    def out(name: str) -> str:
        return str(tree / "out" / name)

    before, words = Path.cwd(), sys.argv
    (tree / "here").mkdir()
    os.chdir(tree / "here")
    sys.argv = ["/usr/bin/denserk", "search", "--index", out("flat"), f"--topics={queries}", "-"]
    base = str(tree / "base")
    finetune(model=base, train_data=train, dev_data=train, output=out("model"), **TRAINED)
    finetune(model=base, train_data=train, lora=2, output=out("adapted"), **TRAINED)
    student = {"batch_size": 3, "max_steps": 1, "device": "cpu", "objective": "align"}
    finetune(model=base, teacher=base, train_data=queries, output=out("student"), **student)
    text = {"objective": "mlm", "architecture": "tiny", "batch_size": 2, "max_steps": 1}
    pretrain(corpus=corpus, output=out("text"), tokenize_to=out("tokens"), device="cpu", **text)
    encode(model=out("model"), corpus=corpus, output=out("vectors"), device="cpu")
    encode(model=out("model"), topics=queries, output=out("encoded"), device="cpu")
    index(input=out("vectors"), output=out("flat"))
    index(corpus=corpus, output=out("terms"), type="bm25")
    search(index=out("flat"), topics=queries, output=out("dense"))
    search(index=out("flat"), encoded_queries=out("encoded"), output=out("loaded"))
    search(index=out("terms"), topics=queries, output=out("bm25"), ir_metadata="comments")
    fuse(runs=[out("dense"), out("bm25")], output=out("fused"))
    scored = {"model": str(tree / "scorer"), "depth": 2, "corpus": corpus, "topics": queries}
    rerank(run=out("dense"), output=out("reranked"), **scored)
    ids = {"topics": queries, "qrels": str(tree / "data" / "qrels.txt"), "corpus": corpus}
    mine_negatives(run=[out("dense")], output=out("mined.jsonl"), **ids)
    os.chdir(before)
    sys.argv = words
    return tree


def test_no_file_names_a_folder_of_the_machine(published):
    files = [path for path in (published / "out").rglob("*") if path.is_file()]
    assert len(files) > 60
    naming = [path for path in files if str(published.parent).encode() in path.read_bytes()]
    assert not naming


def test_metadata_of_a_run_name_paths_from_its_folder(published):
    lines = (published / "out" / "dense.ir_metadata.yaml").read_text().splitlines()
    metadata = yaml.safe_load("\n".join(lines[1:-1]))
    assert metadata["data"] == {
        "test collection": {"source": "../data/corpus.jsonl", "topics": "../data/queries.tsv"},
        "training data": [{"name": "train.jsonl", "source": "../data/train.jsonl"}],
    }
    assert metadata["method"]["retrieval"][0]["model"] == "model"
    command = metadata["implementation"]["executable"]["cmd"]
    assert command == "denserk search --index ../out/flat --topics=../data/queries.tsv -"


@pytest.mark.parametrize("run", ["dense", "loaded", "bm25", "fused", "reranked"])
def test_runs_that_were_made_by_absolute_paths_are_reproduced(published, run, monkeypatch):
    monkeypatch.chdir(published.parent)
    reproduce(run=f"tree/out/{run}", from_step="model" if run == "dense" else "index")


def test_a_training_is_resumed_and_repeated_from_another_folder(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, weights = published / "out" / "model", "model.safetensors"
    before = (out / weights).read_bytes()
    options = {"model": published / "base", "output": out, "resume": True, **TRAINED}
    train = published / "data" / "train.jsonl"
    finetune(train_data=os.path.relpath(train), dev_data=train, **options)
    assert (out / weights).read_bytes() == before
    finetune(config=os.path.relpath(out / "config.yaml"), output="again")
    assert Path("again", weights).read_bytes() == before
    shutil.copy(train, "other.jsonl")
    with pytest.raises(MismatchError, match=r"train_data was"):
        finetune(train_data="other.jsonl", dev_data=train, **options)


def test_a_config_that_a_user_writes_names_files_from_the_working_directory(
    published, tmp_path, monkeypatch
):
    monkeypatch.chdir(published)
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"model": "base", "train-data": ["data/train.jsonl"]})
    )
    finetune(config=tmp_path / "mine.yaml", output=tmp_path / "model", **TRAINED)
    assert (tmp_path / "model" / "config.json").is_file()


def test_a_marker_of_a_later_version_is_an_error(tree):
    path = manifest_of(tree / "indexes" / "flat")
    path.write_text(path.read_text().replace("relative to this file", "of tomorrow"))
    with pytest.raises(DenserkError, match=r"manifest\.json.*of tomorrow"):
        search(index=str(tree / "indexes" / "flat"), query=["river"])
