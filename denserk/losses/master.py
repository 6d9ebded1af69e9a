"""MASTER: several decoders, one for each task, all fed through one [CLS] state.

"MASTER: Multi-task Pre-trained Bottlenecked Masked Autoencoders are Better Dense Retrievers" (Zhou
et al., 2023). The tasks: corrupted passages (masked keywords `mkp`, complementary masks `cmp`),
related passages (`npr`), and what other models made of a passage (queries `dor`, continuations
`gor`).
"""

from collections.abc import Sequence

from torch import Tensor, nn

from denserk.data.batches import PretrainingBatch
from denserk.losses.bottleneck import Bottleneck
from denserk.losses.objective import PretrainingObjective
from denserk.models.backbone import Backbone
from denserk.models.model_folder import MASTER

TASKS = ("mkp", "cmp", "npr", "dor", "gor")


class Master(PretrainingObjective):
    """Terms `mlm` of the encoder, `mlm_npr` and so on of its further passes, and each decoder's.

    A decoder sees the [CLS] state of the pass that bears its name, or else of the first; behind it,
    without any skip from the encoder's layers, the embeddings of its own masked text.

    Args:
        backbone: with its MLM head.
        tasks: whose decoders there are; a batch's other decoders and passes are left out.
        decoder_layers: how many layers each has.
        shared: one decoder for all tasks (the ablation of Table 6).
        library_init: new weights as torch draws them (the released code), not from N(0, 0.02).
    """

    layout = MASTER

    def __init__(
        self,
        backbone: Backbone,
        *,
        tasks: Sequence[str] = TASKS,
        decoder_layers: int = 2,
        shared: bool = False,
        library_init: bool = False,
    ) -> None:
        super().__init__(backbone)
        assert tasks
        assert set(tasks) <= set(TASKS)
        self.tasks = [task for task in TASKS if task in tasks]
        self.shared = shared
        self.decoders = nn.ModuleDict(
            {
                name: Bottleneck(backbone, decoder_layers, library_init=library_init)
                for name in (["shared"] if shared else self.tasks)
            }
        )

    def heads(self) -> dict[str, nn.Module]:
        """The decoders, `mkp_decoder` and so on, or `shared_decoder`."""
        return {f"{name}_decoder": decoder for name, decoder in self.decoders.items()}

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Each encoder pass is asked its own hidden tokens, each decoder its own."""
        passes = {f"mlm_{name}": batch.passes[name].labels for name in self._passes(batch)}
        decoders = {task: batch.decoders[task].labels for task in self.tasks}
        return {"mlm": batch.texts.labels, **passes, **decoders}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The last layer's in each pass, and each decoder's."""
        states = {"mlm": self.backbone(batch.texts.tokens)}
        cls = dict.fromkeys(self.tasks, states["mlm"][:, 0])
        for name in self._passes(batch):
            states[f"mlm_{name}"] = self.backbone(batch.passes[name].tokens)
            cls[name] = states[f"mlm_{name}"][:, 0]
        for task in self.tasks:
            tokens = batch.decoders[task].tokens
            decoder = self.decoders["shared" if self.shared else task]
            embedded = self.backbone.embed(tokens)
            states[task] = decoder(self.backbone, cls[task], embedded, tokens.attention_mask)
        return states["mlm"][:, 0], states

    def _passes(self, batch: PretrainingBatch) -> list[str]:
        return [task for task in self.tasks if task in batch.passes]
