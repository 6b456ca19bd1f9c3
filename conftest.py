"""Fixtures of all test folders: real assets, fetched once into the cache. What cannot be fetched fails the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reference.torchvision_cpu import install
from zvl_demo.assets import fetch
from zvl_demo.data import demo_data
from zvl_demo.tokenizer import qwen_tokenizer as build_tokenizer
from zvl_demo.tokenizer import small_tokenizer as build_small_tokenizer

# Before anything imports transformers, which looks for torchvision once.
install()
pytest.register_assert_rewrite("reference.family")

# The tests run in a process a CPU: threads of PyTorch beyond the first would wait for each other, and spin.
torch.set_num_threads(1)

# TorchTitan needs a GPU's packages for its import: tests prepare it, in processes of their own.
collect_ignore = ["zvl/trainers/torchtitan.py"]
collect_ignore_glob = ["tests/reference/torchtitan_*.py"]

CACHE = Path(os.environ.get("ZVL_CACHE") or Path(__file__).parent / ".cache/zvl")

SIGAL = "tests/sample/pictures"
PHOTOS = {
    "quokka": ("imgaug", "imgaug/quokka.jpg"),
    "waterfall": ("sigal", f"{SIGAL}/dir1/test1/11.jpg"),
    "mountain": ("sigal", f"{SIGAL}/dir1/test3/3.jpg"),
    "domes": ("sigal", f"{SIGAL}/dir2/KeckObservatory20071020.jpg"),
    "galaxies": ("sigal", f"{SIGAL}/dir2/Hubble Interacting Galaxy NGC 5257.jpg"),
    "road": ("sigal", f"{SIGAL}/iptcTest/1.jpg"),
    "flower": ("sorl-thumbnail", "tests/data/icc_profile_test.jpg"),
    "street": ("piexif", "tests/images/large.jpg"),
    "pumpkins": ("filetype", "tests/fixtures/sample.jpg"),
}


@pytest.fixture(scope="session")
def assets() -> Callable[[str], Path]:
    """Name of a pinned package (see `zvl_demo.assets.pins`) to its unpacked folder."""
    return lambda name: fetch(name, CACHE)


@pytest.fixture(scope="session")
def qwen_tokenizer() -> Path:
    """A folder with Qwen2.5-VL's tokenizer, templates and image settings."""
    return build_tokenizer(CACHE)


@pytest.fixture(scope="session")
def small_tokenizer() -> Path:
    """The same with its first 2,048 tokens and no template: it loads in milliseconds instead of two seconds."""
    return build_small_tokenizer(CACHE)


@pytest.fixture(scope="session")
def small_qwen(small_tokenizer: Path, qwen_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That with Qwen's template: for tests in which further processes load a tokenizer."""
    folder = shutil.copytree(small_tokenizer, tmp_path_factory.mktemp("tokenizer") / "small")
    shutil.copy(qwen_tokenizer / "chat_template.jinja", folder)
    return folder


@pytest.fixture(scope="session")
def photos(assets: Callable[[str], Path]) -> dict[str, bytes]:
    """JPEG files of nine photos, 500 x 450 to 1600 x 1282 pixels, as the packages have them."""
    return {name: (assets(package) / path).read_bytes() for name, (package, path) in PHOTOS.items()}


@pytest.fixture(scope="session")
def demo_shards() -> Path:
    """The folder with the demo's tar shards."""
    return demo_data(cache=CACHE)
