"""Fixtures of all tests: the toy collection, tiny random models, and what they run in.

The variables of the user's shell are removed before any library is imported, here and so in every
subprocess: no test may depend on thread counts, locale, colours or caches that are set there.
"""

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from denserk.config import encoding
from denserk.config.encoding import Dtype
from denserk.reporting import set_display
from tests.support.environment import set_up_variables
from tests.support.toy import VOCABULARY, write_toy

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs behind it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands that tests start hear it

if TYPE_CHECKING:
    from tests.support.embeddings_server import EmbeddingsServer
    from tests.support.simulated_gpu import SimulatedGpu

set_up_variables()
# Compiling a tiny model takes longer than the test: only `openvino` and subprocesses do.
sys.modules["openvino"] = None  # type: ignore[assignment]
# `--dtype auto` encodes in float32 on every CPU, but for `cpu_with_bfloat16` and in subprocesses.
encoding.TRIED_ON_CPU = Dtype.FLOAT32

settings.register_profile("house", deadline=None)  # a busy machine is no failure
settings.load_profile("house")

BESIDE_THE_CHECKOUT = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """`caplog` has denserk's messages; what a command line set up in this process ends here."""
    caplog.set_level(logging.INFO, logger="denserk")
    yield
    logger = logging.getLogger("denserk")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    set_display(None)


@pytest.fixture
def cpu_with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that multiplies bfloat16, as `--dtype auto` sees it; torch may emulate it."""
    monkeypatch.setattr(encoding, "TRIED_ON_CPU", Dtype.BFLOAT16)
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: True)


@pytest.fixture
def simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> "Iterator[SimulatedGpu]":
    """A GPU, `cuda` or `cuda:0`, that computes on the CPU, and counts who waits for it."""
    from tests.support.simulated_gpu import simulated_gpu

    with simulated_gpu(monkeypatch) as gpu:
        yield gpu


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO can be imported, and so is chosen on a CPU."""
    monkeypatch.delitem(sys.modules, "openvino")
    pytest.importorskip("openvino")


@pytest.fixture
def embeddings(monkeypatch: pytest.MonkeyPatch) -> "Iterator[EmbeddingsServer]":
    """A local server of embeddings; the waits between attempts are short."""
    from denserk.models import embeddings_client
    from tests.support.embeddings_server import embeddings_server

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(embeddings_client, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(embeddings_client, "LONGEST_WAIT", 0.01)
    with embeddings_server() as server:
        yield server


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real collections that may lie beside the checkout."""
    folder = BESIDE_THE_CHECKOUT / "data"
    if not folder.is_dir():
        pytest.skip(f"no real collections: {folder} is absent")
    return folder


@pytest.fixture(scope="session")
def specs() -> Path:
    """The folder of the papers' example vectors that may lie beside the checkout."""
    folder = BESIDE_THE_CHECKOUT / "specs"
    if not folder.is_dir():
        pytest.skip(f"no example vectors: {folder} is absent")
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
    from tests.support.tiny_models import write_tiny

    root = tmp_path_factory.mktemp("models")

    def model_folder(kind: str = "bert", *, head: bool = True, seed: int = 7) -> Path:
        folder = root / f"{kind}-{head}-{seed}"
        if not folder.exists():
            write_tiny(folder, kind, VOCABULARY, head=head, seed=seed)
        return folder

    return model_folder


@pytest.fixture(scope="session")
def tiny_reranker(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_reranker("bert")`: a folder with a sequence classifier of transformers, one label."""
    from tests.support.tiny_models import write_tiny_classifier

    root = tmp_path_factory.mktemp("rerankers")

    def model_folder(kind: str = "bert", *, labels: int = 1) -> Path:
        folder = root / f"{kind}-{labels}"
        if not folder.exists():
            write_tiny_classifier(folder, kind, VOCABULARY, labels=labels)
        return folder

    return model_folder


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`writer("t5")`, "mt5" or "gpt2": a folder with a tiny random model that writes text."""
    from tests.support.tiny_models import write_writer

    root = tmp_path_factory.mktemp("writers")

    def model_folder(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            write_writer(folder, kind, VOCABULARY)
        return folder

    return model_folder


@pytest.fixture(scope="session")
def tiny_agg(
    tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`tiny_agg("bert", agg_dim=20)`: a new Aggretriever folder of denserk's, its heads random."""
    from denserk.config.encoding import RepresentationSettings
    from denserk.config.options import from_json
    from tests.support.tiny_models import write_tiny_aggretriever

    def model_folder(kind: str = "bert", **sizes: Any) -> Path:
        settings = {"representation": "agg", "agg_dim": 20, "cls_dim": 6, **sizes}
        representation = from_json(RepresentationSettings, settings)
        folder = tmp_path_factory.mktemp("agg") / "model"
        return write_tiny_aggretriever(folder, tiny(kind), representation)

    return model_folder


@pytest.fixture(scope="session")
def bert_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`bert_vocabulary("bert")`: a tiny model with BERT's 30,522 entries, all Pyserini knows."""
    from tests.support.tiny_models import write_tiny

    missing_entries = 30_522 - len(set(VOCABULARY))
    vocabulary = [*VOCABULARY, *(f"filler{number}" for number in range(missing_entries))]
    root = tmp_path_factory.mktemp("bert-vocabulary")

    def model_folder(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            write_tiny(folder, kind, vocabulary)
        return folder

    return model_folder
