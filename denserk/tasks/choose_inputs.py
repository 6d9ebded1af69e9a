"""What `denserk choose` compares by: candidates from their expressions, and judged queries."""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from denserk.config.candidate_expressions import (
    EXAMPLES,
    Candidate,
    Cut,
    Expression,
    Name,
    Rerank,
    Sum,
    parse_candidate,
)
from denserk.config.choosing import ChooseSettings
from denserk.config.encoding import PUBLISHED, ServerSettings, is_served, reject_server
from denserk.config.formats import CorpusSettings
from denserk.config.formats import Kind as FileKind
from denserk.config.options import reject_given
from denserk.config.retrieval import Bm25Settings
from denserk.config.values import near_names
from denserk.errors import MismatchError, UsageError
from denserk.evaluation.evaluator import HIDDEN_ENDINGS
from denserk.evaluation.measures import Measure, is_mean, needs_subtopics, parse_measures
from denserk.evaluation.results import Grades
from denserk.index.folder import is_vector_folder, read_index_manifest
from denserk.io.blocks import texts_sha256
from denserk.io.corpus import read_passages, with_used_fields
from denserk.io.detection import detect_run_or_qrels
from denserk.io.manifest import Kind, beside, file_sha256, read_any_manifest, read_manifest
from denserk.io.model_files import can_be_on_hub, find_model, look_for_model
from denserk.io.near_paths import LIKENESS, did_you_mean, no_such_path
from denserk.io.qrels import read_qrels_map
from denserk.io.short_texts import first_names, with_single_spaces
from denserk.io.topics import read_queries
from denserk.records import Query
from denserk.tasks.choose_candidates import (
    Bm25,
    CorpusTexts,
    CutRetriever,
    Encoder,
    FinetunedEncoder,
    FittedHybrid,
    Hybrid,
    IndexFolder,
    RerankedRetriever,
    Retriever,
    RunFile,
    SharedInputs,
    encoding_model_of,
)

logger = logging.getLogger(__name__)

FINETUNE = "finetune:"
BM25 = "bm25"
NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")
LONGEST_FILE_NAME = 100  # without endings, and without the number of a name that is taken


@dataclass(frozen=True)
class System:
    """A candidate: what results call it, and its retriever."""

    name: str
    expression: str
    retriever: Retriever


def deciding_measure(text: str) -> Measure:
    """Return the measure that decides: one, a mean over queries, of whole queries."""
    measures = parse_measures([text]).measures
    hint = "for example --measure nDCG@10"
    if len(measures) > 1:
        raise UsageError(f"--measure {text}: one measure decides", hint)
    [measure] = measures
    if not is_mean(measure):
        message = f"--measure {text}: its values are not between 0 and 1, as the comparison needs"
        raise UsageError(message, hint)
    if needs_subtopics(measure):
        raise UsageError(f"--measure {text}: a measure of sub-topics does not decide", hint)
    return measure


def parse_candidates(settings: ChooseSettings) -> list[Candidate]:
    """Parse the candidates; raise a UsageError for one alone, and for a name given twice."""
    candidates = [_parse(text) for text in settings.expressions]
    near_retrievers: list[str] = []
    for name in _names_of_candidates(candidates):
        _reject_misspelled(name)
        near_retrievers += _near_retrievers(name)
    if len(candidates) < 2:
        message = f"one candidate, {candidates[0].label}: there is nothing to choose from"
        hint = "give --candidates twice or more"
        raise UsageError(message, did_you_mean(near_retrievers, hint))
    labels = [candidate.label for candidate in candidates]
    for candidate in candidates:
        if labels.count(candidate.label) > 1:
            message = f"two candidates are called {candidate.label}"
            hint = f"give one another name: --candidates 'another={candidate.expression}'"
            raise UsageError(message, hint)
    for candidate in candidates:
        check_names(candidate.expression, settings)
    return candidates


def _parse(text: str) -> Candidate:
    """Parse a candidate; a run file without a label is called by its name without endings."""
    candidate = parse_candidate(text, os.path.exists)
    expression = candidate.expression
    is_unlabelled = candidate.label == str(expression)
    if is_unlabelled and isinstance(expression, Name) and Path(expression.name).is_file():
        label = HIDDEN_ENDINGS.sub("", Path(expression.name).name)
        return Candidate(label, expression)
    return candidate


def _reject_misspelled(name: str) -> None:
    """Raise a UsageError for a list between commas, and for a name like bm25, which no model has.

    The names of models that are like others are looked up first.
    """
    if is_served(name) or Path(name).exists():
        return
    if "," in name:
        options = " ".join(f"--candidates {part}" for part in name.split(",") if part)
        message = f"--candidates {name}: one retriever is expected, not a list between commas"
        raise UsageError(message, f"repeat the option: {options}")
    near_retrievers = _near_retrievers(name)
    if BM25 in near_retrievers:
        message = f"--candidates {name}: no such retriever"
        raise UsageError(message, did_you_mean(near_retrievers, EXAMPLES))


def _near_retrievers(name: str) -> list[str]:
    """Return bm25 and the short names of models that are like a name, but for that name."""
    if name in (BM25, *PUBLISHED) or "/" in name or Path(name).exists():
        return []
    return near_names(name.lower(), [BM25, *PUBLISHED], LIKENESS)


def check_names(expression: Expression, settings: ChooseSettings) -> None:
    """Raise an error for a name in an expression that stands for nothing, before any work."""
    match expression:
        case Name(name):
            _check_name(name, settings)
        case Cut(retriever, _):
            check_names(retriever, settings)
        case Sum(retrievers, _):
            for retriever in retrievers:
                check_names(retriever, settings)
        case Rerank(retriever, model):
            check_names(retriever, settings)
            _check_reranker(model)


def _check_name(name: str, settings: ChooseSettings) -> None:
    """Raise an error unless a name is bm25, a run, an index or a model that is there."""
    if name == BM25:
        return
    if name.startswith(FINETUNE):
        if settings.train_qrels is None:
            raise UsageError(
                f"--candidates {name} needs training queries",
                "give --train-qrels, with queries that --qrels does not judge",
            )
        look_for_model(name.removeprefix(FINETUNE))
    elif Path(name).is_file():
        if detect_run_or_qrels(name) is not FileKind.RUN:
            raise UsageError(f"--candidates {name}: this file is no run", EXAMPLES)
    elif not is_index(name):
        _check_model(name)


def _check_model(name: str) -> None:
    """Raise an error unless a name is a model folder, or a model on the hub that can be read."""
    if is_served(name):  # its server is asked when it encodes
        return
    if not Path(name).exists() and not can_be_on_hub(name):
        raise no_such_path(name, f"--candidates {name}: no such file or folder", EXAMPLES)
    find_model(name, "--candidates")
    look_for_model(name)


def _check_reranker(model: str) -> None:
    """Raise an error unless a model is a cross-encoder that is there."""
    from denserk.models.cross_encoder import is_reranker

    if not is_reranker(look_for_model(model)):
        message = f"--candidates ...>>{model}: this model is no cross-encoder"
        hint = (
            "train one (denserk finetune --representation cross-encoder), or name a published one"
        )
        raise UsageError(message, hint)


def check_server(
    candidates: Sequence[Candidate], server: ServerSettings, settings: ChooseSettings
) -> None:
    """Raise a UsageError for a server that no candidate has, and for one that is missing.

    A comparison that is resumed, and an index, have the URL on record.
    """
    names = _names_of_candidates(candidates)
    served_models = [name for name in names if is_served(name)]
    if served_models:
        if server.base_url is None and not settings.resume:
            raise UsageError(
                f"--candidates {served_models[0]} needs the URL of its server",
                "add --base-url, for example http://localhost:8000/v1",
            )
    elif not any(_is_served_index(name) for name in names):
        reject_server(server, names[0], "--candidates")


def _is_served_index(name: str) -> bool:
    """Return whether a name is that of an index whose model is behind a URL."""
    return is_index(name) and is_served(encoding_model_of(name))


def check_bm25(candidates: Sequence[Candidate], bm25: Bm25Settings) -> None:
    """Raise a UsageError for options of BM25 where no candidate builds such an index."""
    if BM25 not in _names_of_candidates(candidates):
        reject_given(bm25, why="no candidate is bm25", hint="add --candidates bm25")


def warn_of_unused_training(candidates: Sequence[Candidate], settings: ChooseSettings) -> None:
    """Warn of training queries where no candidate is fine-tuned on them."""
    names = _names_of_candidates(candidates)
    is_any_finetuned = any(name.startswith(FINETUNE) for name in names)
    if settings.train_qrels is not None and not is_any_finetuned:
        logger.warning(
            f"--train-qrels {settings.train_qrels} trains nothing: no candidate is fine-tuned, "
            f"such as {FINETUNE}minilm"
        )


def _names_of_candidates(candidates: Sequence[Candidate]) -> list[str]:
    """Return the names of the retrievers in all candidates, without those of rerankers."""
    names: list[str] = []
    for candidate in candidates:
        names += names_in(candidate.expression)
    return names


def names_in(expression: Expression) -> list[str]:
    """Return the names of the retrievers in an expression, without those of rerankers."""
    match expression:
        case Name(name):
            return [name]
        case Cut(retriever, _) | Rerank(retriever, _):
            return names_in(retriever)
        case Sum(retrievers, _):
            names: list[str] = []
            for retriever in retrievers:
                names += names_in(retriever)
            return names


def is_index(name: str) -> bool:
    """Return whether a name is that of a folder with an index or with vectors."""
    path = Path(name)
    if not path.is_dir():
        return False
    if is_vector_folder(name):
        return True
    if beside(path).is_file():
        return read_any_manifest(beside(path)).kind is Kind.INDEX
    return (path / "docid").is_file() and (path / "index").exists()


class RetrieverFactory:
    """Creates the retriever of each expression once, so that candidates share their parts."""

    def __init__(self, inputs: SharedInputs) -> None:
        self._inputs = inputs
        self._by_expression: dict[str, Retriever] = {}
        self._texts = CorpusTexts(inputs)

    def make(self, expression: Expression) -> Retriever:
        """Return the retriever of an expression."""
        text = str(expression)
        if text not in self._by_expression:
            self._by_expression[text] = self._new(expression)
        return self._by_expression[text]

    def _new(self, expression: Expression) -> Retriever:
        """Return a new retriever, of parts that may be shared."""
        match expression:
            case Name(name):
                return self._new_of_name(name)
            case Cut(retriever, depth):
                part = self.make(retriever)
                return CutRetriever(self._file_name(str(expression)), self._inputs, part, depth)
            case Rerank(retriever, model):
                part = self.make(retriever)
                name = self._file_name(f"{retriever}-{Path(model).name}")
                return RerankedRetriever(name, self._inputs, part, model, self._texts)
            case Sum(retrievers, weights):
                parts = [self.make(retriever) for retriever in retrievers]
                names = [part.name for part in parts]
                if weights is None:
                    name = self._file_name("+".join(names))
                    return FittedHybrid(name, self._inputs, parts)
                terms = [f"{weight:g}{name}" for weight, name in zip(weights, names, strict=True)]
                return Hybrid(self._file_name("+".join(terms)), self._inputs, parts, weights)

    def _new_of_name(self, name: str) -> Retriever:
        """Return the retriever that a name stands for."""
        if name == BM25:
            return Bm25(self._file_name(BM25), self._inputs)
        if name.startswith(FINETUNE):
            base = self.make(Name(name.removeprefix(FINETUNE)))
            if not isinstance(base, Encoder):
                raise UsageError(f"--candidates {name}: a model is fine-tuned", EXAMPLES)
            return FinetunedEncoder(self._file_name(f"finetune-{base.name}"), self._inputs, base)
        last_name = Path(name).name
        if Path(name).is_file():
            file_name = self._file_name(HIDDEN_ENDINGS.sub("", last_name))
            return RunFile(file_name, self._inputs, name)
        if is_index(name):
            if is_vector_folder(name):
                read_manifest(name, Kind.VECTORS)  # an unfinished one is rejected before any work
            else:
                read_index_manifest(name)
            return IndexFolder(self._file_name(last_name), self._inputs, name)
        return Encoder(self._file_name(last_name), self._inputs, name)

    def _file_name(self, text: str) -> str:
        """Return a name for files, one that no other retriever has."""
        name = NOT_IN_FILE_NAMES.sub("-", text[:LONGEST_FILE_NAME]).strip("-.") or "retriever"
        names = {retriever.name for retriever in self._by_expression.values()}
        number = 2
        unique_name = name
        while unique_name in names:
            unique_name = f"{name}-{number}"
            number += 1
        return unique_name


@dataclass(frozen=True)
class JudgedQueries:
    """Queries with their judgments."""

    queries: Sequence[Query]
    judgments: Grades
    topics: str
    qrels: str
    dropped: int = 0  # queries that were left out, because others have them, too

    def sha256(self) -> str:
        """Return a checksum of the judgments: query, passage and grade."""
        rows = []
        for query in self.queries:
            for docid, grade in sorted(self.judgments[query.qid].items()):
                rows.append([query.qid, docid, str(grade)])
        return texts_sha256(rows)

    @cached_property
    def relevant_docids(self) -> set[str]:
        """The ids of the passages that are relevant for a query."""
        docids: set[str] = set()
        for grades in self.judgments.values():
            docids.update(docid for docid, grade in grades.items() if grade > 0)
        return docids


def read_judged_queries(topics: str, qrels: str, settings: ChooseSettings) -> JudgedQueries:
    """Return the topics that qrels judge, in the order of their ids.

    Raise a MismatchError if there are none, or if judged queries have no text.
    """
    judgments = read_qrels_map(qrels)
    queries_by_qid = {}
    qids_of_topics = []
    for query in read_queries(topics, settings.topics_format, fields=settings.topics_field):
        qids_of_topics.append(query.qid)
        if query.qid in judgments:
            queries_by_qid[query.qid] = query
    if not queries_by_qid:
        judged_passages = {docid for grades in judgments.values() for docid in grades}
        hint = None
        if not judged_passages.isdisjoint(qids_of_topics):
            hint = f"{topics} has ids of judged passages: is it the corpus?"
        raise MismatchError(
            f"{qrels} judges none of the queries of {topics}: it judges {first_names(judgments)}, "
            f"the topics are {first_names(qids_of_topics)}",
            hint,
        )
    without_text = [qid for qid in judgments if qid not in queries_by_qid]
    if without_text:
        raise MismatchError(
            f"{topics} lacks {len(without_text):,} of the {len(judgments):,} queries that {qrels} "
            f"judges ({first_names(without_text)})",
            "name the topics that the judgments are of",
        )
    qids = sorted(queries_by_qid)
    queries = [queries_by_qid[qid] for qid in qids]
    return JudgedQueries(queries, {qid: judgments[qid] for qid in qids}, topics, qrels)


def check_relevant_passages(queries: JudgedQueries) -> None:
    """Raise a MismatchError if no query has a relevant passage; warn of those without one."""
    unanswerable_qids = [
        query.qid for query in queries.queries if max(queries.judgments[query.qid].values()) <= 0
    ]
    count = len(queries.queries)
    if len(unanswerable_qids) == count:
        raise MismatchError(
            f"{queries.qrels} judges no passage of the {count:,} queries relevant: every system "
            "would have the value 0",
            "relevant passages have a grade above 0",
        )
    if unanswerable_qids:
        logger.warning(
            f"{queries.qrels} judges no passage relevant for {len(unanswerable_qids):,} of the "
            f"{count:,} queries ({first_names(unanswerable_qids)}); they count as 0"
        )


def check_judged_passages(
    source: str, corpus: CorpusSettings, judged_queries: Iterable[JudgedQueries]
) -> None:
    """Raise a MismatchError for qrels none of whose relevant passages is in the corpus.

    The corpus is read until all qrels have a relevant passage in it, and to its end only if one of
    them has none.
    """
    not_found = [queries for queries in judged_queries if queries.relevant_docids]
    example_docid = None
    for passage in read_passages(source, with_used_fields(source, corpus)):
        if example_docid is None:
            example_docid = passage.docid
        not_found = [
            queries for queries in not_found if passage.docid not in queries.relevant_docids
        ]
        if not not_found:
            return
        stem, _, _ = passage.docid.rpartition(".")
        for queries in not_found:
            if stem in queries.relevant_docids:
                example_docid = passage.docid  # an example that shows what the judgments lack
    if not_found:
        queries = not_found[0]
        raise MismatchError(
            f"{source} has no passage that {queries.qrels} judges relevant: its passages are such "
            f"as {example_docid!r}, judgments are of passages such as "
            f"{min(queries.relevant_docids)!r}",
            "are these ids of the same corpus? The id of a text file has its subfolder and ending",
        )


def reject_overlap(
    queries: JudgedQueries,
    others: JudgedQueries,
    reason: str,
    hint: str = "give judgments of other queries",
) -> None:
    """Raise a MismatchError if two sets of queries have one in common.

    `reason` says what would be wrong.
    """
    qids = shared_qids(queries, others)
    if qids:
        raise MismatchError(
            f"{queries.qrels} and {others.qrels} have {len(qids):,} queries in common "
            f"({first_names(qids)}): {reason}",
            hint,
        )


def shared_qids(queries: JudgedQueries, others: JudgedQueries) -> list[str]:
    """Return the ids of the queries whose text is also one of the others.

    Queries of one file of topics are also compared by their ids.
    """
    other_texts = {_compared_text(query) for query in others.queries}
    other_qids: set[str] = set()
    if queries.topics == others.topics:
        other_qids = {query.qid for query in others.queries}
    qids = []
    for query in queries.queries:
        if query.qid in other_qids or _compared_text(query) in other_texts:
            qids.append(query.qid)
    return qids


def without_shared(training: JudgedQueries, evaluated: Sequence[JudgedQueries]) -> JudgedQueries:
    """Return the training queries that no evaluated queries have, too; log how many are left out.

    Raise a MismatchError if none remains.
    """
    dropped_qids: set[str] = set()
    for queries in evaluated:
        dropped_qids.update(shared_qids(training, queries))
    if not dropped_qids:
        return training
    qrels = " or ".join(queries.qrels for queries in evaluated)
    count = len(training.queries)
    kept_queries = [query for query in training.queries if query.qid not in dropped_qids]
    if not kept_queries:
        raise MismatchError(
            f"{training.qrels}: all {count:,} training queries are also among those of {qrels}: "
            "none remains to train on",
            "give training judgments of other queries",
        )
    logger.info(
        f"{training.qrels}: {len(dropped_qids):,} of {count:,} training queries are left out "
        f"({first_names(sorted(dropped_qids))}), as {qrels} judges them, too"
    )
    return replace(
        training,
        queries=kept_queries,
        judgments={query.qid: training.judgments[query.qid] for query in kept_queries},
        dropped=len(dropped_qids),
    )


def _compared_text(query: Query) -> str:
    """Return a query's text without differences of case and of white space."""
    return with_single_spaces(query.text).casefold()


def read_run_files(
    systems: Sequence[System], queries: JudgedQueries, test_queries: JudgedQueries | None
) -> list[str]:
    """Read the run files among the candidates; return their checksums.

    Raise an error for one without any of the queries, and warn if it lacks some. A run knows
    queries by their ids alone, so that test queries must have other ids.
    """
    run_files: dict[str, RunFile] = {}
    for system in systems:
        for retriever in system.retriever.retrievers_to_search():
            if isinstance(retriever, RunFile):
                run_files[retriever.path] = retriever
    for run_file in run_files.values():
        run_file.prepare()
        run_file.check_queries([query.qid for query in queries.queries], queries.qrels)
        run_file.warn_of_unjudged_hits(queries.judgments)
        if test_queries is not None:
            _reject_shared_ids(run_file.path, queries, test_queries)
            test_qids = [query.qid for query in test_queries.queries]
            run_file.check_queries(test_qids, test_queries.qrels)
    return [file_sha256(path) for path in run_files]


def _reject_shared_ids(run: str, queries: JudgedQueries, test_queries: JudgedQueries) -> None:
    """Raise a MismatchError if a run cannot tell test queries from those that decide."""
    qids = {query.qid for query in queries.queries}
    shared_qids = [query.qid for query in test_queries.queries if query.qid in qids]
    if shared_qids:
        raise MismatchError(
            f"{queries.qrels} and {test_queries.qrels} have {len(shared_qids):,} ids of queries in "
            f"common ({first_names(shared_qids)}), which {run} does not tell apart",
            "give the test queries other ids",
        )
