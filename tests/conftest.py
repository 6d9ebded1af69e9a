"""Environment of all tests, a tiny vocabulary, tiny random models, and a toy collection.

The variables of the user's shell are removed before any library is imported, here and so in every
subprocess: no test may depend on thread counts, locale, colours or caches that are set there.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from denserk.reporting import show_progress
from tests.support.environment import KEPT, SET
from tests.support.toy import VOCABULARY, write_toy

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


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """`caplog` has denserk's messages; what a command line set up in this process ends here."""
    caplog.set_level(logging.INFO, logger="denserk")
    yield
    logger = logging.getLogger("denserk")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    show_progress(None)


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
    from tests.support.tiny_models import write_tiny

    root = tmp_path_factory.mktemp("models")

    def folder(kind: str = "bert", *, head: bool = True, seed: int = 7) -> Path:
        path = root / f"{kind}-{head}-{seed}"
        return path if path.exists() else write_tiny(path, kind, VOCABULARY, head=head, seed=seed)

    return folder


@pytest.fixture(scope="session")
def tiny_reranker(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_reranker("bert")`: a sequence classifier of transformers with one label."""
    from tests.support.tiny_models import write_tiny_classifier

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
    from tests.support.tiny_models import write_writer

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
    from tests.support.tiny_models import write_tiny_aggretriever

    def folder(kind: str = "bert", **settings: Any) -> Path:
        chosen = {"agg_dim": 20, "cls_dim": 6, **settings}
        made = RepresentationSettings(Representation.AGG, **chosen)
        path = tmp_path_factory.mktemp("agg") / "model"
        return write_tiny_aggretriever(path, tiny(kind), made)

    return folder


@pytest.fixture(scope="session")
def bert_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`bert_vocabulary("bert")`: a tiny model with BERT's 30,522 entries, all Pyserini knows."""
    from tests.support.tiny_models import write_tiny

    filler = [f"filler{i}" for i in range(30522 - len(set(VOCABULARY)))]
    root = tmp_path_factory.mktemp("bert-vocabulary")

    def folder(kind: str) -> Path:
        path = root / kind
        return path if path.exists() else write_tiny(path, kind, [*VOCABULARY, *filler])

    return folder
