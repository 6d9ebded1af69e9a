"""Canaries of encoders that torch computes: made when a model is saved."""

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.data.batches import plan, to_device
from denserk.data.planning import ENOUGH
from denserk.data.tokenization import TextTokenizer
from denserk.errors import lack_of_memory
from denserk.io.canary import KINDS, QUERY, Canary, CanaryText, Vectors
from denserk.models.backbone import longest_input
from denserk.models.canary import (
    canary_texts,
    kind_settings,
    saved_settings,
    token_ids,
    tolerances_of,
)
from denserk.models.model_folder import within_positions
from denserk.models.representation import Encoder

logger = logging.getLogger(__name__)

BATCH_TOKENS = 2048


def canary_of(
    encoders: Mapping[str, Encoder],
    tokenizer: Any,
    text: TextSettings,
    representation: RepresentationSettings,
) -> Canary | None:
    """Encode the canary's texts, by the encoder of each kind, as float32 on its device.

    None if there is no memory for it, or a vector is not finite: a model is saved all the same.
    `tokenizer` is one of transformers, and stays as it is.
    """
    tokenizer_of_texts = TextTokenizer(copy.deepcopy(tokenizer), text)
    kinds = {}
    texts: list[CanaryText] = []
    for kind in KINDS:
        encoder = encoders[kind]
        text_of_kind = within_positions(text, longest_input(encoder.backbone.config))
        kinds[kind] = kind_settings(kind, representation, text_of_kind)
        tokenizer_of_kind = tokenizer_of_texts.with_settings(text_of_kind)
        try:
            texts += _encoded_texts(kind, encoder, tokenizer_of_kind, kinds[kind].max_length)
        except RuntimeError as error:
            if not lack_of_memory(error):
                raise
            logger.warning(f"the model is saved without canary.json: {lack_of_memory(error)}")
            return None
    if not all(np.isfinite(text_of_canary.vectors).all() for text_of_canary in texts):
        logger.warning("the model is saved without canary.json: its vectors are not finite")
        return None
    return Canary(kinds, texts, tolerances_of(representation), saved_settings(representation, text))


def _encoded_texts(
    kind: str, encoder: Encoder, tokenizer: TextTokenizer, max_length: int
) -> list[CanaryText]:
    """Return the texts of a kind with their token ids and vectors."""
    texts = canary_texts(kind, max_length)
    ids_of_texts = token_ids(tokenizer, kind, texts)
    # as of a text encoder, which reads a text of no tokens as one of padding
    encoded_ids = [ids or [tokenizer.pad_id] for ids in ids_of_texts]
    planned = plan(encoded_ids, tokenizer.pad_id, BATCH_TOKENS, None, ENOUGH["cpu"])
    vectors: dict[int, Vectors] = {}
    with _for_inference(encoder) as float32_encoder:
        device = next(float32_encoder.parameters()).device
        encode = float32_encoder if kind == QUERY else float32_encoder.stored_vectors
        for rows, batch in zip(planned.rows, planned.batches, strict=True):
            batch_vectors = encode(to_device(batch, device)).float().cpu().numpy()
            for row, vectors_of_text in zip(rows.tolist(), batch_vectors, strict=True):
                vectors[row] = vectors_of_text.reshape(-1, encoder.dimension)
    return [
        CanaryText(kind, text, list(ids), vectors[row])
        for row, (text, ids) in enumerate(zip(texts, ids_of_texts, strict=True))
    ]


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
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            yield float32_encoder
    finally:
        for module in trained_modules:
            module.training = True
