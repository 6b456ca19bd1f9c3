from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from reference.image_files import sample_images
from zvl.errors import BadData, RecipeError
from zvl.images.header import probe
from zvl.images.pixels import decode
from zvl_codecs.pillow import Pillow

# What Pillow says of damaged TIFF directories and EXIF blocks.
pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
FILES = sample_images()
CLIPPED = ("png 16 pillow", "png 16 gray", "png 16 gray clear", "tiff 16", "jpeg2000 16")
every_file = pytest.mark.parametrize("name", FILES)


def reference(data: bytes) -> np.ndarray:
    """What Pillow converts to, with alpha where there is transparency."""
    image = Image.open(BytesIO(data))
    transparent = "A" in image.getbands() or "transparency" in image.info
    return np.asarray(image.convert("RGBA" if transparent else "RGB"))


@every_file
def test_equals_pillows_own_conversion(name: str) -> None:
    info = probe(FILES[name])
    pixels = Pillow().decode(FILES[name], info)
    assert (pixels.shape[1], pixels.shape[0]) == info.size
    assert pixels.dtype == np.uint8
    if name in CLIPPED:  # there Pillow's conversion clips
        wide = np.asarray(Image.open(BytesIO(FILES[name])))
        assert wide.max() > 255
        np.testing.assert_array_equal(pixels, np.repeat((wide // 256)[..., None], 3, axis=2))
    else:
        np.testing.assert_array_equal(pixels, reference(FILES[name]))


@every_file
def test_a_file_cut_anywhere_is_bad_data(name: str) -> None:
    data = FILES[name]
    info = probe(data)
    for tenth in range(1, 10):
        cut = data[: len(data) * tenth // 10]
        if tenth > 2 and (
            "animated" in name or name in ("mpo", "tiff pages")
        ):  # the cut may lie behind the first frame
            try:
                pixels = decode(cut, info, "pillow")
            except BadData:
                continue
            np.testing.assert_array_equal(pixels, decode(data, info, "pillow"))
        else:
            with pytest.raises(BadData, match=r"^(decode|header|format): "):
                decode(cut, info, "pillow")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(kind: str, orientation: int) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (24, 40, 3)).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = BytesIO()
    image.save(out, kind, exif=exif)
    info = probe(out.getvalue())
    pixels = Pillow().decode(out.getvalue(), info)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(out.getvalue()))).convert("RGB"))
    assert info.size == (expected.shape[1], expected.shape[0])
    np.testing.assert_array_equal(pixels, expected)


def test_unknown_range_is_bad_data() -> None:
    out = BytesIO()
    Image.fromarray(np.ones((4, 4), np.float32)).save(out, "TIFF")
    with pytest.raises(BadData, match=r"mode: expected 8 or 16 bits a channel, got 32 \(Pillow's mode 'F'\)"):
        Pillow().decode(out.getvalue(), probe(out.getvalue()))


def test_sixteen_bit_ppm_is_scaled() -> None:
    data = b"P5 2 1 65535\n" + bytes.fromhex("00ff ff00")
    np.testing.assert_array_equal(Pillow().decode(data, probe(data))[0, :, 0], [0, 255])


def test_refuses_a_process_that_accepts_truncated_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(RecipeError, match=r"expected PIL\.ImageFile.LOAD_TRUNCATED_IMAGES to be False"):
        Pillow().decode(FILES["jpeg"], probe(FILES["jpeg"]))


def test_a_large_picture_raises_no_warning() -> None:
    out = BytesIO()
    Image.new("1", (9500, 9500)).save(out, "PNG")  # 90 million pixels: Image.open would warn, an error here
    info = probe(out.getvalue())
    assert Pillow().decode(out.getvalue(), info).shape == (9500, 9500, 3)
