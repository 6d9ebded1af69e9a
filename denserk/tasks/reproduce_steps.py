"""The steps of `denserk reproduce`: each is made again from what its manifest records.

A step reads what was made again in place of what its manifest names, or what was there before.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from denserk.config import encoding, finetuning, pretraining, recorded, retrieval
from denserk.config.formats import CorpusSettings
from denserk.config.options import from_json, select
from denserk.config.yaml_files import read_yaml
from denserk.io import manifest as manifests
from denserk.io.claims import claimed_files
from denserk.io.manifest import Kind, Manifest, beside, file_sha256, read_manifest

NewPaths = Mapping[str, str]  # path in a manifest -> path to read
ENCODE_SETTINGS = ("vector_dtype", "shard_id", "shard_num", "block_size")  # recorded by encode


def train_again(model: str, command: str, start: str | None, output: str, resume: bool) -> None:
    """Train a model by the options in its folder, from `start` if it had a model to start from.

    The tokenised text, which `pretrain` may have written beside the model, is not written again.
    """
    from denserk.training.run_folder import log_result

    options = resolved_options(Path(model) / "config.yaml")
    options.pop("tokenize_to", None)
    options["output"] = output
    options["resume"] = resume
    if start is not None:
        options["model"] = start
    with claimed_files(options, file_options=()):
        if command == "finetune":
            from denserk.tasks.finetune import finetune

            run = finetuning.run_of_options(options)
            log_result(finetune(run), output, run.validation.best_by)
        else:
            from denserk.tasks.pretrain import pretrain

            log_result(pretrain(pretraining.run_of_options(options)), output)


def resolved_options(config: Path) -> dict[str, Any]:
    """Return the options of a training by field name, from the config.yaml in its folder."""
    values = dict(read_yaml(config))
    options = recorded.Names(config, values).located(values)
    options.pop(recorded.MARK, None)
    return {name.replace("-", "_"): value for name, value in options.items()}


def encode_again(manifest: Manifest, model: str, output: str, resume: bool) -> None:
    """Encode the texts of a manifest again, by a model."""
    from denserk.tasks.encode import encode

    made_from = manifest.made_from
    settings = manifest.settings
    source = "corpus" if settings["side"] == "passage" else "topics"
    values = {name: settings[name] for name in ENCODE_SETTINGS}
    values |= {
        "model": model,
        "output": output,
        "qrels": settings.get("qrels"),
        "topics_field": settings.get("topics_field"),
        "resume": resume,
        source: made_from["texts"],
    }
    encode_settings = from_json(encoding.EncodeSettings, values)
    representation, text = overrides_of(made_from)
    text = with_given_fields(text, made_from.get("fields"))
    options = encoding.ModelOptions(representation, text, compute_of(made_from, settings))
    encode(encode_settings, corpus_of(settings), options)


def build_again(manifest: Manifest, vectors: Sequence[str], output: str, resume: bool) -> None:
    """Build the index of a manifest again, of vectors or of its texts."""
    from denserk.tasks.build_index import build_index

    settings = manifest.settings
    paths = retrieval.IndexPaths(
        input=tuple(vectors),
        corpus=manifest.made_from.get("texts"),
        output=output,
        resume=resume,
    )
    index_settings = from_json(retrieval.IndexSettings, select(settings, retrieval.IndexSettings))
    bm25 = from_json(retrieval.Bm25Settings, settings.get("bm25", {}))
    build_index(paths, index_settings, bm25, corpus_of(settings.get("corpus", {})))


def run_again(
    manifest: Manifest, model: str, new_paths: NewPaths, output: str, resume: bool
) -> None:
    """Fuse, rerank or search again, unless that was finished before an interruption."""
    if resume and is_whole_run(output):
        return
    if "runs" in manifest.made_from:
        _fuse_again(manifest, new_paths, output)
    elif manifests.runs_of(manifest.made_from):
        _rerank_again(manifest, model, new_paths, output)
    else:
        _search_again(manifest, model, new_paths, output)


def is_whole_run(path: str) -> bool:
    """Return whether a run was finished before an interruption."""
    if not beside(path).is_file():
        return False
    return read_manifest(path, Kind.RUN).contents.get("sha256") == file_sha256(path)


def _fuse_again(manifest: Manifest, new_paths: NewPaths, output: str) -> None:
    """Fuse the runs of a manifest, with the weights that were chosen."""
    from denserk.tasks.fuse import fuse

    settings = manifest.settings
    runs = [new_paths[run["name"]] for run in manifest.made_from["runs"]]
    fusion = from_json(retrieval.FusionSettings, {**settings["fusion"], "tune": None})
    ranking = select(settings, retrieval.RankingSettings)
    fuse(runs, output, fusion, from_json(retrieval.RankingSettings, ranking))


def _rerank_again(manifest: Manifest, model: str, new_paths: NewPaths, output: str) -> None:
    """Rerank the run of a manifest."""
    from denserk.tasks.rerank import rerank

    made_from = manifest.made_from
    corpus = made_from["corpus"]
    paths = retrieval.RerankPaths(
        model=model,
        run=new_paths[made_from["run"]["name"]],
        topics=made_from["topics"]["name"],
        topics_field=fields_of_topics(made_from["topics"]),
        corpus=corpus["name"],
        output=output,
    )
    settings = from_json(retrieval.RerankSettings, manifest.settings)
    text = vars(from_json(encoding.TextSettings, made_from["model"]["text"]))
    text = with_given_fields(text, corpus.get("fields"))
    rerank(paths, settings, text, compute_of(made_from, {}), corpus_of(corpus))


def _search_again(manifest: Manifest, model: str, new_paths: NewPaths, output: str) -> None:
    """Search the indexes of a manifest."""
    from denserk.tasks.search import search

    made_from = manifest.made_from
    encoded_queries = made_from.get("encoded_queries")
    topics = made_from.get("topics")
    paths = retrieval.SearchPaths(
        index=tuple(new_paths[index["name"]] for index in manifests.indexes_of(made_from)),
        topics=None if topics is None else topics.get("name"),
        topics_field=None if topics is None else fields_of_topics(topics),
        qrels=made_from.get("qrels"),
        exclude=made_from.get("excluded", {}).get("name"),
        encoded_queries=new_paths[encoded_queries] if encoded_queries else None,
        model=None if encoded_queries else model or None,
        output=output,
    )
    settings = from_json(retrieval.SearchSettings, manifest.settings)
    representation: Mapping[str, Any] = {}
    text: Mapping[str, Any] = {}
    if not encoded_queries:  # vectors of queries were encoded before, by settings that are theirs
        representation, text = overrides_of(made_from)
    compute = compute_of(made_from, {})
    search(paths, settings, representation, text, compute)


def fields_of_topics(topics: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the fields that made the texts of queries, if they were named."""
    return tuple(topics.get("fields", ())) or None


def corpus_of(values: Mapping[str, Any]) -> CorpusSettings:
    """Return how a corpus was read."""
    return from_json(CorpusSettings, select(values, CorpusSettings))


def compute_of(
    made_from: Mapping[str, Any], settings: Mapping[str, Any]
) -> encoding.ComputeSettings:
    """Return precision, backend and batches of a step."""
    model = made_from.get("model") or {}
    values = {}
    for name in ("dtype", "head_dtype", "backend"):
        if model.get(name):
            values[name] = model[name]
    for name in ("batch_size", "batch_tokens", "threads"):
        if name in settings:
            values[name] = settings[name]
    return from_json(encoding.ComputeSettings, values)


def overrides_of(made_from: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of representation and text that a model was used with."""
    model = made_from.get("model")
    if model is None:
        return {}, {}
    representation = from_json(encoding.RepresentationSettings, model["representation"])
    text = from_json(encoding.TextSettings, model["text"])
    return dict(vars(representation)), dict(vars(text))


def with_given_fields(
    text: Mapping[str, Any], given_fields: Sequence[str] | None
) -> dict[str, Any]:
    """Return settings of texts with `fields` only if they were given by option.

    Given fields split Anserini's `contents`; the fields of a model do not.
    """
    others = {name: value for name, value in text.items() if name != "fields"}
    if given_fields is None:
        return others
    return {**others, "fields": tuple(given_fields)}
