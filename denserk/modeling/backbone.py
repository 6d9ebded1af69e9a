"""The pretrained transformer and its MLM head: the one file that knows architectures."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig
from transformers.initialization import no_init_weights
from transformers.masking_utils import create_bidirectional_mask

from denserk.data.batches import TokenBatch
from denserk.errors import ModelError
from denserk.modeling.weight_files import read_json


@dataclass(frozen=True)
class Architecture:
    """What differs from one kind of transformer to the next.

    `prefix` is how the masked-LM model names its encoder's tensors, and those names are the ones
    denserk keeps. `head` lists the first parts of the MLM head's tensors. `tied` maps a tensor to
    the one it must be. `ignored` are first parts of tensors that other model classes leave in a
    file. `transform` is the MLM head up to its last layer, `decoder` the path of that layer.
    `final_norm` is the path of a norm after the last layer. `layers` is the path of the encoder's
    layers, `cross` one of them with queries of their own, `first_position` the row of the position
    embeddings that a text begins with.
    """

    model_type: str
    encoder: str
    prefix: str = ""
    masked_lm: str | None = None
    head: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    transform: Callable[[Any, Tensor], Tensor] | None = None
    decoder: str = ""
    encoder_arguments: Mapping[str, Any] = field(default_factory=dict)
    has_cls: bool = True
    final_norm: str = ""
    positions: Callable[[PretrainedConfig], int | None] = lambda config: int(
        config.max_position_embeddings
    )
    layers: str = "encoder.layer"
    cross: Callable[[Any, Tensor, Tensor, Tensor], Tensor] | None = None
    first_position: Callable[[PretrainedConfig], int] = lambda config: 0


def _bert_transform(model: Any, hidden: Tensor) -> Tensor:
    transformed: Tensor = model.cls.predictions.transform(hidden)
    return transformed


def _roberta_transform(model: Any, hidden: Tensor) -> Tensor:
    transformed: Tensor = model.lm_head.layer_norm(F.gelu(model.lm_head.dense(hidden)))
    return transformed


def _distilbert_transform(model: Any, hidden: Tensor) -> Tensor:
    transformed: Tensor = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    return transformed


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, heads: int, dropout: float
) -> Tensor:
    """(B, T, H) three times, and who sees whom, (B, T, T) bool -> (B, T, H)."""
    query, key, value = (
        part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in (queries, keys, values)
    )
    context = F.scaled_dot_product_attention(query, key, value, seen.unsqueeze(1), dropout)
    return context.transpose(1, 2).flatten(2)


def _bert_cross(layer: Any, queries: Tensor, states: Tensor, seen: Tensor) -> Tensor:
    own = layer.attention.self
    projected = own.query(queries), own.key(states), own.value(states)
    dropout = own.dropout.p if layer.training else 0.0
    context = _attend(*projected, seen, own.num_attention_heads, dropout)
    result: Tensor = layer.feed_forward_chunk(layer.attention.output(context, queries))
    return result


def _distilbert_cross(layer: Any, queries: Tensor, states: Tensor, seen: Tensor) -> Tensor:
    own = layer.attention
    projected = own.q_lin(queries), own.k_lin(states), own.v_lin(states)
    dropout = own.dropout.p if layer.training else 0.0
    context = own.out_lin(_attend(*projected, seen, own.n_heads, dropout))
    attended = layer.sa_layer_norm(context + queries)
    result: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
    return result


ARCHITECTURES = {
    architecture.model_type: architecture
    for architecture in (
        Architecture(
            "bert",
            encoder="BertModel",
            prefix="bert.",
            masked_lm="BertForMaskedLM",
            head=("cls.predictions.",),
            tied={
                "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias",
            },
            ignored=("bert.pooler.", "cls.seq_relationship."),
            transform=_bert_transform,
            decoder="cls.predictions.decoder",
            encoder_arguments={"add_pooling_layer": False},
            cross=_bert_cross,
        ),
        Architecture(
            "roberta",
            encoder="RobertaModel",
            prefix="roberta.",
            masked_lm="RobertaForMaskedLM",
            head=("lm_head.",),
            tied={
                "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
                "lm_head.decoder.bias": "lm_head.bias",
            },
            ignored=("roberta.pooler.",),
            transform=_roberta_transform,
            decoder="lm_head.decoder",
            encoder_arguments={"add_pooling_layer": False},
            # positions of real tokens start after the padding id
            positions=lambda config: config.max_position_embeddings - config.pad_token_id - 1,
            cross=_bert_cross,
            first_position=lambda config: int(config.pad_token_id) + 1,
        ),
        Architecture(
            "distilbert",
            encoder="DistilBertModel",
            prefix="distilbert.",
            masked_lm="DistilBertForMaskedLM",
            head=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
            tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
            transform=_distilbert_transform,
            decoder="vocab_projector",
            layers="transformer.layer",
            cross=_distilbert_cross,
        ),
        Architecture(  # the discriminator; its generator and its heads are for pre-training alone
            "electra",
            encoder="ElectraModel",
            prefix="electra.",
            ignored=(
                "discriminator_predictions.",
                "generator_predictions.",
                "generator_lm_head.",
            ),
        ),
        Architecture(
            "t5",
            encoder="T5EncoderModel",
            tied={"encoder.embed_tokens.weight": "shared.weight"},
            ignored=("decoder.", "lm_head."),
            has_cls=False,
            final_norm="encoder.final_layer_norm",
            positions=lambda config: None,
        ),
    )
}


def architecture_of(folder: Path) -> Architecture:
    """The architecture that a folder's config.json names.

    Raises:
        ModelError: there is no config.json, or it names an architecture outside the table.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: it is not a saved transformer")
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type not in ARCHITECTURES:
        raise ModelError(
            f"{folder}: the backbone {model_type!r} is not supported",
            f"supported: {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[model_type]


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


class Backbone(nn.Module):
    """A transformer, with its MLM head where one is asked for.

    Args:
        architecture: its row of the table.
        config: its configuration.
        with_head: whether the MLM head is part of it; only for an architecture that has one.
    """

    def __init__(
        self, architecture: Architecture, config: PretrainedConfig, *, with_head: bool
    ) -> None:
        super().__init__()
        assert architecture.masked_lm or not with_head
        self.architecture = architecture
        self.config = config
        self.with_head = with_head
        name = architecture.masked_lm if with_head else architecture.encoder
        arguments = {} if with_head else architecture.encoder_arguments
        with no_init_weights():
            self.model: Any = getattr(transformers, str(name))(config, **arguments)

    @classmethod
    def from_tensors(
        cls,
        architecture: Architecture,
        folder: Path,
        tensors: Mapping[str, Tensor],
        *,
        with_head: bool,
    ) -> "Backbone":
        """The backbone of a folder, its tensors given under their canonical names.

        Raises:
            ModelError: tensors are missing or left over; all of them are named.
        """
        backbone = cls(architecture, AutoConfig.from_pretrained(folder), with_head=with_head)
        backbone.load_tensors(folder, tensors)
        return backbone.float().eval()

    def load_tensors(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Fills every parameter from tensors of canonical names, then ties what must be tied."""
        head = self.architecture.head
        prefix = "" if self.with_head else self.architecture.prefix
        given = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if self.with_head or not (head and name.startswith(head))
        }
        expected = self.model.state_dict()
        check_names(folder, set(expected), set(given))
        check_shapes(folder, expected, given)
        self.model.load_state_dict(given, assign=True)
        self.tie()

    def tie(self) -> None:
        """Makes tied tensors one parameter; a decoder that a file lacks would stay random."""
        cut = 0 if self.with_head else len(self.architecture.prefix)
        for name, source in self.architecture.tied.items():
            if not self.with_head and name.startswith(self.architecture.head or "\0"):
                continue
            owner, _, leaf = name[cut:].rpartition(".")
            setattr(self.model.get_submodule(owner), leaf, self.model.get_parameter(source[cut:]))

    def canonical(self) -> dict[str, Tensor]:
        """Every tensor under its canonical name, tied ones included."""
        prefix = "" if self.with_head else self.architecture.prefix
        return {prefix + name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def forward(self, batch: TokenBatch) -> Tensor:
        """Last hidden states: (B, T) ids -> (B, T, H)."""
        hidden: Tensor = self.encoder(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            output_hidden_states=False,
            return_dict=True,
        ).last_hidden_state
        return hidden

    def hidden_states(self, batch: TokenBatch, *, norm_intermediate: bool = False) -> list[Tensor]:
        """States of every layer, item 0 the embeddings': (B, T) ids -> L + 1 times (B, T, H).

        Args:
            batch: the tokens.
            norm_intermediate: apply the final layer norm, where the backbone has one after its last
                layer (T5), to the layers before it too.
        """
        states: list[Tensor] = list(
            self.encoder(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                output_hidden_states=True,
                return_dict=True,
            ).hidden_states
        )
        if norm_intermediate and self.architecture.final_norm:
            norm = self.encoder.get_submodule(self.architecture.final_norm)
            states[1:-1] = [norm(state) for state in states[1:-1]]
        return states

    def attention_maps(self, batch: TokenBatch) -> list[Tensor]:
        """Who attends to whom, after the softmax: (B, T) ids -> L times (B, A, T, T), A the heads.

        From the first call on, the backbone computes attention in its eager form: no other one
        gives its weights away.
        """
        self.encoder.set_attn_implementation("eager")
        maps = self.encoder(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            output_attentions=True,
            return_dict=True,
        ).attentions
        return list(maps)

    def embed(self, batch: TokenBatch) -> Tensor:
        """The embedding layer's output, norm and dropout included: (B, T) ids -> (B, T, H)."""
        embedded: Tensor = self.encoder.embeddings(input_ids=batch.input_ids)
        return embedded

    def position_signal(self, length: int) -> Tensor:
        """The embeddings of a text's first positions: (T, H)."""
        first = self.architecture.first_position(self.config)
        signal: Tensor = self.encoder.embeddings.position_embeddings.weight
        return signal[first : first + length]

    def new_layers(self, count: int) -> list[nn.Module]:
        """Further layers of the encoder's own kind, as torch initialises them."""
        kind: Any = type(self.encoder.get_submodule(self.architecture.layers)[0])
        return [kind(self.model.config) for _ in range(count)]

    def run_layers(self, layers: Iterable[nn.Module], states: Tensor, mask: Tensor) -> Tensor:
        """Layers of the encoder's kind, one after the other.

        Args:
            layers: from `new_layers`.
            states: (B, T, H).
            mask: (B, T) bool, True = a real token.

        Returns:
            (B, T, H).
        """
        bias = create_bidirectional_mask(self.model.config, states, mask)
        for layer in layers:
            states = layer(states, bias)
        return states

    def run_cross_layer(
        self, layer: nn.Module, queries: Tensor, states: Tensor, seen: Tensor
    ) -> Tensor:
        """A layer whose queries, and with them the residual, are not what keys and values are of.

        Args:
            layer: from `new_layers`.
            queries: (B, T, H).
            states: (B, T, H).
            seen: (B, T, T) bool, whether query i sees state j.

        Returns:
            (B, T, H).
        """
        assert self.architecture.cross is not None
        return self.architecture.cross(layer, queries, states, seen)

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """The MLM head: (..., H) -> (..., V)."""
        assert self.with_head
        assert self.architecture.transform is not None
        decoder = self.model.get_submodule(self.architecture.decoder)
        logits: Tensor = decoder(self.architecture.transform(self.model, hidden))
        return logits

    @property
    def encoder(self) -> Any:
        """The transformer of transformers without its MLM head."""
        if self.with_head:
            return getattr(self.model, self.architecture.prefix.rstrip("."))
        return self.model

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.config.hidden_size)

    @property
    def last_layer(self) -> int:
        """L: how many layers there are, and the number of the last."""
        return int(self.config.num_hidden_layers)

    @property
    def heads(self) -> int:
        """A: the attention heads of a layer."""
        return int(self.config.num_attention_heads)

    @property
    def vocabulary(self) -> int:
        """V, as the model has it; a tokenizer may know fewer ids."""
        return int(self.config.vocab_size)

    @property
    def max_length(self) -> int | None:
        """The longest text it has positions for, special tokens included; None: any length."""
        return self.architecture.positions(self.config)


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
    """Refuses tensors of another shape than the model's.

    Raises:
        ModelError: all of them are named.
    """
    wrong = [
        f"{name} is {tuple(given[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if given[name].shape != tensor.shape
    ]
    if wrong:
        raise ModelError(f"{where}: {'; '.join(wrong)}")
