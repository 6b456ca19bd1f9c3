from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from reference.image_files import photo, sample_images
from zvl.errors import BadData, RecipeError, RegistryError
from zvl.image import ImageInfo
from zvl.images import pixels as module
from zvl.images.canaries import canary_images
from zvl.images.header import probe
from zvl.images.pixels import Backend, canaries, codec_for, decode, resize
from zvl.images.quads import quads
from zvl.protocols import Filter, Pixels

# What Pillow says of damaged TIFF directories and EXIF blocks.
pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
FILES = sample_images()
FILTERS: tuple[Filter, ...] = ("nearest", "bilinear", "bicubic", "lanczos")
SIZES = [(56, 84), (140, 140), (300, 17), (87, 30)]


@pytest.mark.parametrize("name", FILES)
def test_auto_equals_pillow(name: str) -> None:
    info = probe(FILES[name])
    np.testing.assert_array_equal(decode(FILES[name], info), decode(FILES[name], info, "pillow"))


@pytest.mark.parametrize("name", FILES)
def test_memory_used_again_holds_the_same_pixels(name: str) -> None:
    info = probe(FILES[name])
    np.testing.assert_array_equal(decode(FILES[name], info, reuse=True), decode(FILES[name], info))


@pytest.mark.parametrize("name", FILES)
def test_auto_refuses_a_file_cut_in_its_first_frame(name: str) -> None:
    data = FILES[name]
    with pytest.raises(BadData):
        decode(data[: len(data) * 2 // 10], probe(data))


def test_auto_depends_on_the_header_alone() -> None:
    chosen = {codec_for(ImageInfo(name, 1, 1)) for name in ("jpeg",)}
    assert chosen == {"turbojpeg"}
    assert codec_for(ImageInfo("png", 5000, 5000)) == "pyvips"
    assert codec_for(ImageInfo("never seen", 1, 1)) == "pillow"


def test_errors_name_codec_and_size() -> None:
    data = FILES["png"]
    with pytest.raises(BadData, match=r"^codec: the codec 'turbojpeg' reads jpeg, got png: choose codec='auto'"):
        decode(data, probe(data), "turbojpeg")
    with pytest.raises(BadData, match=rf"^decode: codec 'pillow' on png of {len(data) - 900:,} bytes: ") as caught:
        decode(data[:-900], probe(data), "pillow")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(BadData, match=r"^size: expected 90x61 pixels as probed, got a png of 87x61: its parts contra"):
        decode(data, ImageInfo("png", 90, 61), "pillow")
    with pytest.raises(RegistryError, match="no codec is named 'pilow'; did you mean 'pillow'"):
        decode(data, probe(data), "pilow")


@pytest.mark.parametrize("fault", [MemoryError, UserWarning])
def test_faults_of_the_process_are_no_bad_data(fault: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    class Hungry:
        formats = frozenset({"png"})

        def decode(self, data: bytes, info: ImageInfo) -> Pixels:
            raise fault

    monkeypatch.setattr(module, "codec_named", lambda name: Hungry())
    with pytest.raises(fault):
        decode(FILES["png"], probe(FILES["png"]))


def test_a_codec_that_breaks_its_promise_is_bad_data(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        formats = frozenset({"png"})

        def decode(self, data: bytes, info: ImageInfo) -> Pixels:
            return np.zeros((61, 90, 3), np.uint8)

    monkeypatch.setattr(module, "codec_named", lambda name: Wrong())
    with pytest.raises(
        BadData, match=r"^size: expected uint8 \(61, 87, 3\) as the png header says, got uint8 \(61, 90"
    ):
        decode(FILES["png"], probe(FILES["png"]))


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("size", SIZES)
def test_pillow_backend_is_pillow_bit_for_bit(filter: Filter, size: tuple[int, int]) -> None:
    image = photo()
    expected = np.asarray(image.resize(size, Image.Resampling[filter.upper()]))
    np.testing.assert_array_equal(resize(np.asarray(image), *size, filter, "pillow"), expected)


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", SIZES)
def test_torch_backend_is_the_kernel_on_a_planar_image(filter: Filter, size: tuple[int, int]) -> None:
    planes = torch.from_numpy(np.array(photo())).permute(2, 0, 1).contiguous()[None]
    expected = torch.nn.functional.interpolate(planes, size=size[::-1], mode=filter, antialias=True)
    resized = resize(np.asarray(photo()), *size, filter)
    np.testing.assert_array_equal(resized, expected[0].permute(1, 2, 0).numpy())
    assert resized.flags.c_contiguous
    four = np.dstack([np.asarray(photo()), np.full((*photo().size[::-1], 1), 9, np.uint8)])
    of_four = resize(four[..., :3], *size, filter)
    np.testing.assert_array_equal(of_four, resized)
    assert quads(of_four) is not None


def test_backends_agree_nearly() -> None:
    for filter in FILTERS:
        by_torch = resize(np.asarray(photo()), 56, 84, filter, "torch").astype(int)
        by_pillow = resize(np.asarray(photo()), 56, 84, filter, "pillow").astype(int)
        assert np.abs(by_torch - by_pillow).mean() < (0.5 if filter != "nearest" else 0.01), filter


VIEWS = {
    "fortran": lambda p: np.asfortranarray(p),
    "planar": lambda p: np.ascontiguousarray(p.transpose(2, 0, 1)).transpose(1, 2, 0),
    "last of four": lambda p: np.dstack([p[..., :1], p])[..., 1:],
    "of four": lambda p: np.dstack([p, p[..., :1]])[..., :3],
    "mirrored": lambda p: np.ascontiguousarray(p[:, ::-1])[:, ::-1],
    "flipped": lambda p: np.ascontiguousarray(p[::-1])[::-1],
    "transposed": lambda p: np.ascontiguousarray(p.transpose(1, 0, 2)).transpose(1, 0, 2),
    "reversed colours": lambda p: np.ascontiguousarray(p[..., ::-1])[..., ::-1],
    "part": lambda p: np.pad(p, ((2, 3), (4, 5), (0, 0)))[2:-3, 4:-5],
}


@pytest.mark.parametrize("backend", ["torch", "pillow"])
@pytest.mark.parametrize("view", VIEWS)
def test_strides_do_not_matter(view: str, backend: Backend) -> None:
    pixels = np.array(photo())
    other: Pixels = VIEWS[view](pixels)
    np.testing.assert_array_equal(other, pixels)
    before = other.copy()
    for size in ((56, 84), (140, 140)):
        expected = resize(pixels, *size, "bicubic", backend)
        np.testing.assert_array_equal(resize(other, *size, "bicubic", backend), expected)
    np.testing.assert_array_equal(other, before)


@pytest.mark.parametrize("backend", ["torch", "pillow"])
def test_gray_and_read_only_pixels(backend: Backend) -> None:
    gray = np.broadcast_to(np.asarray(photo().convert("L"))[..., None], (61, 87, 3))
    expected = resize(np.ascontiguousarray(gray), 50, 40, "bicubic", backend)
    np.testing.assert_array_equal(resize(gray, 50, 40, "bicubic", backend), expected)


@pytest.mark.parametrize("backend", ["torch", "pillow"])
def test_a_fitting_size_is_left_alone(backend: Backend) -> None:
    pixels = np.asarray(photo())
    assert resize(pixels, 87, 61, "bicubic", backend) is pixels


def test_unknown_backend_and_missing_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="expected the resize backend 'torch' or 'pillow', got 'opencv'"):
        resize(np.asarray(photo()), 5, 5, "bicubic", "opencv")  # type: ignore[arg-type]

    def old(*_: Any, **options: Any) -> torch.Tensor:
        raise NotImplementedError(options["mode"])

    monkeypatch.setattr(torch.nn.functional, "interpolate", old)
    with pytest.raises(RecipeError, match=r"this PyTorch \(.*\) has no lanczos kernel: take a newer one, or resize="):
        resize(np.asarray(photo()), 5, 5, "lanczos")


def test_canaries_are_the_same_in_every_thread() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(canaries())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {canaries()}
    assert len(canaries()) == 64


def test_canaries_tell_backends_apart_and_equal_codecs_together() -> None:
    assert canaries(backend="torch") != canaries(backend="pillow")
    assert canaries("auto") == canaries("pillow")
    assert canaries("turbojpeg") != canaries("pillow")  # JPEG alone


def test_canaries_notice_one_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = canaries()
    true_decode = decode

    def off_by_one(data: bytes, info: ImageInfo, *options: Any) -> Pixels:
        pixels = true_decode(data, info, *options).copy()
        pixels[3, 4, 1] ^= 1
        return pixels

    monkeypatch.setattr(module, "decode", off_by_one)
    assert canaries() != before


def test_canary_images_are_small() -> None:
    assert {probe(data).format for data in canary_images().values()} == {"jpeg", "png", "webp"}
    assert all(len(data) < 2000 for data in canary_images().values())
