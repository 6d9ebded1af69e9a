"""Tokenization of passages and queries: fields joined, truncated, in batches."""

import copy
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any

import orjson

from denserk.config.encoding import TextSettings
from denserk.errors import ModelError
from denserk.io.model_files import library_errors, read_optional_json
from denserk.io.outputs import MODEL_CONFIG
from denserk.records import Passage, Query

# values of `TextSettings.join` that are no literal separators
SEPARATOR = "sep"
PAIR = "pair"
# files with a tokenizer's vocabulary: a folder has at least one
VOCABULARY = "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model"
RULES = "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TOKENIZER_FILES = (*VOCABULARY, *RULES)
SMALL_JSON = "tokenizer_config.json", "special_tokens_map.json"
# how texts are cut, whatever a tokenizer's file says of it: at their end, of a pair the longer part
TRUNCATION = {"strategy": "longest_first", "direction": "right", "stride": 0}

TokenIds = list[int]
TokenizerInput = str | tuple[str, str]


def passage_input(passage: Passage, settings: TextSettings, separator: str) -> TokenizerInput:
    """Return the tokenizer's input for a passage, empty fields left out.

    `separator` is the tokenizer's separator token, for `join sep`.

    >>> settings = TextSettings(passage_prefix="passage: ")
    >>> passage_input(Passage("d", "It runs south.", "River"), settings, "[SEP]")
    'passage: River It runs south.'
    >>> passage_input(Passage("d", "It runs south."), settings, "[SEP]")
    'passage: It runs south.'
    """
    fields = [passage.field(name).strip() for name in settings.fields]
    present_fields = [field for field in fields if field]
    if settings.join == PAIR and len(present_fields) == 2:
        first_field, second_field = present_fields
        return settings.passage_prefix + first_field, second_field
    literal_separator = settings.join
    if settings.join == PAIR:
        literal_separator = " "
    elif settings.join == SEPARATOR:
        literal_separator = separator
    return settings.passage_prefix + literal_separator.join(present_fields)


def query_input(query: Query, settings: TextSettings) -> str:
    """Return the tokenizer's input for a query.

    >>> query_input(Query("q", "what\u2019s new"), TextSettings(normalize_quotes=True))
    "what's new"
    """
    text = query.text.strip()
    if settings.normalize_quotes:
        text = text.replace("\u2019", "'")
    return settings.query_prefix + text


def load_tokenizer(folder: Path) -> Any:
    """Load a folder's tokenizer; a ModelError without a fast one, or for ids beyond the model's."""
    vocabulary_files = [folder / name for name in VOCABULARY if (folder / name).is_file()]
    if not vocabulary_files:
        hint = f"one of these is expected: {', '.join(VOCABULARY)}"
        raise ModelError(f"{folder} has no tokenizer", hint)
    from transformers import AutoTokenizer  # slow to import

    config = read_optional_json(folder / MODEL_CONFIG)
    for name in SMALL_JSON:
        read_optional_json(folder / name)  # a file that is no JSON is named by its error
    vocabulary_file = vocabulary_files[0]
    problem = f"{vocabulary_file} holds a tokenizer that cannot be loaded"
    with library_errors(problem, "fetch the files of the tokenizer again"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        vocabulary = tokenizer.get_vocab()
    if not tokenizer.is_fast:
        raise ModelError(f"{folder}: its tokenizer has no fast form, which denserk needs")
    with library_errors(problem, "fetch the files of the tokenizer again"):
        token_ids = tokenizer.backend_tokenizer.encode("a").ids
    if not token_ids:
        raise ModelError(
            f"{vocabulary_file} holds a tokenizer that makes no tokens of a text",
            "fetch the files of the tokenizer again",
        )
    _reject_ids_beyond(config.get("vocab_size"), vocabulary, folder)
    return tokenizer


def _reject_ids_beyond(model_size: Any, vocabulary: Mapping[str, int], folder: Path) -> None:
    """Raise a ModelError for a token whose id is beyond the number of the model's tokens."""
    token, largest_id = max(vocabulary.items(), key=itemgetter(1))
    if type(model_size) is int and largest_id >= model_size:
        raise ModelError(
            f"{folder}: the tokenizer's {token[:40]!r} has id {largest_id:,}, the model "
            f"{model_size:,} tokens",
            "take the tokenizer that the model was trained with",
        )


def special_tokens_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids that a tokenizer of transformers puts before and after a text."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    encoding = backend.encode("a")
    # of each token the number of its text, which is 0; None of a special token
    text_numbers = encoding.sequence_ids
    count_before = text_numbers.index(0)
    count_after = text_numbers[::-1].index(0)
    return encoding.ids[:count_before], encoding.ids[len(encoding.ids) - count_after :]


class TextTokenizer:
    """A tokenizer with the text settings of a model.

    A text is truncated at its end; of a pair, the longer part first. Nothing is padded. Threads may
    tokenise at the same time if they use the same limit.
    """

    def __init__(self, tokenizer: Any, settings: TextSettings) -> None:
        self.settings = settings
        self.pad_id = int(tokenizer.pad_token_id or 0)
        self.separator = str(tokenizer.sep_token or "")
        if settings.join == SEPARATOR and not self.separator:
            problem = "--set join=sep: the model's tokenizer has no separator token"
            raise ModelError(problem, 'choose --set join=" " or --set join=pair')
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_padding()
        self._changing_limit = Lock()

    def with_settings(self, settings: TextSettings) -> "TextTokenizer":
        """Return the same tokenizer with other text settings, for the same threads."""
        tokenizer = copy.copy(self)
        tokenizer.settings = settings
        return tokenizer

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def to_json(self) -> str:
        """Return the tokenizer's rules and vocabulary, as the library tokenizers reads them."""
        text: str = self._backend.to_str()
        return text

    def fingerprint(self) -> str:
        """Return the SHA-256 of the tokenizer's rules and vocabulary, without the settings."""
        rules = orjson.loads(self.to_json())
        for name in ("truncation", "padding"):  # state of the last call
            rules.pop(name, None)
        return sha256(orjson.dumps(rules)).hexdigest()

    def passages(
        self, passages: Sequence[Passage], max_length: int | None = None
    ) -> list[TokenIds]:
        """Return the ids of passages, special tokens included.

        `max_length` replaces the limit of the settings.
        """
        texts = [passage_input(passage, self.settings, self.separator) for passage in passages]
        return self._ids(texts, max_length or self.settings.passage_max_length)

    def queries(self, queries: Sequence[Query]) -> list[TokenIds]:
        """Return the ids of queries, special tokens included."""
        texts = [query_input(query, self.settings) for query in queries]
        return self._ids(texts, self.settings.query_max_length)

    def sentences(self, texts: Sequence[TokenizerInput]) -> list[TokenIds]:
        """Return the ids of texts or pairs, with the prefix and limit of passages."""
        prefix = self.settings.passage_prefix
        inputs: list[TokenizerInput] = []
        for text in texts:
            if isinstance(text, str):
                inputs.append(prefix + text.strip())
            else:
                first_text, second_text = text
                inputs.append((prefix + first_text.strip(), second_text.strip()))
        return self._ids(inputs, self.settings.passage_max_length)

    def subword_tokens(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return the ids of whole texts, without special tokens."""
        return self._ids(texts, None, add_special_tokens=False)

    def _ids(
        self, texts: Sequence[TokenizerInput], limit: int | None, **options: Any
    ) -> list[TokenIds]:
        self._set_limit(limit)
        encode: Callable[..., Any] = self._backend.encode_batch_fast
        return [encoding.ids for encoding in encode(texts, **options)]

    def _set_limit(self, limit: int | None) -> None:
        """Truncate texts to a number of tokens from now on, or not at all."""
        truncation = None if limit is None else {"max_length": limit, **TRUNCATION}
        with self._changing_limit:
            # only if it differs: the library forbids changes while another thread encodes
            if self._backend.truncation == truncation:
                return
            if truncation is None:
                self._backend.no_truncation()
            else:
                self._backend.enable_truncation(**truncation)
