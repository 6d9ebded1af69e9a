"""Tokenised training and held-out data in the folder in which a run works.

Held-out data is passed on as the function that measures the model on it, None without any.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from denserk.config.finetuning import FinetuneRun
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import SentenceBatches, TrainingBatches
from denserk.data.training_data import SentenceStore, prepare
from denserk.models.representation import Encoder
from denserk.models.text_encoder import PASSAGE, QUERY, TextEncoder
from denserk.training import run_folder
from denserk.training.trainer import Prepared
from denserk.training.validation import DevSet, dev_sets, measure_sentences, token_budget


def prepare_queries(
    run: FinetuneRun,
    tokenizers: tuple[TextTokenizer, TextTokenizer],
    batches_class: Callable[..., TrainingBatches],
    measure: Callable[[list[DevSet]], dict[str, float]],
    work: Path,
    guide: TextEncoder | None = None,
) -> Prepared:
    """Tokenise queries and passages in the run's folder; return batches and how to measure.

    With a `guide`, the texts are tokenised for it, too.
    """
    query_tokenizer, passage_tokenizer = tokenizers
    tokenize = partial(prepare, replace_outdated=not run_folder.is_resumable(work))
    store = tokenize(run, work / run_folder.DATA, query_tokenizer, passage_tokenizer)
    guide_store = None
    if guide is not None:
        guide_store = tokenize(
            run,
            work / run_folder.GUIDE_DATA,
            guide.sides[QUERY].tokenizer,
            guide.sides[PASSAGE].tokenizer,
            distinct_by=passage_tokenizer.settings.fields,  # rows are those of the model's own data
        )
    dev_store = None
    if run.validation.dev_data is not None:
        dev_run = held_out_run(run, run.validation.dev_data)
        dev_folder = work / run_folder.DEV_DATA
        dev_store = tokenize(dev_run, dev_folder, query_tokenizer, passage_tokenizer)
    sets = dev_sets(run, dev_store, tokenizers)
    batches = batches_class(
        store,
        run.sampling,
        run.optimizer.batch_size,
        guide=guide_store,
        with_scores=run.objective.distillation is not None,
        masks=run.objective.mask_false_negatives or guide is not None,
        **run_folder.share_of_batches(run),
    )
    if not sets:
        return batches, None
    return batches, partial(measure, sets)


def held_out_run(run: FinetuneRun, dev_data: str) -> FinetuneRun:
    """Return a run whose training data is the held-out file."""
    finetune = replace(run.finetune, train_data=(dev_data,), train_format=None, qrels=None)
    return replace(run, finetune=finetune)


def prepare_sentences(
    run: FinetuneRun, encoder: Encoder, tokenize: Callable[..., SentenceStore], work: Path
) -> Prepared:
    """Tokenise the sentences of a run in its folder; return batches and how to measure."""
    tokenize = partial(tokenize, replace_outdated=not run_folder.is_resumable(work))
    store = tokenize(run.finetune.train_data, work / run_folder.DATA)
    share = run_folder.share_of_batches(run)
    batches = SentenceBatches(store, run.sampling, run.optimizer.batch_size, **share)
    if run.validation.dev_data is None:
        return batches, None
    dev_store = tokenize([run.validation.dev_data], work / run_folder.DEV_DATA)
    measure = partial(measure_sentences, encoder, run.objective, token_budget(), dev_store)
    return batches, measure
