"""M-RoPE: three positions a token (time, height, width), as Qwen2-VL introduced them (arXiv:2409.12191)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData

__all__ = ["mrope_positions"]

Ints = npt.NDArray[np.int64]


def mrope_positions(input_ids: Ints, grids: Sequence[tuple[int, int]], image_token_id: int) -> Ints:
    """One sample's positions, int64 (3, n), for still images of `grids` (rows, columns) in placeholder tokens.

    Text counts on by one in all three axes. An image of r x c tokens that begins at position p has time p, height
    p..p+r-1 and width p..p+c-1; the text behind it goes on at p + max(r, c). Equals `get_rope_index` of
    `transformers`' modeling_qwen2_vl.py and modeling_qwen2_5_vl.py. Placeholders that do not fit the grids raise
    BadData.

    >>> mrope_positions(np.array([5, 9, 9, 9, 9, 6]), [(2, 2)], image_token_id=9).tolist()
    [[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]]
    """
    count = len(input_ids)
    ramp = np.arange(count, dtype=np.int64)
    out = np.empty((3, count), dtype=np.int64)
    token = position = 0
    for start, rows, columns in _places(input_ids, grids, image_token_id):
        text = start - token
        out[:, token:start] = ramp[position : position + text]
        position += text
        token = start + rows * columns
        out[0, start:token] = position
        out[1, start:token].reshape(rows, columns)[...] = ramp[position : position + rows, None]
        out[2, start:token].reshape(rows, columns)[...] = ramp[position : position + columns]
        position += max(rows, columns)
    out[:, token:] = ramp[position : position + count - token]
    return out


def _places(input_ids: Ints, grids: Sequence[tuple[int, int]], image_token_id: int) -> list[tuple[int, int, int]]:
    """(first token, rows, columns) of each image; its placeholders stand side by side."""
    if not grids:
        return []
    placeholders = (input_ids == image_token_id).nonzero()[0]
    places = []
    used = 0
    for index, (rows, columns) in enumerate(grids):
        run = placeholders[used : used + rows * columns]
        if len(run) < rows * columns or run[-1] - run[0] >= rows * columns:
            raise BadData(
                "placeholders",
                f"image {index} needs {rows * columns} placeholder tokens side by side (id {image_token_id}), "
                f"got {len(run)} spread over {int(run[-1] - run[0]) + 1 if len(run) else 0} tokens",
            )
        places.append((int(run[0]), rows, columns))
        used += len(run)
    if used != len(placeholders):
        raise BadData(
            "placeholders",
            f"{len(grids)} images need {used} placeholder tokens (id {image_token_id}), got {len(placeholders)}",
        )
    return places
