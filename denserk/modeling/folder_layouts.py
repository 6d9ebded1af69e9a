"""The layouts that a model folder may have, as a table: how each is recognised and read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from denserk.data.tokenization import TOKENIZER_FILES
from denserk.errors import ModelError, UsageError
from denserk.modeling.sentence_transformers_folder import (
    is_sentence_transformers,
    read_sentence_transformers,
)
from denserk.modeling.stored_model import StoredEncoder, StoredModel
from denserk.modeling.weight_files import (
    read_json,
    read_tensors,
    read_weights,
    weight_files,
)
from denserk.settings.encoding import (
    PairSettings,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.settings.options import from_json

DENSERK_FILE = "denserk.json"
FORMAT_VERSION = 1
QUERY_SIDE, PASSAGE_SIDE = "query", "document"
"""Sub-folders of a denserk model whose two sides have weights of their own."""

AUTHORS_SIDES = ("query_model", "passage_model")
"""The same in the Aggretriever authors' layout."""
TERM_WEIGHT_FILE = "TermWeightTrans.pt"
POOLER_FILE = "pooler.pt"


@dataclass(frozen=True)
class Layout:
    """One layout: its name, what a folder of it holds, how it is recognised, how it is read."""

    name: str
    holds: str
    recognised: Callable[[Path], bool]
    read: Callable[[Path], StoredModel]


def encoder_files(folder: Path) -> list[Path]:
    """The files of one transformers folder that make an encoder what it is."""
    names = [folder / "config.json", *(folder / name for name in TOKENIZER_FILES)]
    return [*weight_files(folder), *(path for path in names if path.is_file())]


def read_own_file(folder: Path) -> tuple[RepresentationSettings, TextSettings, PairSettings]:
    """What a folder's denserk.json tells.

    Raises:
        ModelError: a later version of denserk wrote it, or it is broken.
    """
    told = read_json(folder / DENSERK_FILE)
    version = told.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{folder / DENSERK_FILE} has the format version {version}; "
            f"this denserk reads {FORMAT_VERSION}",
            "use the version of denserk that wrote it, or a later one",
        )
    try:
        return (
            from_json(RepresentationSettings, told["representation"]),
            from_json(TextSettings, told["text"]),
            from_json(PairSettings, told.get("pairs", {})),
        )
    except (KeyError, TypeError, UsageError) as error:
        raise ModelError(f"{folder / DENSERK_FILE} is broken: {error}") from None


def read_denserk(folder: Path) -> StoredModel:
    """Reads what denserk saved.

    Raises:
        ModelError: a later version of denserk wrote it, or it is broken.
    """
    representation, text, _ = read_own_file(folder)
    if representation.representation is Representation.CROSS_ENCODER:
        raise ModelError(
            f"{folder} is a cross-encoder: it makes no vectors",
            "rerank with it: denserk rerank --model MODEL --run RUN --topics Q --corpus C",
        )
    separate = (folder / PASSAGE_SIDE).is_dir()
    sides = [folder / QUERY_SIDE, folder / PASSAGE_SIDE] if separate else [folder]
    encoders = [StoredEncoder.read(side) for side in sides]
    return StoredModel(
        root=folder,
        layout="denserk",
        query=encoders[0],
        passage=encoders[-1],
        representation=representation,
        text=text,
        files=(folder / DENSERK_FILE, *(path for side in sides for path in encoder_files(side))),
    )


def read_plain(folder: Path) -> StoredModel:
    """Reads a transformers folder, or Aggretriever's one-file layout, told by its tensors."""
    encoder = StoredEncoder.read(folder)
    told = "tok_proj.weight" in encoder.heads
    if told:
        settings = _aggretriever(encoder.heads)
    elif encoder.architecture.has_cls:
        settings = RepresentationSettings()
    else:
        settings = RepresentationSettings(Representation.MEAN)
    return StoredModel(
        root=folder,
        layout="aggretriever-pyserini" if told else "transformers",
        query=encoder,
        passage=encoder,
        representation=settings,
        text=TextSettings(),
        files=tuple(encoder_files(folder)),
        told=told,
    )


def is_authors(folder: Path) -> bool:
    """Whether a folder is in the Aggretriever authors' layout: the term weight has its own file."""
    return (folder / TERM_WEIGHT_FILE).is_file()


def read_authors(folder: Path) -> StoredModel:
    """Reads the Aggretriever authors' layout, one encoder for both sides or one each.

    Dimensions of the lexical part and its variant are not recorded there: they are denserk's
    defaults, the authors' own.
    """
    sides = [folder / side for side in AUTHORS_SIDES if (folder / side).is_dir()] or [folder]
    files = [folder / TERM_WEIGHT_FILE, folder / POOLER_FILE]
    present = [path for path in files if path.is_file()]
    stored = {path.name: read_tensors(path) for path in present}
    heads = [_authors_heads(folder, stored, letter) for letter in "qp"]
    tied = all(heads[0][name].equal(heads[1][name]) for name in heads[0])
    shared = tied and len(sides) == 1
    encoders: list[StoredEncoder] = []
    for side, own in zip((sides[0], sides[-1]), heads, strict=True):
        if shared and encoders:
            break
        tensors = read_weights(side) if side != folder or not encoders else encoders[0].tensors
        encoders.append(StoredEncoder.from_tensors(side, {**tensors, **own}))
    return StoredModel(
        root=folder,
        layout="aggretriever-authors",
        query=encoders[0],
        passage=encoders[-1],
        representation=_aggretriever(encoders[0].heads),
        text=TextSettings(),
        files=(*present, *(path for side in sides for path in encoder_files(side))),
    )


def _authors_heads(
    folder: Path, stored: Mapping[str, Mapping[str, Tensor]], letter: str
) -> dict[str, Tensor]:
    heads = {}
    for file, name in ((TERM_WEIGHT_FILE, "tok_proj"), (POOLER_FILE, "cls_proj")):
        for leaf in ("weight", "bias") if file in stored else ():
            key = f"linear_{letter}.{leaf}"
            if key not in stored[file]:
                raise ModelError(f"{folder / file} lacks {key}")
            heads[f"{name}.{leaf}"] = stored[file][key]
    return heads


def _aggretriever(heads: Mapping[str, Tensor]) -> RepresentationSettings:
    projection = heads.get("cls_proj.weight")
    return RepresentationSettings(
        Representation.AGG, cls_dim=0 if projection is None else len(projection)
    )


LAYOUTS = (
    Layout(
        "denserk",
        f"{DENSERK_FILE}, config.json, model.safetensors",
        lambda folder: (folder / DENSERK_FILE).is_file(),
        read_denserk,
    ),
    Layout(
        "sentence-transformers",
        "modules.json",
        is_sentence_transformers,
        read_sentence_transformers,
    ),
    Layout(
        "aggretriever-authors",
        f"config.json, pytorch_model.bin, {TERM_WEIGHT_FILE}",
        is_authors,
        read_authors,
    ),
    Layout(
        "transformers",
        "config.json, model.safetensors or pytorch_model.bin",
        lambda folder: (folder / "config.json").is_file(),
        read_plain,
    ),
)
"""In the order in which they are tried."""


def read_model_folder(folder: Path) -> StoredModel:
    """Reads a model's folder, whatever its layout.

    Raises:
        UsageError: there is no such folder.
        ModelError: it has none of the layouts, or does not hold what its layout says.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    for layout in LAYOUTS:
        if layout.recognised(folder):
            return layout.read(folder)
    known = "; ".join(f"{layout.name} ({layout.holds})" for layout in LAYOUTS)
    raise ModelError(f"{folder} holds no model that denserk knows", f"layouts it reads: {known}")
