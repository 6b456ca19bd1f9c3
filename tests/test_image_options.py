"""Options of decoding: background, icc, jpeg_scale, and that each reaches fingerprints."""

from __future__ import annotations

import itertools
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms
from transformers.image_transforms import convert_to_rgb

from reference.image_files import photo, sample_images, with_alpha
from zvl import registry
from zvl.batch import Segment
from zvl.errors import RecipeError
from zvl.image import Image as Probed
from zvl.image import ImageInfo
from zvl.images.canaries import wide_profile, with_profile
from zvl.images.colour import composite, transform
from zvl.images.header import probe
from zvl.images.options import DecodeOptions
from zvl.images.pixels import canaries, decode, resize
from zvl.images.scaling import jpeg_divisor
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl_operators.decode_images import DecodeImages
from zvl_operators.patchify import Patchify

FILES = sample_images()
WIDE_GRAY = ("png 16 pillow", "png 16 gray", "png 16 gray clear", "tiff 16", "jpeg2000 16")
"""There Hugging Face clips to white, and we keep the high byte."""
SRGB = ImageCms.createProfile("sRGB")


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("name", [name for name in FILES if name not in WIDE_GRAY])
def test_the_default_is_what_hugging_face_does(name: str) -> None:
    expected = convert_to_rgb(Image.open(BytesIO(FILES[name])), return_numpy=True)
    np.testing.assert_array_equal(decode(FILES[name], probe(FILES[name])), expected)


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (1, 127, 200), (64, 128, 254)])
def test_every_mixture_equals_pillows(colour: tuple[int, int, int]) -> None:
    value, alpha = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    pixels = np.dstack([value, value, value, alpha])
    behind = Image.new("RGBA", (256, 256), (*colour, 255))
    expected = np.asarray(Image.alpha_composite(behind, Image.fromarray(pixels)).convert("RGB"))
    np.testing.assert_array_equal(composite(pixels, colour), expected)


@pytest.mark.parametrize("name", ["png rgba", "png la", "png palette alpha", "webp lossless alpha", "gif clear"])
def test_background(name: str) -> None:
    data, info = FILES[name], probe(FILES[name])
    rgba = Image.open(BytesIO(data)).convert("RGBA")
    behind = Image.new("RGBA", rgba.size, (255, 128, 0, 255))
    expected = np.asarray(Image.alpha_composite(behind, rgba).convert("RGB"))
    np.testing.assert_array_equal(decode(data, info, options=DecodeOptions(background="#Ff8000")), expected)
    dropped = decode(data, info, options=DecodeOptions(background="drop"))
    np.testing.assert_array_equal(dropped, np.asarray(rgba)[..., :3])
    white = decode(data, info, options=DecodeOptions(background="white"))
    np.testing.assert_array_equal(white, decode(data, info))
    assert not np.array_equal(white, expected)


@pytest.mark.parametrize("wrong", ["whit", "#ffff", "#gggggg", "", "#ff8000 "])
def test_wrong_options_are_refused(wrong: str) -> None:
    with pytest.raises(RecipeError, match="expected background=None, 'drop', 'white', 'black' or a colour like"):
        DecodeOptions(background=wrong)
    with pytest.raises(RecipeError, match="expected icc='ignore' or 'srgb', got 'adobe'"):
        DecodeOptions(icc="adobe")  # type: ignore[arg-type]


def with_icc(kind: str, profile: bytes, image: Image.Image | None = None) -> bytes:
    return encode(image or photo(), kind, icc_profile=profile)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_icc_equals_pillows(kind: str) -> None:
    data = with_icc(kind, wide_profile())
    info = probe(data)
    plain, turned = decode(data, info), decode(data, info, options=DecodeOptions(icc="srgb"))
    wide = ImageCms.ImageCmsProfile(BytesIO(wide_profile()))
    expected = ImageCms.profileToProfile(Image.fromarray(plain), wide, SRGB)
    np.testing.assert_array_equal(turned, np.asarray(expected))
    assert np.abs(turned.astype(int) - plain).mean() > 3


def test_icc_keeps_alpha_and_turns_with_exif() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(with_alpha(photo()), "PNG", icc_profile=wide_profile(), exif=exif)
    options = DecodeOptions(icc="srgb", background="black")
    found = decode(data, probe(data), options=options)
    upright = encode(with_alpha(photo()), "PNG", icc_profile=wide_profile())
    expected = decode(upright, probe(upright), options=options)
    np.testing.assert_array_equal(found, np.rot90(expected, -1))
    assert found[:2].max() < 10  # the clear end of the ramp


@pytest.mark.parametrize(
    "profile",
    [b"", b"damaged", wide_profile()[:200], wide_profile().replace(b"RGB ", b"CMYK"), bytes(500)],
    ids=["none", "damaged", "cut", "of inks", "zeros"],
)
def test_a_profile_that_cannot_serve_is_ignored(profile: bytes) -> None:
    data = with_profile(FILES["jpeg"], profile)
    turned = decode(data, probe(data), options=DecodeOptions(icc="srgb"))
    np.testing.assert_array_equal(turned, decode(FILES["jpeg"], probe(FILES["jpeg"])))


def test_icc_of_gray_and_of_inks() -> None:
    gray = wide_profile().replace(b"RGB ", b"GRAY").replace(b"rTRC", b"kTRC").replace(b"gTRC", b"xxxx")
    data = with_icc("PNG", gray, photo().convert("L"))
    turned = decode(data, probe(data), options=DecodeOptions(icc="srgb"))
    assert np.array_equal(turned[..., 0], turned[..., 1])
    assert 0 < np.abs(turned.astype(int) - decode(data, probe(data))).mean() < 10
    # A profile of colours in a CMYK file describes what its conversion gives.
    inks = with_icc("JPEG", wide_profile(), photo().convert("CMYK"))
    turned = decode(inks, probe(inks), options=DecodeOptions(icc="srgb"))
    assert np.abs(turned.astype(int) - decode(inks, probe(inks))).mean() > 3


def test_a_transform_is_built_once_a_profile() -> None:
    assert transform(wide_profile(), "RGB") is transform(bytes(bytearray(wide_profile())), "RGB")


JPEGS = [name for name, data in FILES.items() if probe(data).format == "jpeg"]
SCALED = DecodeOptions(jpeg_scale=True)


@pytest.mark.parametrize("name", JPEGS)
def test_codecs_scale_alike(name: str) -> None:
    data, info = FILES[name], probe(FILES[name])
    for planned in ((44, 31), (22, 16), (11, 8)):
        found = [decode(data, info, codec, SCALED, planned) for codec in ("pillow", "turbojpeg")]
        assert found[0].shape == (planned[1], planned[0], 3)
        np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_scaling_knows_which_side_is_which(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo(400, 200), "JPEG", exif=exif)
    info = probe(data)
    planned = (200, 90) if orientation < 5 else (90, 200)
    pixels = decode(data, info, options=SCALED, planned=planned)
    assert pixels.shape == ((100, 200, 3) if orientation < 5 else (200, 100, 3))
    whole = Image.fromarray(decode(data, info)).resize(pixels.shape[1::-1], Image.Resampling.BOX)
    assert np.abs(pixels.astype(int) - np.asarray(whole)).mean() < 2


def test_the_divisor_never_falls_below_the_plan() -> None:
    for width, height, across, down in itertools.product(range(1, 40, 3), range(1, 40, 7), (1, 5, 10, 19), (1, 6, 20)):
        divisor = jpeg_divisor(ImageInfo("jpeg", width, height), across, down)
        assert divisor in (1, 2, 4, 8)
        assert divisor == 1 or (-(-width // divisor) >= across and -(-height // divisor) >= down)


def test_only_jpegs_with_a_plan_are_scaled() -> None:
    for name in ("png", "webp", "avif", "tiff"):
        found = decode(FILES[name], probe(FILES[name]), options=SCALED, planned=(11, 8))
        np.testing.assert_array_equal(found, decode(FILES[name], probe(FILES[name])))
    assert decode(FILES["jpeg"], probe(FILES["jpeg"]), options=SCALED).shape == (61, 87, 3)


def test_every_option_changes_the_pixel_fingerprint() -> None:
    options: list[dict[str, Any]] = [{}, {"background": "drop"}, {"background": "#010101"}, {"icc": "srgb"}]
    options.append({"jpeg_scale": True})
    found = {canaries(options=DecodeOptions(**one)) for one in options}
    assert len(found) == len(options)
    assert canaries(options=DecodeOptions(background="white")) == canaries()


LAYOUT = Qwen2_5VL(max_pixels=28 * 28 * 8)
PROCESSOR: Any = SimpleNamespace(layout=LAYOUT, resize="torch", image_token_id=0)
CHANGES: list[dict[str, Any]] = [
    {"background": "#123456"},
    {"background": "drop"},
    {"icc": "srgb"},
    {"jpeg_scale": True},
]


def probed(data: bytes) -> Probed:
    info = probe(data)
    return Probed(data, info, LAYOUT.plan(*info.size))


def patches(**options: Any) -> tuple[bytes, str]:
    """(pixel values of three pictures, pixel fingerprint)."""
    files = (encode(photo(700, 500), "JPEG"), encode(photo(), "JPEG", icc_profile=wide_profile()), FILES["png rgba"])
    batch = {"images": [probed(data) for data in files], "segments": [(Segment("a", 0, 0, 0, 3),)]}
    operator = Patchify(processor=PROCESSOR, **options)
    return operator(batch)["pixel_values"].tobytes(), operator.pixels_fingerprint()


def test_patchify_obeys_every_option() -> None:
    found = [patches(**options) for options in ({}, *CHANGES)]
    assert len({values for values, _ in found}) == len({name for _, name in found}) == len(CHANGES) + 1
    with pytest.raises(RecipeError, match="expected icc='ignore' or 'srgb'"):
        Patchify(processor=PROCESSOR, icc="sRGB")  # type: ignore[arg-type]


def test_decode_images_obeys_those_that_it_has() -> None:
    sample = {"__key__": "a", "images": [probed(FILES["png rgba"])]}
    black = DecodeImages(background="black")
    assert black(sample)["pixels"][0][:, :2].max() < 10
    assert DecodeImages()(sample)["pixels"][0][:, :2].min() > 245
    assert len({DecodeImages(**one).pixels_fingerprint() for one in ({}, *CHANGES[:3])}) == 4
    with pytest.raises(RecipeError, match="expected background=None"):
        DecodeImages(background="nothing")


@pytest.mark.parametrize("name", registry.catalogue("layouts"))
def test_every_layout_takes_scaled_pixels(name: str) -> None:
    """The rows of a picture decoded at an odd fraction of its size are near those of the whole one."""
    layout = registry.load("layouts", name)()
    data = encode(photo(401, 301).resize((1603, 1203)), "JPEG", quality=95)
    info = probe(data)
    plan = layout.plan(*info.size)
    planned = plan.width, plan.height
    rows = []
    for options in (DecodeOptions(), SCALED):
        out = np.zeros((plan.rows, *layout.row_shape), np.uint8)
        pixels = decode(data, info, options=options, planned=planned)
        layout.write(pixels, plan, resize, out)
        rows.append(out.astype(int))
    if jpeg_divisor(info, *planned) > 1:
        assert pixels.shape != (1203, 1603, 3)
    assert np.abs(rows[0] - rows[1]).mean() < 2.5
