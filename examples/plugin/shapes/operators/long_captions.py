"""Keep samples with long captions."""

from __future__ import annotations

from dataclasses import dataclass

from zvl.operator import FilterMap, Sample

__all__ = ["LongCaptions"]


@dataclass(frozen=True, kw_only=True)
class LongCaptions(FilterMap):
    """Drops a sample whose last message has fewer than `min_words` words."""

    min_words: int
    """Words, separated by white space."""

    def __call__(self, sample: Sample) -> Sample | None:
        caption = sample["messages"][-1]["content"]
        return sample if len(caption.split()) >= self.min_words else None
