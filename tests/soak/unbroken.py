"""The run that nobody disturbs, to compare with."""

from __future__ import annotations

from soak.pipelines import pipeline
from soak.trainer import SIZE, Got, passes_of
from zvl.digest import batch_digest

__all__ = ["Unbroken"]


class Unbroken:
    """Its batches, inline, made as far as they are asked for."""

    def __init__(self, passes: int | None) -> None:
        self._loader = pipeline(passes_of(passes), **SIZE).loader(runner="inline")
        self._found: dict[tuple[int, int], str] = {}
        self._had: set[tuple[int, int]] = set()

    def compare(self, got: Got) -> None:
        """AssertionError if that batch is another one here."""
        where = got.lane, got.number
        while where not in self._found:
            assert self._more(), f"lane {got.lane} gave batch {got.number}: there are no more than {len(self._found)}"
        assert self._found[where] == got.sha256, f"lane {got.lane}, batch {got.number} is not that of the unbroken run"
        self._had.add(where)

    def check_complete(self) -> None:
        """AssertionError if a batch was never compared."""
        while self._more():
            pass
        missing = sorted(self._found.keys() - self._had)
        assert not missing, f"never delivered: {missing}"

    def _more(self) -> bool:
        batch = next(self._loader, None)
        if batch is not None:
            number = batch.state["state"][str(batch.lane)]["batches"] - 1
            self._found[batch.lane, number] = batch_digest(batch).sha256
        return batch is not None
