"""`denserk finetune`: a retriever or a cross-encoder, on queries and passages or on sentences."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
from denserk.io.files import STREAM
from denserk.io.model_files import find_model
from denserk.losses.retrieval import RetrievalObjective
from denserk.models import model_folder, saving
from denserk.models.cross_encoder import Reranker, is_reranker, reranker_to_train
from denserk.models.model_card import CARD_FILE, Origin, metadata, origin_of, write_card
from denserk.models.representation import Aggretriever, MultiVector, Retriever
from denserk.models.text_encoder import TextEncoder
from denserk.training import run_folder
from denserk.training.adapters import with_adapters
from denserk.training.alignment import alignment_training
from denserk.training.preparation import prepare_queries, prepare_sentences
from denserk.training.steps import reranking_step, retrieval_step, sentence_step
from denserk.training.trainer import Training
from denserk.training.validation import measure, measure_groups, token_budget

logger = logging.getLogger(__name__)

# number of sentences of an example, of the objectives on sentences
SENTENCES = {Objective.COSINE_MSE: 2, Objective.TRIPLET: 3, Objective.ALIGN: 1}
# measures of held-out examples beside the loss
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
    kind = kind_of_training(run)
    _check_settings(kind, run)
    if kind == CROSS_ENCODER:
        load_training = reranker_training
    elif kind == Objective.ALIGN:
        load_training = alignment_training
    else:
        load_training = retriever_training
    return run_folder.train(run, lambda _: with_adapters(load_training(run), run))


def kind_of_training(run: FinetuneRun) -> str:
    """Return an objective on sentences, or bi-encoder or cross-encoder.

    --representation decides which of the two it is, or else what --model is.
    """
    if run.objective.objective in SENTENCES:
        return str(run.objective.objective)
    representation = run.representation.get("representation")
    if representation is None:
        _, folder = find_model(run.finetune.model)
        is_cross_encoder = is_reranker(folder)
    else:
        is_cross_encoder = representation == encoding.Representation.CROSS_ENCODER
    return CROSS_ENCODER if is_cross_encoder else BI_ENCODER


def _check_settings(kind: str, run: FinetuneRun) -> None:
    """Raise a UsageError for settings that a kind of training does not use."""
    objective = run.objective.objective
    measures = {DevMetric.LOSS, *MEASURES[objective]}
    best_by = run.validation.best_by
    if best_by is not None and best_by not in measures:
        message = f"--best-by {best_by} is not measured under --objective {objective}"
        raise UsageError(message, f"--best-by {' or '.join(sorted(measures))}")
    if run.sampling.group_size == 1:
        _check_positives_alone(kind, run)
    unused = _unused_options(kind, run)
    if unused:
        raise UsageError(f"{', '.join(unused)}: not used by {kind}", "leave out what is named")


def _check_positives_alone(kind: str, run: FinetuneRun) -> None:
    """Raise a UsageError where a query has only its positive, and that leaves nothing to learn."""
    if kind == CROSS_ENCODER:
        message = "--group-size 1: a cross-encoder has no in-batch negatives"
        raise UsageError(message, "give at least 2")
    if kind != BI_ENCODER:
        return
    if run.optimizer.batch_size == 1:
        message = "--batch-size 1 with --group-size 1: a query has no passage but its positive"
        raise UsageError(
            message, "give at least 2 of either; accumulated batches share no negatives"
        )
    if run.objective.distillation is not None:
        message = "--distillation with --group-size 1: a teacher compares a query's own passages"
        raise UsageError(message, "give at least 2")


def _unused_options(kind: str, run: FinetuneRun) -> list[str]:
    """Return the given options that a kind of training does not use."""
    groups = (run.finetune, run.sampling, run.objective, run.cache, run.reranking, run.validation)
    unused = list(unused_options(kind, *groups))
    if kind in SENTENCES and kind != Objective.ALIGN:  # which reads a corpus
        unused += [spelled(name, CorpusSettings) for name in given_fields(run.corpus)]
    representation = run.representation.get("representation")
    if kind in SENTENCES and representation == encoding.Representation.CROSS_ENCODER:
        unused.append("--representation cross-encoder")
    if kind == CROSS_ENCODER:
        names = sorted(run.representation.keys() - {"representation"})
        unused += [spelled(name, encoding.RepresentationSettings) for name in names]
    return unused


def retriever_training(run: FinetuneRun) -> Training:
    """Load or initialise the retriever of a run; new layers use torch's random state."""
    retriever = TrainedRetriever(run)
    if run.objective.objective in SENTENCES:
        return _training_on_sentences(run, retriever)
    return _training_on_queries(run, retriever)


class TrainedRetriever:
    """The retriever of a run with its tokenizers; saves a model folder, reads weights back."""

    def __init__(self, run: FinetuneRun) -> None:
        self._name, folder = find_model(run.finetune.model)
        stored = model_folder.read_model_folder(folder)
        self.representation = stored.choose(run.representation, run.text)
        self._log_and_check(run, stored)
        self._dimensions = run.objective.dimensions or ()
        self._origin = origin_of(self._name, folder)
        self._license = run.optimizer.license
        self.text = model_folder.fit_lengths(stored.text, run.text, stored.passage.max_length)
        query, passage = stored.build(self.representation, train=True, untie=run.finetune.untie)
        self.model = Retriever(query, passage)
        self._passage_tokenizer = stored.load_tokenizer(stored.passage.folder)
        query_tokenizer = stored.load_tokenizer(stored.query.folder)
        self.tokenizers = (
            TextTokenizer(query_tokenizer, self.text),
            TextTokenizer(self._passage_tokenizer, self.text),
        )

    def _log_and_check(self, run: FinetuneRun, stored: model_folder.StoredModel) -> None:
        """Log what becomes of the model that is stored; reject a temperature that cannot learn."""
        if stored.metric is not Metric.INNER:
            logger.info(
                f"{self._name} is trained to compare by inner product, and so will the new model"
            )
        temperature = run.objective.temperature
        has_softmax = run.objective.objective not in SENTENCES
        if self.representation.l2_norm and has_softmax and temperature >= 1:
            message = (
                f"--temperature {temperature:g} with L2-normalised vectors: a softmax hardly learns"
            )
            raise UsageError(message, "add --temperature 0.05, or --no-l2-norm")
        if not stored.has_settings and not run.representation:
            pooling = self.representation.representation
            logger.info(f"{self._name} does not record a pooling: training {pooling}")

    @property
    def resolved(self) -> dict[str, Any]:
        """The sections of training.json that describe the model."""
        return {"representation": as_json(self.representation), "text": as_json(self.text)}

    def save(self, folder: Path) -> None:
        """Write a model folder."""
        saving.save_model(
            folder,
            self.model.passage,
            self._passage_tokenizer,
            self.text,
            query=None if self.model.shared else self.model.query,
            base=self._origin,
            dimensions=self._dimensions,
            license_id=self._license,
        )

    def load(self, folder: Path) -> None:
        """Read the weights of a model folder back."""
        saved = model_folder.read_model_folder(folder)
        query, passage = saved.build(saved.representation)
        self.model.load_state_dict(Retriever(query, passage).state_dict())


def _training_on_sentences(run: FinetuneRun, retriever: TrainedRetriever) -> Training:
    """Return the training of an encoder on pairs or triplets of sentences."""
    model = retriever.model
    if not model.shared:
        message = f"{run.finetune.model} has separate encoders for queries and passages"
        hint = "train on sentences from a model whose sides share their weights"
        raise UsageError(message, hint)
    _, passage_tokenizer = retriever.tokenizers
    tokenize = partial(
        tokenize_sentences,
        tokenizer=passage_tokenizer,
        size=SENTENCES[run.objective.objective],
        label_scale=run.objective.label_scale,
    )
    return Training(
        model,
        step=partial(sentence_step, model.passage, run.objective, run.cache),
        save=retriever.save,
        load=retriever.load,
        prepare=partial(prepare_sentences, run, model.passage, tokenize),
        resolved=retriever.resolved,
    )


def _training_on_queries(run: FinetuneRun, retriever: TrainedRetriever) -> Training:
    """Return the training of a retriever on queries with passages."""
    model = retriever.model
    objective = objective_of(run, model)
    resolved = retriever.resolved
    guide = None
    if run.objective.guide is not None:
        guide = load_guide(run, run.objective.guide)
        resolved["guide"] = guide.description()
    across_devices = run.finetune.negatives_x_device
    measure_model = partial(
        measure,
        model,
        token_budget(),
        batch=run.optimizer.batch_size,
        temperature=run.objective.temperature,
    )
    return Training(
        model,
        step=partial(retrieval_step, model, objective, run.cache, across_devices, guide=guide),
        save=retriever.save,
        load=retriever.load,
        prepare=partial(
            prepare_queries,
            run,
            retriever.tokenizers,
            TrainingBatches,
            measure_model,
            guide=guide,
        ),
        resolved=resolved,
    )


def load_guide(run: FinetuneRun, model: str) -> TextEncoder:
    """Load the model that keeps probable positives out of the negatives."""
    if STREAM in run.finetune.train_data:
        raise UsageError("--guide reads --train-data twice: give a file, not a stream")
    dtype = encoding.DtypeChoice(run.optimizer.dtype)  # as the run computes
    compute = encoding.ComputeSettings(device=run.finetune.device, dtype=dtype)
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
    settings = model.passage.settings
    representation = model.passage.representation
    _check_dimensions(run.objective.dimensions or (), model)
    slices = None
    if isinstance(representation, Aggretriever):
        slices = _aggretriever_slices(representation, settings.agg_order)
    is_self_contrastive = settings.reduction is encoding.Reduction.SELF_CONTRASTIVE
    with_self_contrast = is_self_contrastive and isinstance(representation, MultiVector)
    return RetrievalObjective(run.objective, slices, with_self_contrast, settings.l2_norm)


def _check_dimensions(dimensions: Sequence[int], model: Retriever) -> None:
    """Raise a UsageError if a model's vectors cannot be trained to be cut to `dimensions`."""
    if not dimensions:
        return
    if isinstance(model.passage.representation, Aggretriever):
        raise UsageError(f"--dimensions: {encoding.NO_PREFIX}", encoding.SMALLER_AGG)
    largest = max(dimensions)
    width = model.passage.dimension
    if largest > width:
        raise UsageError(f"--dimensions {largest}: the model's vectors have {width} dimensions")


def _aggretriever_slices(
    representation: Aggretriever, order: encoding.AggOrder
) -> tuple[slice, slice] | None:
    """Return where the [CLS] and the agg part of a vector are; None if it has only one."""
    if not representation.cls_dim or not representation.agg_dim:
        return None
    dimension = representation.dimension
    if order is encoding.AggOrder.CLS_AGG:
        cls_end = representation.cls_dim
        return slice(0, cls_end), slice(cls_end, dimension)
    agg_end = representation.agg_dim
    return slice(agg_end, dimension), slice(0, agg_end)


def reranker_training(run: FinetuneRun) -> Training:
    """Load the cross-encoder of a run, or give an encoder a new linear head."""
    name, folder = find_model(run.finetune.model)
    origin = origin_of(name, folder)
    model = reranker_to_train(folder, run.sampling.seed)
    model = model.fit(run.text, run.reranking.pair_max_length)
    joiner = model.joiner()
    tokenizers = (model.tokenizer(), model.tokenizer())
    settings = encoding.RepresentationSettings(encoding.Representation.CROSS_ENCODER)
    return Training(
        model,
        step=partial(reranking_step, model, run.reranking.r_drop, run.cache),
        save=partial(save_reranker, model, origin, run.optimizer.license),
        load=model.load,
        prepare=partial(
            prepare_queries,
            run,
            tokenizers,
            partial(PairTrainingBatches, joiner),
            partial(measure_groups, model, joiner, token_budget()),
        ),
        resolved={"representation": as_json(settings), "text": as_json(model.text)},
    )


def save_reranker(model: Reranker, origin: Origin, license_id: str | None, folder: Path) -> None:
    """Write the folder of a cross-encoder, with its card."""
    # the classifiers of transformers open in other libraries, a linear layer does not
    library = "denserk" if model.is_linear else "sentence-transformers"
    data = metadata(
        origin,
        license_id or "",
        library_name=library,
        pipeline_tag="text-ranking",
        tags=["denserk", "cross-encoder", "reranker"],
    )
    write_card(
        folder / CARD_FILE,
        "reranker_card.md",
        data,
        architecture=model.model.config.model_type,
        linear=model.is_linear,
        pair_length=model.joiner().limit,
    )
    model.save(folder)
