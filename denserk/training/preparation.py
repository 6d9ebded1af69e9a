"""Training data that a teacher prepares: query vectors and the sentences of its student."""

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
from denserk.training.validation import DevSet, dev_sets, measure_sentences

BLOCK = 4096  # queries that a teacher encodes at once


def prepare_queries(
    run: FinetuneRun,
    tokenizers: tuple[TextTokenizer, TextTokenizer],
    kind: Callable[..., TrainingBatches],
    measured: Callable[[list[DevSet]], dict[str, float]],
    output: Path,
    guide: TextEncoder | None = None,
) -> Prepared:
    """Tokenise queries and passages below the run's folder."""
    tokenize = partial(prepare, again=not run_folder.is_resumable(output))
    store, guided, held_out = tokenize(run, output / run_folder.DATA, *tokenizers), None, None
    if guide is not None:
        own = (guide.sides[side].tokenizer for side in (QUERY, PASSAGE))
        fields = tokenizers[1].settings.fields  # rows are those of the model's own data
        guided = tokenize(run, output / "guide-data", *own, distinct_by=fields)
    if (file := run.validation.dev_data) is not None:
        finetune = replace(run.finetune, train_data=(file,), train_format=None, qrels=None)
        of_dev, folder = replace(run, finetune=finetune), output / run_folder.DEV_DATA
        held_out = tokenize(of_dev, folder, *tokenizers)
    dev, options = dev_sets(run, held_out, tokenizers), run_folder.share_of_batches(run)
    options["with_scores"] = run.objective.distillation is not None
    options["masks"] = run.objective.mask_false_negatives or guide is not None
    batches = kind(store, run.sampling, run.optimizer.batch_size, guide=guided, **options)
    return batches, partial(measured, dev) if dev else None


def prepare_sentences(
    run: FinetuneRun, encoder: Encoder, tokenize: Callable[..., SentenceStore], output: Path
) -> Prepared:
    """Tokenise the sentences of a run below its folder; return batches, and what measures."""
    tokenize = partial(tokenize, again=not run_folder.is_resumable(output))
    store = tokenize(run.finetune.train_data, output / run_folder.DATA)
    size, share = run.optimizer.batch_size, run_folder.share_of_batches(run)
    batches = SentenceBatches(store, run.sampling, size, **share)
    if run.validation.dev_data is None:
        return batches, None
    dev = tokenize([run.validation.dev_data], output / run_folder.DEV_DATA)
    return batches, partial(measure_sentences, encoder, run.objective, dev)
