"""What pre-training keeps beside the backbone: heads and decoders, needed only to continue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from denserk.modeling.checkpoints import fill, read_tensors
from denserk.modeling.model_folder import write_tensors

PUBLISHED_FILE = "model.pt"
"""The authors' file beside their backbones: a pickle of tensors, and only as such is it read."""


@dataclass(frozen=True)
class HeadLayout:
    """Where an objective's own layers are kept.

    `file` is denserk's, of keys `{head}.{layer}.…`; `heads` are those that it may hold. `published`
    maps the names in the authors' `model.pt` to denserk's; `ignored` are tensors there of no head.
    """

    file: str
    heads: frozenset[str]
    published: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    @property
    def files(self) -> tuple[str, ...]:
        """The files that may hold them, in the order in which they are looked for."""
        return (self.file, PUBLISHED_FILE) if self.published else (self.file,)


CONDENSER = HeadLayout(
    "condenser_head.safetensors",
    frozenset({"head"}),
    published={"c_head": "head"},
    ignored=frozenset({"co_target"}),
)
MASTER = HeadLayout(
    "master_decoders.safetensors",
    frozenset(f"{name}_decoder" for name in ("mkp", "cmp", "npr", "dor", "gor", "shared")),
    published={
        "c_head": "mkp_decoder",
        "overlap_head": "cmp_decoder",
        "next_head": "npr_decoder",
        "query_head": "dor_decoder",
        "gpt_head": "gor_decoder",
    },
)
RETROMAE = HeadLayout("retromae_decoder.safetensors", frozenset({"decoder"}))


def save_heads(folder: Path, layout: HeadLayout, heads: Mapping[str, nn.Module]) -> None:
    """Writes an objective's own layers beside its backbone, in float32.

    Args:
        folder: the model's.
        layout: the objective's.
        heads: the layers by the first part of their names.

    Raises:
        OutputError: the folder cannot be written.
    """
    write_tensors(folder / layout.file, nn.ModuleDict(heads).state_dict())


def load_heads(folder: Path, layout: HeadLayout, heads: Mapping[str, nn.Module]) -> Path | None:
    """Fills an objective's own layers from a folder, denserk's or the authors'.

    Decoders of the file that are not asked for are left alone.

    Args:
        folder: the model's.
        layout: the objective's.
        heads: the layers by the first part of their names, filled in place.

    Returns:
        The file that was read; None where there is none, and the layers stay as they are.

    Raises:
        ModelError: the file is unreadable, lacks a layer, or has other shapes.
    """
    path = next((folder / name for name in layout.files if (folder / name).is_file()), None)
    if path is None:
        return None
    tensors = read_tensors(path)
    if path.name == PUBLISHED_FILE:
        tensors = _renamed(layout, tensors)
    left = layout.heads - heads.keys()
    given = {n: t for n, t in tensors.items() if n.partition(".")[0] not in left}
    fill(path, nn.ModuleDict(heads), given)
    return path


def _renamed(layout: HeadLayout, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The authors' tensors by denserk's names; their layer norms may have names of old."""
    renamed = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition(".")
        rest = rest.replace("LayerNorm.gamma", "LayerNorm.weight")
        rest = rest.replace("LayerNorm.beta", "LayerNorm.bias")
        if name not in layout.ignored:
            renamed[f"{layout.published.get(head, head)}.{rest}"] = tensor
    return renamed
