"""Boxes and points against Pillow, in texts, and what is refused."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage
from PIL import ImageOps

import zvl
from zvl import registry
from zvl.digest import batch_digest
from zvl.errors import BadData, RecipeError
from zvl.image import Image, ImageInfo, ImagePlan, ImageRef
from zvl.images.header import read_header
from zvl.processor import Processor
from zvl_operators.place_boxes import PlaceBoxes
from zvl_operators.probe_images import ProbeImages
from zvl_operators.tokenize_chat import TokenizeChat


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> Processor:
    return Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=40_000)


def picture(width: int = 200, height: int = 100, orientation: int = 1, planned: tuple[int, int] = (56, 28)) -> Image:
    return Image(b"", ImageInfo("jpeg", width, height, orientation), ImagePlan(8, 2, 8, *planned, (1, 2, 4)))


def sample(boxes: Any = None, points: Any = None, text: Any = "", images: int = 1) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"boxes": boxes, "points": points, "images": [picture()] * images, "messages": messages}


def texts(result: dict[str, Any]) -> Any:
    return result["messages"][0]["content"]


def painted(size: tuple[int, int], orientation: int, box: tuple[int, int, int, int]) -> bytes:
    """A black file whose stored pixels are white inside the box."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    exif = PilImage.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    PilImage.fromarray(pixels).save(file, "PNG", exif=exif)
    return file.getvalue()


def edges(white: Any) -> list[int]:
    """The white part's left, upper, right and lower edge."""
    columns, rows = np.flatnonzero(white.any(0)), np.flatnonzero(white.any(1))
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]


@settings(max_examples=60)
@given(st.data())
def test_boxes_lie_where_pillow_turns_and_resizes_them_to(processor: Processor, data: st.DataObject) -> None:
    width, height = data.draw(st.integers(40, 400)), data.draw(st.integers(40, 400))
    x1, y1 = data.draw(st.integers(0, width - 20)), data.draw(st.integers(0, height - 20))
    x2, y2 = data.draw(st.integers(x1 + 20, width)), data.draw(st.integers(y1 + 20, height))
    orientation = data.draw(st.integers(1, 8))
    file = painted((width, height), orientation, (x1, y1, x2, y2))
    probed = ProbeImages(processor=processor)(
        {"images": [file], "boxes": [[[x1, y1, x2, y2]]], "points": [[[x1, y1], [x2, y2]]]}
    )
    result = PlaceBoxes(processor=processor, scale="pixels")(probed)

    plan = probed["images"][0].plan
    seen = ImageOps.exif_transpose(PilImage.open(io.BytesIO(file)))
    resized = np.asarray(seen.resize((plan.width, plan.height), PilImage.Resampling.BOX).convert("L"))
    found = edges(resized > 127)
    assert np.abs(np.subtract(found, result["boxes"][0][0])).max() <= 1
    # The two corners, in whatever order they now stand, span the same box.
    assert [*np.min(result["points"][0], axis=0), *np.max(result["points"][0], axis=0)] == result["boxes"][0][0]

    by_thousand = PlaceBoxes(processor=processor, scale=1000)(probed)["boxes"][0][0]
    whole = edges(np.asarray(seen.convert("L")) > 127)
    expected = np.multiply(whole, 1000) / [*seen.size, *seen.size]
    assert np.abs(expected - by_thousand).max() <= 0.5


@pytest.mark.parametrize(
    ("orientation", "box", "point"),
    [
        (1, [10, 10, 30, 20], [10, 10]),
        (2, [170, 10, 190, 20], [190, 10]),
        (3, [170, 80, 190, 90], [190, 90]),
        (4, [10, 80, 30, 90], [10, 90]),
        (5, [10, 10, 20, 30], [10, 10]),
        (6, [80, 10, 90, 30], [90, 10]),
        (7, [80, 170, 90, 190], [90, 190]),
        (8, [10, 170, 20, 190], [10, 190]),
    ],
)
def test_each_orientation(processor: Processor, orientation: int, box: list[int], point: list[int]) -> None:
    """A picture of 200x100, resized to its own size."""
    planned = (200, 100) if orientation < 5 else (100, 200)
    row = {"images": [picture(200, 100, orientation, planned)], "boxes": [[[10, 10, 30, 20]]], "points": [[[10, 10]]]}
    result = PlaceBoxes(processor=processor, scale="pixels")(row)
    assert (result["boxes"], result["points"]) == ([[box]], [[point]])


def test_numbers_of_the_picture_as_shown_are_only_scaled(processor: Processor) -> None:
    row = {"images": [picture(200, 100, 6, planned=(50, 100))], "boxes": [[[20, 100, 60, 140]]]}
    assert PlaceBoxes(processor=processor, scale="pixels", given="shown")(row)["boxes"] == [[[10, 50, 30, 70]]]
    assert PlaceBoxes(processor=processor, scale=1000, given="shown")(row)["boxes"] == [[[200, 500, 600, 700]]]
    with pytest.raises(BadData, match=r"boxes\[0\]\[0\]: expected a box in a picture of 200x100, got"):
        PlaceBoxes(processor=processor, scale=1000)(row)


def test_rounding_and_the_largest_numbers(processor: Processor) -> None:
    """A picture of 200x100 is resized to 56x28."""
    row = sample([[[0, 0, 200, 100], [0.2, 1.78, 8.93, 8.94], [-30, 50, 220.5, 50]]], [[[200, 100], [1.785, 0]]])
    assert PlaceBoxes(processor=processor, scale="pixels")(row)["boxes"] == [
        [[0, 0, 55, 27], [0, 0, 3, 3], [0, 14, 55, 14]]
    ]
    assert PlaceBoxes(processor=processor, scale=1000)(row)["boxes"][0][0] == [0, 0, 1000, 1000]
    assert PlaceBoxes(processor=processor, scale="pixels")(row)["points"] == [[[55, 27], [0, 0]]]


def test_marks_in_texts(processor: Processor) -> None:
    """Boxes are counted over all images."""
    row = sample(
        [[[0, 0, 100, 50]], [], [[100, 0, 200, 50], [0, 50, 100, 100]]],
        [[], [[50, 50]], []],
        [
            {"type": "image"},
            {"type": "text", "text": '{"bbox_2d": {box:2}, "label": "{x}"} {box:0}{box:0}'},
            {"type": "text", "text": "{point:0} {box} {box:a} {{box:1}}"},
        ],
        images=3,
    )
    before = copy.deepcopy(row)
    result = PlaceBoxes(processor=processor, scale=1000)(row)
    assert texts(result) == [
        {"type": "image"},
        {"type": "text", "text": '{"bbox_2d": [0, 500, 500, 1000], "label": "{x}"} [0, 0, 500, 500][0, 0, 500, 500]'},
        {"type": "text", "text": "[250, 500] {box} {box:a} {[500, 0, 1000, 500]}"},
    ]
    assert result["boxes"] == [[[0, 0, 500, 500]], [], [[500, 0, 1000, 500], [0, 500, 500, 1000]]]
    assert row == before


def test_how_a_box_is_written(processor: Processor) -> None:
    row = sample([[[0, 0, 100, 50]]], [[[100, 50]]], "<|box_start|>{box:0}<|box_end|> {point:0}")
    operator = PlaceBoxes(processor=processor, scale=1000, box="({x1},{y1}),({x2},{y2})", point='{{"x": {x:04}}}')
    assert texts(operator(row)) == '<|box_start|>(0,0),(500,500)<|box_end|> {"x": 0500}'


def test_a_sample_without_boxes_stays_as_it_is(processor: Processor) -> None:
    row = sample(text="print('{box:0}')")
    assert PlaceBoxes(processor=processor, scale=1000)(row) is row


def test_arrays_and_samples_without_messages(processor: Processor) -> None:
    row = {"images": [picture()], "boxes": [np.array([[0, 0, 100, 50]], np.float32)], "points": np.array([[[100, 50]]])}
    result = PlaceBoxes(processor=processor, scale=10)(row)
    assert result == {"images": row["images"], "boxes": [[[0, 0, 5, 5]]], "points": [[[5, 5]]]}
    assert all(type(number) is int for number in result["boxes"][0][0])


SHAPE = "; boxes holds a list for each image, each of boxes [x1, y1, x2, y2]"


@pytest.mark.parametrize(
    ("row", "wording"),
    [
        (
            sample([[[0, 0, 1, 1]], []]),
            "boxes: boxes: expected one list for each image, 1 here, got a list of 2",
        ),
        (sample(5), "boxes: boxes: expected one list for each image, 1 here, got int 5"),
        (
            sample([[0, 0, 1, 1]]),
            f"boxes: boxes[0][0]: expected [x1, y1, x2, y2] in pixels, got int 0{SHAPE}",
        ),
        (sample([7]), f"boxes: boxes[0]: expected the list of one image's boxes, got int 7{SHAPE}"),
        (sample([[[0, 0, 1]]]), f"boxes: boxes[0][0]: expected [x1, y1, x2, y2] in pixels, got [0, 0, 1]{SHAPE}"),
        (
            sample([[[0, 0, 1, "1"]]]),
            f"boxes: boxes[0][0]: expected [x1, y1, x2, y2] in pixels, got [0, 0, 1, '1']{SHAPE}",
        ),
        (
            sample([[[0, 0, 1, float("nan")]]]),
            f"boxes: boxes[0][0]: expected [x1, y1, x2, y2] in pixels, got [0, 0, 1, nan]{SHAPE}",
        ),
        (
            sample([[[0, 0, True, 10**400]]]),
            "boxes: boxes[0][0]: expected [x1, y1, x2, y2] in pixels, got [0, 0, True, 1",
        ),
        (
            sample([[[0, 0, 1, 1], [50, 60, 20, 80]]]),
            "boxes: boxes[0][1]: expected x1 <= x2 and y1 <= y2, got [50, 60, 20, 80]; if these are x, y, width and "
            "height, add them up with a map",
        ),
        (
            sample([[[200, 0, 300, 50]]]),
            "boxes: boxes[0][0]: expected a box in a picture of 200x100, got [200, 0, 300, 50]",
        ),
        (
            sample([[[0, 0, 0, 0]]]),
            "boxes: boxes[0][0]: expected a box in a picture of 200x100, got [0, 0, 0, 0]",
        ),
        (
            sample(points=[[[1, 1], [1, 100.5]]]),
            "points: points[0][1]: expected a point in a picture of 200x100, got [1, 100.5]",
        ),
        (
            sample(points=[[[1, 1, 1]]]),
            "points: points[0][0]: expected [x, y] in pixels, got [1, 1, 1]; points holds a list for each image, "
            "each of points [x, y]",
        ),
        (
            sample([[[0, 0, 1, 1]]], text="Here: {box:1}"),
            "boxes: messages[0].content: expected a number below 1 in {box:1}, since the sample has 1 boxes and the "
            "first is {box:0}",
        ),
        (
            sample([[[0, 0, 1, 1]]], text=[{"type": "text", "text": "{point:0}"}]),
            "points: messages[0].content[0].text: expected a number below 0 in {point:0}, since the sample has 0 "
            "points and the first is {point:0}",
        ),
    ],
)
def test_bad_data(processor: Processor, row: dict[str, Any], wording: str) -> None:
    with pytest.raises(BadData) as caught:
        PlaceBoxes(processor=processor, scale=1000)(row)
    assert str(caught.value).startswith(wording)


@pytest.mark.parametrize(
    ("fields", "wording"),
    [
        ({"scale": 0}, "place_boxes: scale: expected 'pixels' or an integer of at least 1, got 0"),
        ({"scale": True}, "place_boxes: scale: expected 'pixels' or an integer of at least 1, got True"),
        ({"scale": "pixel"}, "place_boxes: scale: expected 'pixels' or an integer of at least 1, got 'pixel'"),
        ({"scale": 1, "given": "exif"}, "place_boxes: given: expected one of stored, shown, got 'exif'"),
        (
            {"scale": 1, "box": '{"box": [{x1}]}'},
            "place_boxes: box: expected a text with {x1}, {y1}, {x2}, {y2} and no other single braces, got '{\"box",
        ),
        ({"scale": 1, "point": "{x:q}"}, "place_boxes: point: expected a text with {x}, {y} and no other single"),
        ({"scale": 1, "point": "{}"}, "place_boxes: point: expected a text with {x}, {y} and no other single"),
    ],
)
def test_wrong_configuration(processor: Processor, fields: dict[str, Any], wording: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(wording)):
        PlaceBoxes(processor=processor, **fields)


@pytest.mark.parametrize(
    ("layout", "whole"),
    [
        ("qwen2_vl", True),
        ("qwen3_vl", True),
        ("glm4v", True),
        ("pixtral", True),
        ("paligemma", True),
        ("internvl", False),
        ("llava", False),
        ("llava_next", False),
        ("llava_onevision", False),
        ("idefics3", False),
        ("smolvlm", False),
        ("gemma3", False),
    ],
)
def test_pixels_need_a_layout_that_resizes_the_whole_picture(qwen_tokenizer: Path, layout: str, whole: bool) -> None:
    """Where the layout says so, what it hands to the resize is the whole picture, once, for the planned size."""
    processor = Processor(layout, qwen_tokenizer)
    if not whole:
        message = (
            r"place_boxes: scale = 'pixels' needs a layout that resizes the whole picture to one size, got \w+, wh"
        )
        with pytest.raises(RecipeError, match=message):
            PlaceBoxes(processor=processor, scale="pixels")
        PlaceBoxes(processor=processor, scale=1000)
        return
    PlaceBoxes(processor=processor, scale="pixels")
    plan = processor.layout.plan(150, 310)
    pixels = np.zeros((310, 150, 3), np.uint8)
    calls = []

    def resize(given: Any, width: int, height: int, kind: str) -> Any:
        calls.append((given.shape, width, height))
        return np.zeros((height, width, 3), np.uint8)

    processor.layout.write(pixels, plan, resize, np.zeros((plan.rows, *processor.layout.row_shape), np.uint8))
    assert calls == [((310, 150, 3), plan.width, plan.height)]


def test_it_needs_probed_images(processor: Processor) -> None:
    with pytest.raises(RecipeError, match=r"put \.probe_images"):
        PlaceBoxes(processor=processor, scale=1000)({"images": [b"x"], "boxes": [[]]})


def test_it_is_found_by_its_name(processor: Processor) -> None:
    assert registry.load("operators", "place_boxes") is PlaceBoxes
    assert PlaceBoxes(processor=processor, scale=1).name == "place_boxes"


def test_from_a_turned_file_to_tokens(processor: Processor) -> None:
    """Rows as people store them, and a row of text beside them."""
    file = painted((200, 100), 6, (10, 10, 30, 20))
    rows: list[dict[str, Any]] = [
        {"question": "Where is it?", "answer": '{"bbox_2d": {box:0}}', "image": file, "boxes": [[[10, 10, 30, 20]]]},
        {"question": "What is {box:0}?", "answer": "A mark."},
    ]
    source = zvl.Mixture(zvl.from_rows(rows), passes=zvl.Once(), shuffle="none")
    pipeline = zvl.Pipeline(source, lanes=1).to_messages().probe_images(processor)
    pipeline = pipeline.place_boxes(processor, scale="pixels").tokenize_chat(processor).pack(max_tokens=256).batch(1)
    with pipeline.patchify(processor).loader(runner="inline") as loader:
        text = str(processor.tokenizer.decode(np.concatenate([batch["input_ids"].ravel() for batch in loader])))
    assert '{"bbox_2d": [90, 10, 101, 29]}<|im_end|>' in text  # 100x200, resized to 112x196
    assert "What is {box:0}?" in text


class Rows:
    """Rows of turned pictures, boxes and questions; with `late` the pictures stay behind."""

    on_error: Literal["raise", "drop"] = "raise"
    shards = ("a",)
    shard_rows = np.array([6], np.int64)
    row_bytes = 1000

    def __init__(self, late: bool) -> None:
        self.late = late
        self.fetched: list[tuple[int, int]] = []

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return [self._row(row) for row in rows]

    def _row(self, row: int) -> dict[str, Any]:
        data = self._picture(row)
        picture = ImageRef(self, 0, row, 0, len(data), read_header(data)) if self.late else data
        return {"question": "Where?", "answer": "{box:0}", "images": [picture], "boxes": [[[10, 10, 30, 20 + row]]]}

    def _picture(self, row: int) -> bytes:
        return painted((200, 100), row + 3, (10, 10, 30, 20 + row))

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        self.fetched += wanted
        return [self._picture(row) for row, _ in wanted]

    def fingerprint(self) -> Any:
        return "rows"


def test_late_pictures_have_the_same_boxes(processor: Processor) -> None:
    def digests(rows: Rows) -> list[Any]:
        source = zvl.Mixture(rows, passes=zvl.Once(), seed=3)
        pipeline = zvl.Pipeline(source, lanes=2, flush_every=2).to_messages().probe_images(processor)
        pipeline = pipeline.place_boxes(processor, scale="pixels").tokenize_chat(processor).balance(2)
        with pipeline.pack(max_tokens=256).batch(1).patchify(processor).loader(runner="inline") as loader:
            return [(batch_digest(batch), batch.keys) for batch in loader]

    late = Rows(late=True)
    assert digests(late) == digests(Rows(late=False)) != []
    assert sorted(late.fetched) == [(row, 0) for row in range(6)]


def test_the_messages_are_what_tokenize_chat_takes(processor: Processor) -> None:
    row = {**sample([[[0, 0, 1, 1]]]), "messages": "no chat"}
    placed = PlaceBoxes(processor=processor, scale=1000)(row)
    with pytest.raises(BadData, match="messages: expected a list of at least one message, got str"):
        TokenizeChat(processor=processor)(placed)
