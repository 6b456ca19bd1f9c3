"""The loss of a batch: a sum over tokens, divided by those of the whole step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["loss"]


def loss(logits: torch.Tensor, batch: Mapping[str, Any], num_loss_tokens: int | torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next token, summed over `batch`, divided by ``max(1, num_loss_tokens)``; a scalar.

    `logits` are a floating dtype, (B, S, vocabulary) or flat, (1, B·S, vocabulary); half precision is raised to
    float32. `batch` has `labels`, int64 (B, S), unshifted. `num_loss_tokens` is the sum of the batches' field of that
    name over the whole optimizer step: all batches that are accumulated, on all ranks. Then each token weighs the same
    however the step is split, and the gradients add up: where the trainer averages them over ranks (DDP, FSDP),
    multiply by the number of ranks. A batch without any loss gives 0 and gradients of 0, never not-a-number.

    >>> import torch
    >>> float(loss(torch.zeros(1, 3, 8), {"labels": torch.tensor([[-100, 5, 2]])}, 2)) == float(torch.tensor(8.0).log())
    True
    """
    import torch

    labels = torch.as_tensor(batch["labels"]).to(logits.device).flatten()
    # The first label of each segment is -100, so rows and samples may follow one another.
    targets = torch.nn.functional.pad(labels[1:], (0, 1), value=-100)
    flat = logits.flatten(0, -2)
    flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    total = torch.nn.functional.cross_entropy(flat, targets, reduction="sum")
    return total / torch.as_tensor(num_loss_tokens, device=logits.device).clamp(min=1)
