from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from reference.image_files import photo, with_alpha
from zvl.errors import BadData, RecipeError
from zvl.image import ImageInfo
from zvl.images.header import probe
from zvl.images.options import DecodeOptions
from zvl.images.pixels import decode


def heic(image: Image.Image, **options: Any) -> bytes:
    out = BytesIO()
    pillow_heif.from_pillow(image).save(out, **options)
    return out.getvalue()


def test_real_pictures_have_the_size_of_their_header(assets: Callable[[str], Path]) -> None:
    files = [
        ("sigal", "tests/sample/pictures/dir1/test1/outdoor.heic", (462, 347)),
        ("filetype", "tests/fixtures/sample.heic", (1440, 960)),
    ]
    for package, path, size in files:
        data = (assets(package) / path).read_bytes()
        assert probe(data) == ImageInfo("heif", *size)
        pixels = decode(data, probe(data))
        assert pixels.shape == (size[1], size[0], 3)
        assert pixels.std() > 20


def test_lossless_gray_is_equal_and_lossy_colour_is_near() -> None:
    gray = photo().convert("L")
    data = heic(gray, quality=-1)
    np.testing.assert_array_equal(decode(data, probe(data))[..., 0], np.asarray(gray))
    data = heic(photo(), quality=90)
    difference = np.abs(decode(data, probe(data)).astype(int) - np.asarray(photo()))
    assert difference.mean() < 6  # colours at half the resolution, grain smoothed


def test_alpha_is_kept() -> None:
    image = with_alpha(photo())
    data = heic(image, quality=90)
    white, black = (decode(data, probe(data), options=DecodeOptions(background=b)) for b in ("white", "black"))
    assert white[:, :3].mean() > 245
    assert black[:, :3].mean() < 10
    np.testing.assert_allclose(white[:, -1], black[:, -1], atol=4)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_files_own_turning_counts(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = heic(photo(), exif=exif.tobytes())
    turned = (61, 87) if orientation >= 5 else (87, 61)
    assert probe(data) == ImageInfo("heif", *turned)
    assert decode(data, probe(data)).shape == (turned[1], turned[0], 3)


def test_a_file_cut_anywhere_is_bad_data() -> None:
    data = heic(photo())
    for tenth in range(1, 10):
        cut = data[: len(data) * tenth // 10]
        with pytest.raises(BadData, match=r"^(decode|header|format): "):
            decode(cut, probe(cut))


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    data = heic(photo())
    true_import = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name == "pillow_heif":
            raise ImportError(name)
        return true_import(name, *rest, **options)

    monkeypatch.delitem(sys.modules, "pillow_heif")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RecipeError, match=r"needs pillow-heif, which is not installed: pip install 'zvl\[heic\]'"):
        decode(data, probe(data))
