"""What a fine-tuning run trains when it trains a retriever."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.data.training_batches import TrainingBatches
from denserk.errors import DenserkError, UsageError
from denserk.modeling.checkpoints import find_model, read_json
from denserk.modeling.encoder import Retriever
from denserk.modeling.model_folder import save_model
from denserk.modeling.representation import Aggretriever
from denserk.modeling.stored_model import StoredModel, read_model_folder
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
from denserk.tasks.run_folder import TOLD
from denserk.training.dev_measures import DevSet, measure
from denserk.training.retrieval_step import RetrievalStep

logger = logging.getLogger(__name__)

USUAL_TEMPERATURE = 0.05
"""Of L2-normalised vectors, as most published models have it (sentence-transformers' scale 20)."""


@dataclass(frozen=True)
class RetrieverTraining:
    """A retriever in training.

    Attributes:
        run: what was chosen.
        name: the model it starts from.
        stored: the weights it starts from.
        representation: how vectors are made.
        texts: how records become text.
        model: both encoders.
        step: a batch -> gradients.
    """

    run: FinetuneRun
    name: str
    stored: StoredModel
    representation: RepresentationSettings
    texts: TextSettings
    model: Retriever
    step: RetrievalStep

    @property
    def root(self) -> Path:
        """The folder it starts from."""
        return self.stored.root

    @property
    def tokenizers(self) -> tuple[TextTokenizer, TextTokenizer]:
        """Of queries, and of passages."""
        sides = (load_tokenizer(side.folder) for side in (self.stored.query, self.stored.passage))
        query, passage = (TextTokenizer(tokenizer, self.texts) for tokenizer in sides)
        return query, passage

    def batches(self, batches: TrainingBatches) -> TrainingBatches:
        """The run's batches, as they are."""
        return batches

    def save(self, folder: Path) -> None:
        """Writes a folder that `encode` and `search` take."""
        query = None if self.model.shared else self.model.query
        tokenizer = load_tokenizer(self.stored.passage.folder)
        save_model(folder, self.model.passage, tokenizer, self.texts, query, self.name)

    def load(self, folder: Path) -> None:
        """Takes the weights from a folder that `save` wrote."""
        stored = read_model_folder(folder)
        query, passage = stored.build(stored.representation)
        self.model.load_state_dict(Retriever(query, passage).state_dict())

    def measure(self, dev: list[DevSet]) -> dict[str, float]:
        """Measures the dev sets; a given collection comes last, and its RR@10 counts."""
        device = next(self.model.parameters()).device
        batch, temperature = self.run.optimizer.batch_size, self.run.objective.temperature
        measured: dict[str, float] = {}
        for each in dev:
            measured |= measure(self.model, each, batch, temperature, device)
        return measured


def begin_retriever_training(run: FinetuneRun) -> RetrieverTraining:
    """The retriever of a run; new layers are drawn from torch's random state.

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
    return RetrieverTraining(run, name, stored, chosen, texts, model, step)


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
