"""Tiles put together again, to be looked at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zvl.protocols import Pixels

__all__ = ["arrange", "join_tiles"]

BINS = 16
"""Parts along each side by which a grid of tiles is compared with the whole image."""


def join_tiles(tiles: Pixels, columns: int) -> Pixels:
    """Tiles, uint8 (tiles, 3, S, S), row by row in `columns` columns, as one image (H, W, 3)."""
    count, _, side, _ = tiles.shape
    grid = tiles.reshape(count // columns, columns, 3, side, side)
    return grid.transpose(0, 3, 1, 4, 2).reshape(count // columns * side, columns * side, 3)


def arrange(tiles: Pixels, overview: Pixels) -> Pixels:
    """Join tiles whose number alone is known: in the rectangle that looks most like `overview`, uint8 (3, S, S).

    Batches of some families do not say how many columns there are, for the model does not ask.
    """
    count = len(tiles)
    grids = [join_tiles(tiles, columns) for columns in range(1, count + 1) if count % columns == 0]
    bins = min(BINS, overview.shape[-1])
    wanted = _shrunk(overview.transpose(1, 2, 0), bins)
    return min(grids, key=lambda grid: float(np.abs(_shrunk(grid, bins) - wanted).sum()))


def _shrunk(pixels: Pixels, bins: int) -> npt.NDArray[np.float64]:
    """Means of `bins` x `bins` parts of an image (H, W, 3)."""
    height, width, _ = pixels.shape
    rows, columns = (np.arange(bins) * side // bins for side in (height, width))
    sums = np.add.reduceat(np.add.reduceat(pixels, rows, axis=0, dtype=np.float64), columns, axis=1)
    areas = np.diff(rows, append=height)[:, None] * np.diff(columns, append=width)
    means: npt.NDArray[np.float64] = sums / areas[:, :, None]
    return means
