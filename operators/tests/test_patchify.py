"""From a batch's files to `pixel_values`: places, policies, operators on pixels, the promise."""

from __future__ import annotations

import hashlib
import io
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from zvl.batch import Segment
from zvl.errors import BadData, OperatorError, RecipeError, RegistryError
from zvl.hashing import Rng
from zvl.image import Image, ImageInfo
from zvl.images import pixels as kernels
from zvl.layouts.idefics3 import Idefics3
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl.operator import FilterMap, Map, RandomMap, Sample
from zvl_operators.patchify import Patchify

LAYOUT = Qwen2_5VL(max_pixels=200_704)
PAD = 9
PROCESSOR: Any = SimpleNamespace(layout=LAYOUT, resize="pillow", image_token_id=PAD)
SIZES = {"a": [], "b": [(40, 30), (90, 120)], "c": [(56, 56)], "d": [(600, 500)]}
ROWS = [["a", "b"], ["c", "d"], []]


def picture(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def probed(width: int, height: int) -> Image:
    out = io.BytesIO()
    PilImage.fromarray(picture(width, height)).save(out, "PNG")
    return Image(out.getvalue(), ImageInfo("png", width, height), LAYOUT.plan(width, height))


def damaged(image: Image) -> Image:
    return Image(image.data[:100], image.info, image.plan)


def make_batch(rows: Sequence[Sequence[str]] = ROWS, length: int = 400, broken: Sequence[int] = ()) -> Sample:
    """Samples `rows` by name, packed; images number `broken`, counted over the batch, are cut short."""
    images: list[Image] = []
    segments = []
    input_ids = np.zeros((len(rows), length), dtype=np.int64)
    labels = np.full((len(rows), length), -100, dtype=np.int64)
    for r, names in enumerate(rows):
        start = 0
        of_row = []
        for name in names:
            own = [probed(*size) for size in SIZES[name]]
            ids = [1, 2, 3] + [PAD] * sum(image.plan.tokens for image in own) + [4, 5]
            stop = start + len(ids)
            input_ids[r, start:stop] = ids
            labels[r, start + 1 : stop] = 7
            of_row.append(Segment(name, start, stop, len(images), len(images) + len(own)))
            images += own
            start = stop
        segments.append(tuple(of_row))
    images = [damaged(image) if number in broken else image for number, image in enumerate(images)]
    return {"__key__": "k", "input_ids": input_ids, "labels": labels, "images": images, "segments": segments}


def expected_rows(image: Image) -> np.ndarray:
    """The image's rows as the layout writes them, from a plain decode."""
    pixels = np.asarray(PilImage.open(io.BytesIO(image.data)).convert("RGB"))
    out = np.zeros((image.plan.rows, *LAYOUT.row_shape), dtype=np.uint8)
    LAYOUT.write(pixels, image.plan, lambda p, w, h, f: kernels.resize(p, w, h, f, "pillow"), out)
    return out


def test_every_image_lies_in_its_place() -> None:
    batch = make_batch()
    before = {name: batch[name] for name in batch}
    result = Patchify(processor=PROCESSOR)(batch)
    assert batch == before
    assert "images" not in result
    assert result["pixel_values"].dtype == np.uint8
    assert np.array_equal(result["pixel_values"], np.concatenate([expected_rows(image) for image in batch["images"]]))
    assert result["image_grid_thw"].tolist() == [list(image.plan.geometry) for image in batch["images"]]
    assert result["image_rows"] == [image.plan.rows for image in batch["images"]]
    assert result["masked"] == []
    assert all(result[name] is batch[name] for name in ("input_ids", "labels", "segments", "__key__"))


def test_parts_in_any_order_and_thread_give_the_same() -> None:
    operator = Patchify(processor=PROCESSOR)
    whole = operator(make_batch())
    work, parts = operator.begin(make_batch())
    assert len(parts) == 4
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda part: operator.part(work, part), reversed(parts)))[::-1]
    split = operator.finish(work, outcomes)
    assert np.array_equal(split["pixel_values"], whole["pixel_values"])


def test_a_batch_without_images() -> None:
    result = Patchify(processor=PROCESSOR)(make_batch([["a"], []]))
    assert result["pixel_values"].shape == (0, 588)
    assert result["pixel_values"].dtype == np.uint8
    assert result["image_grid_thw"].shape == (0, 3)
    assert result["image_grid_thw"].dtype == np.int64
    assert result["masked"] == []


def test_images_without_text() -> None:
    batch = {"images": [probed(56, 56)], "segments": [(Segment("c", 0, 0, 0, 1),)]}
    result = Patchify(processor=PROCESSOR)(batch)
    assert result.keys() == {"segments", "pixel_values", "image_grid_thw", "image_rows", "masked"}


def test_damage_raises_with_sample_and_image() -> None:
    with pytest.raises(BadData, match="decode: image 1 of sample 'b': "):
        Patchify(processor=PROCESSOR)(make_batch(broken=[1]))


def test_damage_masks_the_sample_and_nothing_else() -> None:
    batch = make_batch(broken=[1])
    labels = batch["labels"].copy()
    whole = Patchify(processor=PROCESSOR)(make_batch())
    result = Patchify(processor=PROCESSOR, on_error="mask")(batch)
    b = batch["segments"][0][1]
    assert np.array_equal(batch["labels"], labels)
    assert (result["labels"][0, b.start : b.stop] == -100).all()
    labels[0, b.start : b.stop] = -100
    assert np.array_equal(result["labels"], labels)
    rows = [image.plan.rows for image in batch["images"]]
    assert not result["pixel_values"][: rows[0] + rows[1]].any()
    assert np.array_equal(result["pixel_values"][rows[0] + rows[1] :], whole["pixel_values"][rows[0] + rows[1] :])
    assert np.array_equal(result["image_grid_thw"], whole["image_grid_thw"])
    assert result["input_ids"] is batch["input_ids"]
    assert result["masked"] == [("b", "decode", hashlib.sha256(batch["images"][1].data).hexdigest())]


def test_a_sample_with_two_bad_images_is_listed_once_by_the_first() -> None:
    batch = make_batch(broken=[0, 1, 3])
    masked = Patchify(processor=PROCESSOR, on_error="mask")(batch)["masked"]
    first = hashlib.sha256(batch["images"][0].data).hexdigest()
    assert [(key, sha256 == first) for key, _, sha256 in masked] == [("b", True), ("d", False)]


def test_the_promise_is_checked() -> None:
    batch = make_batch()
    batch["input_ids"][1, 3] = 1
    with pytest.raises(RecipeError) as caught:
        Patchify(processor=PROCESSOR)(batch)
    text = str(caught.value)
    features = sum(LAYOUT.plan(*size).tokens for name in ROWS[1] for size in SIZES[name])
    assert f"row 1 of the batch: expected {features} placeholder tokens" in text
    assert f"its 2 images, got {features - 1} (token id 9); samples: c, d." in text
    assert "same processor" in text


def test_a_placeholder_in_a_row_without_images_is_found() -> None:
    batch = make_batch()
    batch["input_ids"][2, 0] = PAD
    with pytest.raises(RecipeError, match=r"row 2 of the batch: expected 0 .* 0 images, got 1 .* samples: none"):
        Patchify(processor=PROCESSOR)(batch)


def test_images_that_no_sample_owns_are_an_error() -> None:
    batch = make_batch()
    batch["images"] = batch["images"][:-1]
    with pytest.raises(RecipeError, match="got 3 images and segments that claim 4"):
        Patchify(processor=PROCESSOR)(batch)


def test_a_single_sample_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"expects a batch with 'segments', got a single sample: put .batch\(size\)"):
        Patchify(processor=PROCESSOR)({"images": [], "input_ids": np.arange(3)})


def test_bytes_without_a_probe_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"got bytes: put .probe_images\(processor\) before"):
        Patchify(processor=PROCESSOR)(make_batch() | {"images": [b"."] * 4})


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(RegistryError, match="did you mean 'pillow'"):
        Patchify(processor=PROCESSOR, codec="pilow")


@dataclass(frozen=True, kw_only=True)
class Invert(Map):
    def __call__(self, sample: Sample) -> Sample:
        return {**sample, "pixels": 255 - sample["pixels"]}


@dataclass(frozen=True, kw_only=True)
class Noise(RandomMap):
    def __call__(self, sample: Sample, rng: Rng) -> Sample:
        return {**sample, "pixels": np.full_like(sample["pixels"], rng.integer(256))}


@dataclass(frozen=True, kw_only=True)
class Crop(Map):
    def __call__(self, sample: Sample) -> Sample:
        return {**sample, "pixels": sample["pixels"][1:]}


@dataclass(frozen=True, kw_only=True)
class Widen(Map):
    def __call__(self, sample: Sample) -> Sample:
        return {**sample, "pixels": sample["pixels"].astype(np.float32)}


@dataclass(frozen=True, kw_only=True)
class Fail(Map):
    def __call__(self, sample: Sample) -> Sample:
        raise ZeroDivisionError("by hand")


@dataclass(frozen=True, kw_only=True)
class Never(FilterMap):
    def __call__(self, sample: Sample) -> Sample | None:
        return None


def values(sizes: Sequence[str], *operators: Any, seed: int = 0) -> np.ndarray:
    operator = Patchify(processor=PROCESSOR, pixels=operators, seed=seed)
    result: np.ndarray = operator(make_batch([sizes]))["pixel_values"]
    return result


def test_operators_see_resized_pixels_and_the_images_key() -> None:
    seen: list[tuple[str, tuple[int, ...], np.dtype[Any]]] = []
    lock = threading.Lock()

    @dataclass(frozen=True, kw_only=True)
    class Look(Map):
        def __call__(self, sample: Sample) -> Sample:
            with lock:
                seen.append((sample["__key__"], sample["pixels"].shape, sample["pixels"].dtype))
            return sample

    values(["b", "c"], Look())
    plans = [LAYOUT.plan(*size) for size in [*SIZES["b"], *SIZES["c"]]]
    shapes = [(plan.height, plan.width, 3) for plan in plans]
    assert [(key, shape) for key, shape, _ in seen] == list(
        zip(["b#image0", "b#image1", "c#image0"], shapes, strict=True)
    )
    assert {dtype for _, _, dtype in seen} == {np.dtype(np.uint8)}


def jpeg(number: int) -> Image:
    """Of a size that is kept, so that an operator sees the decoded picture itself."""
    pixels = np.random.default_rng(number).integers(0, 256, (56, 84, 3), dtype=np.uint8)
    out = io.BytesIO()
    PilImage.fromarray(pixels).save(out, "JPEG")
    return Image(out.getvalue(), ImageInfo("jpeg", 84, 56), LAYOUT.plan(84, 56))


def test_operators_may_keep_their_pixels() -> None:
    kept: list[np.ndarray] = []

    @dataclass(frozen=True, kw_only=True)
    class Keep(Map):
        def __call__(self, sample: Sample) -> Sample:
            kept.append(sample["pixels"])
            return sample

    images = [jpeg(number) for number in range(3)]
    batch = {"__key__": "k", "images": images, "segments": [(Segment("k", 0, 0, 0, 3),)]}
    processor: Any = SimpleNamespace(layout=LAYOUT, resize="torch", image_token_id=PAD)
    looked = Patchify(processor=processor, pixels=[Keep()])(batch)["pixel_values"]
    for image, pixels in zip(images, kept, strict=True):
        assert np.array_equal(pixels, np.asarray(PilImage.open(io.BytesIO(image.data))))
    assert np.array_equal(looked, Patchify(processor=processor)(batch)["pixel_values"])


@pytest.mark.parametrize("size", [(90, 40), (56, 40)])
def test_operators_run_once_where_a_layout_resizes_in_turn(size: tuple[int, int]) -> None:
    """Also where the first resize has nothing to do and hands on the decoded picture."""
    shapes = []

    @dataclass(frozen=True, kw_only=True)
    class Look(Map):
        def __call__(self, sample: Sample) -> Sample:
            shapes.append(sample["pixels"].shape)
            return sample

    layout = Idefics3(longest_edge=56, image_size=28, patch_size=7, image_seq_length=4)
    plain = probed(*size)
    image = Image(plain.data, plain.info, layout.plan(*size))
    batch = {"__key__": "k", "images": [image], "segments": [(Segment("k", 0, 0, 0, 1),)]}
    processor: Any = SimpleNamespace(layout=layout, resize="pillow", image_token_id=PAD)
    looked = Patchify(processor=processor, pixels=[Look()])(batch)["pixel_values"]
    assert shapes == [(24 if size == (90, 40) else 40, 56, 3)]
    assert np.array_equal(looked, Patchify(processor=processor)(batch)["pixel_values"])


def test_operators_run_in_order() -> None:
    assert np.array_equal(values(["b"], Invert()), 255 - values(["b"]))
    assert np.array_equal(values(["b"], Invert(), Invert()), values(["b"]))
    assert np.array_equal(values(["b"], Noise(), Invert()), 255 - values(["b"], Noise()))


def test_randomness_depends_on_key_operator_occurrence_and_seed_alone() -> None:
    alone = values(["b"], Noise())
    assert np.array_equal(values(["c", "b"], Noise())[-len(alone) :], alone)
    first_image = LAYOUT.plan(*SIZES["b"][0]).rows
    assert alone[0, 0] != alone[first_image, 0]
    assert alone[0, 0] != values(["b"], Noise(), Noise())[0, 0]
    assert alone[0, 0] != values(["b"], Noise(), seed=1)[0, 0]
    # Whoever changes this number changes the augmented pixels of every run.
    assert alone[0, 0] == 35


@pytest.mark.parametrize(
    ("operator", "got"),
    [(Crop(), r"uint8 \(55, 84, 3\)"), (Widen(), r"float32 \(56, 84, 3\)")],
)
def test_shape_and_dtype_must_stay(operator: Map, got: str) -> None:
    with pytest.raises(OperatorError, match=rf"failed on sample 'b#image0': .*uint8 \(56, 84, 3\), got {got}; op"):
        values(["b"], operator)


def test_a_failing_operator_is_named_and_never_masked() -> None:
    operator = Patchify(processor=PROCESSOR, pixels=[Fail()], on_error="mask")
    with pytest.raises(OperatorError, match="operator 'Fail' failed on sample 'b#image0': ZeroDivisionError: by hand"):
        operator(make_batch([["b"]]))


def test_only_maps_may_touch_pixels() -> None:
    with pytest.raises(RecipeError, match=r"expected Maps and RandomMaps, got 'Never', which is neither"):
        Patchify(processor=PROCESSOR, pixels=[Never()])  # type: ignore[list-item]
    with pytest.raises(RecipeError, match="got the class Invert"):
        Patchify(processor=PROCESSOR, pixels=[Invert])  # type: ignore[list-item]


def test_it_is_a_value() -> None:
    operator = Patchify(processor=PROCESSOR, pixels=[Invert(), Noise()], on_error="mask")
    assert operator.pixels == (Invert(), Noise())
    assert operator.name == "patchify"
    assert Patchify.decodes
    assert pickle.loads(pickle.dumps(Patchify(processor=PROCESSOR))) == Patchify(processor=PROCESSOR)
