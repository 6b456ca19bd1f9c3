"""Qwen2-VL and Qwen2.5-VL against transformers."""

from __future__ import annotations

from reference.qwen import Qwen2_5VLFamily, Qwen2VLFamily


class TestQwen2_5VL(Qwen2_5VLFamily):
    pass


class TestQwen2VL(Qwen2VLFamily):
    pass
