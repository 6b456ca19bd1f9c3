"""Lets TorchTitan 0.3.0 be imported, and its Trainer run, on a machine without a GPU.

At its import TorchTitan asks for triton, FLA and tensorboard, and takes CUDA for the device where there is none. Here
names of those packages are answered for the time of the import, by objects that can be called and do nothing, so
kernels that would need a GPU must not be reached: FlexAttention runs uncompiled, and `delta_rule` and `causal_conv`
stand in for FLA's kernels in Qwen3.5's linear attention. Trainer, checkpoints, models and optimizers are TorchTitan's
own. Only for processes that do nothing else.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

from reference.torchvision_cpu import install as install_torchvision

__all__ = ["install"]

ABSENT = ("fla", "triton")

MEMORY: dict[str, Any] = {
    "current_device": 0,
    "get_device_name": "cpu",
    "get_device_properties": SimpleNamespace(total_memory=1),
    "memory_stats": {},
    "reset_peak_memory_stats": None,
    "empty_cache": None,
}
"""What its metrics ask a device about its memory."""


class Anything:
    """Stands for a function, a decorator, a class or a module, and does nothing."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that need a GPU, as modules in which every name is there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        anything = Anything()
        module.__getattr__ = lambda name: getattr(anything, name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None: ...


def uncompiled(function: Any = None, **options: Any) -> Any:
    """Instead of `torch.compile`: the function itself."""
    return function if callable(function) else lambda given: given


def install() -> None:
    """Import TorchTitan for the CPU. Call before anything else imports it."""
    import torch
    import torch._functorch.partitioners
    import torch._utils
    import torch.nn.attention.flex_attention  # these look for triton themselves and must not find it

    install_torchvision()
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.compile = uncompiled
    torch.nn.attention.flex_attention._validate_device = lambda *tensors: None  # it has a backward for the CPU
    for name, value in MEMORY.items():
        setattr(torch.cpu, name, lambda *device, value=value: value)
    # TorchTitan 0.3.0 is written for a later torch than 2.13.
    torch.distributed.set_timeout = lambda timeout, group=None: None
    writer = ModuleType("torch.utils.tensorboard")
    writer.SummaryWriter = Anything  # type: ignore[attr-defined]
    sys.modules["torch.utils.tensorboard"] = writer
    finder = Absent()
    sys.meta_path.insert(0, finder)
    try:
        import torchtitan.models.llama3
        import torchtitan.models.qwen3_5
        import torchtitan.trainer

        # Rank 0 would wait 2 seconds for the others at the end of each training.
        torchtitan.trainer.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: None)
        torchtitan.models.qwen3_5.model._fla_chunk_gated_delta_rule = delta_rule
        torchtitan.models.qwen3_5.model._causal_conv1d_varlen = causal_conv
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in ABSENT]:
            del sys.modules[name]


def delta_rule(queries: Any, keys: Any, values: Any, decays: Any, rates: Any, *, cu_seqlens: Any, **_: Any) -> Any:
    """The gated delta rule, (1, tokens, heads, features), token by token and anew in each sample (arXiv:2412.06464)."""
    import torch
    from torch.nn.functional import normalize

    queries, keys = normalize(queries[0], dim=-1) * queries.shape[-1] ** -0.5, normalize(keys[0], dim=-1)
    begins = set(cu_seqlens.tolist())
    outputs = []
    for place, (query, key, value) in enumerate(zip(queries, keys, values[0], strict=True)):
        if place in begins:
            memory = key.new_zeros(*key.shape, value.shape[-1])
        memory = memory * decays[0, place].exp().to(key.dtype)[:, None, None]
        change = (value - (memory * key[..., None]).sum(1)) * rates[0, place][:, None]
        memory = memory + key[..., None] * change[:, None]
        outputs.append((memory * query[..., None]).sum(1))
    return torch.stack(outputs)[None], None


def causal_conv(inputs: Any, weight: Any, cu_seqlens: Any, *_: Any) -> Any:
    """The depthwise convolution over the tokens, (1, tokens, channels), anew in each sample, and SiLU."""
    import torch
    from torch.nn.functional import conv1d, pad, silu

    borders = cu_seqlens.tolist()
    parts = inputs[0].split([stop - start for start, stop in pairwise(borders)])
    size = weight.shape[-1] - 1
    found = [conv1d(pad(part.T, (size, 0))[None], weight, groups=len(weight))[0].T for part in parts]
    return silu(torch.cat(found))[None]
