"""ir_metadata of a run: platform, implementation, method and data, by PRIMAD, in YAML.

The schema is version 0.1 of ir-metadata.org. It is derived from the run's manifest and those that
it names; what they do not hold (actor, research goal, qrels) is empty or left out.
"""

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from denserk import __version__
from denserk.config.options import as_json
from denserk.config.retrieval import IrMetadata, RankingSettings
from denserk.errors import DenserkError
from denserk.io.files import open_binary, read_file, whole_binary, write_errors
from denserk.io.manifest import (
    Kind,
    Manifest,
    beside,
    corpora_of,
    decoded,
    file_sha256,
    forget_manifest,
    has_manifest,
    indexes_of,
    read_manifest,
    runs_of,
    training_files,
    write_manifest,
)

SUFFIX = ".ir_metadata.yaml"
START, END = "ir_metadata.start", "ir_metadata.end"
LIBRARIES = ("torch", "transformers", "faiss-cpu", "faiss-gpu", "bm25s", "openvino", "numpy")
GIB = 1 << 30


def describe_run(
    output: str,
    settings: RankingSettings,
    made_from: Mapping[str, Any],
    contents: Mapping[str, Any],
    **more: Any,
) -> None:
    """Write manifest and ir_metadata of a finished run, unless it is a stream."""
    if not has_manifest(output):
        return
    manifest = Manifest(Kind.RUN, True, {**as_json(settings), **more}, made_from, contents)
    if settings.ir_metadata is not IrMetadata.NONE:
        import yaml

        text = yaml.safe_dump(ir_metadata(output, manifest), sort_keys=False)
        lines = [START, *text.splitlines(), END]
        if settings.ir_metadata is IrMetadata.COMMENTS:
            with whole_binary(output) as out, open_binary(output) as run:
                out.write("".join(f"# {line}\n" for line in lines).encode())
                shutil.copyfileobj(run, out)
        else:
            with whole_binary(f"{output}{SUFFIX}") as out:
                out.write("".join(f"{line}\n" for line in lines).encode())
    write_manifest(output, replace(manifest, contents={**contents, "sha256": file_sha256(output)}))


def forget_run(output: str) -> None:
    """Remove the manifest and the ir_metadata of a run that is about to be replaced."""
    forget_manifest(output)
    if has_manifest(output):
        with write_errors(output):
            Path(f"{output}{SUFFIX}").unlink(missing_ok=True)


def ir_metadata(output: str, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a run."""
    stages = [*_stages(Path(output).name, manifest)]
    indexing, topics, corpus = (
        next(filter(None, [stage.pop(name, None) for stage in stages]), None)
        for name in ("indexing", "topics", "corpus")
    )
    trained = {
        source["name"]: {"name": Path(source["name"]).name, "source": source["name"]}
        for stage in stages
        for source in _training_data(stage.get("model"))
    }
    return {
        "schema-version": 0.1,
        "run-version": 1.0,
        "tag": manifest.settings.get("tag", ""),
        "platform": _platform(),
        "research goal": {},  # readers expect all six components
        "implementation": {
            "executable": {"cmd": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])},
            "source": {"lang": ["python"]},
        },
        "method": {
            "automatic": True,
            "score ties": "passage ids descending, then strictly decreasing scores"
            if manifest.settings.get("ties") == "break"
            else "kept",
            **({"indexing": indexing} if indexing else {}),
            "retrieval": [{k: v for k, v in s.items() if v is not None} for s in stages],
        },
        "actor": {},
        "data": {
            "test collection": {
                **({"source": corpus} if corpus else {}),
                **({"topics": topics} if topics else {}),
            },
            **({"training data": [*trained.values()]} if trained else {}),
        },
    }


def _stages(name: str, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the stages of retrieval that made a run, the first one first."""
    made, model = manifest.made_from, manifest.made_from.get("model") or {}
    earlier = runs_of(made)
    for run in earlier:
        try:
            before = read_manifest(run["name"], Kind.RUN)
        except DenserkError:  # another toolkit's, or gone
            yield {"name": Path(run["name"]).name, "method": "unknown"}
        else:
            yield from _stages(Path(run["name"]).name, before)
    names = [Path(run["name"]).name for run in earlier]
    if "runs" in made:
        fusion = manifest.settings["fusion"]
        yield {
            "name": name,
            "method": f"{fusion['method']} fusion",
            "interpolates": names,
            "weight": fusion["weights"],
        }
    elif earlier:
        yield {"name": name, "method": "cross-encoder", "model": model["name"], "reranks": names[0]}
    else:
        topics = (made.get("topics") or {}).get("name")
        yield {"name": name, "topics": topics, **_retriever(made, model)}


def _retriever(made: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stage of a search."""
    settings: Mapping[str, Any] = {}
    corpus = None
    for each in indexes_of(made)[:1]:
        where = beside(each["name"])
        try:
            index = decoded(read_file(where), where)
            corpus = next((name for name, _ in corpora_of(index)), None)
        except DenserkError:  # gone, or of another version
            continue
        settings = index.settings
    if bm25 := settings.get("bm25"):
        analysis = {name: bm25[name] for name in ("stemmer", "stopwords")}
        analysis = {"tokenizer": settings["engine"], **analysis}
        scoring = {"k1": bm25["k1"], "b": bm25["b"], "corpus": corpus, "indexing": analysis}
        return {"method": "BM25", **scoring}
    return {
        "method": f"dense: {(model.get('representation') or {}).get('representation', 'vectors')}",
        "model": model.get("name"),
        "fingerprint": model.get("fingerprint"),
        "index": settings.get("type", "flat"),
        "corpus": corpus,
    }


def _training_data(model: str | None) -> Iterator[Mapping[str, str]]:
    """Yield the training files of a model that denserk trained."""
    path = Path(model or "") / "training.json"
    if model and path.is_file():
        yield from training_files(orjson.loads(read_file(path)))


def _platform() -> dict[str, Any]:
    """Return hardware, operating system and software of this machine."""
    cores = len(os.sched_getaffinity(0))
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    libraries = []
    for name in LIBRARIES:
        try:
            libraries.append(f"{name}=={version(name)}")
        except ModuleNotFoundError:
            continue
    return {
        "hardware": {
            "cpu": {"architecture": platform.machine(), "number of cores": cores},
            "ram": f"{ram:.0f} GB",
        },
        "operating system": {"kernel": platform.release()},
        "software": {
            "libraries": {"python": libraries},
            "retrieval toolkit": [f"denserk=={__version__}"],
        },
    }
