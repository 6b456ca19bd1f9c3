"""The settings that transformers saves for each family, read back as the layout that it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reference.qwen import image_settings
from reference.torchvision_cpu import default_image_processor
from zvl.errors import RecipeError
from zvl.layouts.glm4v import Glm4v
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl.layouts.qwen3_vl import Qwen3VL
from zvl.pretrained import read_pretrained
from zvl.registry import load

LAYOUTS = [
    ("Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", Qwen2_5VL(min_pixels=4000, max_pixels=90_000)),
    ("Qwen3VLProcessor", "Qwen2VLImageProcessor", Qwen3VL()),
    ("Glm4vProcessor", "Glm4vImageProcessor", Glm4v(min_pixels=20_000, image_std=(0.2, 0.3, 0.4))),
    ("Glm46VProcessor", "Glm46VImageProcessor", Glm4v()),
]


@pytest.mark.parametrize(("processor", "image_processor", "layout"), LAYOUTS)
def test_what_transformers_saves_is_read_whole(
    processor: str, image_processor: str, layout: Any, tmp_path: Path
) -> None:
    saved = default_image_processor(image_processor)(**image_settings(layout)).to_dict()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(saved | {"processor_class": processor}))
    assert read_layout(tmp_path) == layout


@pytest.mark.parametrize(
    ("model", "image_processor"), [("qwen3_vl", "Qwen2VLImageProcessor"), ("glm4v", "Glm4vImageProcessor")]
)
def test_what_is_left_out_is_the_default_of_the_class(model: str, image_processor: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": image_processor}))
    layout = read_layout(tmp_path)
    reference = default_image_processor(image_processor)()
    expected = {name: getattr(reference, name) for name in image_settings(layout)} | {"size": dict(reference.size)}
    expected |= {name: list(expected[name]) for name in ("image_mean", "image_std")}
    assert image_settings(layout) == expected


def test_glm_ignores_what_only_qwen_had(tmp_path: Path) -> None:
    saved = {"image_processor_type": "Glm4vImageProcessor", "min_pixels": 784}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(saved))
    with pytest.raises(RecipeError, match="layout glm4v cannot honour the setting min_pixels = 784"):
        read_pretrained(tmp_path)


def test_models_that_leak_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5"}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"processor_class": "Qwen3VLProcessor"}))
    with pytest.raises(RecipeError, match="the linear attention of qwen3_5 lets samples of a pack see each other"):
        read_pretrained(tmp_path)


def read_layout(folder: Path) -> Any:
    found = read_pretrained(folder)
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in found.settings.items()}
    return load("layouts", found.layout)(**settings)
