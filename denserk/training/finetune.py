"""Fine-tune a retriever or a cross-encoder, on queries and passages or on sentences."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import set_seed

from denserk.analysis.sentence_similarity import figure_of, score_examples
from denserk.config.encoding import (
    AggOrder,
    Dtype,
    Reduction,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.finetuning import FinetuneRun
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.config.training import (
    ContrastiveKind,
    DevMetric,
    Objective,
    ObjectiveSettings,
    SamplingSettings,
)
from denserk.data.batches import to_device
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
from denserk.errors import DenserkError, InputError, UsageError
from denserk.losses.retrieval import RetrievalObjective
from denserk.models.checkpoints import find_model, read_json
from denserk.models.cross_encoder import begin_reranker, is_reranker
from denserk.models.encoder import Encoder, Retriever
from denserk.models.model_folder import save_model
from denserk.models.representation import Aggretriever
from denserk.models.stored_model import read_model_folder
from denserk.models.text_encoder import fit_lengths, override
from denserk.training.distributed import main_process_first, process_group, world
from denserk.training.run_folder import (
    DATA,
    DEV_DATA,
    RECORD,
    TrainingResult,
    is_resumable,
    make_ready,
    record_of,
    refuse_changes,
    start,
    train,
    write_config,
)
from denserk.training.steps import RerankingStep, RetrievalStep, SentenceStep, sentence_loss
from denserk.training.trainer import Trained, Trainer, estimate, training_device
from denserk.training.validation import DevSet, dev_sets, measure, measure_groups

logger = logging.getLogger(__name__)

# Suggested for L2-normalised vectors, as most published models have it (sentence-transformers'
# scale 20).
USUAL_TEMPERATURE = 0.05
# Sentences of an example, and what held-out examples measure beside the loss.
SENTENCES = {Objective.COSINE_MSE: 2, Objective.TRIPLET: 3}
MEASURES = {Objective.COSINE_MSE: DevMetric.SPEARMAN, Objective.TRIPLET: DevMetric.ACCURACY}
# Held-out examples of sentences that are measured at once.
BLOCK = 64
Tokenizers = tuple[TextTokenizer, TextTokenizer]


@dataclass(frozen=True)
class Finetuning(Trained):
    """What a run trains, on which data, and how it is validated.

    Attributes:
        representation: how embeddings are made.
        texts: how records become text.
        folder: of the (passage) weights that training starts from.
        prepare: tokenises the training data beneath the output folder.
        dev: tokenises the held-out data; returns an empty list without validation.
        batches: training data -> a dataset of batches for the step.
        measure: held-out data -> measures; the model is in evaluation mode.
    """

    representation: RepresentationSettings
    texts: TextSettings
    folder: Path
    prepare: Callable[[Path], Any]
    dev: Callable[[Path], list[Any]]
    batches: Callable[[Any], Any]
    measure: Callable[[list[Any]], dict[str, float]]


def finetune(run: FinetuneRun) -> TrainingResult:
    """Train a retriever or a cross-encoder, and save it as a model folder.

    Raises:
        UsageError, InputError, ModelError, OutputError, DenserkError: see `denserk.errors`.
    """
    device = training_device(run.finetune.device, run.optimizer.dtype)
    with process_group(str(device)):
        return _finetune(run, device)


def _finetune(run: FinetuneRun, device: torch.device) -> TrainingResult:
    output, settings = Path(run.finetune.output), run.finetune
    for note in run.notes:
        logger.info(note)
    set_seed(run.sampling.seed)
    refuse_other_measures(run)
    if run.objective.objective in SENTENCES:
        trained = sentence_training(run)
    elif trains_reranker(run):
        trained = reranker_training(run)
    else:
        trained = retriever_training(run)
    resolved = {"representation": as_json(trained.representation), "text": as_json(trained.texts)}
    main = world()[0] == 0
    if main:
        make_ready(output, resume=settings.resume, overwrite=settings.overwrite)
        if is_resumable(output):
            refuse_changes(output, run.as_json() | resolved)  # before data is prepared again
    store = main_process_first(lambda: trained.prepare(output))
    dev = main_process_first(lambda: trained.dev(output))
    record = record_of(run.as_json() | resolved, output)
    if main:
        start(output, record)
        write_config(output, "finetune", run.config())
    batches = trained.batches(store)
    halved = run.optimizer.dtype is not Dtype.FLOAT32
    logger.info(estimate(batches[0], trained.model, run.cache, halved=halved))
    trainer = Trainer(
        trained,
        batches,
        run.optimizer,
        output,
        device=device,
        seed=run.sampling.seed,
        validation=run.validation,
        measure=(lambda: trained.measure(dev)) if dev else None,
    )
    return train(trainer, record, resume=settings.resume)


def refuse_other_measures(run: FinetuneRun) -> None:
    """Raise UsageError for a --best-by that the objective's held-out data does not measure."""
    objective, metric = run.objective.objective, run.validation.best_by
    if metric is None or metric is DevMetric.LOSS:
        return
    own = MEASURES.get(objective)
    if metric is not own and (own is not None or metric in MEASURES.values()):
        raise UsageError(
            f"--best-by {metric} is not measured under --objective {objective}",
            f"--best-by {own or 'RR@10'}, or {DevMetric.LOSS}",
        )


def _tokenize(
    run: FinetuneRun, sources: Sequence[str], folder: Path, tokenizers: Tokenizers, **options: Any
) -> TrainingStore:
    """Tokenise queries and passages once, into a folder of the run."""
    settings = run.finetune
    inputs = TrainingInputs(
        sources,
        corpus=settings.corpus,
        corpus_settings=run.corpus,
        fields=run.text.get("fields"),
        queries=settings.queries,
        skip_missing=settings.skip_missing,
        **options,
    )
    return prepare(inputs, folder, *tokenizers, again=not is_resumable(folder.parent))


def prepare_examples(run: FinetuneRun, output: Path, tokenizers: Tokenizers) -> TrainingStore:
    """Tokenise the run's training data beneath its folder."""
    settings = run.finetune
    given = {"qrels": settings.qrels, "form": settings.train_format}
    return _tokenize(run, settings.train_data, output / DATA, tokenizers, **given)


def prepare_dev(run: FinetuneRun, output: Path, tokenizers: Tokenizers) -> list[DevSet]:
    """Tokenise the run's held-out data; see `dev_sets`."""
    source = run.validation.dev_data
    store = source and _tokenize(run, [source], output / DEV_DATA, tokenizers)
    return dev_sets(run, store or None, tokenizers)


def _share(run: FinetuneRun) -> dict[str, Any]:
    """Return the arguments that cut a store into this process's batches."""
    rank, size = world()
    optimizer = run.optimizer
    return {
        "epochs": optimizer.epochs,
        "max_steps": optimizer.max_steps,
        "rank": rank,
        "world": size,
    }


def example_batches(run: FinetuneRun, store: TrainingStore) -> TrainingBatches:
    """Return this process's batches of queries and passages."""
    with_scores = run.objective.distillation is not None
    size = run.optimizer.batch_size
    return TrainingBatches(store, run.sampling, size, with_scores=with_scores, **_share(run))


def retriever_training(run: FinetuneRun) -> Finetuning:
    """Load or initialise the retriever of a run; new layers use torch's random state."""
    name, folder = find_model(run.finetune.model)
    stored = read_model_folder(folder)
    chosen = override(stored.representation, run.representation)
    _refuse_flat_softmax(run, chosen, folder)
    if not (stored.told or run.representation):
        logger.info(
            f"{name} does not say how its vectors are made: training {chosen.representation}"
        )
    texts = fit_lengths(stored.text, run.text, stored.passage.max_length)
    model = stored.begin(chosen, untie=run.finetune.untie)
    tokenizers = (
        TextTokenizer(load_tokenizer(stored.query.folder), texts),
        TextTokenizer(load_tokenizer(stored.passage.folder), texts),
    )

    def save(folder: Path) -> None:
        query = None if model.shared else model.query
        save_model(folder, model.passage, load_tokenizer(stored.passage.folder), texts, query, name)

    def load(folder: Path) -> None:
        saved = read_model_folder(folder)
        model.load_state_dict(Retriever(*saved.build(saved.representation)).state_dict())

    def measured(dev: list[DevSet]) -> dict[str, float]:
        """Measure the dev sets; a collection comes last, and its RR@10 counts."""
        device = next(model.parameters()).device
        batch, temperature = run.optimizer.batch_size, run.objective.temperature
        found: dict[str, float] = {}
        for each in dev:
            found |= measure(model, each, batch, temperature, device)
        return found

    objective = objective_of(run, chosen, model)
    across = run.finetune.negatives_x_device
    return Finetuning(
        model,
        RetrievalStep(model, objective, run.cache, across_devices=across),
        save,
        load,
        chosen,
        texts,
        stored.passage.folder,
        prepare=lambda output: prepare_examples(run, output, tokenizers),
        dev=lambda output: prepare_dev(run, output, tokenizers),
        batches=lambda store: example_batches(run, store),
        measure=measured,
    )


def _refuse_flat_softmax(run: FinetuneRun, chosen: RepresentationSettings, folder: Path) -> None:
    """Reject L2-normalised vectors at temperature 1, which hardly learn."""
    objective = run.objective
    retrieval = objective.objective is Objective.RETRIEVAL
    if not (chosen.l2_norm and retrieval) or objective.temperature < 1:
        return
    recorded: Any = None
    with suppress(DenserkError, KeyError, AttributeError):  # it need not be there
        recorded = read_json(folder / RECORD)["objective"].get("temperature")
    usual = recorded if isinstance(recorded, float) and 0 < recorded < 1 else USUAL_TEMPERATURE
    raise UsageError(
        f"--temperature {objective.temperature:g} with L2-normalised vectors: scores lie between "
        "-1 and 1, and a softmax over them hardly learns",
        f"add --temperature {usual:g}, or --no-l2-norm for vectors that are not normalised",
    )


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
    several = not isinstance(made, Aggretriever) and hasattr(made, "kept")
    return RetrievalObjective(
        run.objective,
        parts=parts,
        self_contrastive=several and settings.reduction is Reduction.SELF_CONTRASTIVE,
    )


def trains_reranker(run: FinetuneRun) -> bool:
    """Whether a run trains a cross-encoder: as given, or because its --model is one."""
    asked = run.representation.get("representation")
    if asked is None:
        return is_reranker(find_model(run.finetune.model)[1])
    return bool(asked == Representation.CROSS_ENCODER)


def reranker_training(run: FinetuneRun) -> Finetuning:
    """Load the cross-encoder of a run, or give an encoder a new linear head.

    Raises:
        UsageError: settings that a cross-encoder does not have; all of them are named.
        ModelError: the model cannot become a cross-encoder.
    """
    _refuse_settings_of_vectors(run)
    _, folder = find_model(run.finetune.model)
    stored = begin_reranker(folder, run.sampling.seed).fit(run.text, run.reranking.pair_max_length)
    model, joiner = stored.reranker, stored.joiner()
    tokenizers = stored.tokenizer(), stored.tokenizer()  # of queries, and of passages

    def measured(dev: list[DevSet]) -> dict[str, float]:
        (held_out,) = dev
        return measure_groups(model, joiner, held_out, next(model.parameters()).device)

    return Finetuning(
        model,
        RerankingStep(model, run.reranking, run.cache),
        stored.save,
        stored.load,
        RepresentationSettings(Representation.CROSS_ENCODER),
        stored.text,
        stored.folder,
        prepare=lambda output: prepare_examples(run, output, tokenizers),
        dev=lambda output: prepare_dev(run, output, tokenizers),
        batches=lambda store: PairTrainingBatches(example_batches(run, store), joiner),
        measure=measured,
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse(flags: dict[str, Any], why: str) -> None:
    """Raise UsageError that names the flags whose value is true."""
    if given := [flag for flag, present in flags.items() if present]:
        them = "it" if len(given) == 1 else "them"
        raise UsageError(f"{', '.join(given)}: {why}", f"leave {them} out")


def _refuse_settings_of_vectors(run: FinetuneRun) -> None:
    flags = {
        "--untie": run.finetune.untie,
        "--distillation": run.objective.distillation is not None,
        "--temperature": run.objective.temperature != 1,
        "--contrastive full": run.objective.contrastive is ContrastiveKind.FULL,
        "--dev-corpus": run.validation.dev_corpus is not None,
        **{_flag(name): True for name in sorted(run.representation.keys() - {"representation"})},
    }
    _refuse(flags, "a cross-encoder makes no vectors, and scores a query's own passages alone")
    if run.sampling.group_size < 2:
        raise UsageError(
            "--group-size 1 leaves nothing to tell the positive from",
            "a cross-encoder has no in-batch negatives: give at least 2",
        )


def sentence_training(run: FinetuneRun) -> Finetuning:
    """Load the encoder of a run for training on sentences, which are encoded as passages."""
    _refuse_settings_of_retrieval(run)
    retriever = retriever_training(run)
    assert isinstance(retriever.model, Retriever)
    if not retriever.model.shared:
        raise UsageError(
            f"{run.finetune.model} has separate encoders for queries and passages, and one encoder "
            "reads the sentences of an example",
            "start from a model whose sides share their weights",
        )
    encoder, data = retriever.model.passage, run.finetune.train_data
    tokenizer = TextTokenizer(load_tokenizer(retriever.folder), retriever.texts)
    size = run.optimizer.batch_size
    return replace(
        retriever,
        step=SentenceStep(encoder, run.objective, run.cache),
        prepare=lambda output: _tokenize_sentences(run, data, output / DATA, tokenizer),
        dev=lambda output: _prepare_dev_sentences(run, output / DEV_DATA, tokenizer),
        batches=lambda store: SentenceBatches(store, run.sampling, size, **_share(run)),
        measure=lambda dev: _measure_sentences(encoder, run.objective, dev[0]),
    )


def _refuse_settings_of_retrieval(run: FinetuneRun) -> None:
    usual, loss = SamplingSettings(), ObjectiveSettings()
    given = ("train_format", "corpus", "queries", "qrels", "skip_missing")
    drawing = ("group_size", "positive", "negative", "negative_pool", "fill_negatives")
    scoring: tuple[str, ...] = ("temperature", "layer_temperature")
    scoring += ("contrastive", "distillation", "contrastive_weight")
    dev = ("dev_corpus", "dev_topics", "dev_qrels")
    cross_encoder = run.representation.get("representation") == Representation.CROSS_ENCODER
    flags = {
        "--representation cross-encoder": cross_encoder,
        "--untie": run.finetune.untie,
        "--set negatives-x-device=no": not run.finetune.negatives_x_device,
        **{_flag(name): getattr(run.finetune, name) for name in given},
        "the options of a corpus": run.corpus != CorpusSettings(),
        **{_flag(name): getattr(run.sampling, name) != getattr(usual, name) for name in drawing},
        **{_flag(name): getattr(run.objective, name) != getattr(loss, name) for name in scoring},
        **{_flag(name): getattr(run.validation, name) for name in dev},
    }
    name = run.objective.objective
    _refuse(
        flags, f"not under --objective {name}, which has sentences in place of queries and passages"
    )


def _tokenize_sentences(
    run: FinetuneRun, sources: tuple[str, ...], folder: Path, tokenizer: TextTokenizer
) -> SentenceStore:
    """Tokenise examples once, into a folder of the run."""
    return prepare_sentences(
        sources,
        folder,
        tokenizer,
        size=SENTENCES[run.objective.objective],
        label_scale=run.objective.label_scale,
        again=not is_resumable(folder.parent),
    )


def _prepare_dev_sentences(
    run: FinetuneRun, folder: Path, tokenizer: TextTokenizer
) -> list[SentenceStore]:
    """Tokenise held-out pairs or triplets; raise InputError if all labels are the same."""
    source = run.validation.dev_data
    if source is None:
        return []
    store = _tokenize_sentences(run, (source,), folder, tokenizer)
    if store.size == 2 and len(np.unique(store.labels)) < 2:
        raise InputError(source, None, f"the label {store.labels[0]:g} alone", "labels that differ")
    return [store]


@torch.no_grad()
def _measure_sentences(
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
