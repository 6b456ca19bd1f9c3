"""Mutated files of every format: pixels or bad data, the same from every codec, within time and memory.

`make soak` runs ten times as many.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage import fuzz
from damage.mutations import KINDS, mutated

from reference.image_files import sample_images
from zvl.images.header import probe

FILES = 600


def test_mutated_files_give_pixels_or_bad_data(assets: Callable[[str], Path]) -> None:
    files = fuzz.base_files(assets)
    assert len(files) > 140
    found = fuzz.run(files, first=0, count=FILES)
    assert found["failures"] == []
    outcomes = found["outcomes"]
    assert sum(outcomes.values()) == FILES
    assert min(outcomes[name] for name in ("pixels", "decode", "header", "format")) > FILES // 40


def test_every_seed_is_one_file_for_ever() -> None:
    files = list(sample_images().values())
    assert [mutated(files, seed) for seed in range(30)] == [mutated(files, seed) for seed in range(30)]
    assert len({mutated(files, seed) for seed in range(0, 300 * len(files), len(files))}) > 250
    assert all(kind.__doc__ for kind in KINDS)


def hostile(data: bytes, **limits: int) -> object:
    """Stands for `probe`, with faults."""
    if data.startswith(b"crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if data.startswith(b"slow"):
        begin = time.process_time()
        while time.process_time() < begin + 1.05 * fuzz.MOST_SECONDS:
            pass
    return probe(data, **limits)


@pytest.mark.parametrize(
    ("data", "sentence"), [(b"crash", "seed 7: the process ended with status -11"), (b"slow", "took")]
)
def test_the_fuzzer_sees_faults(data: bytes, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run, in which `probe` crashes or takes its time on some bytes."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'damage.fuzz' in sys.orig_argv:\n"
        "    import damage.mutations, test_fuzz_images, zvl.images.header as header\n"
        "    header.probe = test_fuzz_images.hostile\n"
        f"    damage.mutations.mutated = lambda files, seed: {data!r} if seed == 7 else files[0]\n"
    )
    monkeypatch.setattr(fuzz, "MORE_PATHS", (str(tmp_path),))
    found = fuzz.run([sample_images()["png"]], first=5, count=5, processes=1)
    assert len(found["failures"]) == 1
    assert found["failures"][0].startswith("seed 7: ")
    assert sentence in found["failures"][0]
    assert found["outcomes"]["pixels"] == 4


def test_the_fuzzer_sees_codecs_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    true_decode = fuzz.kernels.decode

    def wrong(data: bytes, info: object, codec: str) -> np.ndarray:
        pixels = true_decode(data, info, codec)  # type: ignore[arg-type]
        return pixels if codec == "pillow" else pixels ^ 1

    monkeypatch.setattr(fuzz.kernels, "decode", wrong)
    outcome, problem = fuzz.attempt(sample_images()["png"])
    assert outcome == "pixels"
    assert problem.startswith("codecs differ on ImageInfo(format='png'")


def test_the_fuzzer_sees_memory_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(data: bytes, info: object, codec: str) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(fuzz.kernels, "decode", hungry)
    assert fuzz.attempt(sample_images()["webp"])[1].startswith("more memory wanted than the guard allows: ImageInfo(")
