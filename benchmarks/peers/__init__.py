"""The loaders that `compare.py` measures: one module a loader, and here the settings that are tried.

A module has

- `prepare(column, setting)`: imports and loads what users have before they make a loader (the tokenizer). Not timed.
- `start(task, column, setting, state=None)`: makes the loader, which is timed, and returns a `Stream`; with `state`,
  one that goes on behind it.
- `noop(batches, ...)`, where it takes rows from memory: a generator that gives so many batches of 64 rows, unchanged.
- `fills(lengths, sizes)`, where it packs: how full it makes rows of samples of those lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = ["MAX_TOKENS", "NOOPS", "SUBJECTS", "Column", "Count", "Noop", "Stream", "Subject", "Task"]

MAX_TOKENS = 4096
"""Length of a packed row of the photos."""

Column = Literal["kernels", "written"]
"""kernels: zvl's functions for headers, tokens, decoding, resizing and patches in the loader's own map. written: as its
users write it, with Pillow and the Hugging Face processor, float32 patches."""


class Count(NamedTuple):
    """What one batch holds."""

    images: int
    tokens: int
    """Without padding."""
    slots: int
    """With padding."""
    patches: int
    samples: int


class Stream:
    """A loader that runs. Subclasses fill in what they have."""

    why_no_state = ""
    """Why `save` gives nothing; "" if it does."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches

    def next(self) -> Any:
        return next(self.batches)

    def count(self, batch: Any) -> Count:
        raise NotImplementedError

    def ids(self, batch: Any) -> bytes:
        """The batch's tokens, to compare two."""
        import numpy as np

        return np.asarray(batch["input_ids"]).tobytes()

    def aligned(self) -> bool:
        """Whether timing may begin and end here; not amid rows that were finished all at once."""
        return True

    def save(self) -> Any:
        """The state after the batch last given, as the loader's own interface gives it."""
        return None

    def boundary(self, state: Any) -> Any:
        """Changes where a restart begins to cost less: the state just before is the worst one."""
        return None

    def close(self) -> None:
        """End what runs."""


@dataclass(frozen=True)
class Task:
    """What is loaded: shards by name, with their shares of the samples."""

    name: str
    shards: dict[str, str]
    """Globs of tar files."""
    weights: dict[str, float]
    lanes: int
    max_tokens: int = MAX_TOKENS
    """Length of a packed row."""
    flush_every: int = 2048
    """Samples of a lane between two of zvl's flush marks."""
    max_patches: int | None = None
    """Of zvl's packer alone: no other has a second budget."""


@dataclass(frozen=True)
class Subject:
    """One loader in one column."""

    name: str
    module: str
    column: Column
    settings: tuple[dict[str, Any], ...]
    """What is tried; the best is measured."""
    tasks: tuple[str, ...] = ("photos", "mixture")
    settle: int = 100
    """Samples taken before timing: more than it may have ready when its first batch comes."""

    least: int = 0
    """The fewest samples to time: for those that give many rows at once, then none for long."""

    @property
    def label(self) -> str:
        return self.name if self.column == "kernels" else f"{self.name}, as written"


class Noop(NamedTuple):
    """A pipeline that does nothing, in one setting."""

    name: str
    module: str
    where: Literal["threads ahead", "trainer's thread"]
    setting: dict[str, Any]


def grid(**values: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """All combinations.

    >>> grid(a=(1, 2), b=(3,))
    ({'a': 1, 'b': 3}, {'a': 2, 'b': 3})
    """
    found: list[dict[str, Any]] = [{}]
    for name, options in values.items():
        found = [one | {name: option} for one in found for option in options]
    return tuple(found)


BACKENDS = ("torchvision", "pillow")

SUBJECTS = (
    Subject("limit", "limit", "kernels", ({},), ("photos",)),
    Subject("zvl, threads", "zvl", "kernels", ({"runner": "threads"},)),
    Subject("zvl, processes", "zvl", "kernels", ({"runner": "processes"},)),
    Subject("zvl, isolated", "zvl", "kernels", ({"runner": "threads", "isolate": True},)),
    Subject(
        "grain, threads",
        "grain",
        "kernels",
        (
            *grid(decode=("before pack",), threads=(2, 4, 16), buffer=(16,)),
            {"decode": "before pack", "threads": 16, "buffer": 500},
            {"decode": "after pack", "threads": 2, "buffer": 64, "pool": 2, "prefetch": 2},
            {"decode": "after pack", "threads": 2, "buffer": 64, "split": 2, "prefetch": 2},
        ),
    ),
    Subject(
        "grain, processes",
        "grain",
        "kernels",
        (
            *grid(decode=("before pack", "after pack"), processes=(2,), threads=(1,), buffer=(16,), prefetch=(1,)),
            {"decode": "before pack", "processes": 2, "threads": 1, "buffer": 16, "prefetch": 2},
        ),
    ),
    Subject(
        "zephon, threads",
        "zephon",
        "kernels",
        (
            {"decode": "before pack", "parallelism": 2},
            *grid(decode=("before pack",), parallelism=(2, 4), group=(8,)),
            *grid(decode=("after pack",), parallelism=(2, 4), group=(8,)),
        ),
        settle=400,
    ),
    Subject(
        "torch DataLoader", "torch", "kernels", (*grid(workers=(2, 3), prefetch=(2,)), {"workers": 2, "prefetch": 4})
    ),
    Subject("webdataset", "webdataset", "kernels", grid(workers=(2, 3))),
    Subject(
        "energon",
        "energon",
        "kernels",
        (*grid(decode=("before pack", "after pack"), workers=(2,)), {"decode": "before pack", "workers": 3}),
    ),
    Subject("spdl", "spdl", "kernels", grid(threads=(2, 4))),
    Subject("grain, threads", "grain", "written", grid(backend=BACKENDS, threads=(16,), buffer=(16,)), ("photos",)),
    Subject(
        "grain, processes",
        "grain",
        "written",
        grid(backend=BACKENDS, processes=(2,), threads=(1,), buffer=(16,), prefetch=(1,)),
        ("photos",),
    ),
    Subject(
        "zephon, threads",
        "zephon",
        "written",
        (*grid(backend=BACKENDS, parallelism=(2,), group=(8,)), {"backend": "pillow", "parallelism": 2}),
        ("photos",),
        settle=300,
    ),
    Subject("torch DataLoader", "torch", "written", grid(backend=BACKENDS, workers=(2,), prefetch=(2,)), ("photos",)),
    Subject("webdataset", "webdataset", "written", grid(backend=BACKENDS, workers=(2,)), ("photos",)),
    Subject("energon", "energon", "written", grid(backend=BACKENDS, workers=(2,)), ("photos",), settle=128, least=640),
    Subject("spdl", "spdl", "written", grid(backend=BACKENDS, threads=(2,)), ("photos",)),
)

NOOPS = (
    Noop("zvl, threads", "zvl", "threads ahead", {"runner": "threads"}),
    Noop("zvl, inline", "zvl", "trainer's thread", {"runner": "inline"}),
    Noop("grain, 16 threads (its default)", "grain", "threads ahead", {"threads": 16}),
    Noop("grain, 2 threads", "grain", "threads ahead", {"threads": 2}),
    Noop("grain, no threads", "grain", "trainer's thread", {"threads": 0}),
    Noop("zephon, threads", "zephon", "threads ahead", {"runner": "threads"}),
    Noop("zephon, inline", "zephon", "trainer's thread", {"runner": "inline"}),
    Noop("spdl, 2 threads", "spdl", "threads ahead", {}),
    Noop("torch DataLoader, no workers", "torch", "trainer's thread", {}),
    Noop("webdataset, no workers", "webdataset", "trainer's thread", {}),
)
