"""The steps of `denserk reproduce`: each is made again from what its manifest records."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denserk.config import encoding, pretraining, recorded, retrieval, training
from denserk.config.formats import CorpusSettings
from denserk.config.options import from_json, select
from denserk.config.yaml_files import read_yaml
from denserk.io import manifest as manifests
from denserk.io.manifest import Kind, Manifest, beside, file_sha256, read_manifest
from denserk.io.outputs import claim


def is_whole_run(path: str) -> bool:
    """Return whether a run was finished before an interruption."""
    if not beside(path).is_file():
        return False
    return read_manifest(path, Kind.RUN).contents.get("sha256") == file_sha256(path)


def resolved_options(config: Path) -> dict[str, Any]:
    """Return the options of a training by field name, from the config.yaml in its folder."""
    values = dict(read_yaml(config))
    options = recorded.Names(config, values).located(values)
    options.pop(recorded.MARK, None)
    return {key.replace("-", "_"): value for key, value in options.items()}


def train_again(command: str, options: Mapping[str, Any]) -> None:
    """Train a model by the options of `denserk finetune` or `denserk pretrain`."""
    from denserk.tasks.finetune import finetune
    from denserk.tasks.pretrain import pretrain

    with claim([options["output"]], resume=options["resume"]):
        if command == "finetune":
            finetune(training.run_of_options(options))
        else:
            pretrain(pretraining.run_of_options(options))


def fuse(
    manifest: Manifest, model: str, places: Mapping[str, str], output: str, resume: bool
) -> None:
    """Fuse the runs of a manifest again."""
    if resume and is_whole_run(output):
        return
    from denserk.tasks.fuse import fuse as task

    settings = manifest.settings
    runs = [places[each["name"]] for each in manifest.made_from["runs"]]
    fusion = from_json(retrieval.FusionSettings, {**settings["fusion"], "tune": None})
    ranking = select(settings, retrieval.RankingSettings)
    task(runs, output, fusion, from_json(retrieval.RankingSettings, ranking))


def rerank(
    manifest: Manifest, model: str, places: Mapping[str, str], output: str, resume: bool
) -> None:
    """Rerank the run of a manifest again."""
    if resume and is_whole_run(output):
        return
    from denserk.tasks.rerank import rerank as task

    made = manifest.made_from
    corpus, run = made["corpus"], places[made["run"]["name"]]
    sources = {"topics": made["topics"]["name"], "corpus": corpus["name"]}
    paths = retrieval.RerankPaths(model=model, run=run, output=output, **sources)
    settings = from_json(retrieval.RerankSettings, manifest.settings)
    text = from_json(encoding.TextSettings, made["model"]["text"])
    task(paths, settings, vars(text), compute_of(made, {}), corpus_of(corpus))


def search(
    manifest: Manifest, model: str, places: Mapping[str, str], output: str, resume: bool
) -> None:
    """Search the indexes of a manifest again."""
    if resume and is_whole_run(output):
        return
    from denserk.tasks.search import search as task

    made = manifest.made_from
    encoded = made.get("encoded_queries")
    asked: dict[str, Any] = {"topics": (made.get("topics") or {}).get("name")}
    asked |= {"encoded_queries": places[encoded]} if encoded else {"model": model or None}
    indexes = tuple(places[each["name"]] for each in manifests.indexes_of(made))
    paths = retrieval.SearchPaths(index=indexes, qrels=made.get("qrels"), output=output, **asked)
    settings = from_json(retrieval.SearchSettings, manifest.settings)
    task(paths, settings, *overrides(made), compute_of(made, {}), own_precision=True)


def corpus_of(values: Mapping[str, Any]) -> CorpusSettings:
    """Return how a corpus was read."""
    return from_json(CorpusSettings, select(values, CorpusSettings))


def compute_of(made: Mapping[str, Any], settings: Mapping[str, Any]) -> encoding.ComputeSettings:
    """Return precision, backend and batches of a step."""
    model = made.get("model") or {}
    asked = {name: model[name] for name in ("dtype", "head_dtype", "backend") if model.get(name)}
    asked |= {k: settings[k] for k in ("batch_size", "batch_tokens", "threads") if k in settings}
    return from_json(encoding.ComputeSettings, asked)


def overrides(made: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of representation and text that a model was used with."""
    model = made.get("model")
    if model is None:
        return {}, {}
    settings = from_json(encoding.RepresentationSettings, model["representation"])
    return dict(vars(settings)), dict(vars(from_json(encoding.TextSettings, model["text"])))
