"""What a training run adds to the card of its model: its data, its settings and its measures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from denserk.config.finetuning import FinetuneRun
from denserk.config.pretraining import PretrainRun
from denserk.config.training import CROSS_ENCODER
from denserk.io.tables import HUB
from denserk.models import model_card
from denserk.models.model_card import CARD_FILE
from denserk.training.trainer import measures_of

# how a card names validation data that has no name on the hub
HELD_OUT = "held-out data"


def extend_card(
    folder: Path,
    output: Path,
    run: FinetuneRun | PretrainRun,
    record: Mapping[str, Any],
    measured: Mapping[str, Any],
) -> None:
    """Add a run to the card of its model.

    `folder` becomes `output`. `record` has the settings by section, `counts` of the training data,
    and `steps`; `measured` is an entry of the log, whose measures have names that begin with
    `eval_`.
    """
    card = folder / CARD_FILE
    if isinstance(run, PretrainRun):
        corpora = run.pretrain.corpus
        fields = {"datasets": _hub_datasets(corpora)}
        sources = _in_words(corpora)
        model_card.extend_card(card, "pretraining_card.md", fields, sources=sources, **record)
        return
    train_data = run.finetune.train_data
    dev_datasets = _hub_datasets([run.validation.dev_corpus or run.validation.dev_data or ""])
    measures = measures_of(measured)
    model_card.extend_card(
        card,
        "training_card.md",
        {
            "datasets": _hub_datasets(train_data),
            "model_name": output.resolve().name if measures else "",
            "eval_results": _eval_results(measures, dev_datasets, record),
        },
        **record,
        sources=_in_words(train_data),
        results=measures,
        dev=model_card.described_sources(dev_datasets, 0) or HELD_OUT,
        step=measured.get("step"),
    )


def _eval_results(
    measures: Mapping[str, float], dev_datasets: Sequence[str], record: Mapping[str, Any]
) -> list[EvalResult]:
    """Return measures for the metadata of a card.

    A file has no name that says anything elsewhere: the data is called held out.
    """
    return [
        EvalResult(
            task_type="text-ranking" if _is_cross_encoder(record) else "text-retrieval",
            dataset_type=dev_datasets[0] if dev_datasets else "custom",
            dataset_name=dev_datasets[0] if dev_datasets else HELD_OUT,
            metric_type=name,
            metric_value=round(value, 4),
        )
        for name, value in measures.items()
    ]


def _in_words(sources: Sequence[str]) -> str:
    """Return the sources of training data in words, without names of files."""
    local_files = [source for source in sources if not _is_on_hub(source)]
    return model_card.described_sources(_hub_datasets(sources), len(local_files))


def _is_cross_encoder(record: Mapping[str, Any]) -> bool:
    """Return whether a run trained a cross-encoder."""
    representation = record.get("representation") or {}
    return bool(representation.get("representation") == CROSS_ENCODER)


def _hub_datasets(sources: Sequence[str]) -> list[str]:
    """Return the names of the hub's datasets among training data, each once."""
    datasets = []
    for source in sources:
        if _is_on_hub(source):
            owner_and_name = _hub_name(source).split("/")[:2]
            datasets.append("/".join(owner_and_name))
    return list(dict.fromkeys(datasets))


def _is_on_hub(source: str) -> bool:
    """Return whether training data is a dataset of the hub: hf:NAME may also be a folder."""
    return source.startswith(HUB) and not Path(_hub_name(source)).exists()


def _hub_name(source: str) -> str:
    """Return NAME of hf:NAME:CONFIG/SPLIT.

    >>> _hub_name("hf:sentence-transformers/gooaq:pair/train")
    'sentence-transformers/gooaq'
    """
    name, _, _ = source.removeprefix(HUB).partition(":")
    return name
