"""The [processor] table of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zvl import registry
from zvl.errors import RecipeError
from zvl.processor import Processor, ResizeName
from zvl.recipe_fields import FieldError, build, check_fields, did_you_mean

__all__ = ["make_processor"]


@dataclass(frozen=True, kw_only=True)
class ProcessorTable:
    """The keys of [processor] that are no settings of the layout."""

    path: str | None = None
    layout: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    resize: ResizeName = "torch"


def make_processor(table: Mapping[str, Any], folder: Path) -> Processor:
    """`path` is a saved processor's folder or hub id; else `layout` names one and `tokenizer` a folder or hub id.

    A `chat_template` that ends in ``.jinja`` is a file below `folder`, or one beside the tokenizer.
    """
    names = ProcessorTable.__dataclass_fields__
    own = build(ProcessorTable, {key: table[key] for key in table if key in names})
    settings = {key: table[key] for key in table if key not in names}
    if own.path is not None:
        for name in ("layout", "tokenizer"):
            if getattr(own, name) is not None:
                raise FieldError(name, f"expected path, or layout and tokenizer, got path and {name}: leave one out")
        place = _folder_or_hub_id(own.path, folder)
        return Processor.from_pretrained(
            place,
            chat_template=_template(own.chat_template, folder, place),
            resize=own.resize,
            **_check_settings(_saved_layout(place), settings),
        )
    if own.layout is None or own.tokenizer is None:
        missing = "layout" if own.layout is None else "tokenizer"
        raise RecipeError(f"missing field {missing!r}: expected path, or layout and tokenizer")
    if own.layout not in registry.catalogue("layouts"):
        near = did_you_mean(own.layout, registry.catalogue("layouts"))
        raise FieldError("layout", f"no layout is named {own.layout!r}; {near}")
    place = _folder_or_hub_id(own.tokenizer, folder)
    return Processor(
        own.layout,
        place,
        chat_template=_template(own.chat_template, folder, place),
        resize=own.resize,
        **_check_settings(own.layout, settings),
    )


def _saved_layout(place: str) -> str:
    from zvl.pretrained import read_pretrained

    return read_pretrained(place).layout


def _check_settings(layout: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Types and names of a layout's settings, so that the message names the key."""
    return check_fields(registry.load("layouts", layout), settings)


def _folder_or_hub_id(value: str, folder: Path) -> str:
    """A folder below the recipe's if there is one, or if the text can be no hub id."""
    path = folder / Path(value).expanduser()
    if path.is_dir() or value.startswith((".", "~", "/")) or value.count("/") > 1:
        return str(path)
    return value


def _template(value: str | None, folder: Path, beside: str) -> str | Path | None:
    """Jinja text as it is. A file's name: relative to the recipe, else beside the tokenizer."""
    if value is None or not value.endswith(".jinja"):
        return value
    own = folder / Path(value).expanduser()
    other = Path(beside) / value
    return other if not own.is_file() and other.is_file() else own
