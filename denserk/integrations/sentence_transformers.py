"""Module class by which sentence-transformers opens models that its own modules cannot express.

`modules.json` of such a folder names `Encoder`; sentence-transformers imports it only under
`SentenceTransformer(folder, trust_remote_code=True)`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules import InputModule

from denserk.data.batches import TokenBatch, pad
from denserk.data.tokenization import PAIR, TextTokenizer, TokenizerInput
from denserk.errors import ModelError, UsageError
from denserk.models.model_folder import StoredModel, fit_lengths, read_model_folder
from denserk.models.saving import save_model
from denserk.records import Query

FOLDER_ARGUMENTS = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
LOADER_ARGUMENTS = ("model_kwargs", "processor_kwargs", "config_kwargs")


class Encoder(InputModule):
    """Query and passage encoder of a denserk model; embeddings equal those of `denserk encode`.

    Queries are texts given to `encode_query`, or with `task="query"`; all others are passages.
    """

    def __init__(self, stored: StoredModel) -> None:
        super().__init__()
        self.query, self.passage = stored.build(stored.representation)
        count = self.passage.vectors_per_passage
        if count > 1:
            raise ModelError(
                f"{stored.root}: {count} embeddings per passage; sentence-transformers has one: "
                "open it with denserk (denserk encode, denserk search)"
            )
        self.tokenizer = stored.load_tokenizer(stored.passage.folder)
        self.query_tokenizer = stored.load_tokenizer(stored.query.folder)
        self.text = fit_lengths(stored.text, {}, stored.passage.max_length)
        self.metric = stored.metric

    @classmethod
    def load(cls, model_name_or_path: str, backend: str = "torch", **options: Any) -> "Encoder":
        """Load a folder, or a repository on the hub; the backend is torch."""
        if backend != "torch" or any(options.get(name) for name in LOADER_ARGUMENTS):
            raise UsageError(
                f"{model_name_or_path} is loaded by denserk, on the backend torch, and takes no "
                f"{', '.join(LOADER_ARGUMENTS)}"
            )
        folder_options = {name: options[name] for name in FOLDER_ARGUMENTS if name in options}
        folder = cls.load_dir_path(model_name_or_path, **folder_options)
        if folder is None:
            raise ModelError(f"{model_name_or_path}: no such folder, and not on the hub")
        return cls(read_model_folder(Path(folder)))

    def preprocess(
        self, inputs: Sequence[TokenizerInput], prompt: str | None = None, task: str | None = None
    ) -> dict[str, Any]:
        """Tokenize queries or passages, with `prompt` in place of the model's own prefix.

        For a model that joins fields as a pair, passages may be (title, text). `task` is "query" or
        "document"; a prompt needs one.
        """
        if task is None and prompt:
            raise UsageError(
                f"the prompt {prompt!r} does not say whether the texts are queries or passages: "
                "call encode_query or encode_document"
            )
        if self.text.join != PAIR and not all(isinstance(text, str) for text in inputs):
            raise UsageError("this model reads each text as one string, not as a pair")
        settings = self.text
        if prompt is not None:
            settings = replace(settings, query_prefix=prompt, passage_prefix=prompt)
        is_query = task == "query"
        if is_query:
            tokenizer = TextTokenizer(self.query_tokenizer, settings)
            ids = tokenizer.queries([Query("", str(text)) for text in inputs])
        else:
            tokenizer = TextTokenizer(self.tokenizer, settings)
            ids = tokenizer.sentences(inputs)
        batch = pad(ids, tokenizer.pad_id)
        return {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "is_query": is_query,
        }

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, (B, D) float32."""
        batch = TokenBatch(features["input_ids"], features["attention_mask"])
        if features["is_query"]:
            vectors = self.query(batch)
        else:
            vectors = self.passage.stored_vectors(batch)[:, 0]
        return {**features, "sentence_embedding": vectors}

    @property
    def max_seq_length(self) -> int:
        """Tokens of a passage; a length of the caller's own is set by training or converting."""
        return self.text.passage_max_length

    def get_embedding_dimension(self) -> int:
        """Return D."""
        return self.passage.dimension

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Save as a denserk model; sentence-transformers adds its own files."""
        save_model(
            Path(output_path),
            self.passage,
            self.tokenizer,
            self.text,
            self.query,
            metric=self.metric,
        )
