from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import pyvips
from PIL import Image

from reference.image_files import by_vips, photo, sample_images
from zvl.errors import BadData
from zvl.images.header import probe
from zvl.images.pixels import decode
from zvl_codecs.pyvips import PyVips

FILES = {name: data for name, data in sample_images().items() if probe(data).format in PyVips.formats}
every_file = pytest.mark.parametrize("name", FILES)


@every_file
def test_equals_pillow(name: str) -> None:
    info = probe(FILES[name])
    np.testing.assert_array_equal(decode(FILES[name], info, "pyvips"), decode(FILES[name], info, "pillow"))


@every_file
def test_a_file_cut_anywhere_is_bad_data(name: str) -> None:
    data = FILES[name]
    info = probe(data)
    whole = decode(data, info, "pyvips")
    for tenth in range(1, 10):
        cut = data[: len(data) * tenth // 10]
        if tenth > 2 and "animated" in name:  # the cut may lie behind the first frame
            try:
                pixels = decode(cut, info, "pyvips")
            except BadData:
                continue
            np.testing.assert_array_equal(pixels, whole)
        else:
            with pytest.raises(BadData, match=r"^(decode|header|format): "):
                decode(cut, info, "pyvips")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int) -> None:
    out = BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo().save(out, "PNG", exif=exif)
    info = probe(out.getvalue())
    assert info.orientation == orientation
    vips, pillow = (decode(out.getvalue(), info, codec) for codec in ("pyvips", "pillow"))
    np.testing.assert_array_equal(vips, pillow)


def test_damaged_bytes_get_pillows_verdict() -> None:
    generator = np.random.default_rng(3)
    outcomes = []
    for name in ("png", "png palette", "png 16 rgb", "png rgba"):
        info = probe(FILES[name])
        for _ in range(60):
            data = bytearray(FILES[name])
            for place in generator.integers(len(data) - 300, len(data), 2):
                data[place] = generator.integers(256)
            results = []
            for codec in ("pyvips", "pillow"):
                try:
                    results.append(decode(bytes(data), info, codec).tobytes())
                except BadData as error:
                    results.append(error.reason.encode())
            assert results[0] == results[1]
            outcomes.append(len(results[0]) > 100)
    assert 10 < sum(outcomes) < len(outcomes) - 10  # some were refused by both, some read by both


def test_leaves_libvips_settings_alone() -> None:
    before = pyvips.concurrency_get(), pyvips.cache_get_max()
    for name in FILES:
        decode(FILES[name], probe(FILES[name]), "pyvips")
    assert (pyvips.concurrency_get(), pyvips.cache_get_max()) == before


HOLD = """
import sys
from zvl.images.header import probe
from zvl.images.pixels import decode

def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

data = open(sys.argv[1], "rb").read()
for image in range(60):
    copy = bytes(bytearray(data))
    decode(copy, probe(copy), "pyvips")
    if image == 5:
        before = held()
print((held() - before) / len(data))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size in /proc")
@pytest.mark.parametrize("interlace", [False, True])
def test_libvips_cache_holds_neither_files_nor_whole_images(tmp_path: Path, interlace: bool) -> None:
    noise = np.random.default_rng(4).integers(0, 256, (900, 1300, 3), dtype=np.uint8)
    path = tmp_path / "noise.png"
    path.write_bytes(by_vips(noise, ".png", interlace=interlace, compression=0))
    command = [sys.executable, "-c", HOLD, str(path)]
    held = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert held < 10  # of 54 files: some lines of each image, see PyVips


WATCH = """
import os, sys, threading
import pyvips
from zvl.images.header import probe
from zvl.images.pixels import decode

def workers():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{task}/comm").read())
        except OSError:  # the thread has just ended
            pass
    return sum("vips" in name for name in names)

pyvips.concurrency_set(8)
data = open(sys.argv[1], "rb").read()
most, done = 0, threading.Event()
def work():
    for _ in range(5):
        if sys.argv[2] == "ours":
            decode(data, probe(data), "pyvips")
        else:
            pyvips.Image.new_from_buffer(data, "", access="sequential").write_to_memory()
    done.set()
threading.Thread(target=work).start()
while not done.is_set():
    most = max(most, workers())
print(most)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_one_image_takes_one_thread(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    photo(2600, 1900).save(path)
    most = {}
    for who in ("ours", "libvips"):
        command = [sys.executable, "-c", WATCH, str(path), who]
        most[who] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert most["ours"] <= 2 < most["libvips"]  # its one worker, and now and then the one before, ending


def test_pixels_outlive_everything_else() -> None:
    pixels = decode(bytes(bytearray(FILES["png"])), probe(FILES["png"]), "pyvips")
    kept = pixels.copy()
    gc.collect()
    for _ in range(20):
        decode(FILES["png rgba"], probe(FILES["png rgba"]), "pyvips")
    np.testing.assert_array_equal(pixels, kept)
    holder = weakref.ref(pixels)
    del pixels
    gc.collect()
    assert holder() is None
