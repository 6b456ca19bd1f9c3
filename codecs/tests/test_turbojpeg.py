from __future__ import annotations

import threading
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from reference.image_files import photo, sample_images
from zvl.errors import BadData
from zvl.images.header import probe
from zvl.images.options import DecodeOptions
from zvl.images.pixels import codec_named, decode
from zvl.images.quads import quads

FILES = {name: data for name, data in sample_images().items() if name.startswith(("jpeg", "mpo"))}
FILES = {name: data for name, data in FILES.items() if "2000" not in name}
every_file = pytest.mark.parametrize("name", FILES)


@every_file
def test_equals_pillow(name: str) -> None:
    info = probe(FILES[name])
    np.testing.assert_array_equal(decode(FILES[name], info, "turbojpeg"), decode(FILES[name], info, "pillow"))


def test_equals_pillow_on_photos(photos: dict[str, bytes]) -> None:
    for data in photos.values():
        info = probe(data)
        np.testing.assert_array_equal(decode(data, info, "turbojpeg"), decode(data, info, "pillow"))


@every_file
@pytest.mark.parametrize("options", [DecodeOptions(), DecodeOptions(jpeg_scale=True)])
def test_memory_used_again_holds_the_same_pixels(name: str, options: DecodeOptions) -> None:
    info = probe(FILES[name])
    expected = decode(FILES[name], info, "turbojpeg", options, (20, 20))
    kept = decode(FILES[name], info, "turbojpeg", options, (20, 20), reuse=True)
    np.testing.assert_array_equal(kept, expected)
    if info.format == "jpeg" and "cmyk" not in name and "ycck" not in name:
        assert quads(kept) is not None
        assert np.shares_memory(kept, decode(FILES[name], info, "turbojpeg", options, (20, 20), reuse=True))


@every_file
def test_a_file_cut_anywhere_is_bad_data(name: str) -> None:
    data = FILES[name]
    info = probe(data)
    whole = decode(data, info, "turbojpeg")
    for tenth in range(1, 10):
        cut = data[: len(data) * tenth // 10]
        if tenth > 5 and name == "mpo":  # behind the first picture
            np.testing.assert_array_equal(decode(cut, info, "turbojpeg"), whole)
        else:
            with pytest.raises(BadData, match=r"^(decode|header|format): "):
                decode(cut, info, "turbojpeg")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int) -> None:
    out = BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo().save(out, "JPEG", exif=exif)
    info = probe(out.getvalue())
    assert info.orientation == orientation
    turbo, pillow = (decode(out.getvalue(), info, codec) for codec in ("turbojpeg", "pillow"))
    np.testing.assert_array_equal(turbo, pillow)
    kept = decode(out.getvalue(), info, "turbojpeg", reuse=True)
    np.testing.assert_array_equal(kept, pillow)
    assert quads(kept) is not None


def harmless(data: bytes) -> bytes:
    """The file with bytes between two segments, which every decoder skips with a warning."""
    return data[:2] + data[2 : 4 + int.from_bytes(data[4:6], "big")] + b"\0\0\0" + data[4 + data[5] + 256 * data[4] :]


def test_harmless_faults_get_pillows_verdict() -> None:
    data = harmless(FILES["jpeg"])
    info = probe(data)
    assert info == probe(FILES["jpeg"])
    np.testing.assert_array_equal(decode(data, info, "turbojpeg"), decode(FILES["jpeg"], info, "pillow"))


def test_a_harmless_fault_does_not_hide_that_the_file_is_cut() -> None:
    data = harmless(FILES["jpeg"])[:-200]
    with pytest.raises(BadData, match=r"decode: codec 'turbojpeg' on jpeg of .* truncated"):
        decode(data, probe(data), "turbojpeg")


def test_damaged_bytes_get_pillows_verdict() -> None:
    generator = np.random.default_rng(3)
    outcomes = set()
    for _ in range(150):
        data = bytearray(FILES["jpeg"])
        for place in generator.integers(400, len(data), 3):
            data[place] = generator.integers(256)
        results = []
        for codec in ("turbojpeg", "pillow"):
            try:
                results.append(decode(bytes(data), probe(FILES["jpeg"]), codec).tobytes())
            except BadData as error:
                results.append(error.reason.encode())
        assert results[0] == results[1]
        outcomes.add(len(results[0]) > 100)
    assert outcomes == {True, False}  # some were refused by both, some read by both


def test_many_threads_share_one_codec() -> None:
    info = probe(FILES["jpeg"])
    expected = decode(FILES["jpeg"], info, "turbojpeg")
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(decode(FILES["jpeg"], info, "turbojpeg"), expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert codec_named("turbojpeg") is codec_named("turbojpeg")
