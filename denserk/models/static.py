"""Static encoders: a text's vector is the mean of its tokens' (Model2Vec, StaticEmbedding)."""

from typing import Any

import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

STATIC = "static"


class StaticConfig(transformers.PretrainedConfig):  # type: ignore[no-untyped-call]
    """The size of the table."""

    model_type = STATIC
    vocab_size: int = 1
    hidden_size: int = 1


class StaticModel(transformers.PreTrainedModel):  # type: ignore[no-untyped-call]
    """A table of the tokens' vectors."""

    config_class = StaticConfig

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        """Look vectors up: (B, T) ids -> (B, T, H)."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


transformers.AutoConfig.register(STATIC, StaticConfig)
transformers.AutoModel.register(StaticConfig, StaticModel)


def without_special_tokens(tokenizer: Any) -> Any:
    """Return a tokenizer that adds no special tokens to a text."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = None
    make: Any = transformers.PreTrainedTokenizerFast
    return make(tokenizer_object=backend, **tokenizer.special_tokens_map)
