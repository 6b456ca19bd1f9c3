"""What stands between a codec's pixels and plain RGB: transparency and colour profiles."""

from __future__ import annotations

import functools
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from zvl.image import ImageInfo
from zvl.images.orientation import orient
from zvl.images.pillow_open import draft, open_image
from zvl.protocols import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["composite", "to_srgb"]

SPACES = {"RGB ": ("RGB",), "GRAY": ("L", "LA", "1", "I;16", "I"), "CMYK": ("CMYK",)}
"""A profile's colour space (ICC.1, table 19) to the Pillow modes of files that it can describe."""


def composite(pixels: Pixels, colour: tuple[int, int, int] | None) -> Pixels:
    """RGBA uint8 (H, W, 4) over one colour; None forgets the transparency. RGB comes back as it is.

    Rounds to the nearest, which is what Pillow's `alpha_composite` over a solid colour comes to.

    >>> composite(np.array([[[200, 0, 0, 128]]], np.uint8), (255, 255, 255)).tolist()
    [[[227, 127, 127]]]
    """
    if pixels.shape[-1] == 3:
        return pixels
    solid, alpha = pixels[..., :3], pixels[..., 3:]
    if colour is None or int(alpha.min()) == 255:
        return solid
    # 255 * 255 + 128 + 254 just fits into 16 bits.
    mixed = solid * alpha.astype(np.uint16)
    mixed += np.array(colour, np.uint16) * (255 - alpha) + np.uint16(128)
    mixed += mixed >> 8
    return (mixed >> 8).astype(np.uint8)


def to_srgb(pixels: Pixels, data: bytes, info: ImageInfo, divisor: int = 1, profile: bytes | None = None) -> Pixels:
    """A codec's pixels, (H, W, 3 or 4), turned from the file's colour profile into sRGB; alpha stays.

    `divisor` is how much smaller a JPEG was decoded; `profile` is what the file carries, and None asks Pillow. A file
    without one is taken for sRGB, and so is one whose profile is damaged or describes other pixels than the file has.
    CMYK is decoded again, by Pillow: its four inks are what the profile describes. Perceptual intent, Pillow's default.
    """
    image: Image | None = None
    if profile is None:
        _, image = open_image(data)
        profile = image.info.get("icc_profile") or b""
    space = colour_space(profile) if profile else ""
    if space not in SPACES or (image is not None and space != "RGB " and image.mode not in SPACES[space]):
        return pixels
    if space == "CMYK":
        return from_inks(image, info, divisor, profile) if image is not None else pixels
    if space == "GRAY":
        return with_alpha_of(pixels, converted(np.ascontiguousarray(pixels[..., 0]), profile, "L"))
    return with_alpha_of(pixels, converted(np.ascontiguousarray(pixels[..., :3]), profile, "RGB"))


def with_alpha_of(pixels: Pixels, colours: Pixels | None) -> Pixels:
    """`colours` with the alpha of `pixels`; `pixels` where there are no colours."""
    if colours is None:
        return pixels
    return colours if pixels.shape[-1] == 3 else np.dstack([colours, pixels[..., 3]])


def from_inks(image: Image, info: ImageInfo, divisor: int, profile: bytes) -> Pixels:
    """A CMYK file, only its header read, as sRGB."""
    draft(image, divisor)
    image.load()
    colours = converted(np.asarray(image), profile, "CMYK")
    if colours is None:
        colours = np.array(image.convert("RGB"))
    return orient(colours, info.orientation)


def converted(values: Pixels, profile: bytes, mode: str) -> Pixels | None:
    """Values of a Pillow mode as sRGB, uint8 (H, W, 3); None where the profile cannot serve."""
    from PIL import Image, ImageCms

    change = transform(profile, mode)
    if change is None:
        return None
    return np.asarray(ImageCms.applyTransform(Image.fromarray(values, mode), change))


@functools.lru_cache(maxsize=32)
def transform(profile: bytes, mode: str) -> Any:
    """LittleCMS's table from a profile to sRGB, built once a profile; None where LittleCMS refuses."""
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError):
        return None


@functools.lru_cache(maxsize=32)
def colour_space(profile: bytes) -> str:
    """The four letters that name the profile's colour space; "" for a damaged one."""
    from PIL import ImageCms

    try:
        return str(ImageCms.ImageCmsProfile(BytesIO(profile)).profile.xcolor_space)
    except (ImageCms.PyCMSError, OSError):
        return ""
