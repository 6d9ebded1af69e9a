"""`denserk encode`, `index`, `search`, `rerank` and `fuse`."""

import logging
import os
from typing import Annotated, Any

import typer

from denserk.commands.options import command
from denserk.config import encoding, retrieval
from denserk.config.formats import CorpusSettings, RunFormat
from denserk.config.options import Given, reject_given
from denserk.errors import UsageError
from denserk.reporting import per_second, print_table

logger = logging.getLogger(__name__)

PRINTED_HITS = 10  # of a query, by default
APPROXIMATE = "nlist M efC pq_m pq_nbits train_size"  # settings of approximate indexes


@command(
    "encode",
    common="model corpus topics output output_format resume update overwrite shard_id shard_num "
    "representation l2_norm passage_max_length query_max_length device dtype int8 base_url",
)
def encode(
    settings: encoding.EncodeSettings,
    corpus: CorpusSettings,
    options: encoding.ModelOptions,
    server: encoding.ServerSettings,
) -> Any:
    """Encode passages or queries into vectors.

    denserk encode --model minilm --corpus corpus.jsonl --output vectors/
    denserk encode --model minilm --topics queries.tsv --output encoded-queries/
    """
    if settings.topics is not None:
        reject_given(corpus, why="only for --corpus")
    if not encoding.is_served(settings.model):
        from denserk.models.sentence_transformers_folder import look_for_encoder

        look_for_encoder(settings.model)  # before torch is imported and the corpus is read
    from denserk.tasks.encode import encode as task

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the number of threads is --workers
    result = task(settings, corpus, options, server)
    copied = f"{result.copied:,} copied from {settings.update}, " if settings.update else ""
    rate = per_second(result.encoded / (result.seconds or 1))
    logger.info(
        f"{settings.output}: {result.count:,} vectors of {result.dimension} dimensions; "
        f"{copied}{result.encoded:,} encoded in this run, {rate} per second"
    )
    if result.positions:
        speed = result.tokens / result.seconds
        padding = 1 - result.tokens / result.positions
        logger.info(f"{speed:,.0f} tokens per second, {padding:.1%} padding")
    return result


@command(
    "index",
    common="input corpus output type factory engine metric nlist threads device k1 b language "
    "resume overwrite",
)
def index(
    paths: retrieval.IndexPaths,
    settings: retrieval.IndexSettings,
    bm25: retrieval.Bm25Settings,
    corpus: CorpusSettings,
    milvus: retrieval.MilvusIndexSettings,
) -> Any:
    """Build an index from vectors, or from the text of a corpus.

    denserk index --input vectors/ --output index/
    denserk index --type bm25 --corpus corpus.jsonl --output bm25/
    """
    if settings.type is not retrieval.IndexType.BM25:
        reject_given(bm25, corpus, why="only for BM25", hint="add --type bm25")
    if settings.engine is retrieval.Engine.MILVUS:
        from denserk.tasks.build_collection import build_collection

        result = build_collection(paths, settings, milvus)
        summary = f"{milvus.place}: {result.count:,} passages"
    else:
        reject_given(milvus, why="only for Milvus", hint="add --engine milvus")
        from denserk.tasks.build_index import build_index

        _reject_options_of_other_types(paths, settings)
        show_types = print_table if logger.isEnabledFor(logging.INFO) else None
        result = build_index(paths, settings, bm25, corpus, show_types)
        size = f"{result.bytes / result.count:,.0f} bytes each"
        summary = f"{paths.output}: {result.count:,} passages, {size}"
    recall = "" if result.recall is None else f", recall {result.recall:.3f}"
    logger.info(f"{summary}{recall}, in {result.seconds:,.1f} s")
    return result


def _reject_options_of_other_types(
    paths: retrieval.IndexPaths, settings: retrieval.IndexSettings
) -> None:
    """Raise a UsageError for options of approximate indexes where the type has no use for them.

    Indexes that are merged, and a trained index that is filled, have another type than --type.
    """
    if settings.type is retrieval.IndexType.BM25:
        reject_given(settings, among=f"metric {APPROXIMATE}", why="not used by --type bm25")
        return
    from denserk.index.inputs import expanded
    from denserk.tasks.build_index import is_approximate

    has_other_type = paths.trained_as is not None or any(
        is_approximate(name) for name in expanded(paths.input)
    )
    if settings.is_flat and not has_other_type:
        reject_given(
            settings,
            among=APPROXIMATE,
            why="not used by --type flat",
            hint="add the --type of an approximate index, such as ivf",
        )


@command(
    "search",
    common="index topics query interactive corpus model encoded_queries output hits prf ef_search "
    "nprobe output_format overwrite device dtype threads quiet",
)
def search(
    paths: retrieval.SearchPaths,
    settings: Annotated[Given, retrieval.SearchSettings],
    representation: Annotated[Given, encoding.RepresentationSettings],
    text: Annotated[Given, encoding.TextSettings],
    compute: encoding.ComputeSettings,
    milvus: retrieval.CollectionSettings,
    server: encoding.ServerSettings,
) -> Any:
    """Search an index and write a run, or print hits with their passages.

    denserk search --index index/ --topics queries.tsv --output run.trec
    denserk search --index index/ --query 'when does the moon rise'
    """
    if paths.engine is None:
        reject_given(milvus, why="only for Milvus", hint="add --engine milvus")
    if not paths.output:
        search_settings = retrieval.SearchSettings(**{"hits": PRINTED_HITS, **settings})
        reject_given(search_settings, among="tag", why="only for --output")
        if search_settings.output_format not in (None, RunFormat.JSONL):
            reject_given(
                search_settings,
                among="output_format",
                why="only for --output",
                hint="--output-format jsonl prints hits as JSON",
            )
        from denserk.commands.lookup import print_hits
        from denserk.tasks.search import open_search

        with open_search(
            paths, search_settings, representation, text, compute, milvus, server
        ) as session:
            print_hits(paths, session)
        return None
    from denserk.tasks.search import search as task

    search_settings = retrieval.SearchSettings(**settings)
    result = task(paths, search_settings, representation, text, compute, milvus, server)
    speed = f"{result.queries / result.searching_seconds:,.1f} queries per second"
    logger.info(f"{paths.output}: {result.queries:,} queries, {result.hits:,} hits, {speed}")
    return result


@command(
    "rerank",
    common="model run topics corpus output depth hits pair_max_length query_max_length "
    "passage_max_length fields output_format overwrite device dtype batch_tokens quiet",
)
def rerank(
    paths: retrieval.RerankPaths,
    settings: retrieval.RerankSettings,
    text: Annotated[Given, encoding.TextSettings],
    corpus: CorpusSettings,
    compute: encoding.ComputeSettings,
) -> Any:
    """Rerank the hits of a run with a cross-encoder.

    denserk rerank --model M --run in.trec --topics q.tsv --corpus c.jsonl --output out.trec
    denserk rerank --model M --run - --depth 100 --topics q.tsv --corpus c.jsonl --output -
    """
    from denserk.io.model_files import look_for_model

    look_for_model(paths.model)  # before torch is imported
    from denserk.tasks.rerank import rerank as task

    result = task(paths, settings, text, compute, corpus)
    speed = f"{result.pairs / result.scoring_seconds:,.1f} pairs per second"
    logger.info(f"{paths.output}: {result.queries:,} queries, {result.pairs:,} pairs, {speed}")
    return result


@command(
    "fuse",
    common="output method weights alpha tune measure rrf_k normalization missing depth hits tag "
    "output_format overwrite quiet",
)
def fuse(
    paths: retrieval.FusionPaths,
    fusion: retrieval.FusionSettings,
    settings: retrieval.RankingSettings,
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Two or more runs; - for standard input.")
    ],
) -> Any:
    """Fuse several runs into one.

    denserk fuse bm25-train.trec dense-train.trec --tune train-qrels.txt
    denserk fuse bm25.trec dense.trec --method linear --weights 0.3,0.7 --output fused.trec
    """
    from denserk.tasks.fuse import fuse as task

    if not (paths.output or fusion.tune):
        raise UsageError("give --output, or --tune")
    result = task(runs, paths.output, fusion, settings)
    if not paths.output:
        print(result.options)  # noqa: T201
        return result
    tuned = f"; {result.options}" if fusion.tune else ""
    counts = f"{len(runs)} runs, {result.queries:,} queries, {result.hits:,} hits"
    logger.info(f"{paths.output}: {counts}{tuned}")
    return result
