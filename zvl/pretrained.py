"""Reads the files that Hugging Face saves beside a model: which layout it has, with which settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zvl import registry
from zvl.errors import RecipeError
from zvl.layouts._qwen import CLIP_MEAN, CLIP_STD
from zvl.layouts._saved import pillow_filter

__all__ = ["FAMILIES", "Family", "Pretrained", "read_pretrained"]


class Pretrained(NamedTuple):
    """What a saved processor says: the layout's name, its settings, the processor's own chat template."""

    layout: str
    settings: dict[str, Any]
    chat_template: str | None


class Family(NamedTuple):
    """How a family's saved settings become its layout's fields."""

    layout: str
    names: frozenset[str]
    """processor_class, image_processor_type or model_type; a trailing "Fast" or "Pil" is left out."""
    settings: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Takes (and removes) from the saved settings those that the layout has as fields; None: the layout class itself
    does, as `saved_settings`."""

    def fields(self, saved: dict[str, Any]) -> dict[str, Any]:
        """The layout's fields, taken from `saved`."""
        take = self.settings or registry.load("layouts", self.layout).saved_settings
        found: dict[str, Any] = take(saved)
        return found


FIXED: Mapping[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_pad": False,
    "do_center_crop": False,
    "rescale_factor": 1 / 255,
    "data_format": "channels_first",
    "do_sample_frames": False,
}
"""Settings of every image processor that no layout varies, and the value that zvl has for them."""

WITHOUT_EFFECT = frozenset(
    {
        "auto_map",
        "crop_size",
        "default_to_square",
        "device",
        "disable_grouping",
        "feature_extractor_type",
        "image_processor_type",
        "input_data_format",
        "pad_size",
        "processor_class",
        "return_tensors",
        "video_processor_type",
    }
)
"""Names that say how the processor was saved, not what it does to one still image."""

PROCESSOR = "processor."
"""Before the names of the processor's own settings, which stand beside those of its image processor."""
MODEL = "model."
"""Before what the model's configuration says; a layout takes of it what it can use."""


def _qwen(saved: dict[str, Any]) -> dict[str, Any]:
    return _merge_blocks(saved, 1280 * 28 * 28, least=56 * 56, legacy=True)


def _glm4v(saved: dict[str, Any]) -> dict[str, Any]:
    return _merge_blocks(saved, 15_000 * 28 * 28, least=112 * 112, legacy=False)


def _merge_blocks(saved: dict[str, Any], most: int, *, least: int, legacy: bool) -> dict[str, Any]:
    """Settings of Qwen2VLImageProcessor and its like; what is not saved is the default of that class.

    Bounds were saved as `min_pixels` and `max_pixels` once (`legacy`), as the edges of `size` since; where both stand
    the former win.
    """
    defaults = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    settings = {name: saved.pop(name, default) for name, default in defaults.items()}
    settings["image_mean"] = saved.pop("image_mean", CLIP_MEAN)
    settings["image_std"] = saved.pop("image_std", CLIP_STD)
    size = saved.pop("size", None) or {}
    bounds = (("min_pixels", "shortest_edge", least), ("max_pixels", "longest_edge", most))
    unknown = {name for name, value in size.items() if value is not None}.difference(*bounds)
    if unknown:
        raise RecipeError(f"size: expected shortest_edge and longest_edge, got {', '.join(sorted(unknown))}")
    for name, edge, default in bounds:
        settings[name] = (legacy and saved.pop(name, None)) or size.get(edge) or size.get(name) or default
    if "resample" in saved:
        settings["resample"] = pillow_filter(saved.pop("resample"))
    return settings


FAMILIES = (
    Family("qwen3_vl", frozenset({"Qwen3VLProcessor", "qwen3_vl", "qwen3_vl_moe"}), _qwen),
    Family(
        "glm4v",
        frozenset({"Glm4vProcessor", "Glm46VProcessor", "glm4v", "glm4v_moe", "glm46v", "Glm4vImageProcessor"}),
        _glm4v,
    ),
    Family("qwen2_5_vl", frozenset({"Qwen2_5_VLProcessor", "qwen2_5_vl"}), _qwen),
    Family("idefics3", frozenset({"Idefics3Processor", "idefics3", "Idefics3ImageProcessor"})),
    Family("internvl", frozenset({"InternVLProcessor", "internvl"})),
    Family("gemma3", frozenset({"Gemma3Processor", "gemma3", "Gemma3ImageProcessor"})),
    Family("paligemma", frozenset({"PaliGemmaProcessor", "paligemma"})),
    Family("llava", frozenset({"LlavaProcessor", "llava"})),
    Family("llava_next", frozenset({"LlavaNextProcessor", "llava_next"})),
    Family("llava_onevision", frozenset({"LlavaOnevisionProcessor", "llava_onevision"})),
    Family("pixtral", frozenset({"PixtralProcessor", "mistral3", "PixtralImageProcessor"})),
    Family("siglip2", frozenset({"Siglip2Processor", "siglip2", "siglip2_vision_model", "Siglip2ImageProcessor"})),
    Family("smolvlm", frozenset({"SmolVLMProcessor", "smolvlm", "SmolVLMImageProcessor"})),
    Family("qwen2_vl", frozenset({"Qwen2VLProcessor", "qwen2_vl", "Qwen2VLImageProcessor"}), _qwen),
)
"""The known families. Names are looked up in order: processor_class, model_type, image_processor_type."""

LEAKING = frozenset({"qwen3_5", "qwen3_5_moe"})
"""Model types that share a processor with a family here, but whose linear attention carries its state from one sample
of a pack on to the next."""


def read_pretrained(path_or_hub_id: str | Path) -> Pretrained:
    """Read a folder or a hub repository. An unknown family or a setting that cannot be honoured raises RecipeError."""
    place = str(path_or_hub_id)
    saved, processor_class, image_type = _saved_settings(place)
    model = _read_json(place, "config.json") or {}
    model_type = model.get("model_type")
    if model_type in LEAKING:
        raise RecipeError(
            f"{place}: the linear attention of {model_type} lets samples of a pack see each other in some modes; "
            "without packing, name the layout yourself: Processor(layout, tokenizer, ...)"
        )
    saved |= {MODEL + name: value for name, value in model.items() if isinstance(value, Mapping)}
    names = [_plain(name) for name in (processor_class, model_type, image_type) if name]
    for name in names:
        for family in FAMILIES:
            if name in family.names:
                settings = family.fields(saved)
                _refuse_rest(saved, family.layout, place)
                return Pretrained(family.layout, settings, _processor_template(place))
    known = sorted(name for family in FAMILIES for name in family.names)
    raise RecipeError(
        f"{place}: expected a processor of a known family ({', '.join(known)}), got {', '.join(names) or 'none'}; "
        "name the layout yourself: Processor(layout, tokenizer, ...)"
    )


def _saved_settings(place: str) -> tuple[dict[str, Any], str | None, str | None]:
    """The image processor's settings, the processor's class and the image processor's."""
    processor = _read_json(place, "processor_config.json") or {}
    image = processor.get("image_processor") or _read_json(place, "preprocessor_config.json")
    if image is None:
        raise RecipeError(
            f"{place}: expected preprocessor_config.json or processor_config.json with an image_processor, found "
            "neither (offline, a hub id works only if it is cached); name the layout yourself: "
            "Processor(layout, tokenizer, ...)"
        )
    processor_class = processor.get("processor_class") or image.get("processor_class")
    # The names of tokens are the layout's own, and what is a mapping belongs to a part of the processor.
    own = {
        PROCESSOR + name: value
        for name, value in processor.items()
        if not isinstance(value, Mapping) and name not in WITHOUT_EFFECT and not name.endswith("_token")
    }
    return {**image, **own}, processor_class, image.get("image_processor_type")


def _refuse_rest(saved: Mapping[str, Any], layout: str, place: str) -> None:
    for name, value in saved.items():
        if value is None or name in WITHOUT_EFFECT or name.startswith(MODEL):
            continue
        if name not in FIXED:
            shown = name.removeprefix(PROCESSOR)
            raise RecipeError(f"{place}: layout {layout} cannot honour the setting {shown} = {value!r}")
        expected = FIXED[name]
        close = isinstance(value, float) and isinstance(expected, float) and abs(value - expected) < 1e-9
        same = close or value == expected
        if not same:
            raise RecipeError(f"{place}: layout {layout} cannot honour {name} = {value!r}; expected {expected!r}")


def _plain(name: str) -> str:
    return name.removesuffix("Fast").removesuffix("Pil")


def _processor_template(place: str) -> str | None:
    """The processor's chat template, which goes before the tokenizer's own (the latter may know no images)."""
    path = _find(place, "chat_template.jinja")
    if path is not None:
        return path.read_text(encoding="utf-8")
    template = (_read_json(place, "chat_template.json") or {}).get("chat_template")
    return template if isinstance(template, str) else None


def _read_json(place: str, name: str) -> dict[str, Any] | None:
    path = _find(place, name)
    if path is None:
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(f"{place}: {name} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{place}: {name}: expected a JSON object, got {type(content).__name__}")
    return content


def _find(place: str, name: str) -> Path | None:
    """A file of the folder or hub repository, fetched if need be; None if it has none of that name."""
    folder = Path(place).expanduser()
    if folder.is_dir():
        path = folder / name
        return path if path.is_file() else None
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(place, name, _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        raise RecipeError(f"{place!r} is no folder, and as a hub id it cannot be reached: {error}") from error
    return None if found is None else Path(found)
