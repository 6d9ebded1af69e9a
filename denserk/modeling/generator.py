"""Passages -> generated queries and continuations, each passage's own whatever stands beside it.

Tokens are drawn by `denserk.modeling.sampling`. In float32 a draw that the rounding of a batch
could change is settled by logits of its row alone: unpadded, in float64, from the whole prefix.
What a text becomes is then a function of the weights, the text, its name and the seed, and not of
the batch, its padding, the device or the number of threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from denserk.data.batches import by_length
from denserk.data.tokenization import VOCABULARY_FILES, TokenIds, load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.modeling.decoders import Decoder, load_decoder, setting
from denserk.modeling.devices import choose_device, choose_dtype
from denserk.modeling.model_names import find_model
from denserk.modeling.sampling import draw, draw_one, row_keys
from denserk.modeling.weight_files import fingerprint, weight_files
from denserk.reporting import SILENT, Reporter
from denserk.settings.encoding import BATCH_TOKENS, ComputeSettings, Dtype
from denserk.settings.generate import Drawing

TOLERANCE = 2.0**-17
"""How far a float32 logit may be from its true value, as a share of the row's largest."""


@dataclass
class Tally:
    """How many tokens were drawn, how many of them settled, and how far logits strayed.

    `worst` is the largest error that was seen, in units of the tolerance.
    """

    drawn: int = 0
    settled: int = 0
    worst: float = 0.0


class Generator:
    """A loaded model that continues texts.

    Attributes:
        name: what the model is called: a folder, or a name on the hub.
        device: the device in use.
        tally: what was drawn so far.
        fingerprint: SHA-256 of weights, tokenizer and configuration; equal on any machine.
    """

    def __init__(
        self,
        kind: type[Decoder],
        model: str,
        drawing: Drawing,
        seed: int,
        compute: ComputeSettings,
        *,
        allow_pickle: bool = False,
        reporter: Reporter = SILENT,
    ) -> None:
        """Loads it.

        Raises:
            UsageError: the model or the device is not there to choose.
            ModelError: the model cannot be loaded, or is of another kind.
        """
        if compute.threads is not None:
            torch.set_num_threads(compute.threads)
        self.device = choose_device(compute.device, reporter)
        dtype = choose_dtype(compute.dtype, self.device)
        self.name, folder = find_model(model, reporter, kind.option)
        decoder = load_decoder(kind, self.name, folder, allow_pickle=allow_pickle)
        own = [folder / name for name in ("config.json", *VOCABULARY_FILES, "merges.txt")]
        files = [*weight_files(folder), *(path for path in own if path.is_file())]
        self.fingerprint = fingerprint(folder, files)
        self.drawing, self.seed, self.compute = drawing, seed, compute
        self.tally = Tally()
        self._tokenizer = load_tokenizer(folder)
        self._ends = torch.tensor(_ends_of(decoder.model), device=self.device, dtype=torch.long)
        self._check(decoder)
        self._decoder = decoder
        self._decoder.model.to(self.device, dtype)
        self._settles = compute.dtype is Dtype.FLOAT32

    def _check(self, decoder: Decoder) -> None:
        room = decoder.room(self.drawing.max_tokens)
        if room is not None and room < 1:
            raise UsageError(
                f"{self.name} reads {room + self.drawing.max_tokens:,} tokens in all: "
                f"{self.drawing.max_tokens:,} new ones leave no room for a passage"
            )

    def description(self) -> dict[str, Any]:
        """What wrote the texts, as plain JSON for manifests."""
        return {"name": self.name, "fingerprint": self.fingerprint}

    def read(self, texts: Sequence[str], longest: int) -> list[TokenIds]:
        """Texts as the model takes them, of `longest` tokens at most; an empty one has none."""
        room = self._decoder.room(self.drawing.max_tokens)
        length = longest if room is None else min(longest, room)
        ids = self._decoder.read(self._tokenizer.backend_tokenizer, texts, length)
        return [own if text else [] for text, own in zip(texts, ids, strict=True)]

    def generate(self, texts: Sequence[TokenIds], names: Sequence[str]) -> list[list[str]]:
        """The samples of each text, in their order; a text without tokens has none.

        Args:
            texts: token ids, from `read`.
            names: what the texts are called; each draws by the seed and its own name alone.

        Raises:
            ModelError: the model's numbers are not finite.
        """
        found: list[list[str]] = [[] for _ in texts]
        filled = [i for i, text in enumerate(texts) if text]
        drawing = self.drawing
        costs = [drawing.samples * (len(texts[i]) + drawing.max_tokens) for i in filled]
        budget = self.compute.batch_tokens or BATCH_TOKENS
        for plan in by_length(costs, budget, self.compute.batch_size):
            members = [filled[i] for i in plan]
            try:
                samples = self._run([texts[i] for i in members], [names[i] for i in members])
            except torch.OutOfMemoryError:
                raise ModelError(
                    f"{self.name}: {self.device} has no room for a batch of {len(members)} "
                    f"passages with {drawing.samples} samples each",
                    "give a smaller --batch-tokens; with --resume, what is done is kept",
                ) from None
            for place, member in enumerate(members):
                own = samples[place * drawing.samples : (place + 1) * drawing.samples]
                found[member] = [text for text in map(self._text, own) if text]
        return found

    def _text(self, ids: TokenIds) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text.strip()

    @torch.inference_mode()
    def _run(self, texts: Sequence[TokenIds], names: Sequence[str]) -> list[TokenIds]:
        """One batch to its end: the samples of text 0, of text 1, and so on, without end tokens."""
        drawing, device = self.drawing, self.device
        keys = row_keys(self.seed, drawing.purpose, names, drawing.samples).to(device)
        drawn = torch.zeros(len(keys), drawing.max_tokens, dtype=torch.long, device=device)
        lengths = torch.full((len(keys),), drawing.max_tokens, device=device)
        rows = torch.arange(len(keys), device=device)  # which sample each row of the model is
        running = torch.ones_like(rows, dtype=torch.bool)
        logits = self._decoder.begin(self._decoder.batch(texts), drawing.samples)
        logits = logits.repeat_interleave(drawing.samples, 0)
        for step in range(drawing.max_tokens):
            samples = rows[running]
            tokens = self._draw(logits[running], texts, samples, drawn, keys, step)
            drawn[samples, step] = tokens
            ended = torch.isin(tokens, self._ends)
            lengths[samples[ended]] = step
            running[running.clone()] = ~ended
            left = int(running.sum())
            if not left or step + 1 == drawing.max_tokens:
                break
            if 4 * left <= 3 * len(rows):  # dropping rows copies the rest: not at every end
                self._decoder.select(running.nonzero().squeeze(1))
                rows, running = rows[running], running[running]
            logits = self._decoder.go_on(drawn[rows, step])
        return [row[:length] for row, length in zip(drawn.tolist(), lengths.tolist(), strict=True)]

    def _draw(
        self,
        logits: Tensor,
        texts: Sequence[TokenIds],
        samples: Tensor,
        drawn: Tensor,
        keys: Tensor,
        step: int,
    ) -> Tensor:
        """The next token of each running sample: (R, V) logits -> (R,) ids."""
        logits, rule = logits.float(), self.drawing.rule
        largest = logits.abs().amax(1)
        if not bool(torch.isfinite(largest).all()):
            raise ModelError(
                f"{self.name} gives logits that are not finite in {self.compute.dtype}",
                None if self._settles else "try --dtype float32",
            )
        tolerance = largest * (TOLERANCE if self._settles else 0.0)
        tokens, close = draw(logits, keys[samples], step, rule, tolerance)
        self.tally.drawn += len(tokens)
        for row in close.nonzero().flatten().tolist() if self._settles else ():
            sample = int(samples[row])
            text = texts[sample // self.drawing.samples]
            exact = self._exact.logits_of(text, drawn[sample, :step])
            error = float((logits[row] - exact).abs().max() / tolerance[row])
            self.tally.settled += 1
            self.tally.worst = max(self.tally.worst, error)
            tokens[row] = draw_one(exact, keys[sample : sample + 1], step, rule)
        return tokens

    @cached_property
    def _exact(self) -> Decoder:
        """The model in float64, made for the first draw that is close."""
        return self._decoder.exact()


def _ends_of(model: Any) -> list[int]:
    """Ids of the tokens that end a text."""
    ends = setting(model, "eos_token_id")
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
