"""What several layouts share: cutting pixels while materialising, normalising them on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zvl.images.quads import colours, quads, scratch
from zvl.protocols import Pixels

if TYPE_CHECKING:
    import torch

__all__ = ["as_tensor", "cut_blocks", "interleaved", "join_blocks", "normalise", "planar", "store_planes"]

CACHED = 512 << 10
"""Bytes that are worked on at a time: most processors have as much of a second cache, and each stretch lets go of the
interpreter twice."""


def planar(pixels: Pixels) -> Pixels:
    """`pixels` (H, W, 3) as (3, H, W) with every row contiguous: a view where the memory is planar, else a copy."""
    channels = pixels.transpose(2, 0, 1)
    if channels.strides[-1] == channels.itemsize:
        return channels
    planes = np.empty(channels.shape, np.uint8)
    store_planes(pixels, planes)
    return planes


def store_planes(pixels: Pixels, out: Pixels) -> None:
    """Copy `pixels` (H, W, 3) into `out` (3, H, W)."""
    four = quads(pixels)
    plain = 0
    if four is not None:
        # The numbers of the last row would reach behind it.
        plain = len(pixels) - 1
        np.copyto(out[:, :plain], colours(four[:-1]), casting="unsafe")
    out[:, plain:] = pixels[plain:].transpose(2, 0, 1)


def cut_blocks(pixels: Pixels, patch: int, merge: int, out: Pixels) -> None:
    """Cut `pixels` (H, W, 3) into square patches, stored in `out` (H/patch · W/patch, 3 · patch · patch), uint8.

    Patches go block by block, `merge` x `merge` of them in a block, both row by row; a patch is (channel, y, x).
    A patch's line is copied as one item of `patch` bytes: of the ways tried on a 640x480 picture this was the
    fastest by a factor of two. Pixels of four bytes are cut first and then parted by colour, which is faster still.
    """
    four = quads(pixels)
    if four is not None and four.flags.c_contiguous:
        cut_quads(four, patch, merge, out)
        return
    channels = planar(pixels)
    depth, height, width = channels.shape
    rows, columns = height // patch // merge, width // patch // merge
    line = np.dtype((np.void, patch))
    lines = channels.view(line).reshape(depth, rows, merge, patch, columns, merge)
    ordered = lines.transpose(1, 4, 2, 5, 0, 3)
    out.view(line).reshape(ordered.shape)[...] = ordered


def cut_quads(pixels: Pixels, patch: int, merge: int, out: Pixels) -> None:
    """`cut_blocks` of contiguous `pixels` (H, W, 4), of which the last byte means nothing.

    A few rows of blocks at a time, so that they stay in the processor's cache between the two steps.
    """
    height, width, _ = pixels.shape
    rows, columns = height // patch // merge, width // patch // merge
    line = np.dtype((np.void, 4 * patch))
    lines = pixels.reshape(height, 4 * width).view(line).reshape(rows, merge, patch, columns, merge)
    blocks = lines.transpose(0, 3, 1, 4, 2)
    own = columns * merge * merge
    channels = out.reshape(-1, 3, patch * patch)
    step = max(1, CACHED // (4 * own * patch * patch))
    for first in range(0, rows, step):
        some = blocks[first : first + step]
        count = some.size // patch
        memory = scratch("patches", 4 * patch * patch * count + 2)
        memory[:-2].view(line).reshape(some.shape)[...] = some
        numbers = np.ndarray((count, 3, patch * patch), "<u4", memory, 0, (4 * patch * patch, 1, 4))  # as in `colours`
        np.copyto(channels[first * own : first * own + count], numbers, casting="unsafe")


def join_blocks(patches: Pixels, grid: tuple[int, int], merge: int) -> Pixels:
    """The image, uint8 (H, W, 3), that `cut_blocks` has cut into a `grid` of (rows, columns) patches."""
    rows, columns = grid
    patch = math.isqrt(patches.shape[-1] // 3)
    blocks = patches.reshape(rows // merge, columns // merge, merge, merge, 3, patch, patch)
    return blocks.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * patch, columns * patch, 3)


def interleaved(tile: Pixels) -> Pixels:
    """A tile (3, H, W) as an image (H, W, 3)."""
    return np.ascontiguousarray(tile.transpose(1, 2, 0))


def normalise(values: torch.Tensor, mean: Sequence[float], std: Sequence[float], channel: int = 1) -> torch.Tensor:
    """``(values / 255 - mean) / std`` along axis `channel`, as one multiply-add in float32 on the values' device.

    `values` are uint8. Differs from dividing and subtracting step by step by less than 1e-6.
    """
    import torch

    shape = [1] * values.ndim
    shape[channel] = len(mean)
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=torch.float32, device=values.device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=values.device)
    return torch.addcmul(shift.view(shape), values.to(torch.float32), scale.view(shape))


def as_tensor(value: Any, device: Any) -> torch.Tensor:
    """A batch's field (tensor or array) as a tensor on `device`; None keeps it where it is."""
    import torch

    tensor = torch.as_tensor(value)
    return tensor if device is None else tensor.to(device)
