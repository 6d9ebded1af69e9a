"""Fine-tune a retriever or a cross-encoder, on queries and passages or on sentences."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from denserk.config import encoding
from denserk.config.finetuning import FinetuneRun
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, given_fields, spelled, unused_options
from denserk.config.retrieval import Metric
from denserk.config.training import BI_ENCODER, CROSS_ENCODER, DevMetric, Objective
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import PairTrainingBatches, TrainingBatches
from denserk.data.training_data import tokenize_sentences
from denserk.errors import ModelError, UsageError
from denserk.io.model_files import find_model
from denserk.losses.retrieval import RetrievalObjective
from denserk.models import model_folder, saving
from denserk.models.cross_encoder import is_reranker, reranker_to_train
from denserk.models.representation import Aggretriever, MultiVector, Retriever
from denserk.models.text_encoder import TextEncoder
from denserk.training import run_folder
from denserk.training.adapters import with_adapters
from denserk.training.alignment import alignment_training
from denserk.training.preparation import prepare_queries, prepare_sentences
from denserk.training.steps import Step, reranking_step, retrieval_step, sentence_step
from denserk.training.trainer import Prepared, Training
from denserk.training.validation import measure, measure_groups

logger = logging.getLogger(__name__)

# Sentences of an example; measures of held-out examples beside the loss.
SENTENCES = {Objective.COSINE_MSE: 2, Objective.TRIPLET: 3, Objective.ALIGN: 1}
MEASURES = {
    Objective.RETRIEVAL: {DevMetric.RR_10, DevMetric.AVERAGE_RANK},
    Objective.COSINE_MSE: {DevMetric.SPEARMAN},
    Objective.TRIPLET: {DevMetric.ACCURACY},
    Objective.ALIGN: {DevMetric.COSINE},
}


def finetune(run: FinetuneRun) -> run_folder.TrainingResult:
    """Train a retriever or a cross-encoder, and save it as a model folder."""
    for note in run.notes:
        logger.info(note)
    special = {CROSS_ENCODER: reranker_training, Objective.ALIGN: alignment_training}
    build = special.get(what_is_trained(run), retriever_training)
    return run_folder.train(run, lambda _: with_adapters(build(run), run))


def what_is_trained(run: FinetuneRun) -> str:
    """Return an objective on sentences, or bi-encoder or cross-encoder, as given or as --model.

    Raise a UsageError for settings that its training does not use.
    """
    trained, best_by = str(run.objective.objective), run.validation.best_by
    measured = {DevMetric.LOSS, *MEASURES[run.objective.objective]}
    others = dict(run.representation)
    kind = others.pop("representation", None)
    reranking = kind == encoding.Representation.CROSS_ENCODER
    if trained not in SENTENCES:
        reranking |= kind is None and is_reranker(find_model(run.finetune.model)[1])
        trained = CROSS_ENCODER if reranking else BI_ENCODER
    if best_by not in {None, *measured}:
        why = f"--best-by {best_by} is not measured under --objective {run.objective.objective}"
        raise UsageError(why, f"--best-by {' or '.join(sorted(measured))}")
    if trained == CROSS_ENCODER and run.sampling.group_size < 2:
        why = "--group-size 1: a cross-encoder has no in-batch negatives"
        raise UsageError(why, "give at least 2")
    groups = (run.finetune, run.sampling, run.objective, run.cache, run.reranking, run.validation)
    unused = unused_options(trained, *groups)
    if trained in SENTENCES:
        if trained != Objective.ALIGN:
            unused += [spelled(name, CorpusSettings) for name in given_fields(run.corpus)]
        if reranking:
            unused.append("--representation cross-encoder")
    elif reranking:
        unused += [spelled(name, encoding.RepresentationSettings) for name in sorted(others)]
    if unused:
        raise UsageError(f"{', '.join(unused)}: not used by {trained}", "leave out what is named")
    return trained


def retriever_training(run: FinetuneRun) -> Training:
    """Load or initialise the retriever of a run; new layers use torch's random state."""
    name, folder = find_model(run.finetune.model)
    stored = model_folder.read_model_folder(folder)
    chosen = stored.choose(run.representation, run.text)
    if stored.metric is not Metric.INNER:
        logger.info(f"{name} is trained to compare by inner product, and so will the new model")
    sentences, temperature = run.objective.objective in SENTENCES, run.objective.temperature
    if chosen.l2_norm and not sentences and temperature >= 1:
        why = f"--temperature {temperature:g} with L2-normalised vectors: a softmax hardly learns"
        raise UsageError(why, "add --temperature 0.05, or --no-l2-norm")
    if not (stored.has_settings or run.representation):
        logger.info(f"{name} does not record a pooling: training {chosen.representation}")
    texts = model_folder.fit_lengths(stored.text, run.text, stored.passage.max_length)
    model = Retriever(*stored.build(chosen, train=True, untie=run.finetune.untie))
    of_queries = stored.load_tokenizer(stored.query.folder)
    of_passages = stored.load_tokenizer(stored.passage.folder)
    tokenizers = TextTokenizer(of_queries, texts), TextTokenizer(of_passages, texts)

    def save(folder: Path) -> None:
        query = None if model.shared else model.query
        sizes = run.objective.dimensions or ()
        saving.save_model(folder, model.passage, of_passages, texts, query, name, sizes)

    def load(folder: Path) -> None:
        saved = model_folder.read_model_folder(folder)
        model.load_state_dict(Retriever(*saved.build(saved.representation)).state_dict())

    step: Step
    prepare: Callable[[Path], Prepared]
    resolved = {"representation": as_json(chosen), "text": as_json(texts)}
    if sentences:
        if not model.shared:
            why = f"{run.finetune.model} has separate encoders for queries and passages"
            raise UsageError(why, "train on sentences from a model whose sides share their weights")
        step = partial(sentence_step, model.passage, run.objective, run.cache)
        size, scale = SENTENCES[run.objective.objective], run.objective.label_scale
        read = partial(tokenize_sentences, tokenizer=tokenizers[1], size=size, label_scale=scale)
        prepare = partial(prepare_sentences, run, model.passage, read)
    else:
        objective, across = objective_of(run, model), run.finetune.negatives_x_device
        guide = None
        if run.objective.guide is not None:
            guide = load_guide(run, run.objective.guide)
            resolved["guide"] = guide.description()
        step = partial(retrieval_step, model, objective, run.cache, across, guide=guide)
        size = run.optimizer.batch_size
        measured = partial(measure, model, batch=size, temperature=temperature)
        prepare = partial(prepare_queries, run, tokenizers, TrainingBatches, measured, guide=guide)
    return Training(model, step, save, load, prepare, resolved)


def load_guide(run: FinetuneRun, model: str) -> TextEncoder:
    """Load the model that keeps probable positives out of the negatives."""
    if "-" in run.finetune.train_data:
        raise UsageError("--guide reads --train-data twice: give a file, not a stream")
    compute = encoding.ComputeSettings(device=run.finetune.device, dtype=run.optimizer.dtype)
    guide = TextEncoder(model, compute=compute)
    if guide.metric is not Metric.INNER:
        raise ModelError(
            f"--guide {guide.name} compares by Euclidean distance; texts are guided by inner "
            "product or cosine",
            "choose another guide",
        )
    return guide


def objective_of(run: FinetuneRun, model: Retriever) -> RetrievalObjective:
    """Return the loss of a run; an Aggretriever's vectors are split into [CLS] and agg parts."""
    parts, settings = None, model.passage.settings
    made, sizes = model.passage.representation, run.objective.dimensions or ()
    if sizes and isinstance(made, Aggretriever):
        raise UsageError(f"--dimensions: {encoding.NO_PREFIX}", encoding.SMALLER_AGG)
    if (largest := max(sizes, default=0)) > (width := model.passage.dimension):
        raise UsageError(f"--dimensions {largest}: the model's vectors have {width} dimensions")
    if isinstance(made, Aggretriever) and made.cls_dim and made.agg_dim:
        cls_first = settings.agg_order is encoding.AggOrder.CLS_AGG
        split = made.cls_dim if cls_first else made.agg_dim
        halves = slice(0, split), slice(split, made.dimension)
        parts = halves if cls_first else halves[::-1]
    several = settings.reduction is encoding.Reduction.SELF_CONTRASTIVE
    several = several and isinstance(made, MultiVector)
    return RetrievalObjective(run.objective, parts, several, settings.l2_norm)


def reranker_training(run: FinetuneRun) -> Training:
    """Load the cross-encoder of a run, or give an encoder a new linear head."""
    model = reranker_to_train(find_model(run.finetune.model)[1], run.sampling.seed)
    model = model.fit(run.text, run.reranking.pair_max_length)
    joiner, tokenizers = model.joiner(), (model.tokenizer(), model.tokenizer())
    batches, measured = partial(PairTrainingBatches, joiner), partial(measure_groups, model, joiner)
    prepare = partial(prepare_queries, run, tokenizers, batches, measured)
    settings = encoding.RepresentationSettings(encoding.Representation.CROSS_ENCODER)
    resolved = {"representation": as_json(settings), "text": as_json(model.text)}
    step = partial(reranking_step, model, run.reranking.r_drop, run.cache)
    return Training(model, step, model.save, model.load, prepare, resolved)
