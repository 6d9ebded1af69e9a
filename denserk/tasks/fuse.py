"""`denserk fuse`: several runs become one."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denserk.config.options import as_json
from denserk.config.retrieval import FusionSettings, RankingSettings
from denserk.errors import UsageError
from denserk.index.fused_runs import FusedRuns
from denserk.index.fusion import Weights
from denserk.io.files import STREAM
from denserk.io.ir_metadata import describe_run
from denserk.io.manifest import file_sha256
from denserk.io.outputs import scratch_folder
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import RunLookup, write_run
from denserk.io.scratch_records import ScratchRecords
from denserk.io.versions import reading


@dataclass
class FusionResult:
    """Number of queries and of lines of the fused run, and how runs are fused alike again."""

    queries: int
    hits: int
    weights: Weights
    options: str


def fuse(
    paths: Sequence[str],
    output: str,
    fusion: FusionSettings = FusionSettings(),  # noqa: B008  (frozen)
    settings: RankingSettings = RankingSettings(),  # noqa: B008
) -> FusionResult:
    """Fuse runs into one; queries keep the order of the first run, then of the others.

    With `tune`, the weights are chosen first, and an `output` of "" is not written.
    """
    if len(paths) < 2:
        raise UsageError("two runs or more are needed", "for example denserk fuse a.trec b.trec")
    if paths.count(STREAM) > 1:
        raise UsageError("standard input (-) can be only one of the runs")
    fusion.weights_of(len(paths))  # before anything is read
    run_format = settings.format_of_run(output)
    with scratch_folder("fuse") as scratch, closing(ScratchRecords(scratch / "hits")) as hits:
        with reading(paths):
            runs = [RunLookup(path, hits) for path in paths]
            fused = FusedRuns(runs, fusion, settings)
            digests = [file_sha256(path) if Path(path).is_file() else None for path in paths]
        if fusion.tune is not None:
            from denserk.index.fusion_weights import best_weights, tuning_measure

            measure = tuning_measure(fusion)
            fused.weights = best_weights(fused, measure, read_qrels_map(fusion.tune))
        result = FusionResult(len(fused.queries), 0, fused.weights, fused.options)
        if not output:
            return result
        result.hits = write_run(output, fused.ranked_hits(), run_format, settings.tag)
        fused.ranking.report()
        _describe(output, fused, digests, settings, result)
    return result


def _describe(
    output: str,
    fused: FusedRuns,
    digests: Sequence[str | None],
    settings: RankingSettings,
    result: FusionResult,
) -> None:
    """Write the manifest of a fused run."""
    sources: list[dict[str, Any]] = []
    for run, digest in zip(fused.runs, digests, strict=True):
        sources.append({"name": str(run.path), "sha256": digest, "queries": len(run.queries)})
    fusion = fused.fusion
    recorded_fusion = as_json(fusion) | {"method": fusion.chosen.value}
    if fusion.tune:
        recorded_fusion["weights"] = fused.weights
    counts = {"queries": result.queries, "hits": result.hits}
    describe_run(output, settings, {"runs": sources}, counts, fusion=recorded_fusion)
