"""Does a layout keep the contract of `zvl.protocols.Layout`?"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from zvl.errors import BadData
from zvl.fingerprint import digest
from zvl.image import ImagePlan
from zvl.images.pixels import resize
from zvl.protocols import Layout, Pixels
from zvl.testing._values import difference, frozen
from zvl.testing.report import Checks, Problem, Report

__all__ = ["check_layout"]

SIZES = ((64, 64), (97, 61), (150, 43), (56, 120), (640, 480), (333, 500))
"""Width and height in pixels."""
IMAGE_ID = 7


def check_layout(layout: Layout, sizes: Sequence[tuple[int, int]] = SIZES) -> Report:
    """Run every check of layouts on pictures of noise with those sizes, (width, height) in pixels.

    A size that the layout refuses with BadData is passed over; it must take at least one.

    Raises CheckFailed, an AssertionError, whose `report` says of each check that failed what was wrong, at which size.
    """
    checks = Checks(type(layout).__name__)
    checks.run("configuration", "a frozen dataclass that pickles and has a fingerprint", _configuration, layout)
    own = _Layout(layout, sizes)
    if checks.run("plan", "a plan follows from the size alone and fits its parts", own.plan):
        checks.run("placeholder", "the placeholder holds as many feature tokens as the plan says", own.placeholder)
        checks.run("geometry", "each image has its own row in every field; no images are right too", own.geometry)
        checks.run("features", "the geometry gives the plan's tokens", own.features)
        checks.run("write", "every byte of the image's place is written, and none beside it", own.write)
        checks.run("input_unchanged", "the pixels that it is given are as before", own.input_unchanged)
        checks.run("threads", "threads at the same time write equal rows", own.threads)
        checks.run("position_ids", "int64 (n,) or (3, n), with and without images", own.position_ids)
        checks.run("pixel_inputs", "tensors for the model; nothing at all without images", own.pixel_inputs)
        if hasattr(layout, "unwrite"):
            checks.run("unwrite", "gives back images, uint8 (H, W, 3)", own.unwrite)
    return checks.report()


def _configuration(layout: Layout) -> None:
    again = pickle.loads(pickle.dumps(layout))
    if again != layout or digest(again) != digest(layout):
        raise Problem("a copy by pickle is not equal: keep all of its settings in fields of a frozen dataclass")
    if layout.expand not in ("ids", "text"):
        raise Problem(f"expand: expected 'ids' or 'text', got {layout.expand!r}")
    if not all(type(side) is int and side > 0 for side in layout.row_shape):
        raise Problem(f"row_shape: expected whole numbers above 0, got {layout.row_shape!r}")


class _Layout:
    def __init__(self, layout: Layout, sizes: Sequence[tuple[int, int]]) -> None:
        self._layout = layout
        self._sizes = sizes
        self._plans: list[tuple[str, ImagePlan, Pixels]] = []

    def plan(self) -> None:
        for width, height in self._sizes:
            where = f"{width}x{height}"
            try:
                plan = self._layout.plan(width, height)
            except BadData:
                continue
            if plan != self._layout.plan(width, height):
                raise Problem(f"{where}: another plan the second time")
            if plan.rows < 1 or plan.tokens < 0 or plan.patches < 1 or min(plan.width, plan.height) < 1:
                raise Problem(
                    f"{where}: expected rows, patches and sides of at least 1, tokens of at least 0, got {plan}"
                )
            noise = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
            self._plans.append((where, plan, noise))
        if not self._plans:
            raise Problem("it refuses every size: pass some that it takes")

    def placeholder(self) -> None:
        token = getattr(self._layout, "feature_token", self._layout.image_token)
        for where, plan, _ in self._plans:
            runs = self._layout.placeholder(plan)
            count = sum(times for text, times in runs if text == token)
            if count != plan.tokens or any(times < 1 for _, times in runs):
                raise Problem(
                    f"{where}: the plan says {plan.tokens} tokens, the placeholder holds {count} of {token!r}"
                )

    def geometry(self) -> None:
        plans = [plan for _, plan, _ in self._plans]
        together, none = self._layout.geometry(plans), self._layout.geometry([])
        if set(together) != set(none):
            raise Problem(f"fields without images: expected {sorted(together)}, got {sorted(none)}")
        for name, values in together.items():
            alone = np.concatenate([self._layout.geometry([plan])[name] for plan in plans])
            found = difference(frozen(alone), frozen(values))
            if found:
                raise Problem(f"{name} of all images is not that of each: {found}")
            if len(none[name]) or none[name].dtype != values.dtype or none[name].shape[1:] != values.shape[1:]:
                raise Problem(f"{name} without images: expected {values.dtype} (0, ...), got {none[name].shape}")

    def features(self) -> None:
        for chosen in (self._plans, self._plans[:1], []):
            plans = [plan for _, plan, _ in chosen]
            rows = np.array([plan.rows for plan in plans], np.int64)
            got = self._layout.features(self._layout.geometry(plans) | {"image_rows": rows})
            expected = [plan.tokens for plan in plans]
            if list(got) != expected:
                raise Problem(
                    f"{', '.join(where for where, *_ in chosen)}: expected {expected} features, got {list(got)}"
                )

    def _written(self, plan: ImagePlan, pixels: Pixels, fill: int = 0) -> Pixels:
        """The rows, in a buffer with a row more on both sides."""
        buffer = np.full((plan.rows + 2, *self._layout.row_shape), fill, np.uint8)
        self._layout.write(pixels, plan, resize, buffer[1:-1])
        return buffer

    def write(self) -> None:
        for where, plan, pixels in self._plans:
            dark, bright = self._written(plan, pixels, 0), self._written(plan, pixels, 255)
            if dark[[0, -1]].any() or (bright[[0, -1]] != 255).any():
                raise Problem(f"{where}: wrote outside its {plan.rows} rows")
            left = int((dark[1:-1] != bright[1:-1]).sum())
            if left:
                raise Problem(f"{where}: left {left} of {dark[1:-1].size} bytes unwritten")

    def input_unchanged(self) -> None:
        for where, plan, pixels in self._plans:
            before = pixels.copy()
            self._written(plan, pixels)
            if (before != pixels).any():
                raise Problem(f"{where}: it changed the pixels")

    def threads(self) -> None:
        expected = [self._written(plan, pixels) for _, plan, pixels in self._plans]
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda one: self._written(one[1], one[2]), self._plans * 2)
            for place, rows in enumerate(found):
                problem = difference(frozen(expected[place % len(expected)]), frozen(rows))
                if problem:
                    raise Problem(f"{self._plans[place % len(expected)][0]}: {problem}")

    def position_ids(self) -> None:
        if not self._layout.image_token:
            return
        token = getattr(self._layout, "feature_token", self._layout.image_token)
        for chosen in ([], self._plans[:1], self._plans[:2]):
            ids = [1, 2, 3]
            for _, plan, _ in chosen:
                for text, times in self._layout.placeholder(plan):
                    ids += [IMAGE_ID if text == token else 5] * times
                ids.append(4)
            array = np.array(ids, np.int64)
            got = self._layout.position_ids(array, [plan for _, plan, _ in chosen], IMAGE_ID)
            if got.dtype != np.int64 or got.shape not in ((len(ids),), (3, len(ids))):
                raise Problem(f"{len(chosen)} images: expected int64 ({len(ids)},) or (3, {len(ids)}), got {got.shape}")
            if array.tolist() != ids:
                raise Problem(f"{len(chosen)} images: it changed the input_ids")

    def pixel_inputs(self) -> None:
        import torch

        for chosen in (self._plans[:2], []):
            plans = [plan for _, plan, _ in chosen]
            rows = [self._written(plan, pixels)[1:-1] for _, plan, pixels in chosen]
            empty = np.zeros((0, *self._layout.row_shape), np.uint8)
            arrays = {"pixel_values": np.concatenate([empty, *rows]), **self._layout.geometry(plans)}
            counts = np.array([plan.rows for plan in plans], np.int64)
            batch: dict[str, Any] = {name: torch.from_numpy(value) for name, value in arrays.items()}
            got = self._layout.pixel_inputs(batch | {"image_rows": torch.from_numpy(counts)}, None, torch.float32)
            if bool(got) != bool(chosen):
                raise Problem(f"{len(chosen)} images: expected {'tensors' if chosen else '{}'}, got {sorted(got)}")
            if chosen and not all(
                bool(torch.isfinite(value).all()) for value in got.values() if value.is_floating_point()
            ):
                raise Problem("pixel_values are not finite")

    def unwrite(self) -> None:
        layout: Any = self._layout
        for where, plan, pixels in self._plans:
            geometry = {name: values[0] for name, values in layout.geometry([plan]).items()}
            for image in layout.unwrite(self._written(plan, pixels)[1:-1], geometry):
                if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                    raise Problem(f"{where}: expected uint8 (H, W, 3), got {image.dtype} {image.shape}")
