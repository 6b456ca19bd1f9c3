"""Qwen's tokenizer with its first 2,048 tokens: as good for a tiny model, and loaded in milliseconds."""

from __future__ import annotations

from zvl_demo.tokenizer import small_tokenizer

__all__ = ["small_tokenizer"]
