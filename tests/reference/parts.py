"""Tokenizers, templates and weights of the families under test; nothing comes from a hub."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from zvl_demo.assets import fetch

__all__ = ["load_tokenizer", "randomised", "template_text"]


def randomised(model: Any) -> Any:
    """Weights large enough that attention matters: what a sample sees must show in its logits."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 0.2, generator=generator)
    return model


@functools.cache
def load_tokenizer(folder: Path, image_tokens: tuple[str, ...]) -> Any:
    """Qwen's tokenizer with further special tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if image_tokens:
        tokenizer.add_tokens(list(image_tokens), special_tokens=True)
    return tokenizer


def template_text(folder: Path, template: str) -> str:
    """Jinja text as it is; of a name that ends in .jinja, trl's template."""
    if not template.endswith(".jinja"):
        return template
    return (fetch("trl", folder.parent) / "trl/chat_templates" / template).read_text(encoding="utf-8")
