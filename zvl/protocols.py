"""What datasets, formats, codecs, layouts, sources and runners must offer. `docs/contracts.md` explains each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData
from zvl.image import ImageInfo, ImagePlan
from zvl.operator import Sample

__all__ = [
    "Codec",
    "Dataset",
    "Format",
    "LaneCursor",
    "Layout",
    "Pixels",
    "Pointer",
    "Resize",
    "Runner",
    "WorkSource",
]

Pixels = npt.NDArray[np.uint8]
"""RGB pixels, uint8, shape (height, width, 3); strides are free (channels may be the outermost in memory)."""

Filter = Literal["nearest", "bilinear", "bicubic", "lanczos"]


class Dataset(Protocol):
    """Rows with random access, in shards."""

    on_error: Literal["raise", "drop"]

    @property
    def shards(self) -> Sequence[str]:
        """Names relative to the root, sorted, the same on every machine."""

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each shard, int64, shape (shards,)."""

    @property
    def row_bytes(self) -> int:
        """A typical row's size in bytes, for bounding buffers."""

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows of one shard, in the order asked; neighbours are read together. Called from many threads.

        A row that is broken comes back as BadData. A shard that cannot be read raises StorageError.
        """

    def fingerprint(self) -> Any:
        """JSON that names the content: shards, their sizes in bytes and row counts; no absolute paths."""


class Format(Protocol):
    """The object that a module in `zvl/formats` names first: usually the Dataset class itself."""

    def sniff(self, path: str) -> bool:
        """Whether `path` (a file, folder, glob or URL) looks like this format; opens as little as possible."""

    def __call__(self, path: str, **options: Any) -> Dataset: ...


class Codec(Protocol):
    """Bytes to pixels. Raises anything on bad input; the caller isolates it."""

    formats: frozenset[str]

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        """RGB or RGBA uint8 (H, W, 3 or 4), orientation applied: exactly `info.size`. Runs in many threads at once."""


Resize = Callable[[Pixels, int, int, Filter], Pixels]
"""(pixels, width, height, filter) to pixels of that size."""


class Layout(Protocol):
    """The image geometry of a model family: a frozen dataclass whose fields are its settings."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row of `pixel_values`."""

    @property
    def image_token(self) -> str:
        """The text of the token that stands for an image in the rendered chat."""

    @property
    def expand(self) -> Literal["ids", "text"]:
        """Where `placeholder` is put in: after tokenizing ("ids"), or into the text before it."""

    def plan(self, width: int, height: int) -> ImagePlan:
        """From the size in pixels (orientation applied) to everything the packer needs."""

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """What replaces one `image_token` in the prompt, as runs of (token text, count)."""

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Resize, cut and store into `out`, uint8, (plan.rows, *row_shape): the image's place in the batch."""

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """The batch's geometry under the family's own names; right for no images too."""

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Features per image that the model will compute from that geometry; `image_rows` is among it."""

    def position_ids(
        self, input_ids: npt.NDArray[np.int64], plans: Sequence[ImagePlan], image_token_id: int
    ) -> npt.NDArray[np.int64]:
        """One sample's positions: (n,), or (3, n) for M-RoPE."""

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """The model's keyword arguments for pixels and geometry; normalises on the device. {} without images."""


class Pointer(NamedTuple):
    """One row to read: indices into the source's datasets and their shards, and the chunk it lies in."""

    dataset: int
    shard: int
    row: int
    epoch: int
    chunk_start: int
    chunk_stop: int


class LaneCursor(Protocol):
    """One lane's place in the curriculum."""

    position: int
    """Rows handed out so far."""

    def next(self) -> Pointer | None:
        """The next row, or None when every dataset of the lane is exhausted."""

    def state(self) -> Any:
        """Small JSON: all that `seek` needs."""

    def seek(self, state: Any) -> None:
        """Go to a state in O(1)."""


class WorkSource(Protocol):
    """The curriculum: which row comes next on each lane. Does no I/O after it is opened."""

    seed: int

    @property
    def names(self) -> Sequence[str]:
        """Names of the datasets, in the order of `Pointer.dataset`."""

    @property
    def datasets(self) -> Sequence[Dataset]: ...

    @property
    def finite(self) -> bool:
        """Whether every lane ends."""

    def lane(self, lane: int, lanes: int) -> LaneCursor: ...

    def fingerprint(self) -> Any:
        """JSON that names everything that determines the order."""


class Runner(Protocol):
    """Where pure operators run."""

    workers: int

    remote: bool
    """Whether calls run in other processes: arguments and results are pickled, so a batch is not split into parts."""

    def submit(self, priority: int, call: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Run ``call(*args)``; among waiting calls the lowest priority number goes first."""

    def close(self) -> None:
        """Stop; calls that have not begun are cancelled. Leaves no thread or process behind."""
