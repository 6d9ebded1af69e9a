"""What a model card says of the training run: data, settings, measures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard

from denserk.io.files import display_name, whole_text
from denserk.io.tables import HUB
from denserk.models.model_folder import CARD_FILE, card_template


def extend_card(folder: Path, record: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Add a run to the card of its model, if it has one: a cross-encoder has none.

    `record` has the settings by section, `counts` of the training data, and `steps`; `measured` is
    an entry of the log, whose measures have names that begin with `eval_`.
    """
    path = folder / CARD_FILE
    if not path.is_file():
        return
    card = ModelCard.load(path)
    train, validation = record["finetune"]["train_data"], record["validation"]
    names = (each.removeprefix(HUB).partition(":")[0] for each in train if each.startswith(HUB))
    hub = dict.fromkeys("/".join(n.split("/")[:2]) for n in names if not Path(n).exists())
    card.data.datasets = list(hub) or None
    results = {n.removeprefix("eval_"): v for n, v in measured.items() if n.startswith("eval_")}
    dev = display_name(validation["dev_corpus"] or validation["dev_data"] or "")
    if results:
        card.data.model_name = folder.resolve().name
        card.data.eval_results = [
            EvalResult("text-retrieval", "custom", dev, name, round(value, 4))
            for name, value in results.items()
        ]
    # without the folders of this machine
    shown = [each if each.startswith(HUB) else display_name(each) for each in train]
    about = {"sources": shown, "results": results, "dev": dev, "step": measured.get("step")}
    card.text += card_template("training_card.md").render(**record, **about)
    with whole_text(path) as out:
        out.write(str(card))
