"""Canaries of encoders that torch computes: made when a model is saved."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from denserk.config.encoding import Dtype, RepresentationSettings, TextSettings
from denserk.data.batches import plan, to_device
from denserk.data.planning import ENOUGH
from denserk.data.tokenization import TextTokenizer, TokenIds
from denserk.errors import lack_of_memory
from denserk.io.canary import KINDS, QUERY, Canary, CanaryText, Vectors
from denserk.models.backbone import STATIC, longest_input
from denserk.models.canary import (
    canary_texts,
    cosine_distances,
    kind_settings,
    saved_settings,
    token_ids,
    tolerances_of,
)
from denserk.models.devices import computes_in
from denserk.models.model_folder import within_positions
from denserk.models.representation import Encoder

logger = logging.getLogger(__name__)

BATCH_TOKENS = 2048
# Tokens of the texts that show how far bfloat16 moves vectors: many CPUs emulate it
LONGEST_IN_BFLOAT16 = 128


def canary_of(
    encoders: Mapping[str, Encoder],
    tokenizer: Any,
    text: TextSettings,
    representation: RepresentationSettings,
) -> Canary | None:
    """Encode the canary's texts, by the encoder of each kind, in float32 on its device.

    None if there is no memory for it, or a vector is not finite: a model is saved all the same.
    `tokenizer` is one of transformers, and stays as it is.
    """
    tokenizer_of_texts = TextTokenizer(copy.deepcopy(tokenizer), text)
    kinds = {}
    texts: list[CanaryText] = []
    distances: list[float] = []
    try:
        for kind in KINDS:
            encoder = encoders[kind]
            text_of_kind = within_positions(text, longest_input(encoder.backbone.config))
            kinds[kind] = kind_settings(kind, representation, text_of_kind)
            tokenizer_of_kind = tokenizer_of_texts.with_settings(text_of_kind)
            texts_of_kind = canary_texts(kind, kinds[kind].max_length)
            ids = token_ids(tokenizer_of_kind, kind, texts_of_kind)
            with _for_inference(encoder) as float32_encoder:
                encode = partial(_encode, float32_encoder, kind, tokenizer_of_kind.pad_id)
                vectors = encode(ids)
                for record in zip(texts_of_kind, ids, vectors, strict=True):
                    texts.append(CanaryText(kind, *record))
                distances += _distances_in_bfloat16(float32_encoder, encode, ids, vectors)
    except RuntimeError as error:
        if not lack_of_memory(error):
            raise
        logger.warning(f"the model is saved without canary.json: {lack_of_memory(error)}")
        return None
    if not all(np.isfinite(text_of_canary.vectors).all() for text_of_canary in texts):
        logger.warning("the model is saved without canary.json: its vectors are not finite")
        return None
    tolerances = tolerances_of(representation, max(distances, default=0.0))
    return Canary(kinds, texts, tolerances, saved_settings(representation, text))


def _encode(
    encoder: Encoder, kind: str, pad_id: int, ids_of_texts: Sequence[TokenIds]
) -> list[Vectors]:
    """Encode texts of a kind by their token ids: each (S, D) float32."""
    encoded_ids = ids_of_texts
    if encoder.backbone.config.model_type != STATIC:
        # as of a text encoder, which reads a text of no tokens as one of padding
        encoded_ids = [ids or [pad_id] for ids in ids_of_texts]
    planned = plan(encoded_ids, pad_id, BATCH_TOKENS, None, ENOUGH["cpu"])
    vectors_by_row: dict[int, Vectors] = {}
    device = next(encoder.parameters()).device
    vectors_of = encoder if kind == QUERY else encoder.stored_vectors
    for rows, batch in zip(planned.rows, planned.batches, strict=True):
        batch_vectors = vectors_of(to_device(batch, device)).float().cpu().numpy()
        for row, vectors in zip(rows.tolist(), batch_vectors, strict=True):
            vectors_by_row[row] = vectors.reshape(-1, encoder.dimension)
    return [vectors_by_row[row] for row in range(len(ids_of_texts))]


def _distances_in_bfloat16(
    encoder: Encoder,
    encode: Callable[[Sequence[TokenIds]], list[Vectors]],
    ids_of_texts: Sequence[TokenIds],
    vectors: Sequence[Vectors],
) -> list[float]:
    """Return how far bfloat16 moves the vectors of the shorter texts, without a copy of weights.

    Empty on a GPU that has no bfloat16.
    """
    device = next(encoder.parameters()).device
    if device.type != "cpu" and not computes_in(Dtype.BFLOAT16, device):
        return []
    rows = [row for row, ids in enumerate(ids_of_texts) if len(ids) <= LONGEST_IN_BFLOAT16]
    with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
        reduced_vectors = encode([ids_of_texts[row] for row in rows])
    return cosine_distances(reduced_vectors, [vectors[row] for row in rows])


@contextmanager
def _for_inference(encoder: Encoder) -> Iterator[Encoder]:
    """Yield an encoder that computes without dropout, in float32, which is how it is saved.

    An encoder that is trained goes on as it was.
    """
    float32_encoder = encoder
    if any(parameter.dtype.itemsize < 4 for parameter in encoder.parameters()):
        float32_encoder = copy.deepcopy(encoder).float()
    trained_modules: list[nn.Module] = [
        module for module in float32_encoder.modules() if module.training
    ]
    float32_encoder.eval()
    device = next(float32_encoder.parameters()).device
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield float32_encoder
    finally:
        for module in trained_modules:
            module.training = True
