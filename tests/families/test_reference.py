"""The reference tests themselves: a layout with one fault fails the cell that is about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.family import CELLS
from reference.qwen import Qwen2VLFamily
from reference.torchvision_cpu import default_image_processor
from zvl.errors import BadData
from zvl.layouts.qwen2_vl import Qwen2VL


@dataclass(frozen=True, kw_only=True)
class BlueFirst(Qwen2VL):
    def write(self, pixels: Any, plan: Any, resize: Any, out: Any) -> None:
        super().write(pixels[..., ::-1], plan, resize, out)


@dataclass(frozen=True, kw_only=True)
class OneByteOff(Qwen2VL):
    def write(self, pixels: Any, plan: Any, resize: Any, out: Any) -> None:
        super().write(pixels, plan, resize, out)
        out[0, 0] ^= 1


@dataclass(frozen=True, kw_only=True)
class Sideways(Qwen2VL):
    def geometry(self, plans: Any) -> Any:
        return {"image_grid_thw": super().geometry(plans)["image_grid_thw"][:, [0, 2, 1]]}


@dataclass(frozen=True, kw_only=True)
class ShortInteger(Qwen2VL):
    def geometry(self, plans: Any) -> Any:
        return {"image_grid_thw": super().geometry(plans)["image_grid_thw"].astype(np.int32)}


@dataclass(frozen=True, kw_only=True)
class OtherToken(Qwen2VL):
    def placeholder(self, plan: Any) -> Any:
        return [(self.image_token, plan.tokens), ("<|vision_pad|>", 1)]


@dataclass(frozen=True, kw_only=True)
class LatePositions(Qwen2VL):
    def position_ids(self, *args: Any) -> Any:
        positions = super().position_ids(*args)
        positions[1] += 1
        return positions


@dataclass(frozen=True, kw_only=True)
class CrossedPositions(Qwen2VL):
    def position_ids(self, *args: Any) -> Any:
        return super().position_ids(*args)[[0, 2, 1]]


@dataclass(frozen=True, kw_only=True)
class ExtraInput(Qwen2VL):
    def pixel_inputs(self, batch: Any, device: Any, dtype: Any) -> Any:
        inputs = super().pixel_inputs(batch, device, dtype)
        return inputs and inputs | {"spatial_shapes": inputs["image_grid_thw"]}


FAULTS = [
    (BlueFirst, "pixels, default backend"),
    (BlueFirst, "pixels, Pillow backend"),
    (OneByteOff, "pixels, default backend"),
    (Sideways, "grids"),
    (ShortInteger, "grids"),
    (OtherToken, "input_ids"),
    (LatePositions, "position_ids"),
    (ExtraInput, "model_inputs"),
    (CrossedPositions, "packed forward"),
    (OneByteOff, "packed forward"),
]


@pytest.mark.parametrize(("layout", "cell"), FAULTS)
def test_a_fault_is_seen(layout: Callable[..., Any], cell: str, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
    class Faulty(Qwen2VLFamily):
        def make_layout(self, settings: Mapping[str, Any]) -> Any:
            return layout(**settings)

    given = {"qwen_tokenizer": qwen_tokenizer, "photos": photos, "isolation": "positions", "attention": "sdpa"}
    test = getattr(Faulty(), CELLS[cell])
    names = test.__func__.__code__.co_varnames[1 : test.__func__.__code__.co_argcount]
    with pytest.raises((AssertionError, BadData)):
        test(**{name: given[name] for name in names})


def test_the_default_backend_is_no_stand_in() -> None:
    assert default_image_processor("Qwen2VLImageProcessor").__name__ == "Qwen2VLImageProcessor"
    with pytest.raises(AssertionError, match="not the torchvision backend"):
        default_image_processor("Qwen2VLImageProcessorPil")
