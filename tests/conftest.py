"""Environment of all tests, a tiny vocabulary, tiny random models, and a toy collection.

The variables of the user's shell are removed before any library is imported, here and so in every
subprocess: no test may depend on thread counts, locale, colours or caches that are set there.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.reporters import forget

KEPT = re.compile(
    r"HOME|PATH|USER|LOGNAME|TMPDIR|VIRTUAL_ENV|PYTHONPATH|LD_LIBRARY_PATH|JAVA_HOME|CI"
    r"|\w+_proxy|\w+_CA_BUNDLE|(PIP|PYTEST|SSL_CERT|CUDA|NVIDIA)_\w+",
    re.IGNORECASE,
)
SET = {
    "HF_HUB_OFFLINE": "1",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # two test processes share the cores
    "TOKENIZERS_PARALLELISM": "false",
}
if os.environ.get("PYTEST_CLEAN") != "1":  # the pytest that a test starts gets what the test sets
    for _name in [name for name in os.environ if not KEPT.fullmatch(name)]:
        del os.environ[_name]
    os.environ.update(SET, PYTEST_CLEAN="1")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COLUMNS", None)  # pytest-xdist tells its workers the terminal's width
# Compiling a tiny model takes longer than the test: only `openvino` and subprocesses do.
sys.modules["openvino"] = None  # type: ignore[assignment]

settings.register_profile("house", deadline=None)  # a busy machine is no failure
settings.load_profile("house")

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = (  # noqa: SIM905  (a list of quoted words reads worse)
    "the a of in on is was and to river bank money water fish boat tree house cat dog sun moon "
    "star night day red blue green old new big small runs sleeps eats sings falls rises north south"
).split()
PIECES = [
    *"abcdefghijklmnopqrstuvwxyz0123456789",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"),
]
PUNCTUATION = [".", ",", "?", "!", "'", '"', "-", "(", ")"]
VOCABULARY = [*SPECIALS, *WORDS, *PIECES, *PUNCTUATION]

PASSAGES = {
    "d1": ("River", "the old river runs to the south"),
    "d2": ("Bank", "money in the bank"),
    "d3": ("", "the cat sleeps in the house"),
    "d4": ("Moon", "the moon rises in the night and the star falls"),
    "d5": ("Boat", "a red boat on blue water"),
    "d10": ("Dog", "the big dog eats fish"),
}
QUERIES = {"q1": "cat in a house", "q2": "river boat", "q3": "moon and star"}
QRELS = {"q1": {"d3": 1}, "q2": {"d1": 2, "d5": 1}, "q3": {"d4": 1}}


@pytest.fixture(autouse=True)
def _deaf() -> Iterator[None]:
    """What one test listens to, or shows, ends with it."""
    yield
    forget()


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO can be imported, and so is chosen on a CPU."""
    monkeypatch.delitem(sys.modules, "openvino")
    pytest.importorskip("openvino")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real collections that may lie beside the checkout."""
    where = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not where.is_dir():
        pytest.skip(f"no real collections: {where} is absent")
    return where


@pytest.fixture(scope="session")
def specs() -> Path:
    """The folder of the papers' example vectors that may lie beside the checkout."""
    where = Path(__file__).resolve().parents[2] / "shared" / "specs"
    if not where.is_dir():
        pytest.skip(f"no example vectors: {where} is absent")
    return where


def write_toy(folder: Path) -> Path:
    """Write corpus.jsonl (BEIR), queries.tsv and qrels.txt (TREC) into a new folder."""
    folder.mkdir()
    with (folder / "corpus.jsonl").open("w") as out:
        for docid, (title, text) in PASSAGES.items():
            out.write(json.dumps({"_id": docid, "title": title, "text": text}) + "\n")
    (folder / "queries.tsv").write_text("".join(f"{q}\t{t}\n" for q, t in QUERIES.items()))
    (folder / "qrels.txt").write_text(
        "".join(f"{q} 0 {d} {r}\n" for q, judged in QRELS.items() for d, r in judged.items())
    )
    return folder


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A folder with corpus.jsonl (BEIR), queries.tsv and qrels.txt (TREC)."""
    return write_toy(tmp_path / "toy")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What $DENSERK_CACHE names: `cache` of the working folder, which holds nothing."""
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny("bert", head=True)`: a folder with a tiny random model, made once, never changed."""
    from tests.tiny_models import write_tiny

    root = tmp_path_factory.mktemp("models")

    def folder(kind: str = "bert", *, head: bool = True, seed: int = 7) -> Path:
        path = root / f"{kind}-{head}-{seed}"
        return path if path.exists() else write_tiny(path, kind, VOCABULARY, head=head, seed=seed)

    return folder


@pytest.fixture(scope="session")
def tiny_reranker(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_reranker("bert")`: a sequence classifier of transformers with one label."""
    from tests.tiny_models import write_tiny_classifier

    root = tmp_path_factory.mktemp("rerankers")

    def folder(kind: str = "bert", *, labels: int = 1) -> Path:
        path = root / f"{kind}-{labels}"
        if not path.exists():
            write_tiny_classifier(path, kind, VOCABULARY, labels=labels)
        return path

    return folder


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`writer("t5")`, "mt5" or "gpt2": a folder with a tiny random model that writes text."""
    from tests.tiny_models import write_writer

    root = tmp_path_factory.mktemp("writers")

    def folder(kind: str) -> Path:
        path = root / kind
        return path if path.exists() else write_writer(path, kind, VOCABULARY)

    return folder


@pytest.fixture(scope="session")
def tiny_agg(
    tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`tiny_agg("bert", agg_dim=20)`: an Aggretriever folder of denserk's, its heads random."""
    from denserk.config.encoding import Representation, RepresentationSettings
    from tests.tiny_models import write_tiny_aggretriever

    def folder(kind: str = "bert", **settings: Any) -> Path:
        chosen = {"agg_dim": 20, "cls_dim": 6, **settings}
        made = RepresentationSettings(Representation.AGG, **chosen)
        path = tmp_path_factory.mktemp("agg") / "model"
        return write_tiny_aggretriever(path, tiny(kind), made)

    return folder


@pytest.fixture(scope="session")
def bert_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`bert_vocabulary("bert")`: a tiny model with BERT's 30,522 entries, all Pyserini knows."""
    from tests.tiny_models import write_tiny

    filler = [f"filler{i}" for i in range(30522 - len(set(VOCABULARY)))]
    root = tmp_path_factory.mktemp("bert-vocabulary")

    def folder(kind: str) -> Path:
        path = root / kind
        return path if path.exists() else write_tiny(path, kind, [*VOCABULARY, *filler])

    return folder
