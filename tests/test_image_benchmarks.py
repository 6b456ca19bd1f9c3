"""The benchmarks of pictures run in a small setting, with loose bounds on what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CACHE = os.environ.get("ZVL_CACHE") or str(ROOT / ".cache/zvl")


def printed(name: str, *options: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *options]
    environment = os.environ | {"ZVL_CACHE": CACHE}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout, done.stderr
    return done.stdout


@pytest.mark.usefixtures("photos")
def test_codecs() -> None:
    text = printed("bench_codecs.py", "--sizes", "0.3", "--pictures", "1", "--repeats", "5", "--formats", "jpeg", "png")
    times = {
        (format, subject): float(took)
        for format, subject, took in re.findall(
            r"^\| (\w+) \| 0.3 \| \d+ \| ([^|]+) \| [\d.]* \| ([\d.]+) \|", text, re.M
        )
    }
    assert len(times) == 8
    assert times["jpeg", "Hugging Face"] > 3.5 * times["jpeg", "turbojpeg"]
    assert times["jpeg", "turbojpeg"] < 1.1 * times["jpeg", "pillow"]
    assert times["png", "pyvips"] < 1.2 * times["png", "pillow"]


@pytest.mark.usefixtures("photos", "qwen_tokenizer")
def test_bad_images() -> None:
    text = printed("bench_bad_images.py", "--rows", "60", "--repeats", "2")
    (per_cpu,) = re.findall(r"a second of processor time ([\d.]+)", text)
    assert float(per_cpu) > 0.75
