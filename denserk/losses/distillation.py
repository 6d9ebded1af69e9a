"""Matching a teacher's scores over a query's own passages.

"MASTER" (Zhou et al., 2023) and "SimLM" (Wang et al., 2023) for the divergence and the released
soft cross-entropy; "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
Distillation" (Hofstätter et al., 2020) for the margin. Axes: B queries, N passages of a query, the
positive first. Where a group has no passage both scores are minus infinity, and nothing counts.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

RELEASED_EPSILON = 1e-7  # What MASTER's released code adds inside the student's logarithm


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Mean over queries of KL(softmax(teacher) || softmax(student)). (B, N), (B, N) -> scalar.

    >>> round(kl_divergence(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 1.0]])).item(), 6)
    0.0
    """
    logs = F.log_softmax(teacher, dim=1)
    apart = (logs - F.log_softmax(student, dim=1)).masked_fill(teacher == -torch.inf, 0)
    return (logs.exp() * apart).sum(1).mean()


def soft_cross_entropy(
    teacher: Tensor, student: Tensor, epsilon: float = RELEASED_EPSILON
) -> Tensor:
    """Mean over queries of -sum p_teacher log(p_student + epsilon). (B, N), (B, N) -> scalar.

    Its gradient is `kl_divergence`'s, epsilon aside.
    """
    logs = (F.softmax(student, dim=1) + epsilon).log()
    return -(F.softmax(teacher, dim=1) * logs).sum(1).mean()


def margin_mse(teacher: Tensor, student: Tensor) -> Tensor:
    """Mean squared difference of the margins positive - negative. (B, N), (B, N) -> scalar.

    The mean is over the negatives that there are.

    >>> margin_mse(torch.tensor([[3.0, 1.0]]), torch.tensor([[5.0, 4.0]])).item()
    1.0
    """
    present = teacher[:, 1:] > -torch.inf
    found, wanted = ((s[:, :1] - s[:, 1:]).masked_fill(~present, 0) for s in (student, teacher))
    return (found - wanted).square().sum() / present.sum().clamp_min(1)
