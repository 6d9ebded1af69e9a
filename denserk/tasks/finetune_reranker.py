"""What a fine-tuning run trains when it trains a cross-encoder."""

from dataclasses import dataclass
from pathlib import Path

from denserk.data.pair_batches import PairJoiner, PairTrainingBatches
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import TrainingBatches
from denserk.errors import UsageError
from denserk.modeling.checkpoints import find_model
from denserk.modeling.cross_encoder import Reranker, StoredReranker, begin_reranker, is_reranker
from denserk.settings.encoding import Representation, RepresentationSettings, TextSettings
from denserk.settings.finetuning import FinetuneRun
from denserk.settings.training import ContrastiveKind
from denserk.training.dev_measures import DevSet
from denserk.training.reranking_measures import measure_groups
from denserk.training.reranking_step import RerankingStep


def trains_reranker(run: FinetuneRun) -> bool:
    """Whether a run trains a cross-encoder: it is asked to, or its --model is one."""
    asked = run.representation.get("representation")
    if asked is None:
        return is_reranker(find_model(run.finetune.model)[1])
    return bool(asked == Representation.CROSS_ENCODER)


@dataclass(frozen=True)
class RerankerTraining:
    """A cross-encoder in training.

    Attributes:
        stored: the model, and what makes its inputs.
        joiner: makes its inputs.
        step: a batch of `batches` -> gradients.
    """

    stored: StoredReranker
    joiner: PairJoiner
    step: RerankingStep

    @property
    def root(self) -> Path:
        """The folder it starts from."""
        return self.stored.folder

    @property
    def model(self) -> Reranker:
        """What is trained."""
        return self.stored.reranker

    @property
    def representation(self) -> RepresentationSettings:
        """How it is saved."""
        return RepresentationSettings(Representation.CROSS_ENCODER)

    @property
    def texts(self) -> TextSettings:
        """How records become text."""
        return self.stored.text

    @property
    def tokenizers(self) -> tuple[TextTokenizer, TextTokenizer]:
        """Of queries, and of passages: training data is prepared with them."""
        return self.stored.tokenizer(), self.stored.tokenizer()

    def batches(self, batches: TrainingBatches) -> PairTrainingBatches:
        """The run's batches of queries and passages as batches of pairs."""
        return PairTrainingBatches(batches, self.joiner)

    def save(self, folder: Path) -> None:
        """Writes a folder that `rerank` takes."""
        self.stored.save(folder)

    def load(self, folder: Path) -> None:
        """Takes the weights from a folder that `save` wrote."""
        self.stored.load(folder)

    def measure(self, dev: list[DevSet]) -> dict[str, float]:
        """Measures the dev sets; the model is in evaluation mode."""
        device = next(self.model.parameters()).device
        measured: dict[str, float] = {}
        for each in dev:
            measured |= measure_groups(self.model, self.joiner, each, device)
        return measured


def begin_reranker_training(run: FinetuneRun) -> RerankerTraining:
    """The cross-encoder of a run: that of its --model, or an encoder with a new linear head.

    Raises:
        UsageError: settings that a cross-encoder does not have; all of them are named.
        ModelError: the model cannot become one.
    """
    _refuse_settings_of_vectors(run)
    _, folder = find_model(run.finetune.model)
    stored = begin_reranker(folder, run.sampling.seed).fit(run.text, run.reranking.pair_max_length)
    step = RerankingStep(stored.reranker, run.reranking, run.cache)
    return RerankerTraining(stored, stored.joiner(), step)


def _refuse_settings_of_vectors(run: FinetuneRun) -> None:
    others = sorted(run.representation.keys() - {"representation"})
    refused = {
        "--untie": run.finetune.untie,
        "--distillation": run.objective.distillation is not None,
        "--temperature": run.objective.temperature != 1,
        "--contrastive full": run.objective.contrastive is ContrastiveKind.FULL,
        "--dev-corpus": run.validation.dev_corpus is not None,
        **{f"--{name.replace('_', '-')}": True for name in others},
    }
    if given := [flag for flag, present in refused.items() if present]:
        raise UsageError(
            f"{', '.join(given)}: a cross-encoder makes no vectors, and scores a query's own "
            "passages alone",
            f"leave {'it' if len(given) == 1 else 'them'} out",
        )
    if run.sampling.group_size < 2:
        raise UsageError(
            "--group-size 1 leaves nothing to tell the positive from",
            "a cross-encoder has no in-batch negatives: give at least 2",
        )
