"""What a run validates on: held-out training data, or a small collection with judgements."""

from pathlib import Path

import numpy as np
import torch

from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import TrainingBatches
from denserk.data.training_data import TrainingStore, prepare
from denserk.errors import InputError
from denserk.formats.corpus import read_passages
from denserk.formats.qrels import read_qrels_map
from denserk.formats.topics import read_queries
from denserk.settings.finetuning import FinetuneRun
from denserk.settings.training import NegativeChoice, PositiveChoice, SamplingSettings
from denserk.tasks.run_folder import DEV_DATA, goes_on
from denserk.training.validation import DevSet

Tokenizers = tuple[TextTokenizer, TextTokenizer]


def dev_sets(run: FinetuneRun, output: Path, tokenizers: Tokenizers) -> list[DevSet]:
    """The sets to measure, a given collection last; none where no validation was asked for.

    Raises:
        InputError: they hold nothing to measure, or judge passages that are not there.
    """
    sets = []
    if run.validation.dev_data is not None:
        store = prepare(
            [run.validation.dev_data],
            output / DEV_DATA,
            *tokenizers,
            corpus=run.finetune.corpus,
            corpus_settings=run.corpus,
            fields=run.text.get("fields"),
            queries=run.finetune.queries,
            skip_missing=run.finetune.skip_missing,
            again=not goes_on(output),
        )
        sets.append(_of_training_data(store, run))
    if run.validation.dev_corpus is not None:
        sets.append(_of_collection(run, tokenizers))
    return sets


def _of_training_data(store: TrainingStore, run: FinetuneRun) -> DevSet:
    """All queries: the first positive of each, its top negatives, and all passages to search."""
    sampling = SamplingSettings(
        group_size=run.sampling.group_size,
        positive=PositiveChoice.FIRST,
        negative=NegativeChoice.TOP,
        seed=run.sampling.seed,
    )
    batches = TrainingBatches(store, sampling, 1, shuffle=False, keep_last=True)
    items = batches.items
    return DevSet(
        queries=store.queries.take(items),
        passages=store.passages.take(np.arange(len(store.passages))),
        pad_ids=(store.query_pad_id, store.passage_pad_id),
        relevant=[rows.tolist() for rows in store.positive_rows.take(items)],
        groups=torch.from_numpy(batches.groups(items, 0)[0]),
    )


def _of_collection(run: FinetuneRun, tokenizers: Tokenizers) -> DevSet:
    """A collection's judged queries, and all its passages; their tokens are held in memory."""
    validation = run.validation
    assert validation.dev_corpus is not None
    assert validation.dev_topics is not None
    assert validation.dev_qrels is not None
    judged = read_qrels_map(validation.dev_qrels)
    passages = sorted(  # by descending id, as equal scores are ranked
        read_passages(validation.dev_corpus, run.corpus),
        key=lambda each: each.docid,
        reverse=True,
    )
    row_of = {passage.docid: row for row, passage in enumerate(passages)}
    queries, relevant = [], []
    for query in read_queries(validation.dev_topics):
        wanted = [d for d, grade in judged.get(query.qid, {}).items() if grade > 0 and d in row_of]
        if wanted:
            queries.append(query)
            relevant.append([row_of[docid] for docid in wanted])
    if not queries:
        raise InputError(
            validation.dev_qrels,
            None,
            f"no judgement that joins a query of {validation.dev_topics} to a passage of "
            f"{validation.dev_corpus}",
            "relevant passages for at least one query",
        )
    of_queries, of_passages = tokenizers
    return DevSet(
        queries=of_queries.queries(queries),
        passages=of_passages.passages(passages),
        pad_ids=(of_queries.pad_id, of_passages.pad_id),
        relevant=relevant,
    )
