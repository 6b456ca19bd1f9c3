"""Boxes and points of the stored pictures, as the model sees them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from zvl.errors import BadData, RecipeError
from zvl.image import Image
from zvl.images.orientation import orient_point
from zvl.operator import Map, Sample
from zvl_operators._chats import shown
from zvl_operators._pixels import probed

if TYPE_CHECKING:
    from zvl.processor import Processor

__all__ = ["PlaceBoxes"]

Numbers = list[int]

MARK = re.compile(r"\{(box|point):([0-9]{1,9})\}")
FIELDS = {"box": "boxes", "point": "points"}
LARGEST = 1e9
"""No picture has such a side; what is not finite is not below it either."""
NAMES = {"box": ("x1", "y1", "x2", "y2"), "point": ("x", "y")}


@dataclass(frozen=True, kw_only=True)
class PlaceBoxes(Map):
    """`boxes` and `points` in pixels of the stored pictures become those of what the model sees, also in the messages.

    In: `boxes`, for each image a list of [x1, y1, x2, y2], and `points`, for each image a list of [x, y], whole or
    broken numbers of pixels from the left upper corner; either may be missing. Out: the same lists of integers, turned
    as the image's EXIF orientation says and scaled. In texts of `messages`, ``{box:0}`` and ``{point:0}`` become their
    numbers; they are counted from 0 over all images of the sample. A sample that has neither field stays as it is.
    It stands between `probe_images` and `tokenize_chat`; `docs/conversations.md` shows it at work.

    A box that sticks out of its picture is cut off. Numbers are rounded to the nearest integer, halves to the even
    one, and in pixels are at most the side less 1, as Qwen2.5-VL's own conversion of training data does it.

    Bad data: "boxes" and "points" (another shape, not one list for each image, a box or point outside its picture, a
    mark without a box).
    """

    processor: Processor
    """Whose layout plans the images."""
    scale: Literal["pixels"] | int
    """What the model counts in: "pixels" of the resized picture, as Qwen2.5-VL does, for layouts that resize the whole
    picture to one size; or the number that stands for its whole width and height, 1000 for Qwen2-VL and Qwen3-VL."""
    given: Literal["stored", "shown"] = "stored"
    """Whether the numbers are those of the file's pixels or of the picture as a person sees it, orientation applied."""
    box: str = "[{x1}, {y1}, {x2}, {y2}]"
    """How a box is written in texts. Other braces are doubled."""
    point: str = "[{x}, {y}]"
    """How a point is written in texts."""
    on_error: Literal["raise", "drop"] = "raise"
    """What bad data does."""

    def __post_init__(self) -> None:
        if self.given not in ("stored", "shown"):
            raise RecipeError(f"place_boxes: given: expected one of stored, shown, got {self.given!r}")
        for kind, names in NAMES.items():
            self._check_format(kind, names)
        if self.scale == "pixels":
            layout = self.processor.layout
            if not getattr(layout, "resizes_whole", False):
                raise RecipeError(
                    f"place_boxes: scale = 'pixels' needs a layout that resizes the whole picture to one size, got "
                    f"{type(layout).__name__}, which may cut or pad it: say scale = 1000, or what the model was "
                    "trained with"
                )
        elif isinstance(self.scale, bool) or not isinstance(self.scale, int) or self.scale < 1:
            raise RecipeError(f"place_boxes: scale: expected 'pixels' or an integer of at least 1, got {self.scale!r}")

    def _check_format(self, kind: str, names: Sequence[str]) -> None:
        form = getattr(self, kind)
        try:
            form.format(**dict.fromkeys(names, 0))
        except (AttributeError, KeyError, IndexError, ValueError) as error:
            wanted = ", ".join(f"{{{name}}}" for name in names)
            raise RecipeError(
                f"place_boxes: {kind}: expected a text with {wanted} and no other single braces, got {form!r}"
            ) from error

    def __call__(self, sample: Sample) -> Sample:
        given = {kind: sample[field] for kind, field in FIELDS.items() if sample.get(field) is not None}
        if not given:
            return sample
        images = probed(sample)
        placed = {kind: self._placed(kind, value, images) for kind, value in given.items()}
        result = {**sample, **{FIELDS[kind]: lists for kind, lists in placed.items()}}
        if "messages" in sample:
            result["messages"] = self._written(sample["messages"], placed)
        return result

    def _placed(self, kind: str, value: Any, images: Sequence[Image]) -> list[list[Numbers]]:
        """One field's numbers as the model sees them."""
        field = FIELDS[kind]
        lists = _items(value)
        if lists is None or len(lists) != len(images):
            raise BadData(field, f"{field}: expected one list for each image, {len(images)} here, got {shown(value)}")
        return [self._of_image(kind, f"{field}[{i}]", lists[i], image) for i, image in enumerate(images)]

    def _of_image(self, kind: str, place: str, value: Any, image: Image) -> list[Numbers]:
        found = _items(value)
        if found is None:
            raise _unfit(kind, place, f"the list of one image's {FIELDS[kind]}", value)
        frame = self._frame(image)
        placed = []
        for index, item in enumerate(found):
            where = f"{place}[{index}]"
            numbers = _numbers(kind, where, item)
            placed.append(frame.box(where, *numbers) if kind == "box" else frame.point(where, *numbers))
        return placed

    def _frame(self, image: Image) -> Frame:
        info, plan = image.info, image.plan
        turned = self.given == "stored"
        size = (info.width, info.height) if turned else info.size
        if self.scale == "pixels":
            scales, most = (plan.width, plan.height), (plan.width - 1, plan.height - 1)
        else:
            scales = most = (self.scale, self.scale)
        return Frame(size, info.orientation if turned else 1, info.size, scales, most)

    def _written(self, messages: Any, placed: Mapping[str, list[list[Numbers]]]) -> Any:
        """The messages with the numbers in place of their marks; what is no chat is left to `tokenize_chat`."""
        flat = {kind: [one for lists in placed.get(kind, ()) for one in lists] for kind in FIELDS}
        if not isinstance(messages, list | tuple):
            return messages
        written = []
        for index, message in enumerate(messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            where = f"messages[{index}].content"
            if isinstance(content, str):
                message = {**message, "content": self._filled(content, where, flat)}
            elif isinstance(content, list | tuple):
                parts = [self._part(part, f"{where}[{i}].text", flat) for i, part in enumerate(content)]
                message = {**message, "content": parts}
            written.append(message)
        return written

    def _part(self, part: Any, where: str, flat: Mapping[str, list[Numbers]]) -> Any:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {**part, "text": self._filled(part["text"], where, flat)}
        return part

    def _filled(self, text: str, where: str, flat: Mapping[str, list[Numbers]]) -> str:
        def written(mark: re.Match[str]) -> str:
            kind, number = mark[1], int(mark[2])
            if number >= len(flat[kind]):
                raise BadData(
                    FIELDS[kind],
                    f"{where}: expected a number below {len(flat[kind])} in {mark[0]}, since the sample has "
                    f"{len(flat[kind])} {FIELDS[kind]} and the first is {{{kind}:0}}",
                )
            form: str = getattr(self, kind)
            return form.format(**dict(zip(NAMES[kind], flat[kind][number], strict=True)))

        return MARK.sub(written, text) if "{" in text else text


class Frame(NamedTuple):
    """From the numbers of one picture's annotations to what the model counts in. All sizes are (width, height)."""

    size: tuple[int, int]
    """Of the picture in which the numbers were given."""
    orientation: int
    """How it still has to be turned, 1 to 8."""
    shown: tuple[int, int]
    """Its size once it is turned."""
    scale: tuple[int, int]
    """What the turned picture's sides become."""
    most: tuple[int, int]
    """The largest numbers."""

    def box(self, where: str, x1: float, y1: float, x2: float, y2: float) -> Numbers:
        """Left, upper, right and lower edge."""
        width, height = self.size
        if x2 < x1 or y2 < y1:
            raise BadData(
                "boxes",
                f"{where}: expected x1 <= x2 and y1 <= y2, got [{x1:g}, {y1:g}, {x2:g}, {y2:g}]; if these are x, y, "
                "width and height, add them up with a map",
            )
        if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
            raise BadData(
                "boxes",
                f"{where}: expected a box in a picture of {width}x{height}, got [{x1:g}, {y1:g}, {x2:g}, {y2:g}]",
            )
        one = self._placed(max(x1, 0), max(y1, 0))
        other = self._placed(min(x2, width), min(y2, height))
        (left, right), (top, bottom) = (sorted(pair) for pair in zip(one, other, strict=True))
        return [left, top, right, bottom]

    def point(self, where: str, x: float, y: float) -> Numbers:
        width, height = self.size
        if not (0 <= x <= width and 0 <= y <= height):
            raise BadData("points", f"{where}: expected a point in a picture of {width}x{height}, got [{x:g}, {y:g}]")
        return self._placed(x, y)

    def _placed(self, x: float, y: float) -> Numbers:
        turned = orient_point(x, y, self.size, self.orientation)
        axes = zip(turned, self.scale, self.shown, self.most, strict=True)
        return [min(round(place * (scale / side)), most) for place, scale, side, most in axes]


def _numbers(kind: str, where: str, item: Any) -> Sequence[float]:
    numbers = _items(item)
    if numbers is None or len(numbers) != len(NAMES[kind]) or not all(map(_is_number, numbers)):
        raise _unfit(kind, where, f"[{', '.join(NAMES[kind])}] in pixels", item)
    return numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _items(value: Any) -> Sequence[Any] | None:
    """A list, a tuple or an array as a sequence of plain values; None for anything else."""
    if isinstance(value, np.ndarray) and value.ndim:
        value = value.tolist()
    return value if isinstance(value, list | tuple) else None


def _unfit(kind: str, where: str, expected: str, value: Any) -> BadData:
    field = FIELDS[kind]
    got = f"{value!r:.60}" if isinstance(value, list | tuple) else shown(value)
    advice = f"; {field} holds a list for each image, each of {field} [{', '.join(NAMES[kind])}]"
    return BadData(field, f"{where}: expected {expected}, got {got}{advice}")
