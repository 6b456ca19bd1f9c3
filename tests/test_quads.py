from __future__ import annotations

import mmap
import threading

import numpy as np
import pytest

from zvl.images.quads import MOST_KEPT, PATIENCE, SPAN, colours, quads, scratch
from zvl.layouts._arrays import cut_blocks, planar, store_planes
from zvl.protocols import Pixels


def noise(height: int, width: int, channels: int = 4) -> Pixels:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels), np.uint8)


def test_quads_are_the_memory_itself() -> None:
    whole = noise(5, 7)
    four = quads(whole[..., :3])
    assert four is not None
    np.testing.assert_array_equal(four, whole)
    assert np.shares_memory(four, whole)
    part = quads(whole[1:4, 2:5, :3])
    assert part is not None
    np.testing.assert_array_equal(part, whole[1:4, 2:5])


@pytest.mark.parametrize(
    "pixels",
    [
        noise(5, 7, 3),
        noise(5, 7)[..., 1:],  # the byte behind the last pixel is nobody's
        noise(5, 7)[..., 2::-1],
        noise(5, 7)[:, ::-1, :3],
        noise(5, 7)[::-1, :, :3],
        noise(5, 7)[..., :3].transpose(1, 0, 2),
        noise(0, 7)[..., :3],
    ],
)
def test_other_memory_has_none(pixels: Pixels) -> None:
    assert quads(pixels) is None


def test_colours_at_any_address() -> None:
    memory = noise(1, 30).reshape(-1)
    for start in range(4):
        four = memory[start : start + 96].reshape(3, 8, 4)
        np.testing.assert_array_equal(colours(four).astype(np.uint8), four[..., :3].transpose(2, 0, 1))


@pytest.mark.parametrize("size", [(28, 28), (56, 84), (84, 28), (140, 1400)])
@pytest.mark.parametrize("merge", [1, 2])
def test_the_fourth_byte_changes_no_patch(size: tuple[int, int], merge: int) -> None:
    pixels = noise(*size)[..., :3]
    expected = np.empty((size[0] // 14 * size[1] // 14, 588), np.uint8)
    cut_blocks(pixels.copy(), 14, merge, expected)
    out = np.empty_like(expected)
    cut_blocks(pixels, 14, merge, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (6, 7)])
def test_the_fourth_byte_is_in_no_plane(size: tuple[int, int]) -> None:
    whole = noise(size[0], size[1] + 3)
    for pixels in (noise(*size)[..., :3], whole[:, 3:, :3], whole[:, :-3, :3], whole[:, 3:, 1:]):
        planes = planar(pixels)
        np.testing.assert_array_equal(planes, pixels.transpose(2, 0, 1))
        assert planes.strides[-1] == 1
        wide = np.zeros((3, size[0], size[1] + 5), np.uint8)
        store_planes(pixels, wide[..., 2:-3])
        np.testing.assert_array_equal(wide[..., 2:-3], planes)
        assert not wide[..., :2].any()
        assert not wide[..., -3:].any()


def test_scratch_is_used_again_by_its_thread_and_use_alone() -> None:
    first = scratch("one", 100)
    assert first.shape == (100,)
    assert np.shares_memory(first, scratch("one", 50))
    assert not np.shares_memory(first, scratch("two", 50))
    others: list[Pixels] = []
    thread = threading.Thread(target=lambda: others.append(scratch("one", 50)))
    thread.start()
    thread.join()
    assert not np.shares_memory(first, others[0])


def test_scratch_gives_back_what_was_large_when_less_is_asked_for() -> None:
    large = scratch("large", MOST_KEPT + 4096)
    large[...] = 1
    for _ in range(PATIENCE - 1):
        scratch("large", MOST_KEPT)
    assert scratch("large", MOST_KEPT + 4096).all(), "somebody may want large ones now and then"
    for _ in range(PATIENCE):
        scratch("large", MOST_KEPT)
    again = scratch("large", MOST_KEPT + 4096)
    assert again[:MOST_KEPT].all()
    assert not again[MOST_KEPT:].any() or not hasattr(mmap, "MADV_DONTNEED")


def test_scratch_keeps_nothing_huge() -> None:
    huge = scratch("huge", SPAN + 1)
    assert len(huge) == SPAN + 1
    assert not np.shares_memory(huge, scratch("huge", SPAN + 1))
