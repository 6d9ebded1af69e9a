"""Losses of retrievers and cross-encoders: functions of scores and vectors, and a batch's terms.

"Condenser" (Gao and Callan, 2021), equation 12; "Aggretriever" (Lin et al., 2023), section 4;
"SimLM" (Wang et al., 2023) for the full contrastive loss; "coCondenser" (Gao and Callan, 2022),
section 3.2, for spans; MLR (Xie and Lukasiewicz, 2025), equations 5 and 6, for several vectors a
passage, of which vector 0 is kept; "MASTER" (Zhou et al., 2023), section 4, for cross-encoders and
the released soft cross-entropy; "Improving Efficient Neural Ranking Models with Cross-Architecture
Knowledge Distillation" (Hofstätter et al., 2020) for the margin; "R-Drop" (Liang et al., 2021),
equation 3; "Sentence-BERT" (Reimers and Gurevych, 2019), section 3; "GISTEmbed" (Solatorio, 2024)
for false negatives.

Axes: B queries, P passages, S vectors of a passage, D dimensions, N passages of a query's own, the
positive first. `targets[i]` is the row of query i's positive.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.config.training import ContrastiveKind, Distillation, ObjectiveSettings
from denserk.data.batches import Positives
from denserk.models.devices import at_least_float32
from denserk.models.representation import PassageVectors, max_similarity, truncated, vector_scores

Vectors = tuple[Tensor, PassageVectors]  # (B, D) of a batch's queries, (P, S, D) of its passages
RELEASED_EPSILON = 1e-7  # what MASTER's released code adds inside the student's logarithm


def first_rows(keys: Tensor) -> Tensor:
    """Return for each row the first row that has its key. (P,) -> (P,).

    >>> first_rows(torch.tensor([5, 3, 5, 5])).tolist()
    [0, 1, 0, 0]
    """
    # equal keys are a run of the sorted ones, by row; unlike `unique`, no step waits for the GPU
    ordered_keys, rows = keys.sort(stable=True)
    begins_run = torch.ones_like(keys, dtype=torch.bool)
    begins_run[1:] = ordered_keys[1:] != ordered_keys[:-1]
    positions = torch.arange(len(keys), device=keys.device)  # in the sorted keys
    begin_of_run = torch.where(begins_run, positions, 0).cummax(0).values
    return torch.empty_like(rows).scatter(0, rows, rows[begin_of_run])


def excluded_passages(keys: Tensor, first: Tensor, masked: Tensor | None) -> Tensor:
    """Return which rows are left out of softmaxes: a passage's further rows, padding, `masked`.

    keys: (P,); first: (P,), `first_rows(keys)`; masked: `RetrievalObjective.false_negatives` ->
    (P,) for all queries, or the shape of `masked`, whose columns beyond P are not of passages.
    """
    excluded = (first != torch.arange(len(keys), device=keys.device)) | (keys < 0)
    return (
        excluded if masked is None else F.pad(excluded, (0, masked.shape[1] - len(keys))) | masked
    )


def contrastive_loss(scores: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the softmax cross-entropy over all passages of the batch. (B, P), (B,) -> scalar.

    A score of -inf leaves a passage out for a query.
    """
    return F.cross_entropy(at_least_float32(scores) / temperature, targets)


def full_contrastive_scores(
    scores: Tensor, best: Tensor, queries: Tensor, passages: PassageVectors, targets: Tensor
) -> Tensor:
    """Return SimLM's four blocks side by side, the diagonals of the last three left out.

    Query i against all passages, its positive against the other queries, query i against the other
    queries, its positive against the other positives, each passage among them once.

    scores: (B, P), the first block; best: (B, P), the scores of each passage's best vector;
    queries: (B, D); passages: (P, S, D), of which vector 0 stands for a positive that is compared
    like a query; targets: (B,), equal for the same passage -> (B, P + 3 B).
    """
    is_itself = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
    positives = passages.of(targets)  # (B, S, D)
    positive_scores = max_similarity(
        vector_scores(positives.values[:, 0], positives.values), positives.mask
    )
    is_repeated = first_rows(targets) != torch.arange(len(targets), device=targets.device)
    is_same_passage = targets[:, None] == targets
    blocks = (
        (best[:, targets].T, is_itself),
        (queries @ queries.T, is_itself),
        (positive_scores, is_same_passage | is_repeated),
    )
    return torch.cat([scores, *(block.masked_fill(mask, -torch.inf) for block, mask in blocks)], 1)


def span_contrast_loss(rows: Tensor) -> Tensor:
    """Return the mean over spans of the cross-entropy of the partner among all other spans.

    rows: (2 N, H), raw [CLS] states; rows 2 i and 2 i + 1 are of one document.
    """
    states = at_least_float32(rows)
    is_itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    partners = torch.arange(len(rows), device=rows.device) ^ 1  # 1, 0, 3, 2, ...
    return contrastive_loss((states @ states.T).masked_fill(is_itself, -torch.inf), partners)


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean of KL(softmax(teacher) || softmax(student)). (B, N), (B, N) -> scalar.

    Minus infinity, where a group has no passage, counts in no distillation loss.
    """
    teacher_logs = F.log_softmax(teacher, dim=1)
    log_ratios = teacher_logs - F.log_softmax(student, dim=1)
    # minus infinity minus itself is nan, also in the gradient
    log_ratios = log_ratios.masked_fill(teacher == -torch.inf, 0)
    return (teacher_logs.exp() * log_ratios).sum(1).mean()


def soft_cross_entropy(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean of -sum p_teacher log(p_student + epsilon). (B, N), (B, N) -> scalar.

    Its gradient is `kl_divergence`'s, epsilon aside.
    """
    student_logs = (F.softmax(student, dim=1) + RELEASED_EPSILON).log()
    return -(F.softmax(teacher, dim=1) * student_logs).sum(1).mean()


def margin_mse(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean squared difference of the margins: score of the positive - of a negative.

    (B, N), (B, N) -> scalar; the mean is over the negatives that there are.
    """
    present = teacher[:, 1:] > -torch.inf
    student_margins, teacher_margins = (
        (scores[:, :1] - scores[:, 1:]).masked_fill(~present, 0) for scores in (student, teacher)
    )
    squares = (student_margins - teacher_margins).square()
    return squares.sum() / present.sum().clamp_min(1)


def listwise_loss(scores: Tensor) -> Tensor:
    """Return the cross-entropy of the positive among a query's own passages. (B, N) -> scalar."""
    return contrastive_loss(scores, scores.new_zeros(len(scores), dtype=torch.long))


def r_drop_loss(first: Tensor, second: Tensor, weight: float = 1.0) -> dict[str, Tensor]:
    """Return R-Drop's terms of the scores of two passes under different dropout.

    (B, N), (B, N), the positive first -> scalars, which sum to the loss.
    """
    agreement = kl_divergence(first, second) + kl_divergence(second, first)
    listwise = (listwise_loss(first) + listwise_loss(second)) / 2
    return {"listwise": listwise, "agreement": weight * agreement / 2}


def sentence_loss(vectors: Tensor, labels: Tensor | None, settings: ObjectiveSettings) -> Tensor:
    """Return the loss of sentences, by the shape of their vectors; a mean over the batch.

    (B, 2, D), pairs with labels (B,): Sentence-BERT's squared error of the cosine against the
    label. (B, 3, D), triplets without labels: Sentence-BERT's max(0, |a - p| - |a - n| + margin)
    of anchor, positive and negative, Euclidean. (B, 1, D), queries to align, with the teacher's
    vectors (B, D) as labels: the squared distance.
    """
    if labels is None:
        anchor, positive, negative = vectors.unbind(1)
        return F.triplet_margin_loss(anchor, positive, negative, settings.margin, eps=0.0)
    if vectors.shape[1] == 1:
        return (vectors[:, 0] - labels).square().sum(1).mean()
    cosines = F.cosine_similarity(vectors[:, 0], vectors[:, 1])
    return F.mse_loss(cosines, labels.to(vectors) / settings.label_scale)


DISTILLATIONS = {  # losses of (teacher, student) scores
    Distillation.KL: kl_divergence,
    Distillation.SOFT_CROSS_ENTROPY: soft_cross_entropy,
    Distillation.MARGIN_MSE: margin_mse,
}


@dataclass(frozen=True)
class RetrievalObjective:
    """The loss of a bi-encoder: from the vectors of a batch to the terms that are summed.

    `parts` of a vector are also trained alone (Aggretriever): the dimensions of the [CLS] part,
    then of the lexical part. With `self_contrastive`, a passage's kept vector learns to win against
    its others (MLR, equations 5 to 7); without, its best vector counts (equation 2).

    Under `dimensions` of the settings, the loss is the sum of those of the first d dimensions:
    equation 1 of "Matryoshka Representation Learning" (Kusupati et al., 2022) with weights of 1.
    With `l2_norm`, vectors are normalised again at each d.
    """

    settings: ObjectiveSettings
    parts: tuple[slice, slice] | None = None
    self_contrastive: bool = False
    l2_norm: bool = False

    def __call__(
        self,
        queries: Tensor,
        passages: PassageVectors,
        groups: Tensor,
        keys: Tensor,
        teacher: Tensor | None = None,
        masked: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the weighted terms by name, and by d if there are several; they sum to the loss.

        queries: (B, D), passages: (P, S, D), groups: (B, N) each query's own as rows of the
        passages, -1 where there is none; keys: (P,) equal where two rows are the same passage,
        which counts once, negative for padding; teacher: (B, N) scores, minus infinity where a
        group has no passage; masked: `false_negatives`.
        """
        first = first_rows(keys)
        # of rows with the same passage all but the first are excluded: groups name the first
        groups = torch.where(groups < 0, groups, first[groups])
        excluded = excluded_passages(keys, first, masked)

        def terms_of(queries: Tensor, passages: PassageVectors) -> dict[str, Tensor]:
            terms = {}
            if weight := self.settings.weight_of_contrastive:
                contrast = self._contrast(queries, passages, groups[:, 0], excluded)
                terms = {name: term * weight for name, term in contrast.items()}
            if self.settings.distillation is not None:  # scored as retrieval will score: (B, N)
                assert teacher is not None
                query_passages = passages.of(groups.clamp_min(0))  # (B, N, S, D)
                by_vector = torch.einsum("bd,bnsd->bns", queries, query_passages.values)
                student = (
                    by_vector[..., 0]
                    if self.self_contrastive
                    else max_similarity(by_vector, query_passages.mask)
                )
                student = student.masked_fill(groups < 0, -torch.inf) / self.settings.temperature
                terms["distillation"] = DISTILLATIONS[self.settings.distillation](teacher, student)
            return terms

        if self.settings.dimensions is None:
            return terms_of(queries, passages)
        terms: dict[str, Tensor] = {}
        for size in self.settings.dimensions:
            cut = partial(truncated, size=size, l2_norm=self.l2_norm)
            cut_passages = PassageVectors(cut(passages.values), passages.mask)
            terms_of_size = terms_of(cut(queries), cut_passages)
            terms |= {f"{name}_{size}": term for name, term in terms_of_size.items()}
        return terms

    def chance(self, keys: Tensor, masked: Tensor | None) -> dict[str, Tensor]:
        """Return the loss of each part whose scores are all equal: log(candidates), weighted."""
        if self.parts is None:
            return {}
        excluded = excluded_passages(keys, first_rows(keys), masked)
        candidates = (~excluded[..., : len(keys)]).sum(-1)
        loss = candidates.float().log().mean() * self.settings.weight_of_contrastive
        return {"cls": self.settings.cls_weight * loss, "agg": self.settings.agg_weight * loss}

    def false_negatives(
        self, known: Positives, groups: Tensor, keys: Tensor, guided: Vectors | None = None
    ) -> Tensor:
        """Return which scores leave a query's softmax as those of probable positives: (B, P) bool.

        These are other known positives of the query, or of an equal one, and what a guide's vectors
        score above the query's own positive: s(q, p) > s(q, p+) - margin. With the full contrastive
        loss: (B, P + 3 B), the columns of `full_contrastive_scores`; a pair of two queries or two
        positives counts where a known positive of one's is the other's. The own positive stays.
        """
        targets = first_rows(keys)[groups[:, 0]]
        full = self.settings.contrastive is ContrastiveKind.FULL
        is_known_positive = (known.positives.unsqueeze(2) == known.passages).any(1)  # (B, P)
        is_equal_query = known.queries.unsqueeze(1) == known.queries  # (B, B)
        # known of any equal query: a product of bools
        masked = is_equal_query.float() @ is_known_positive.float() > 0
        if full:
            related = masked[:, targets]  # (B, B): query j's positive is a known one of query i
            masked = torch.cat([masked, related.T, related | related.T, related], 1)
        if guided is not None:
            queries, passages = guided
            best = scores = max_similarity(vector_scores(queries, passages.values))
            if full:
                scores = full_contrastive_scores(best, best, queries, passages, targets)
            limits = best.gather(1, targets.unsqueeze(1)) - self.settings.guide_margin
            masked = masked | (scores > limits)
        return masked.scatter(1, targets.unsqueeze(1), False)

    def _contrast(
        self, queries: Tensor, passages: PassageVectors, targets: Tensor, excluded: Tensor
    ) -> dict[str, Tensor]:
        """Return the contrastive loss, and those of the layers and of the parts, by name.

        queries: (B, D); passages: (P, S, D); targets: (B,); excluded: of `excluded_passages`.
        """
        temperature = self.settings.temperature
        by_vector = vector_scores(queries, passages.values)
        scores = best = max_similarity(by_vector, passages.mask)
        if self.self_contrastive:  # equation 5: the own positive by its kept vector
            is_positive = F.one_hot(targets, best.shape[1]).bool()
            scores = torch.where(is_positive, by_vector[..., 0], best)
        if self.settings.contrastive is ContrastiveKind.FULL:
            scores = full_contrastive_scores(scores, best, queries, passages, targets)
        # `excluded` may lack the columns of queries and positives, of which none is excluded then
        further_columns = scores.shape[1] - excluded.shape[-1]
        scores = scores.masked_fill(F.pad(excluded, (0, further_columns)), -torch.inf)
        terms = {"contrastive": contrastive_loss(scores, targets, temperature)}
        if self.self_contrastive:  # equation 6: its kept vector among all of its own
            rows = torch.arange(len(targets), device=targets.device)
            positive_by_vector = by_vector[rows, targets]  # (B, S)
            if passages.mask is not None:
                is_padding = ~passages.mask[targets]
                positive_by_vector = positive_by_vector.masked_fill(is_padding, -torch.inf)
            loss = listwise_loss(positive_by_vector / self.settings.layer_temperature)
            terms["layers"] = self.settings.layer_weight * loss
        if self.parts is not None:
            weights = (self.settings.cls_weight, self.settings.agg_weight)
            for name, part, weight in zip(("cls", "agg"), self.parts, weights, strict=True):
                part_scores = queries[:, part] @ passages.values[:, 0, part].T  # (B, P)
                is_excluded = excluded[..., : part_scores.shape[1]]
                part_scores = part_scores.masked_fill(is_excluded, -torch.inf)
                terms[name] = weight * contrastive_loss(part_scores, targets, temperature)
        return terms
