"""How a picture's stored values become RGB: transparency, colour profile, and how much of a JPEG is decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from zvl.errors import RecipeError

__all__ = ["DecodeOptions"]

WHITE = (255, 255, 255)
COLOURS = {"white": WHITE, "black": (0, 0, 0)}


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """Options of `zvl.images.pixels.decode`. All of them change pixels, so they belong to the recipe."""

    background: str | None = None
    """The colour behind transparent pixels: "white", "black", "#rrggbb", or "drop", which forgets the transparency as
    Pillow's ``convert("RGB")`` does. None does what the Hugging Face processors of all our families do: white."""
    icc: Literal["ignore", "srgb"] = "ignore"
    """"srgb" turns pixels with a colour profile into sRGB; "ignore" takes them as they are, as Hugging Face does."""
    jpeg_scale: bool = False
    """Decode a JPEG at 1/2, 1/4 or 1/8 of its size where that still covers the planned size: faster, other pixels."""

    def __post_init__(self) -> None:
        if self.background not in (None, "drop", *COLOURS) and not self._hex():
            raise RecipeError(
                f"expected background=None, 'drop', {', '.join(map(repr, COLOURS))} or a colour like '#ffe0c0', "
                f"got {self.background!r}"
            )
        if self.icc not in ("ignore", "srgb"):
            raise RecipeError(f"expected icc='ignore' or 'srgb', got {self.icc!r}")

    def _hex(self) -> re.Match[str] | None:
        return re.fullmatch("#[0-9a-fA-F]{6}", self.background or "")

    @property
    def colour(self) -> tuple[int, int, int] | None:
        """Red, green and blue, 0 to 255, behind transparent pixels; None where transparency is forgotten.

        >>> DecodeOptions(background="#ff8000").colour
        (255, 128, 0)
        """
        if self.background is None:
            return WHITE
        if self.background in COLOURS:
            return COLOURS[self.background]
        if self.background == "drop":
            return None
        red, green, blue = bytes.fromhex(self.background[1:])
        return red, green, blue
