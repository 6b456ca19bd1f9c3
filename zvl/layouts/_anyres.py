"""Any resolution, as LLaVA-NeXT introduced it: an image becomes a thumbnail and a grid of tiles of its own shape."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import as_tensor, interleaved, store_planes
from zvl.layouts._llava import Ints, LlavaLayout, check_sides, in_groups
from zvl.layouts._tiles import join_tiles
from zvl.protocols import Pixels, Resize

__all__ = ["AnyResLayout"]

Size = tuple[int, int]
"""Height and width, in pixels."""


@dataclass(frozen=True, kw_only=True)
class AnyResLayout(LlavaLayout):
    """The grid is the one of `image_grid_pinpoints` that keeps most of the image and wastes least.

    `pixel_values` holds one tile (3, S, S) a row, the thumbnail first. The model wants them as (images, most tiles, 3,
    S, S), normalised and filled up with zeros: `pixel_inputs` does both on the device. The geometry is `image_sizes`,
    int64 (images, 2): the height and width of the original in pixels. The model cuts the features of the padding off
    and ends each row of features with a newline: the tokens count both.
    """

    image_size: int
    """Side of a tile, in pixels."""
    image_grid_pinpoints: tuple[Size, ...]
    """The sizes (height, width) in pixels that an image may be fitted into: whole tiles."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Recipes and saved settings have lists; a layout must hash.
        pinpoints = tuple((int(height), int(width)) for height, width in self.image_grid_pinpoints)
        object.__setattr__(self, "image_grid_pinpoints", pinpoints)
        if not pinpoints:
            raise RecipeError("layout field image_grid_pinpoints: expected at least one (height, width), got none")
        for size in pinpoints:
            if min(size) < 1 or any(side % self.image_size for side in size):
                raise RecipeError(
                    f"layout field image_grid_pinpoints: expected whole tiles of image_size={self.image_size}, "
                    f"got {list(size)}"
                )

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The settings of an image processor that makes tiles; one that does not fill up batches is refused."""
        settings = super().saved_settings(saved)
        if saved.get("image_grid_pinpoints") is not None:
            settings["image_grid_pinpoints"] = tuple((h, w) for h, w in saved.pop("image_grid_pinpoints"))
        if not saved.pop("do_pad", True):
            raise RecipeError(
                "cannot honour do_pad = False: the model takes tiles filled up to the most; expected True"
            )
        return settings

    @property
    def row_shape(self) -> tuple[int, ...]:
        """One tile."""
        return (3, self.image_size, self.image_size)

    @property
    def _side(self) -> int:
        """Side of a tile in features."""
        raise NotImplementedError

    def plan(self, width: int, height: int) -> ImagePlan:
        """From the size in pixels to the grid of tiles and the tokens."""
        check_sides(width, height)
        new_height, new_width = fit(height, width, self._grid(height, width))
        rows = self._tiles(height, width)
        return ImagePlan(
            rows=rows,
            tokens=self._tokens(height, width),
            patches=rows * self._side**2,
            width=max(new_width, self.image_size),
            height=max(new_height, self.image_size),
            geometry=(height, width),
        )

    def _grid(self, height: int, width: int) -> Size:
        """The size of the grid in pixels."""
        return best_resolution(height, width, self.image_grid_pinpoints)

    def _tiles(self, height: int, width: int) -> int:
        """Tiles of an image, the thumbnail among them."""
        grid_height, grid_width = self._grid(height, width)
        return 1 + (grid_height // self.image_size) * (grid_width // self.image_size)

    def _tokens(self, height: int, width: int) -> int:
        """Tokens of an image: the thumbnail's, and those of the grid with a newline a row."""
        grid = self._grid(height, width)
        rows, columns = (side // self.image_size * self._side for side in grid)
        rows, columns = self._kept(*unpadded(height, width, rows, columns))
        return self._side**2 + rows * (columns + 1)

    def _kept(self, rows: int, columns: int) -> Size:
        """Rows and columns of the features that the model hands on."""
        return rows, columns

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Store the thumbnail and the tiles in `out`, uint8 (tiles, 3, S, S)."""
        height, width = plan.geometry[:2]
        grid = self._grid(height, width)
        new_height, new_width = fit(height, width, grid)
        store_planes(resize(pixels, self.image_size, self.image_size, self.resample), out[0])
        cut_tiles(resize(pixels, new_width, new_height, self.resample), grid, out[1:])

    def unwrite(self, rows: Pixels, geometry: Mapping[str, npt.NDArray[Any]]) -> Sequence[Pixels]:
        """The resized image without its black borders, and the thumbnail; of a single row that alone."""
        thumbnail = interleaved(rows[0])
        if len(rows) == 1:
            return [thumbnail]
        height, width = geometry["image_sizes"].tolist()
        grid = self._grid(height, width)
        high, wide = fit(height, width, grid)
        top, left = (grid[0] - high) // 2, (grid[1] - wide) // 2
        whole = join_tiles(rows[1:], grid[1] // self.image_size)
        return [whole[top : top + high, left : left + wide], thumbnail]

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """Features of each image, int64 (images,)."""
        sizes = geometry["image_sizes"].tolist()
        return np.array([self._tokens(height, width) for height, width in sizes], dtype=np.int64)

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """`pixel_values`, `dtype` (images, most tiles, 3, S, S), and `image_sizes`; {} without images.

        `dtype` None means float32. The tiles travel to `device` as uint8.
        """
        if batch["pixel_values"].shape[0] == 0:
            return {}
        tiles, real = in_groups(as_tensor(batch["pixel_values"], device), self._tile_counts(batch))
        values = self.normalised(tiles, dtype, channel=2)
        return {
            "pixel_values": values.masked_fill_(~real[:, :, None, None, None], 0),
            "image_sizes": as_tensor(batch["image_sizes"], device),
        }

    def _tile_counts(self, batch: Mapping[str, Any]) -> Sequence[int]:
        """Rows of each image of the batch."""
        return [self._tiles(height, width) for height, width in batch["image_sizes"].tolist()]


@functools.lru_cache(maxsize=4096)
def best_resolution(height: int, width: int, sizes: tuple[Size, ...]) -> Size:
    """The first size that keeps most pixels of the image, and of those wastes least.

    Equals `select_best_resolution` of transformers' image_processing_utils.py. Kept for the next call: planning and
    writing ask for it several times, and with 36 sizes it takes longer than all else in a plan.

    >>> best_resolution(480, 640, ((336, 672), (672, 336), (672, 672)))
    (672, 672)
    """
    best, rank = sizes[0], (-1, 0)
    for size in sizes:
        scale = min(size[1] / width, size[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = size[0] * size[1] - kept
        if (kept, -wasted) > rank:
            best, rank = size, (kept, -wasted)
    return best


def fit(height: int, width: int, grid: Size) -> Size:
    """The size, of the image's own shape, that fills the grid in one direction; rounded up."""
    by_height, by_width = grid[0] / height, grid[1] / width
    if by_width < by_height:
        return min(math.ceil(height * by_width), grid[0]), grid[1]
    return grid[0], min(math.ceil(width * by_height), grid[1])


def unpadded(height: int, width: int, rows: int, columns: int) -> Size:
    """Rows and columns of features without those that are padding alone, for a grid of `rows` x `columns`.

    Equals `unpad_image` of transformers' modeling_llava_next.py: the rounding to 7 digits is its own.
    """
    if width / height > columns / rows:
        filled = int(round(height * (columns / width), 7))
        return rows - (rows - filled) // 2 * 2, columns
    filled = int(round(width * (rows / height), 7))
    return rows, columns - (columns - filled) // 2 * 2


def cut_tiles(pixels: Pixels, grid: Size, out: Pixels) -> None:
    """Put `pixels` (H, W, 3) in the middle of a black `grid` and cut that into `out`, uint8 (tiles, 3, S, S)."""
    height, width, _ = pixels.shape
    side = out.shape[-1]
    top, left = (grid[0] - height) // 2, (grid[1] - width) // 2
    for number, tile in enumerate(out):
        row, column = divmod(number, grid[1] // side)
        # The part of the image that lies in this tile: in the image's rows and columns, then in the tile's.
        first_y, last_y = max(row * side - top, 0), min((row + 1) * side - top, height)
        first_x, last_x = max(column * side - left, 0), min((column + 1) * side - left, width)
        if (last_y - first_y, last_x - first_x) != (side, side):
            tile[...] = 0
        if last_y <= first_y or last_x <= first_x:
            continue
        y, x = first_y + top - row * side, first_x + left - column * side
        part = tile[:, y : y + last_y - first_y, x : x + last_x - first_x]
        store_planes(pixels[first_y:last_y, first_x:last_x], part)
