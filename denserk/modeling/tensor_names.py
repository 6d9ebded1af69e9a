"""The names of a model's tensors: what files call them, and what must be there."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from denserk.errors import ModelError
from denserk.modeling.architectures import Architecture


def modern_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A file's tensors without old names of layer norms, and without the `position_ids` buffer."""
    return {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        ): tensor
        for name, tensor in tensors.items()
        if not name.endswith("embeddings.position_ids")
    }


def canonical_tensors(
    architecture: Architecture, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A file's tensors under the names of the masked-LM model, without what no encoder uses.

    Old names of layer norms are renamed, an encoder saved on its own gets its prefix,
    `position_ids` (older transformers wrote that buffer), poolers and other classes' heads are left
    out, and tied tensors are filled in.
    """
    renamed = modern_names(tensors)
    prefix = architecture.prefix
    if not any(name.startswith(prefix) for name in renamed):
        renamed = {
            name if name.startswith(architecture.head) else prefix + name: tensor
            for name, tensor in renamed.items()
        }
    kept = {n: t for n, t in renamed.items() if not n.startswith(architecture.ignored or "\0")}
    for name, source in architecture.tied.items():
        if source in kept:
            kept[name] = kept[source]
    return kept


def check_names(
    where: Path, expected: set[str], given: set[str], what_for: str = "its config.json"
) -> None:
    """Refuses tensors that are missing or left over; `what_for` is what they were checked against.

    Raises:
        ModelError: all of them are named.
    """
    wrong = [
        f"{what} {', '.join(sorted(names))}"
        for what, names in (("missing:", expected - given), ("unexpected:", given - expected))
        if names
    ]
    if wrong:
        raise ModelError(f"{where}: the weights are not those of {what_for}; {'; '.join(wrong)}")


def check_shapes(where: Path, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Reject tensors of another shape than the model's, and tensors of whole numbers.

    Raises:
        ModelError: all of them are named.
    """
    wrong = [
        f"{name} is {tuple(given[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if given[name].shape != tensor.shape
    ]
    wrong += [
        f"{name} holds {str(given[name].dtype).removeprefix('torch.')}, expected floating point"
        for name in expected
        if not given[name].is_floating_point()
    ]
    if wrong:
        raise ModelError(f"{where}: {'; '.join(wrong)}")
