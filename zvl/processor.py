"""A layout, a tokenizer and a chat template: what Hugging Face calls a processor, split in plan and materialise."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from zvl import registry
from zvl.errors import RecipeError
from zvl.tokenizer import LoadedTokenizer, describe, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from zvl.chat import ChatTemplate
    from zvl.protocols import Layout

__all__ = ["Isolation", "Processor", "ResizeName"]

ResizeName = Literal["torch", "pillow"]
Isolation = Literal["positions", "mask", "varlen"]


class Processor:
    """What a model family makes of images and text. A value: it pickles, hashes, and equal ones compare equal.

    `layout` is an installed layout's name, its fields given beside it, or a layout object. `tokenizer` is a folder, a
    hub id or a fast tokenizer of transformers. `chat_template` is Jinja text, or a path that ends in ``.jinja``, and
    stands in for the tokenizer's own. `resize` chooses the kernel: "torch" equals Hugging Face's default backend,
    "pillow" its Pillow backend.

    Making one is cheap: the tokenizer is built at first use, once a process. What cannot work raises RecipeError.
    """

    layout: Layout
    resize: ResizeName

    def __init__(
        self,
        layout: str | Layout,
        tokenizer: str | Path | PreTrainedTokenizerFast,
        *,
        chat_template: str | Path | None = None,
        resize: ResizeName = "torch",
        **layout_settings: Any,
    ) -> None:
        if resize not in get_args(ResizeName):
            raise RecipeError(f"resize: expected 'torch' or 'pillow', got {resize!r}")
        self.layout = _make_layout(layout, layout_settings)
        self.resize = resize
        self._source = describe(tokenizer)
        self._template = _template_text(chat_template)

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: str | Path,
        *,
        chat_template: str | Path | None = None,
        resize: ResizeName = "torch",
        **layout_settings: Any,
    ) -> Processor:
        """The processor of a saved model: its layout with every setting, its tokenizer and its chat template.

        `layout_settings` override what is saved (``max_pixels=1_003_520``). A setting that the layout cannot
        honour raises RecipeError with its name.
        """
        from zvl.pretrained import read_pretrained

        found = read_pretrained(path_or_hub_id)
        return cls(
            found.layout,
            path_or_hub_id,
            chat_template=chat_template or found.chat_template,
            resize=resize,
            **{**found.settings, **layout_settings},
        )

    @functools.cached_property
    def text(self) -> LoadedTokenizer:
        """The tokenizer as operators use it: one a process, shared by equal processors."""
        return load_tokenizer(self._source)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The transformers tokenizer: one a process, shared by equal processors."""
        return cast("PreTrainedTokenizerFast", self.text.tokenizer)

    @property
    def chat_template(self) -> str:
        """Jinja source; a tokenizer without one raises RecipeError."""
        template = self._template or self.tokenizer.chat_template
        if isinstance(template, Mapping):
            template = template.get("default")
        if not isinstance(template, str):
            raise RecipeError("the tokenizer has no chat template: pass chat_template= to Processor")
        return template

    @functools.cached_property
    def chat(self) -> ChatTemplate:
        """The compiled chat template: one a process, like the tokenizer."""
        return self.text.chat(self.chat_template)

    @property
    def feature_token(self) -> str:
        """The token that features fill: the layout's `feature_token` where it has one, else its `image_token`."""
        token: str = getattr(self.layout, "feature_token", self.layout.image_token)
        return token

    @functools.cached_property
    def image_token_id(self) -> int:
        """The id of `feature_token`; a layout without one raises RecipeError."""
        if not self.feature_token:
            raise RecipeError(
                f"no token stands for an image in layout {self._layout_name}, which is an encoder's: leave "
                "tokenize_chat and tokenize_text out, and batch samples of images alone"
            )
        return self.token_id(self.feature_token)

    def token_id(self, text: str) -> int:
        """The id of one token of the vocabulary; a missing one raises RecipeError."""
        number = self.text.token_id(text)
        if number is None:
            raise RecipeError(
                f"layout {self._layout_name} needs the token {text!r}, which the tokenizer does not have: "
                "is it the tokenizer of this model family?"
            )
        return number

    def model_inputs(
        self, batch: Any, device: Any = None, dtype: Any = None, isolation: Isolation = "positions"
    ) -> dict[str, Any]:
        """The keyword arguments of the family's Hugging Face model; see `zvl.model_inputs.model_inputs`."""
        from zvl.model_inputs import model_inputs

        # Only such a layout needs the id, and with it the tokenizer in the trainer's process.
        image_token_id = self.image_token_id if hasattr(self.layout, "attention") else None
        return model_inputs(self.layout, batch, device, dtype, isolation, image_token_id)

    def fingerprint(self) -> dict[str, Any]:
        """JSON that names all that determines ids and pixels: content, never paths."""
        return {
            "layout": self._layout_name,
            "settings": _settings(self.layout),
            "resize": self.resize,
            "tokenizer": self.text.sha256,
            "chat_template": hashlib.sha256(self._any_template().encode()).hexdigest(),
        }

    def _any_template(self) -> str:
        """The chat template, or "" for a tokenizer that has none: plain text needs none."""
        return self.chat_template if self._template or self.tokenizer.chat_template else ""

    @property
    def _layout_name(self) -> str:
        return type(self.layout).__module__.rpartition(".")[2]

    def _identity(self) -> tuple[Any, ...]:
        return self.layout, self.resize, self._source, self._template

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Processor) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self.layout, "resize": self.resize, "_source": self._source, "_template": self._template}

    def __repr__(self) -> str:
        source = "object" if self._source.startswith("{") else self._source
        return f"Processor({self.layout!r}, tokenizer={source!r}, resize={self.resize!r})"


def _make_layout(layout: str | Layout, settings: Mapping[str, Any]) -> Layout:
    if not isinstance(layout, str):
        if settings:
            raise RecipeError(
                f"{', '.join(sorted(settings))}: settings go with a layout's name; a layout object has its own"
            )
        return layout
    layout_class = registry.load("layouts", layout)
    names = [field.name for field in dataclasses.fields(layout_class)]
    unknown = sorted(set(settings) - set(names))
    if unknown:
        raise RecipeError(
            f"layout {layout} has no setting {', '.join(map(repr, unknown))}; its settings are: {', '.join(names)}"
        )
    # Recipes have lists; a layout must hash.
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return cast("Layout", layout_class(**frozen))


def _settings(layout: Layout) -> dict[str, Any]:
    fields = dataclasses.asdict(layout)  # type: ignore[call-overload]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def _template_text(template: str | Path | None) -> str | None:
    """Jinja text as it is; the content of a file that is named instead."""
    if template is None or (isinstance(template, str) and not template.endswith(".jinja")):
        return template
    path = Path(template).expanduser()
    if not path.is_file():
        raise RecipeError(f"chat_template: expected Jinja text or a .jinja file, got {str(template)!r}: no such file")
    return path.read_text(encoding="utf-8")
