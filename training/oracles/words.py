"""Hindsight's self-distillation by hand: what the teacher knows flows into the student, and nothing flows back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from training.oracles import hand
from training.oracles.finding import Comparison, oracle, same

TEACHER = ((1.0, 0.0, -1.0, 0.5), (0.0, 2.0, 0.5, -0.5))
STUDENT = ((0.2, 0.1, 0.0, -0.3), (1.0, 0.0, -1.0, 0.5))


@oracle(
    "words",
    protects="a policy that forgets what it was told, because the teacher is pulled to the student",
    reference="arXiv 2603.12273",
)
def self_distillation(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """KL(teacher || student) at two tokens over four words; the subject is called as `losses.self_distillation`."""
    import torch

    from training import losses

    student, teacher = (torch.tensor(x, requires_grad=True) for x in (STUDENT, TEACHER))
    found = (subject or losses.self_distillation)(student, teacher)
    found.sum().backward()
    right = [hand.divergence(t, s) for t, s in zip(TEACHER, STUDENT, strict=True)]
    yield same("divergence", found.detach(), torch.tensor([r.loss for r in right]), rel=1e-5)
    assert student.grad is not None
    yield same("gradient of the student", student.grad, torch.tensor([r.by for r in right]), rel=1e-5)
    yield Comparison("gradient of the teacher", "none" if teacher.grad is None else "some", "none")
