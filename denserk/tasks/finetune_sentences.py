"""What a fine-tuning run trains when it learns from pairs or triplets of sentences."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from denserk.analysis.sentence_similarity import figure_of, score_examples
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.data.training_batches import SentenceBatches, assemble
from denserk.data.training_data import SentenceStore, prepare_sentences
from denserk.errors import InputError, UsageError
from denserk.modeling.encoder import Encoder, Retriever
from denserk.settings.encoding import Representation
from denserk.settings.finetuning import FinetuneRun
from denserk.settings.formats import CorpusSettings
from denserk.settings.training import DevMetric, Objective, ObjectiveSettings, SamplingSettings
from denserk.tasks.finetune_retriever import Finetuning, begin_retriever_training
from denserk.tasks.run_folder import DATA, DEV_DATA, goes_on
from denserk.training.distributed import world
from denserk.training.steps import SentenceStep, sentence_loss

# Sentences of an example, by what is learned from it
SIZES = {Objective.COSINE_MSE: 2, Objective.TRIPLET: 3}
# What held-out examples measure beside the loss
MEASURES = {Objective.COSINE_MSE: DevMetric.SPEARMAN, Objective.TRIPLET: DevMetric.ACCURACY}
BLOCK = 64  # Held-out examples measured at once


def trains_on_sentences(run: FinetuneRun) -> bool:
    """Whether a run learns from pairs or triplets of sentences."""
    return run.objective.objective in SIZES


def refuse_other_measures(run: FinetuneRun) -> None:
    """Refuses a --best-by that the objective's held-out data does not measure.

    Raises:
        UsageError: so it is.
    """
    objective, metric = run.objective.objective, run.validation.best_by
    if metric is None or metric is DevMetric.LOSS:
        return
    own = MEASURES.get(objective)
    if metric is not own and (own is not None or metric in MEASURES.values()):
        raise UsageError(
            f"--best-by {metric} is not measured under --objective {objective}",
            f"--best-by {own or 'RR@10'}, or {DevMetric.LOSS}",
        )


def begin_sentence_training(run: FinetuneRun) -> Finetuning:
    """Return the encoder of a run, trained on sentences, each of them read as a passage is.

    Raises:
        UsageError: settings that belong to queries and passages, all of them named; or the model
            has an encoder for each.
        ModelError: the model cannot do what is asked of it.
    """
    _refuse_settings_of_retrieval(run)
    retriever = begin_retriever_training(run)
    assert isinstance(retriever.model, Retriever)
    if not retriever.model.shared:
        raise UsageError(
            f"{run.finetune.model} has separate encoders for queries and passages, and one encoder "
            "reads the sentences of an example",
            "start from a model whose sides share their weights",
        )
    encoder = retriever.model.passage
    tokenizer = TextTokenizer(load_tokenizer(retriever.folder), retriever.texts)
    return replace(
        retriever,
        step=SentenceStep(encoder, run.objective, run.cache),
        prepare=lambda output: _prepare(run, run.finetune.train_data, output, DATA, tokenizer),
        dev=lambda output: _prepare_dev(run, output, tokenizer),
        batches=lambda store: _batches(run, store),
        measure=lambda dev: _measure(encoder, run.objective, dev),
    )


@torch.no_grad()
def _measure(
    encoder: Encoder, objective: ObjectiveSettings, dev: list[SentenceStore]
) -> dict[str, float]:
    """Return loss and figure of held-out examples; the model is in evaluation mode."""
    device = next(encoder.parameters()).device
    (store,) = dev
    scores, losses = [], []
    for items in np.split(np.arange(len(store)), range(BLOCK, len(store), BLOCK)):
        batch = assemble(store, items).to(device)
        vectors = encoder(batch.sentences).unflatten(0, (-1, store.size))
        losses.append(float(sentence_loss(vectors, batch.labels, objective)) * len(items))
        scores.append(score_examples(vectors.cpu().numpy()))
    labels = store.labels if store.size == 2 else None
    _, value = figure_of(np.concatenate(scores), labels)
    measure = MEASURES[objective.objective].value
    return {DevMetric.LOSS.value: sum(losses) / len(store), measure: value}


def _refuse_settings_of_retrieval(run: FinetuneRun) -> None:
    told, sampling, objective, dev = run.finetune, run.sampling, run.objective, run.validation
    usual, loss = SamplingSettings(), ObjectiveSettings()
    drawing = ("group_size", "positive", "negative", "negative_pool", "fill_negatives")
    scoring = (
        *("temperature", "layer_temperature"),
        *("contrastive", "distillation", "contrastive_weight"),
    )
    refused = {
        "--representation cross-encoder": run.representation.get("representation")
        == Representation.CROSS_ENCODER,
        "--untie": told.untie,
        "--set negatives-x-device=no": not told.negatives_x_device,
        **{
            _flag(name): getattr(told, name)
            for name in ("train_format", "corpus", "queries", "qrels", "skip_missing")
        },
        "the options of a corpus": run.corpus != CorpusSettings(),
        **{_flag(name): getattr(sampling, name) != getattr(usual, name) for name in drawing},
        **{_flag(name): getattr(objective, name) != getattr(loss, name) for name in scoring},
        **{_flag(name): getattr(dev, name) for name in ("dev_corpus", "dev_topics", "dev_qrels")},
    }
    if given := [flag for flag, present in refused.items() if present]:
        raise UsageError(
            f"{', '.join(given)}: not under --objective {objective.objective}, which has sentences "
            "in place of queries and passages",
            f"leave out {'it' if len(given) == 1 else 'them'}",
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _prepare_dev(run: FinetuneRun, output: Path, tokenizer: TextTokenizer) -> list[SentenceStore]:
    """Tokenise the held-out examples; none where no validation was asked for.

    Raises:
        InputError: their labels are all the same, so no correlation exists.
        UsageError, OutputError: see `prepare_sentences`.
    """
    source = run.validation.dev_data
    if source is None:
        return []
    store = _prepare(run, (source,), output, DEV_DATA, tokenizer)
    if store.size == 2 and len(np.unique(store.labels)) < 2:
        raise InputError(source, None, f"the label {store.labels[0]:g} alone", "labels that differ")
    return [store]


def _prepare(
    run: FinetuneRun, sources: tuple[str, ...], output: Path, folder: str, tokenizer: TextTokenizer
) -> SentenceStore:
    """Tokenise examples once, beneath the run's folder."""
    return prepare_sentences(
        sources,
        output / folder,
        tokenizer,
        size=SIZES[run.objective.objective],
        label_scale=run.objective.label_scale,
        again=not goes_on(output),
    )


def _batches(run: FinetuneRun, store: SentenceStore) -> SentenceBatches:
    """Return this process's batches."""
    rank, size = world()
    return SentenceBatches(
        store,
        run.sampling,
        run.optimizer.batch_size,
        epochs=run.optimizer.epochs,
        max_steps=run.optimizer.max_steps,
        rank=rank,
        world=size,
    )
