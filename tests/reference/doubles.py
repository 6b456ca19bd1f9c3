"""float64 all the way through a model that computes its norms, rotations and softmax in float32 whatever its dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Doubles"]


class Doubles(TorchFunctionMode):
    """While this context is open, torch makes float64 of what is asked for as float32."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        named = {name: doubled(value) for name, value in (kwargs or {}).items()}
        return func(*(doubled(value) for value in args), **named)


def doubled(value: Any) -> Any:
    """float64 for the dtype float32."""
    return torch.float64 if value is torch.float32 else value
