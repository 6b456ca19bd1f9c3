"""What the tests of the LLaVA families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from zvl.image import ImagePlan
from zvl.images import pixels as kernels

__all__ = ["ONE_AXIS", "TEMPLATE", "TEXT", "as_batch", "vision"]

ONE_AXIS = {"position_ids": "positions count on by one; the model has no get_rope_index"}

TEMPLATE = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<image>{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""
"""Text and images as they stand, in order."""

TEXT: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""A tiny decoder."""


def vision(model_type: str, image_size: int, patch_size: int, **more: Any) -> dict[str, Any]:
    """The config of a tiny vision tower."""
    tower = {"model_type": model_type, "image_size": image_size, "patch_size": patch_size}
    tower |= {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return tower | more


def as_batch(layout: Any, sizes: Sequence[tuple[int, int]]) -> dict[str, torch.Tensor]:
    """The fields of a batch of noise pictures of those (width, height)."""
    plans: list[ImagePlan] = [layout.plan(*size) for size in sizes]
    rows = np.empty((sum(plan.rows for plan in plans), *layout.row_shape), dtype=np.uint8)
    first = 0
    for (width, height), plan in zip(sizes, plans, strict=True):
        noise = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
        layout.write(noise, plan, kernels.resize, rows[first : first + plan.rows])
        first += plan.rows
    geometry = {name: torch.from_numpy(value) for name, value in layout.geometry(plans).items()}
    return {"pixel_values": torch.from_numpy(rows), **geometry}
