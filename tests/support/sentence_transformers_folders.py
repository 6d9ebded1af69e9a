"""Folders as sentence-transformers writes them, around a tiny model."""

import json
import shutil

MODULE_PREFIX = "sentence_transformers.models."
LENGTHS = "sentence_bert_config.json"
POOLING = "1_Pooling/config.json"
PROMPTS = "config_sentence_transformers.json"


def module(index, name, path):
    """A module in modules.json."""
    return {"idx": index, "name": str(index), "path": path, "type": MODULE_PREFIX + name}


def write_folder(source, target, *, modules=("Transformer", "Pooling", "Normalize"), **files):
    """A folder as sentence-transformers writes it; `files` replace or add JSON files."""
    shutil.copytree(source, target)
    chain = []
    for index, name in enumerate(modules):
        path = "" if index == 0 else f"{index}_{name}"
        chain.append(module(index, name, path))
    contents = {
        "modules.json": chain,
        POOLING: {"pooling_mode_mean_tokens": True},
        LENGTHS: {"max_seq_length": 20, "do_lower_case": False},
        **files,
    }
    for name, content in contents.items():
        path = target / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return target
