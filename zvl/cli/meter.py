"""What was delivered, and how fast."""

from __future__ import annotations

import time

from zvl.batch import Batch

__all__ = ["Meter"]


class Meter:
    """Counts batches. Rates are over the time from the first batch to the last, and leave the first out."""

    def __init__(self) -> None:
        self.batches = self.images = self.tokens = self.places = 0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.first_batch_s = self.seconds = 0.0
        self._first = (0, 0)
        self._begun = time.perf_counter()

    def add(self, batch: Batch) -> None:
        """Count a batch that has just been delivered."""
        self.seconds = time.perf_counter() - self._begun
        self.batches += 1
        self.images += len(batch.image_rows)
        self.tokens += sum(segment.stop - segment.start for row in batch.segments for segment in row)
        if "input_ids" in batch:
            self.places += batch["input_ids"].numel()
        if self.first_step is None:
            self.first_step, self.first_batch_s = batch.step, self.seconds
            self._first = self.images, self.tokens
        self.last_step = batch.step

    @property
    def images_per_s(self) -> float:
        """Images a second."""
        return self._rate(self.images, self._first[0])

    @property
    def tokens_per_s(self) -> float:
        """Tokens of samples a second; padding does not count."""
        return self._rate(self.tokens, self._first[1])

    @property
    def fill(self) -> float | None:
        """Tokens of samples, of all places in `input_ids`; None for batches without."""
        return self.tokens / self.places if self.places else None

    def _rate(self, count: int, first: int) -> float:
        if self.batches > 1:
            return (count - first) / max(self.seconds - self.first_batch_s, 1e-9)
        return count / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        """One line: images and tokens a second, fill."""
        parts = [f"{self.images_per_s:,.0f} images/s"] if self.images else []
        if self.places:
            parts += [f"{self.tokens_per_s:,.0f} tokens/s", f"fill {self.fill:.4f}"]
        return ", ".join(parts) or f"{self._rate(self.batches, 1):,.0f} batches/s"
