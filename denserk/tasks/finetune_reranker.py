"""What a fine-tuning run trains when it trains a cross-encoder."""

from denserk.data.training_batches import PairTrainingBatches
from denserk.errors import UsageError
from denserk.modeling.checkpoints import find_model
from denserk.modeling.cross_encoder import begin_reranker, is_reranker
from denserk.settings.encoding import Representation, RepresentationSettings
from denserk.settings.finetuning import FinetuneRun
from denserk.settings.training import ContrastiveKind
from denserk.tasks.dev_sets import dev_sets
from denserk.tasks.finetune_retriever import Finetuning, example_batches, prepare_examples
from denserk.training.steps import RerankingStep
from denserk.training.validation import DevSet, measure_groups


def trains_reranker(run: FinetuneRun) -> bool:
    """Whether a run trains a cross-encoder: it is asked to, or its --model is one."""
    asked = run.representation.get("representation")
    if asked is None:
        return is_reranker(find_model(run.finetune.model)[1])
    return bool(asked == Representation.CROSS_ENCODER)


def begin_reranker_training(run: FinetuneRun) -> Finetuning:
    """Return the cross-encoder of a run: its --model, or an encoder with a new linear head.

    Raises:
        UsageError: settings that a cross-encoder does not have; all of them are named.
        ModelError: the model cannot become one.
    """
    _refuse_settings_of_vectors(run)
    _, folder = find_model(run.finetune.model)
    stored = begin_reranker(folder, run.sampling.seed).fit(run.text, run.reranking.pair_max_length)
    model, joiner = stored.reranker, stored.joiner()
    tokenizers = stored.tokenizer(), stored.tokenizer()  # of queries, and of passages

    def measured(dev: list[DevSet]) -> dict[str, float]:
        device = next(model.parameters()).device
        found: dict[str, float] = {}
        for each in dev:
            found |= measure_groups(model, joiner, each, device)
        return found

    return Finetuning(
        model,
        RerankingStep(model, run.reranking, run.cache),
        stored.save,
        stored.load,
        RepresentationSettings(Representation.CROSS_ENCODER),
        stored.text,
        stored.folder,
        prepare=lambda output: prepare_examples(run, output, tokenizers),
        dev=lambda output: dev_sets(run, output, tokenizers),
        batches=lambda store: PairTrainingBatches(example_batches(run, store), joiner),
        measure=measured,
    )


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
