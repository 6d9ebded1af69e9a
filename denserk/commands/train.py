"""`denserk pretrain`, `finetune` and `mine-negatives`."""

import logging
from typing import Annotated, Any

from denserk.commands.options import command
from denserk.commands.presets import print_preset, print_presets
from denserk.config import finetuning
from denserk.config import pretraining as config
from denserk.config.encoding import ComputeSettings, ServerSettings, TextSettings
from denserk.config.formats import CorpusSettings
from denserk.config.mining import MiningPaths, MiningSettings, resolve_mining
from denserk.config.options import Given, build
from denserk.config.presets import (
    PresetSettings,
    list_presets,
    shown_preset,
)
from denserk.config.training import CLASSES, FinetuneSettings

logger = logging.getLogger(__name__)

# What stands below the tables of --list-presets.
EXPLANATION_OF_PRESETS = (
    "Size: queries x passages of each query in a batch, and the length of the training. "
    "`denserk finetune --show-preset NAME` prints the settings of one and their sources."
)
EXPLANATION_OF_RECIPES = (
    "Trained: the length of a text. Size: texts in a batch, and the length of the training. "
    "NAME-small is --objective NAME --preset small. "
    "`denserk pretrain --show-preset NAME` prints the settings of one and their sources."
)


@command(
    "pretrain",
    config=True,
    common="objective model architecture corpus expansions output max_length spans mlm_probability "
    "batch_size epochs max_steps lr dtype save_steps seed device resume",
)
def pretrain(
    pretraining: Annotated[Given, config.PretrainSettings],
    presets: config.RecipeListSettings,
    corpus: CorpusSettings,
    given: Annotated[Given, *config.CLASSES],
) -> Any:
    """Pre-train a backbone for retrieval.

    denserk pretrain --objective condenser --model bert-base-uncased --corpus t.txt --output m/
    denserk pretrain --objective mlm --architecture tiny --corpus t.txt --output m/
    """
    if presets.list_presets:
        print_presets(config.list_recipes(), EXPLANATION_OF_RECIPES)
        return None
    if presets.show_preset is not None:
        print_preset(config.shown_recipe(presets.show_preset))
        return None
    settings = build(config.PretrainSettings, pretraining)
    run = config.resolve_run(settings, corpus, given)
    _reject_taken_output(settings)  # before torch is imported and a model loaded
    from denserk.tasks.pretrain import pretrain as task
    from denserk.training.run_folder import log_result

    result = task(run)
    log_result(result, settings.output)
    return result


@command(
    "finetune",
    config=True,
    common="preset model train_data corpus output representation objective temperature "
    "distillation batch_size epochs lr group_size grad_cache dtype dev_data device resume",
)
def finetune(
    presets: PresetSettings,
    given: Annotated[Given, *CLASSES],
    corpus: CorpusSettings,
) -> Any:
    """Fine-tune a retriever or a cross-encoder.

    denserk finetune --model bert-base-uncased --train-data train.jsonl --output model/
    denserk finetune --model bert-base-uncased --representation agg --train-data t.jsonl --output m/
    """
    if presets.list_presets:
        print_presets(list_presets(), EXPLANATION_OF_PRESETS)
        return None
    if presets.show_preset is not None:
        print_preset(shown_preset(presets.show_preset))
        return None
    run = finetuning.resolve_run(presets.preset, corpus, given)
    _reject_taken_output(run.finetune)  # before torch is imported and a model loaded
    from denserk.tasks.finetune import finetune as task
    from denserk.training.run_folder import log_result

    result = task(run)
    log_result(result, run.finetune.output, run.validation.best_by)
    return result


def _reject_taken_output(settings: config.PretrainSettings | FinetuneSettings) -> None:
    """Raise a UsageError if the output holds what may not be replaced."""
    from denserk.io.outputs import reject_occupied

    reject_occupied(settings.output, overwrite=settings.overwrite or settings.resume)


@command(
    "mine-negatives",
    common="train topics qrels run corpus output output_format preset depth num_negatives "
    "sampling_strategy range_min relative_margin answers teacher skip_missing seed overwrite",
)
def mine_negatives(
    paths: MiningPaths,
    given: Annotated[Given, MiningSettings],
    corpus: CorpusSettings,
    text: Annotated[Given, TextSettings],
    compute: ComputeSettings,
    server: ServerSettings,
) -> Any:
    """Mine hard negatives from runs over training queries.

    denserk mine-negatives --train t.jsonl --run r.trec --corpus c.jsonl --output mined.jsonl
    denserk mine-negatives --topics q.tsv --qrels qrels.txt --run r.trec --output out.jsonl
    """
    from denserk.tasks.mine_negatives import mine_negatives as task

    settings = resolve_mining(paths.preset, given)
    result = task(paths, settings, corpus, text, compute, server)
    logger.info(f"{paths.output}: {result.queries:,} queries, {result.negatives:,} negatives")
    return result
