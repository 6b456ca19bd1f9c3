"""The reference codec: what `PIL.Image.open(file).convert("RGB")` gives, or "RGBA" where there is transparency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zvl.errors import BadData, RecipeError
from zvl.image import ImageInfo
from zvl.images.orientation import orient
from zvl.images.pillow_open import PLUGINS, draft, open_image
from zvl.protocols import Pixels
from zvl_codecs._jpeg import check_complete

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Pillow"]


class Pillow:
    """Every format, by Pillow; the first frame or page. Four channels where the file has alpha or transparent colours.

    Differs from `convert` where that clips: of 16-bit gray the high byte is kept, as Pillow itself does with
    16-bit colour, and 32-bit pixels, whose range nobody knows, are bad data ("mode").
    """

    formats = frozenset(name for name, *_ in PLUGINS)

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        """RGB or RGBA uint8 (H, W, 3 or 4), a view turned by `info.orientation`. Raises Pillow's errors and BadData."""
        return self.decode_scaled(data, info, 1)

    def decode_scaled(self, data: bytes, info: ImageInfo, divisor: int) -> Pixels:
        """The same, a JPEG at one `divisor`-th (1, 2, 4, 8) of its size."""
        from PIL import ImageFile

        if ImageFile.LOAD_TRUNCATED_IMAGES:
            raise RecipeError(
                "expected PIL.ImageFile.LOAD_TRUNCATED_IMAGES to be False, got True: with it, half a picture would "
                "pass for a whole one; set it back before the first batch"
            )
        _, image = open_image(data)
        if image.size != (info.width, info.height):  # before anything is allocated
            raise BadData(
                "size",
                f"expected {info.width}x{info.height} pixels as probed, got a {info.format} of "
                f"{image.width}x{image.height}: its parts contradict each other",
            )
        if info.format == "jpeg":
            check_complete(data)
        draft(image, divisor)
        image.load()
        return orient(to_rgb(image), info.orientation)


def to_rgb(image: Image) -> Pixels:
    """The loaded image as an array of its own, uint8 (H, W, 3 or 4), not turned."""
    if image.mode.startswith("I;16"):
        gray = (np.asarray(image) >> 8).astype(np.uint8)
        return np.broadcast_to(gray[..., None], (*gray.shape, 3))
    if image.mode == "I" and image.format == "PPM":  # 16 bits, scaled to 0..65535 by Pillow
        gray = (np.asarray(image) >> 8).astype(np.uint8)
        return np.broadcast_to(gray[..., None], (*gray.shape, 3))
    if image.mode in ("I", "F"):
        raise BadData("mode", f"expected 8 or 16 bits a channel, got 32 (Pillow's mode {image.mode!r})")
    # The test for transparency is that of Hugging Face's `convert_to_rgb`.
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        return np.array(image if image.mode == "RGBA" else image.convert("RGBA"))
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))
