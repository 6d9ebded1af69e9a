"""What a fine-tuning run trains when it trains a retriever."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.data.training_batches import TrainingBatches
from denserk.data.training_data import TrainingStore, prepare
from denserk.errors import DenserkError, UsageError
from denserk.modeling.checkpoints import find_model, read_json
from denserk.modeling.encoder import Retriever
from denserk.modeling.model_folder import save_model
from denserk.modeling.representation import Aggretriever
from denserk.modeling.stored_model import read_model_folder
from denserk.modeling.text_encoder import fit_lengths, override
from denserk.objectives.retrieval import RetrievalObjective
from denserk.settings.encoding import (
    AggOrder,
    Reduction,
    RepresentationSettings,
    TextSettings,
)
from denserk.settings.finetuning import FinetuneRun
from denserk.settings.training import Objective
from denserk.tasks.dev_sets import dev_sets
from denserk.tasks.run_folder import DATA, TOLD, Trained, goes_on
from denserk.training.distributed import world
from denserk.training.steps import RetrievalStep
from denserk.training.validation import DevSet, measure

logger = logging.getLogger(__name__)

# Of L2-normalised vectors, as most published models have it (sentence-transformers' scale 20)
USUAL_TEMPERATURE = 0.05


Tokenizers = tuple[TextTokenizer, TextTokenizer]


@dataclass(frozen=True)
class Finetuning(Trained):
    """What a fine-tuning run trains, on which data, and how it is validated.

    Attributes:
        representation: how embeddings are made.
        texts: how records become text.
        folder: of the (passage) weights that it starts from.
        prepare: output folder -> the tokenised training data in it.
        dev: output folder -> the held-out data; none where no validation was asked for.
        batches: training data -> what the step takes, a dataset of steps.
        measure: held-out data -> measures; the model is in evaluation mode.
    """

    representation: RepresentationSettings
    texts: TextSettings
    folder: Path
    prepare: Callable[[Path], Any]
    dev: Callable[[Path], list[Any]]
    batches: Callable[[Any], Any]
    measure: Callable[[list[Any]], dict[str, float]]


def prepare_examples(run: FinetuneRun, output: Path, tokenizers: Tokenizers) -> TrainingStore:
    """Tokenise the run's queries and passages once, beneath its folder."""
    settings = run.finetune
    return prepare(
        settings.train_data,
        output / DATA,
        *tokenizers,
        corpus=settings.corpus,
        corpus_settings=run.corpus,
        fields=run.text.get("fields"),
        queries=settings.queries,
        qrels=settings.qrels,
        form=settings.train_format,
        skip_missing=settings.skip_missing,
        require_scores=run.objective.distillation is not None,
        again=not goes_on(output),
    )


def example_batches(run: FinetuneRun, store: TrainingStore) -> TrainingBatches:
    """Return this process's batches of queries and passages."""
    rank, size = world()
    return TrainingBatches(
        store,
        run.sampling,
        run.optimizer.batch_size,
        epochs=run.optimizer.epochs,
        max_steps=run.optimizer.max_steps,
        rank=rank,
        world=size,
        with_scores=run.objective.distillation is not None,
    )


def begin_retriever_training(run: FinetuneRun) -> Finetuning:
    """Return the retriever of a run; new layers are drawn from torch's random state.

    Raises:
        UsageError: the model, or a setting of it, is not there to choose.
        ModelError: the model cannot do what is asked of it.
    """
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
    step = RetrievalStep(
        model,
        objective_of(run, chosen, model),
        run.cache,
        across_devices=run.finetune.negatives_x_device,
    )
    sides = (load_tokenizer(side.folder) for side in (stored.query, stored.passage))
    query, passage = (TextTokenizer(tokenizer, texts) for tokenizer in sides)
    tokenizers = query, passage

    def save(folder: Path) -> None:
        query = None if model.shared else model.query
        tokenizer = load_tokenizer(stored.passage.folder)
        save_model(folder, model.passage, tokenizer, texts, query, name)

    def load(folder: Path) -> None:
        saved = read_model_folder(folder)
        query, passage = saved.build(saved.representation)
        model.load_state_dict(Retriever(query, passage).state_dict())

    def measured(dev: list[DevSet]) -> dict[str, float]:
        """Measure the dev sets; a given collection comes last, and its RR@10 counts."""
        device = next(model.parameters()).device
        batch, temperature = run.optimizer.batch_size, run.objective.temperature
        found: dict[str, float] = {}
        for each in dev:
            found |= measure(model, each, batch, temperature, device)
        return found

    return Finetuning(
        model,
        step,
        save,
        load,
        chosen,
        texts,
        stored.passage.folder,
        prepare=lambda output: prepare_examples(run, output, tokenizers),
        dev=lambda output: dev_sets(run, output, tokenizers),
        batches=lambda store: example_batches(run, store),
        measure=measured,
    )


def _refuse_flat_softmax(run: FinetuneRun, chosen: RepresentationSettings, folder: Path) -> None:
    """Reject L2-normalised vectors at temperature 1, which hardly learn."""
    objective = run.objective
    if not chosen.l2_norm or objective.objective is not Objective.RETRIEVAL:
        return
    if objective.temperature < 1:
        return
    recorded: Any = None
    with suppress(DenserkError, KeyError, AttributeError):  # it need not be there
        recorded = read_json(folder / TOLD)["objective"].get("temperature")
    usual = recorded if isinstance(recorded, float) and 0 < recorded < 1 else USUAL_TEMPERATURE
    raise UsageError(
        f"--temperature {objective.temperature:g} with L2-normalised vectors: scores lie between "
        "-1 and 1, and a softmax over them hardly learns",
        f"add --temperature {usual:g}, or --no-l2-norm for vectors that are not normalised",
    )


def objective_of(
    run: FinetuneRun, settings: RepresentationSettings, model: Retriever
) -> RetrievalObjective:
    """The loss of a run's settings on vectors that are made as the representation says."""
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
