"""Pack samples into rows of fixed length."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from zvl.errors import BadData, RecipeError
from zvl.hashing import Rng
from zvl.operator import Accumulate, Accumulator, Sample

from ._dummy import Dummy, with_dummy
from ._packers import Bins, Budget, Item, Knapsack, Packer, Wrap
from ._rows import build_row, count_tokens, lengthen, piece

if TYPE_CHECKING:
    from zvl.processor import Processor

__all__ = ["Pack"]

Algorithm = Literal["knapsack", "first_fit", "best_fit", "wrap"]
Overflow = Literal["error", "drop", "truncate_turns"]

TOO_LONG, TOO_MANY_PATCHES, TOO_MANY_IMAGES = "too_long", "too_many_patches", "too_many_images"
NO_TOKENS = "no_tokens"


@dataclass(frozen=True, kw_only=True)
class Pack(Accumulate):
    """Put several samples into one row of exactly `max_tokens` tokens, kept apart by segment ids.

    Takes samples with `input_ids`, `labels`, and optionally `position_ids` and `images`; other fields are dropped. A
    row has, with S = `max_tokens`: `input_ids`, `labels` int64 (S,); `segment_ids` int32 (S,), 0 on padding;
    `position_ids` int64 (S,) or (3, S), each sample's own, the padding counting from 0; `images`, a list; `segments`, a
    tuple of `zvl.batch.Segment`. Labels are -100 on padding and on the first token of every segment.

    Samples of a row stand in the order of arrival. A sample that exceeds a budget alone is BadData with the reason
    ``too_long``, ``too_many_patches`` or ``too_many_images``, one without tokens ``no_tokens``.

    What the algorithms do and what they fill is in ``docs/decisions/2026-11-29-packing.md``.
    """

    max_tokens: int
    """Length of a row, tokens."""

    max_patches: int | None = None
    """The most patches of the vision tower in a row (`ImagePlan.patches`); None: no limit."""

    max_images: int | None = None
    """The most images in a row; None: no limit."""

    algorithm: Algorithm = "knapsack"
    """knapsack: exact subset-sum over a window; first_fit, best_fit: open rows; wrap: text only, cut at row ends."""

    lookahead: int = 64
    """knapsack: samples in the window. Every sample leaves within so many rows of entering. An interval's first row is
    packed from 8, the next ones from twice as many each, up to this."""

    num_bins: int = 8
    """first_fit, best_fit: open rows."""

    overflow: Overflow = "error"
    """A sample that no row can hold stops the run, is dropped into the ledger, or is cut at the end of an assistant's
    turn (and is dropped into the ledger where no cut makes it fit). wrap cuts anywhere and needs none of this."""

    pad_id: int = 0
    """`input_ids` of the padding."""

    segment_multiple: int = 1
    """Each sample's tokens are filled up to a multiple of this, inside its segment, with `pad_id`, labels -100 and
    positions that go on: context parallelism cuts each sample into two parts a rank, so it wants twice its degree.
    `max_tokens` must be a multiple too."""

    dummy_image: bool = False
    """A row without images gets the smallest legal one at the beginning of its padding, as zero bytes: for trainers
    whose ranks must all run the vision tower. Every row keeps room for it; it belongs to no sample, and stands in no
    segment. Takes no loss."""

    processor: Processor | None = None
    """Whose layout and tokenizer make the dummy image; needed for that alone."""

    def __post_init__(self) -> None:
        for field, choices in (("algorithm", get_args(Algorithm)), ("overflow", get_args(Overflow))):
            if getattr(self, field) not in choices:
                raise RecipeError(f"pack: expected {field} among {', '.join(choices)}, got {getattr(self, field)!r}")
        for field, least in (("max_tokens", 1), ("lookahead", 2), ("num_bins", 1), ("segment_multiple", 1)):
            if getattr(self, field) < least:
                raise RecipeError(f"pack: expected {field} of at least {least}, got {getattr(self, field)}")
        for field in ("max_patches", "max_images"):
            limit = getattr(self, field)
            if limit is not None and limit < 1:
                raise RecipeError(f"pack: expected {field} of at least 1, got {limit}: leave it out for no limit")
            if limit is not None and self.algorithm == "wrap":
                raise RecipeError(f"pack: algorithm 'wrap' is for text without images: leave out {field}")
        if self.max_tokens % self.segment_multiple:
            raise RecipeError(
                f"pack: expected max_tokens to be a multiple of segment_multiple={self.segment_multiple}, got "
                f"{self.max_tokens}: take {self.filled(self.max_tokens)}"
            )
        if self.dummy_image != (self.processor is not None):
            raise RecipeError(
                "pack: expected dummy_image=True and processor together, got one of them: "
                "give the processor of probe_images, or leave both out"
            )

    def filled(self, tokens: int) -> int:
        """What so many tokens of a sample take of a row."""
        return -(-tokens // self.segment_multiple) * self.segment_multiple

    @functools.cached_property
    def dummy(self) -> Dummy | None:
        """The image that rows without images get; RecipeError if it does not fit."""
        if self.processor is None:
            return None
        dummy = Dummy.of(self.processor)
        for field, need in (("max_tokens", dummy.tokens + 1), ("max_patches", dummy.image.plan.patches)):
            limit = getattr(self, field)
            if limit is not None and limit < need:
                raise RecipeError(f"pack: the dummy image needs {field} of at least {need}, got {limit}")
        return dummy

    def row(self, samples: list[Sample], axes: int | None = None) -> Sample:
        """One row of those samples."""
        row = build_row(samples, self.max_tokens, self.pad_id, axes)
        return row if self.dummy is None else with_dummy(row, self.dummy)

    @property
    def drops(self) -> frozenset[str]:
        """Reasons of BadData that drop the sample instead of stopping the run."""
        if self.overflow != "error":
            return frozenset((TOO_LONG, TOO_MANY_PATCHES, TOO_MANY_IMAGES, NO_TOKENS))
        return frozenset()

    def start(self, rng: Rng) -> Accumulator:
        return PackAccumulator(self)

    def holds(self) -> int:
        """knapsack: the window (it grows to one row's samples where those are more). Else an estimate: eight samples
        in each open row."""
        if self.algorithm == "knapsack":
            return self.lookahead
        return 8 if self.algorithm == "wrap" else 8 * self.num_bins

    def blank(self, sample: Sample) -> Sample:
        positions = sample.get("position_ids")
        axes = positions.shape[0] if positions is not None and positions.ndim == 2 else None
        return self.row([], axes)


class PackAccumulator:
    """Measures samples, lets a packer choose, and builds the rows."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._reserved = pack.dummy.tokens if pack.dummy else 0
        self._budget = Budget(
            pack.max_tokens - self._reserved,
            **{
                name: limit
                for name, limit in (("patches", pack.max_patches), ("images", pack.max_images))
                if limit is not None
            },
        )
        self._packer = self._make_packer()
        self._skipped = 0

    def skip(self, count: int) -> None:
        """Build no rows for the first `count` results."""
        self._skipped = count

    def push(self, sample: Sample) -> Iterable[Sample]:
        return self._rows(self._packer.push(self._measure(sample)))

    def flush(self) -> Iterable[Sample]:
        return self._rows(self._packer.flush())

    def _make_packer(self) -> Packer:
        pack = self._pack
        if pack.algorithm == "knapsack":
            return Knapsack(self._budget, pack.lookahead)
        if pack.algorithm == "wrap":
            return Wrap(self._budget, piece)
        return Bins(self._budget, pack.num_bins, best=pack.algorithm == "best_fit")

    def _rows(self, groups: list[list[Item]]) -> list[Sample]:
        skipped = min(self._skipped, len(groups))
        self._skipped -= skipped
        built = [self._pack.row([item.payload for item in group]) for group in groups[skipped:]]
        return [*({} for _ in range(skipped)), *built] if skipped else built

    def _measure(self, sample: Sample) -> Item:
        """The sample as an item that fits the budget alone: cut if it must and may be, else BadData."""
        pack = self._pack
        tokens = count_tokens(sample, "pack")
        if not tokens:
            raise BadData(NO_TOKENS, "expected at least one token, got none: filter such samples before pack")
        images = sample.get("images") or ()
        if pack.algorithm == "wrap":
            if images:
                raise RecipeError(
                    f"pack: algorithm 'wrap' is for text without images, got a sample with {len(images)}: "
                    "use algorithm='knapsack'"
                )
            filled = pack.filled(tokens)
            return Item(filled, 0, 0, lengthen(sample, filled, pack.pad_id))
        patches = image_patches(images) if images and pack.max_patches is not None else []
        item = Item(pack.filled(tokens), sum(patches), len(images), sample)
        if self._exceeded(item) is None:
            return item._replace(payload=lengthen(sample, item.tokens, pack.pad_id))
        if pack.overflow == "truncate_turns":
            return self._truncate(item, patches)
        raise self._too_big(item, "drop it with overflow='drop', cut it with 'truncate_turns', or raise the limit")

    def _exceeded(self, item: Item) -> str | None:
        """The reason why an item cannot fit a row, or None."""
        budget = self._budget
        if item.tokens > budget.tokens:
            return TOO_LONG
        if item.patches > budget.patches:
            return TOO_MANY_PATCHES
        return TOO_MANY_IMAGES if item.images > budget.images else None

    def _too_big(self, item: Item, advice: str) -> BadData:
        pack = self._pack
        reason = self._exceeded(item)
        assert reason is not None
        field, limit, got = {
            TOO_LONG: ("tokens", pack.max_tokens, item.tokens),
            TOO_MANY_PATCHES: ("patches", pack.max_patches, item.patches),
            TOO_MANY_IMAGES: ("images", pack.max_images, item.images),
        }[reason]
        less = f" less the dummy image's {self._reserved}" if self._reserved and reason == TOO_LONG else ""
        return BadData(reason, f"expected at most max_{field}={limit}{less} {field}, got {got}: {advice}")

    def _truncate(self, item: Item, patches: list[int]) -> Item:
        """Cut after the last assistant's turn up to which it fits; images behind it go with their tokens."""
        pack, sample = self._pack, item.payload
        for field in ("turn_ends", "image_starts"):
            if field not in sample and (field == "turn_ends" or item.images):
                raise RecipeError(
                    f"pack: overflow='truncate_turns' needs the field {field!r}, which tokenize_chat writes, got a "
                    "sample without it: keep the field, or choose overflow='drop'"
                )
        starts = np.asarray(sample.get("image_starts", ()))
        if len(starts) != item.images:
            raise RecipeError(
                f"pack: expected one entry of image_starts for each image, got {len(starts)} for {item.images} images"
            )
        for stop in reversed([int(end) for end in sample["turn_ends"]]):
            images = int((starts < stop).sum())
            cut = Item(pack.filled(stop), sum(patches[:images]), images, None)
            if 0 < stop < len(sample["input_ids"]) and self._exceeded(cut) is None:
                return cut._replace(payload=lengthen(cut_turns(sample, stop, images), cut.tokens, pack.pad_id))
        raise self._too_big(item, "it has no turn border that fits, so it cannot be cut at a turn")


def cut_turns(sample: Sample, stop: int, images: int) -> Sample:
    """The sample's first `stop` tokens and first `images` images."""
    cut = sample | {field: sample[field][:stop] for field in ("input_ids", "labels")}
    if "images" in sample:
        cut["images"] = sample["images"][:images]
    if sample.get("position_ids") is not None:
        cut["position_ids"] = sample["position_ids"][..., :stop]
    return cut


def image_patches(images: Any) -> list[int]:
    """Patches of each image, from its plan."""
    try:
        return [image.plan.patches for image in images]
    except AttributeError:
        raise RecipeError(
            f"pack: max_patches needs images with a plan, got {type(images[0]).__name__}: put probe_images before it"
        ) from None
