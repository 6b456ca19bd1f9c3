"""Images put together again from what layouts wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from zvl import registry
from zvl.image import ImageInfo
from zvl.images.pixels import decode, resize
from zvl.layouts._tiles import arrange, join_tiles
from zvl.protocols import Filter, Pixels

LAYOUTS = sorted(registry.catalogue("layouts"))
SHAPES = [(640, 480), (300, 900), (1100, 260), (97, 61)]
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "gemma3": [{}, {"do_pan_and_scan": True}],
    "internvl": [{}, {"crop_to_patches": False}],
    "idefics3": [{}, {"do_image_splitting": False}],
    "llava": [{"fit": "crop"}, {"fit": "pad"}, {"fit": "stretch"}],
    "pixtral": [{}, {"spatial_merge_size": 2}],
    "smolvlm": [{"longest_edge": 1024}],
}
CASES = [(layout, settings) for layout in LAYOUTS for settings in SETTINGS.get(layout, [{}])]


@pytest.fixture(scope="module")
def photo(photos: dict[str, bytes]) -> Pixels:
    return decode(photos["quokka"], ImageInfo("jpeg", 960, 643))[:640]


def written(layout: Any, pixels: Pixels) -> tuple[Sequence[Pixels], list[Pixels], Any]:
    """What `unwrite` makes of what `write` wrote, what the resizes in between gave, and the plan."""
    plan = layout.plan(pixels.shape[1], pixels.shape[0])
    resized: list[Pixels] = []

    def recording(source: Pixels, width: int, height: int, filter: Filter) -> Pixels:
        resized.append(resize(source, width, height, filter))
        return resized[-1]

    rows = np.empty((plan.rows, *layout.row_shape), dtype=np.uint8)
    layout.write(pixels, plan, recording, rows)
    geometry = {name: values[0] for name, values in layout.geometry([plan]).items()}
    return layout.unwrite(rows, geometry), resized, plan


def expected(name: str, layout: Any, resized: list[Pixels], rows: int) -> list[Pixels]:
    """The resizes that are to come back, byte for byte, the whole image in full first."""
    if name == "llava":
        side = layout.image_size
        top, left = ((length - side) // 2 for length in resized[0].shape[:2])
        return [resized[0][top : top + side, left : left + side]]
    if name in ("idefics3", "smolvlm"):
        return resized[1:]
    if name in ("llava_next", "llava_onevision") and rows > 1:
        return resized[::-1]
    return resized


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_pixels_come_back(name: str, settings: dict[str, Any], shape: tuple[int, int], photo: Pixels) -> None:
    width, height = shape
    pixels = resize(photo, width, height, "bicubic", "pillow").copy()
    layout = registry.load("layouts", name)(**settings)
    pictures, resized, plan = written(layout, pixels)
    if name == "gemma3" and plan.rows > 1:
        crops = resized[1:]
        wanted = [np.concatenate(crops, axis=1 if width > height else 0), resized[0]]
    else:
        wanted = expected(name, layout, resized, plan.rows)
    assert [picture.shape for picture in pictures] == [picture.shape for picture in wanted]
    for picture, original in zip(pictures, wanted, strict=True):
        np.testing.assert_array_equal(picture, original)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_it_looks_like_the_photo(name: str, settings: dict[str, Any], photo: Pixels) -> None:
    pixels = photo[:640, :640].copy() if name == "llava" else photo.copy()
    layout = registry.load("layouts", name)(**settings)
    pictures, _, _ = written(layout, pixels)
    for picture in pictures:
        assert psnr(picture, resize(pixels, picture.shape[1], picture.shape[0], "bicubic", "pillow")) > 28


def test_another_photo_does_not(photo: Pixels) -> None:
    assert psnr(photo, photo[:, ::-1]) < 15


def psnr(one: Pixels, other: Pixels) -> float:
    """Peak signal-to-noise ratio in dB."""
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6, 12])
def test_twelve_tiles_find_their_rectangle(columns: int, photo: Pixels) -> None:
    side, rows = 16, 12 // columns
    pixels = resize(photo, columns * side, rows * side, "bicubic", "pillow")
    tiles = pixels.reshape(rows, side, columns, side, 3).transpose(0, 2, 4, 1, 3).reshape(12, 3, side, side)
    overview = resize(photo, side, side, "bicubic", "pillow").transpose(2, 0, 1)
    np.testing.assert_array_equal(join_tiles(tiles, columns), pixels)
    np.testing.assert_array_equal(arrange(tiles, overview), pixels)


def test_tiles_of_one_colour_are_joined_somehow() -> None:
    tiles = np.zeros((6, 3, 4, 4), dtype=np.uint8)
    assert arrange(tiles, tiles[0]).shape == (24, 4, 3)


def test_one_of_several_images_of_a_sample(photo: Pixels) -> None:
    layout = registry.load("layouts", "llava_onevision")()
    plan = layout.plan_among(960, 640, 2)
    rows = np.empty((1, *layout.row_shape), dtype=np.uint8)
    layout.write(photo, plan, resize, rows)
    (square,) = layout.unwrite(rows, {"image_sizes": np.array([640, 960])})
    np.testing.assert_array_equal(square, rows[0].transpose(1, 2, 0))
