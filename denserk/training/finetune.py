"""Fine-tune a retriever or a cross-encoder, on queries and passages or on sentences."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from denserk.analysis.encoders import figure_of, score_examples
from denserk.config.encoding import (
    AggOrder,
    Dtype,
    Reduction,
    Representation,
    RepresentationSettings,
)
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, given_fields, spelled, unused_options
from denserk.config.training import (
    BI_ENCODER,
    CROSS_ENCODER,
    DevMetric,
    FinetuneRun,
    Objective,
    ObjectiveSettings,
)
from denserk.data.batches import TokenBatch, to_device
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.data.training_batches import (
    PairTrainingBatches,
    SentenceBatches,
    TrainingBatches,
    assemble,
)
from denserk.data.training_data import (
    SentenceStore,
    TrainingInputs,
    TrainingStore,
    prepare,
    prepare_sentences,
)
from denserk.errors import InputError, UsageError
from denserk.losses.retrieval import RetrievalObjective, sentence_loss
from denserk.models.checkpoints import find_model
from denserk.models.cross_encoder import is_reranker, reranker_to_train
from denserk.models.model_folder import fit_lengths, override, read_model_folder, save_model
from denserk.models.representation import Aggretriever, Encoder, MultiVector, Retriever
from denserk.training.run_folder import (
    DATA,
    DEV_DATA,
    TrainingResult,
    is_resumable,
    share_of_batches,
    train,
)
from denserk.training.steps import Limits, RerankingStep, RetrievalStep, SentenceStep, Step
from denserk.training.trainer import Measure, Training
from denserk.training.validation import DevSet, dev_sets, measure, measure_groups

logger = logging.getLogger(__name__)

# Suggested for L2-normalised vectors, as most published models have it (sentence-transformers'
# scale 20).
USUAL_TEMPERATURE = 0.05
# Sentences of an example, and what held-out examples measure beside the loss.
SENTENCES = {Objective.COSINE_MSE: 2, Objective.TRIPLET: 3}
MEASURES = {Objective.COSINE_MSE: DevMetric.SPEARMAN, Objective.TRIPLET: DevMetric.ACCURACY}
RANKED = (DevMetric.RR_10, DevMetric.AVERAGE_RANK)
# Held-out examples of sentences that are measured at once.
BLOCK = 64
# For the estimate of memory: bytes of a process before training; of a weight (itself, its gradient
# and AdamW's two moments, in float32); that a layer keeps of a token for the backward pass, per
# hidden dimension (measured: 104 to 126 in BERTs of 2 to 12 layers, passages of 128 tokens).
PROCESS_BYTES, WEIGHT_BYTES, ACTIVATION_BYTES = 1 << 29, 16, 120


def finetune(run: FinetuneRun) -> TrainingResult:
    """Train a retriever or a cross-encoder, and save it as a model folder."""
    for note in run.notes:
        logger.info(note)
    trained = what_is_trained(run)
    refuse_unused(run, trained)
    build = reranker_training if trained == CROSS_ENCODER else retriever_training
    return train(run, lambda _: build(run))


def what_is_trained(run: FinetuneRun) -> str:
    """Return an objective on sentences, or bi-encoder or cross-encoder, as given or as --model."""
    if run.objective.objective in SENTENCES:
        return run.objective.objective
    asked = run.representation.get("representation")
    if asked is None and is_reranker(find_model(run.finetune.model)[1]):
        return CROSS_ENCODER
    return CROSS_ENCODER if asked == Representation.CROSS_ENCODER else BI_ENCODER


def refuse_unused(run: FinetuneRun, trained: str) -> None:
    """Raise UsageError for settings that the training of `trained` does not use."""
    objective, best_by = run.objective.objective, run.validation.best_by
    measured = {DevMetric.LOSS, *([MEASURES[objective]] if objective in MEASURES else RANKED)}
    if best_by not in {None, *measured}:
        raise UsageError(
            f"--best-by {best_by} is not measured under --objective {objective}",
            f"--best-by {' or '.join(sorted(measured))}",
        )
    if trained == CROSS_ENCODER and run.sampling.group_size < 2:
        raise UsageError(
            "--group-size 1 leaves nothing to tell the positive from",
            "a cross-encoder has no in-batch negatives: give at least 2",
        )
    groups = (run.finetune, run.sampling, run.objective, run.cache, run.reranking, run.validation)
    unused = unused_options(trained, *groups)
    if objective in SENTENCES:
        unused += [spelled(name, CorpusSettings) for name in given_fields(run.corpus)]
        if run.representation.get("representation") == Representation.CROSS_ENCODER:
            unused.append("--representation cross-encoder")
    elif trained == CROSS_ENCODER:
        others = sorted(run.representation.keys() - {"representation"})
        unused += [spelled(name, RepresentationSettings) for name in others]
    if unused:
        raise UsageError(f"{', '.join(unused)}: not used by {trained}", "leave out what is named")


def prepare_queries(
    run: FinetuneRun,
    output: Path,
    tokenizers: tuple[TextTokenizer, TextTokenizer],
    kind: Callable[..., TrainingBatches] = TrainingBatches,
) -> tuple[TrainingBatches, list[DevSet]]:
    """Tokenise queries and passages below the run's folder; return batches and dev sets."""
    settings = run.finetune

    def tokenize(sources: Sequence[str], name: str, **options: Any) -> TrainingStore:
        inputs = TrainingInputs(
            sources,
            corpus=settings.corpus,
            corpus_settings=run.corpus,
            fields=run.text.get("fields"),
            queries=settings.queries,
            skip_missing=settings.skip_missing,
            **options,
        )
        return prepare(inputs, output / name, *tokenizers, again=not is_resumable(output))

    given = {"qrels": settings.qrels, "form": settings.train_format}
    store = tokenize(settings.train_data, DATA, **given)
    held_out = run.validation.dev_data
    dev = dev_sets(run, tokenize([held_out], DEV_DATA) if held_out else None, tokenizers)
    batches = kind(
        store,
        run.sampling,
        run.optimizer.batch_size,
        with_scores=run.objective.distillation is not None,
        **share_of_batches(run),
    )
    return batches, dev


def retriever_training(run: FinetuneRun) -> Training:
    """Load or initialise the retriever of a run; new layers use torch's random state."""
    name, folder = find_model(run.finetune.model)
    stored = read_model_folder(folder)
    chosen = override(stored.representation, run.representation)
    sentences = run.objective.objective in SENTENCES
    if chosen.l2_norm and not sentences and run.objective.temperature >= 1:
        raise UsageError(
            f"--temperature {run.objective.temperature:g} with L2-normalised vectors: scores lie "
            "between -1 and 1, and a softmax over them hardly learns",
            f"add --temperature {USUAL_TEMPERATURE}, or --no-l2-norm for vectors that are not "
            "normalised",
        )
    if not (stored.has_settings or run.representation):
        logger.info(f"{name} does not record a pooling: training {chosen.representation}")
    texts = fit_lengths(stored.text, run.text, stored.passage.max_length)
    model = Retriever(*stored.build(chosen, train=True, untie=run.finetune.untie))
    if sentences and not model.shared:
        raise UsageError(
            f"{run.finetune.model} has separate encoders for queries and passages, and one encoder "
            "reads the sentences of an example",
            "start from a model whose sides share their weights",
        )
    of_queries, of_passages = (load_tokenizer(s.folder) for s in (stored.query, stored.passage))
    tokenizers = TextTokenizer(of_queries, texts), TextTokenizer(of_passages, texts)

    def save(folder: Path) -> None:
        query = None if model.shared else model.query
        save_model(folder, model.passage, of_passages, texts, query, name)

    def load(folder: Path) -> None:
        saved = read_model_folder(folder)
        model.load_state_dict(Retriever(*saved.build(saved.representation)).state_dict())

    def prepare(output: Path) -> tuple[Any, Measure | None]:
        if sentences:
            return prepare_sentences_of(run, output, tokenizers[1], model.passage)
        batches, dev = prepare_queries(run, output, tokenizers)
        logger.info(estimate(batches[0], model, run))
        temperature, size = run.objective.temperature, run.optimizer.batch_size
        measured = partial(measure, model, dev, size, temperature)
        return batches, measured if dev else None

    step: Step
    if sentences:
        step = SentenceStep(model.passage, run.objective, run.cache)
    else:
        across = run.finetune.negatives_x_device
        objective = objective_of(run, chosen, model)
        step = RetrievalStep(model, objective, run.cache, across_devices=across)
    resolved = {"representation": as_json(chosen), "text": as_json(texts)}
    return Training(model, step, save, load, prepare, resolved)


def objective_of(
    run: FinetuneRun, settings: RepresentationSettings, model: Retriever
) -> RetrievalObjective:
    """Return the loss of a run; an Aggretriever's vectors are split into [CLS] and agg parts."""
    parts = None
    made = model.passage.representation
    if isinstance(made, Aggretriever) and made.cls_dim and made.agg_dim:
        cls_first = settings.agg_order is AggOrder.CLS_AGG
        split = made.cls_dim if cls_first else made.agg_dim
        halves = slice(0, split), slice(split, made.dimension)
        parts = halves if cls_first else halves[::-1]
    several = isinstance(made, MultiVector)
    return RetrievalObjective(
        run.objective,
        parts=parts,
        self_contrastive=several and settings.reduction is Reduction.SELF_CONTRASTIVE,
    )


def reranker_training(run: FinetuneRun) -> Training:
    """Load the cross-encoder of a run, or give an encoder a new linear head."""
    _, folder = find_model(run.finetune.model)
    model = reranker_to_train(folder, run.sampling.seed).fit(
        run.text, run.reranking.pair_max_length
    )
    joiner = model.joiner()

    def prepare(output: Path) -> tuple[Any, Measure | None]:
        tokenizers, kind = (model.tokenizer(),) * 2, partial(PairTrainingBatches, joiner)
        batches, dev = prepare_queries(run, output, tokenizers, kind)
        logger.info(estimate(batches[0], model, run))
        return batches, partial(measure_groups, model, joiner, dev[0]) if dev else None

    representation = RepresentationSettings(Representation.CROSS_ENCODER)
    resolved = {"representation": as_json(representation), "text": as_json(model.text)}
    step = RerankingStep(model, run.reranking, run.cache)
    return Training(model, step, model.save, model.load, prepare, resolved)


def prepare_sentences_of(
    run: FinetuneRun, output: Path, tokenizer: TextTokenizer, encoder: Encoder
) -> tuple[SentenceBatches, Measure | None]:
    """Tokenise pairs or triplets below the run's folder; return batches and what measures."""

    def tokenize(sources: Sequence[str], name: str) -> SentenceStore:
        return prepare_sentences(
            sources,
            output / name,
            tokenizer,
            size=SENTENCES[run.objective.objective],
            label_scale=run.objective.label_scale,
            again=not is_resumable(output),
        )

    store = tokenize(run.finetune.train_data, DATA)
    size, share = run.optimizer.batch_size, share_of_batches(run)
    batches = SentenceBatches(store, run.sampling, size, **share)
    logger.info(estimate(batches[0], encoder, run))
    source = run.validation.dev_data
    if source is None:
        return batches, None
    dev = tokenize([source], DEV_DATA)
    if dev.size == 2 and len(np.unique(dev.labels)) < 2:
        raise InputError(source, None, f"the label {dev.labels[0]:g} alone", "labels that differ")
    return batches, partial(measure_sentences, encoder, run.objective, dev)


@torch.no_grad()
def measure_sentences(
    encoder: Encoder, objective: ObjectiveSettings, store: SentenceStore
) -> dict[str, float]:
    """Return the loss and the measure of held-out examples; the model is in evaluation mode."""
    device = next(encoder.parameters()).device
    scores, losses = [], []
    for items in np.split(np.arange(len(store)), range(BLOCK, len(store), BLOCK)):
        batch = to_device(assemble(store, items), device)
        vectors = encoder(batch.sentences).unflatten(0, (-1, store.size))
        losses.append(float(sentence_loss(vectors, batch.labels, objective)) * len(items))
        scores.append(score_examples(vectors.cpu().numpy()))
    labels = store.labels if store.size == 2 else None
    _, value = figure_of(np.concatenate(scores), labels)
    measure = MEASURES[objective.objective].value
    return {DevMetric.LOSS.value: sum(losses) / len(store), measure: value}


def estimate(batch: Any, model: nn.Module, run: FinetuneRun) -> str:
    """Describe what a step encodes, and about how much memory training takes."""
    parts = {"pairs": batch.pairs.tokens} if hasattr(batch, "pairs") else batch._asdict()
    shapes = {name: t.input_ids.shape for name, t in parts.items() if isinstance(t, TokenBatch)}
    positions = []
    for name, (count, width) in shapes.items():
        chunk = run.cache.q_chunk if name == "queries" else run.cache.p_chunk
        positions.append(width * min(count, Limits.of(run.cache, chunk).most(width) or count))
    weights = sum(parameter.numel() for parameter in model.parameters())
    config = next(m.config for m in model.modules() if isinstance(m, PreTrainedModel))
    together = max(positions) if run.cache.grad_cache else sum(positions)
    activations = together * config.num_hidden_layers * config.hidden_size * ACTIVATION_BYTES
    if run.optimizer.dtype is not Dtype.FLOAT32:
        activations //= 2
    needed = PROCESS_BYTES + weights * WEIGHT_BYTES + activations
    texts = (f"{count:,} {name} of {width:,}" for name, (count, width) in shapes.items())
    return (
        f"the first step encodes {' and '.join(texts)} tokens; training takes about "
        f"{needed / 2**30:.1f} GiB (smaller: --batch-size, --group-size, --grad-cache, "
        "--gradient-checkpointing)"
    )
