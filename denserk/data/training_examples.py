"""Training files -> a prepared folder, used again for as long as its inputs stay the same."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from denserk.data.prepared_folder import is_prepared, plan_of, rules_of
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_preparation import Preparation, TrainingInputs
from denserk.data.training_store import TrainingStore
from denserk.formats.manifest import Manifest, write_manifest
from denserk.formats.outputs import whole_folder
from denserk.settings.conversion import TrainingFormat
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.options import as_json

logger = logging.getLogger(__name__)

LAYOUT = 2
"""Number of the layout of a prepared folder; another number is prepared again."""


def prepare(
    sources: Sequence[str],
    folder: Path,
    query_tokenizer: TextTokenizer,
    passage_tokenizer: TextTokenizer,
    *,
    corpus: str | None = None,
    corpus_settings: CorpusSettings = DETECTED,
    fields: Sequence[str] | None = None,
    queries: str | None = None,
    qrels: str | None = None,
    form: TrainingFormat | None = None,
    skip_missing: bool = False,
    require_scores: bool = False,
    again: bool = True,
) -> TrainingStore:
    """Prepares training data, or opens what an earlier call prepared from the same inputs.

    A query without positives is left out and counted. A DPR question without hard negatives takes
    its random ones. The folder appears whole or not at all.

    Args:
        sources: training files, all of them used, in their order; "-" is standard input.
        folder: where the prepared data is kept.
        query_tokenizer: makes token ids of queries.
        passage_tokenizer: makes token ids of passages.
        corpus: the passages behind bare ids.
        corpus_settings: how the corpus is read.
        fields: fields asked for by name, which Anserini's `contents` are split into.
        queries: the queries behind bare ids.
        qrels: judgements, held in memory; what they call relevant are the positives of a query that
            names none.
        form: the shape of the training files; None detects it for each.
        skip_missing: leave out ids that corpus or queries lack, and count them.
        require_scores: refuse a candidate without the teacher's score.
        again: prepare again what the inputs would make otherwise; False refuses it.

    Raises:
        UsageError: there is no such input; `folder` holds something else.
        MismatchError: `folder` holds something else that denserk wrote, or was made otherwise and
            must not be made again.
        InputError: an input is broken or empty; a text behind an id is nowhere; a score is missing.
        OutputError: `folder` cannot be written.
    """
    inputs = TrainingInputs(
        sources, form, corpus, corpus_settings, fields, queries, qrels, skip_missing
    )
    plan = _plan(inputs, query_tokenizer, passage_tokenizer)
    if not is_prepared(folder, plan, again=again):
        with whole_folder(folder, own=True) as part:
            work = Preparation(inputs, part, query_tokenizer, passage_tokenizer, require_scores)
            write_manifest(part, replace(plan, contents=work.run(), complete=True))
    store = TrainingStore(folder)
    if require_scores:
        store.refuse_unscored()
    _tell(store.contents)
    return store


def _plan(inputs: TrainingInputs, query: TextTokenizer, passage: TextTokenizer) -> Manifest:
    """The manifest as far as it is known beforehand."""
    settings = {
        "layout": LAYOUT,
        "form": inputs.form,
        "skip_missing": inputs.skip_missing,
        "corpus": as_json(inputs.corpus_settings),
        "fields": None if inputs.fields is None else list(inputs.fields),
    }
    sides = {"query": rules_of(query), "passage": rules_of(passage)}
    return plan_of(settings | sides, inputs.named())


def _tell(contents: Mapping[str, Any]) -> None:
    """Tells what the data lacks."""
    sentences = {
        "without_positives": "queries without a positive are left out",
        "with_random_negatives": "queries without a hard negative use their random ones",
        "missing_passages": "passages that the corpus lacks are left out",
        "missing_queries": "queries without a text are left out",
    }
    for name, sentence in sentences.items():
        if contents[name]:
            logger.warning(f"{sentence}: {contents[name]:,}")
