"""Datasets of Hugging Face's hub by their names: which Parquet files are a config's split."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from typing import Any

from zvl.errors import RecipeError, StorageError
from zvl.formats.parquet import Parquet
from zvl.storage import store_for
from zvl.stores.hub import parse_hub
from zvl.stores.listing import glob_regex

__all__ = ["hub_url", "open_hub"]

NAME = re.compile(r"[\w.-]+/[\w.-]+(?:@[^/]+)?")
NUMBER = re.compile(r"(?:part[-_.]?)?\d+(?:-of-\d+)?")
SHARD = re.compile(r"(?P<split>.+?)(?:-\d+-of-\d+(?:-[0-9a-f]+)?)?\.parquet")
DEFAULT = "default"

Key = tuple[str, str]
"""(config, split)."""


def hub_url(path: str) -> str | None:
    """The URL of the dataset that `path` names as a whole, by id or URL; None where it names something else.

    >>> hub_url("org/name@v1"), hub_url("hf://datasets/org/name"), hub_url("hf://datasets/org/name/data")
    ('hf://datasets/org/name@v1', 'hf://datasets/org/name', None)
    """
    if path.startswith("hf://"):
        return path.rstrip("/") if not parse_hub(path).path.strip("/") else None
    if NAME.fullmatch(path) and not os.path.lexists(path):
        return f"hf://datasets/{path}"
    return None


def open_hub(url: str, *, split: str | None = None, config: str | None = None, **options: Any) -> Parquet:
    """The Parquet files of a split, at the commit that the revision names now; `options` are those of Parquet.

    `url` is what `hub_url` gives. `split` and `config` may be left out where there is one, or, of configs, one named
    "default". RecipeError names those that are there.
    """
    store = store_for(url)
    try:
        files = [found.path for found in store.list(f"{url}/**/*.parquet", ())]
    except StorageError as error:
        if "nothing matches" not in str(error):
            raise
        converted = f"{url.partition('@')[0]}@refs%2Fconvert%2Fparquet"
        raise RecipeError(
            f"{url} has no Parquet files; its converted branch may have: {converted}; "
            "or name its files and their format: hf://datasets/ORG/NAME/data/*.tar"
        ) from error
    finally:
        store.close()
    chosen = _choose(files, split, config, url)
    return Parquet(_pattern(chosen, files), **options)


def _choose(files: Sequence[str], split: str | None, config: str | None, url: str) -> list[str]:
    """The files of one split of one config."""
    keys = {file: _key(parse_hub(file).path) for file in files}
    configs = sorted({key[0] for key in keys.values()})
    if config is None and (len(configs) == 1 or DEFAULT in configs):
        config = configs[0] if len(configs) == 1 else DEFAULT
    if config not in configs:
        raise RecipeError(f"{url} has the configs {', '.join(configs)}: name one with config=..., got {config!r}")
    splits = sorted({key[1] for key in keys.values() if key[0] == config})
    if split is None and len(splits) == 1:
        split = splits[0]
    if split not in splits:
        raise RecipeError(f"{url} has the splits {', '.join(splits)}: name one with split=..., got {split!r}")
    return [file for file in files if keys[file] == (config, split)]


def _key(path: str) -> Key:
    """Config and split of a file, by the layouts that the hub itself writes.

    >>> _key("data/train-00000-of-00002.parquet"), _key("en/test/0000.parquet"), _key("en/dev.parquet")
    (('default', 'train'), ('en', 'test'), ('en', 'dev'))
    """
    folder, name = posixpath.split(path)
    folders = [part for part in folder.split("/") if part and part != "data"]
    match = SHARD.fullmatch(name)
    split = match["split"] if match else "train"
    if NUMBER.fullmatch(split):
        split = folders.pop() if folders else "train"
    return "/".join(folders) or DEFAULT, split


def _pattern(chosen: Sequence[str], files: Sequence[str]) -> str:
    """One pattern for exactly those files: a glob where one fits, for it costs one request, else braces."""
    folder = posixpath.dirname(chosen[0])
    stem = SHARD.fullmatch(posixpath.basename(chosen[0]))
    for glob in ("*.parquet", f"{stem['split'] if stem else ''}-*.parquet"):
        matches = re.compile(re.escape(folder + "/") + glob_regex([glob])).fullmatch
        if [file for file in files if matches(file)] == list(chosen):
            return f"{folder}/{glob}"
    root = posixpath.commonpath([posixpath.dirname(file.removeprefix("hf://")) for file in chosen])
    names = [file.removeprefix(f"hf://{root}/") for file in chosen]
    return f"hf://{root}/{{{','.join(names)}}}" if len(names) > 1 else chosen[0]
