"""From a file's bytes to pixels of a given size: the choice of codec, decoding, resizing."""

from __future__ import annotations

import functools
import hashlib
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from zvl import registry
from zvl.errors import BadData, RecipeError, isolate
from zvl.image import ImageInfo
from zvl.images.canaries import canary_images
from zvl.images.colour import composite, to_srgb
from zvl.images.header import probe
from zvl.images.options import DecodeOptions
from zvl.images.pillow_open import bad_data
from zvl.images.quads import quads, scratch
from zvl.images.scaling import jpeg_divisor, scaled_size
from zvl.protocols import Codec, Filter, Pixels
from zvl.shared.blocks import borrow

if TYPE_CHECKING:
    import torch

__all__ = ["Backend", "canaries", "codec_for", "decode", "kept_canaries", "resize"]

Backend = Literal["torch", "pillow"]

DEFAULT = DecodeOptions()

AUTO = {"jpeg": "turbojpeg", "png": "pyvips", "heif": "heif"}
"""The fastest codec of a format, in every size class; `pillow` for all others. Measured and explained in
`docs/decisions/2026-11-29-codecs.md`."""


def codec_for(info: ImageInfo) -> str:
    """The codec that `codec="auto"` stands for: a pure function of the header, part of the recipe's fingerprint.

    >>> codec_for(ImageInfo("jpeg", 640, 480))
    'turbojpeg'
    """
    return AUTO.get(info.format, "pillow")


@functools.cache
def codec_named(name: str) -> Codec:
    """The one instance of a codec in this process. Raises RegistryError for an unknown name."""
    made: Codec = registry.load("codecs", name)()
    return made


def decode(
    data: bytes,
    info: ImageInfo,
    codec: str = "auto",
    options: DecodeOptions = DEFAULT,
    planned: tuple[int, int] | None = None,
    reuse: bool = False,
) -> Pixels:
    """The file's pixels, RGB uint8 (H, W, 3), as a person sees them: exactly `info.size`. Strides are free.

    With `options.jpeg_scale`, a JPEG is as small as JPEG allows, but no smaller than `planned`, (width, height). With
    `reuse`, which is faster, the pixels last only until this thread decodes its next picture.

    Raises BadData: "codec" where the codec does not read the format, "size" where the pixels do not have the size of
    the header, "decode" for everything a library raises but MemoryError.
    """
    name = codec_for(info) if codec == "auto" else codec
    decoder = codec_named(name)
    if info.format not in decoder.formats:
        readable = ", ".join(sorted(decoder.formats))
        raise BadData(
            "codec", f"the codec {name!r} reads {readable}, got {info.format}: choose codec='auto' or 'pillow'"
        )
    scaled = getattr(decoder, "decode_scaled", None) if options.jpeg_scale and info.format == "jpeg" else None
    divisor = jpeg_divisor(info, *planned) if scaled and planned else 1
    with isolate(bad_data("decode", f"codec {name!r} on {info.format} of {len(data):,} bytes")):
        pixels = run_codec(decoder, data, info, divisor, reuse)
        check_pixels(pixels, info, divisor, name)
        if options.icc == "srgb":
            profile_of = getattr(decoder, "icc_profile", None)
            pixels = to_srgb(pixels, data, info, divisor, profile_of(data) if profile_of else None)
        return composite(pixels, options.colour)


def run_codec(decoder: Any, data: bytes, info: ImageInfo, divisor: int, reuse: bool) -> Pixels:
    """The codec's pixels, by whichever of its methods serves."""
    decode_into = getattr(decoder, "decode_into", None) if reuse else None
    if decode_into is not None:
        pixels: Pixels = decode_into(data, info, divisor, functools.partial(scratch, "decoded"))
    elif divisor > 1:
        pixels = decoder.decode_scaled(data, info, divisor)
    else:
        pixels = decoder.decode(data, info)
    return pixels


def check_pixels(pixels: Pixels, info: ImageInfo, divisor: int, codec: str) -> None:
    """Raise BadData "size" unless the pixels are RGB or RGBA of the size that the header promised."""
    width, height = scaled_size(info.size, divisor)
    if pixels.dtype != np.uint8 or pixels.shape not in ((height, width, 3), (height, width, 4)):
        raise BadData(
            "size",
            f"expected uint8 ({height}, {width}, 3) as the {info.format} header says, "
            f"got {pixels.dtype} {pixels.shape} from the codec {codec!r}",
        )


def resize(pixels: Pixels, width: int, height: int, filter: Filter, backend: Backend = "torch") -> Pixels:
    """Pixels of (height, width, 3); `pixels` itself where the size fits already.

    "torch" is the kernel behind Hugging Face's default image processors: antialiased, uint8 throughout. "pillow" is
    that of their Pillow backend.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    if backend == "torch":
        return resize_torch(pixels, width, height, filter)
    if backend == "pillow":
        return resize_pillow(pixels, width, height, filter)
    raise RecipeError(f"expected the resize backend 'torch' or 'pillow', got {backend!r}")


def resize_torch(pixels: Pixels, width: int, height: int, filter: Filter) -> Pixels:
    """PyTorch's uint8 kernel, from row-major memory into row-major memory (channels last): it skips a pass each way.

    A fourth byte behind each pixel (`quads`) comes along: the kernel is faster with four bytes than with three.
    """
    import torch

    four = quads(pixels)
    memory = readable(pixels if four is None else four)
    try:
        if filter in IN_PLACE:
            kernel = getattr(torch._C._nn, IN_PLACE[filter])
            return in_two_passes(kernel, memory, width, height)[..., :3]
        return interpolated(memory, width, height, filter)[..., :3]
    except NotImplementedError as error:  # older PyTorch: no "lanczos"
        raise RecipeError(
            f"this PyTorch ({torch.__version__}) has no {filter} kernel: take a newer one, or resize='pillow'"
        ) from error


IN_PLACE: dict[Filter, str] = {"bilinear": "_upsample_bilinear2d_aa", "bicubic": "_upsample_bicubic2d_aa"}
"""What `torch.nn.functional.interpolate` calls, and from where: these can be told which memory to write to. The same
operators in `torch.ops.aten` take half as long again to look at their arguments, with the interpreter held."""


def in_two_passes(kernel: Any, memory: Pixels, width: int, height: int) -> Pixels:
    """What the kernel does at once, first along rows and then along columns, uint8 between; in memory used again."""
    rows, columns, depth = memory.shape
    shape = rows, width, depth
    if columns != width:
        between = borrow if rows == height else functools.partial(scratch, "between")
        memory = pass_over(kernel, memory, between(math.prod(shape)).reshape(shape))
    if rows != height:
        shape = height, width, depth
        memory = pass_over(kernel, memory, borrow(math.prod(shape)).reshape(shape))
    return memory


def pass_over(kernel: Any, memory: Pixels, out: Pixels) -> Pixels:
    """Fill `out`, (H, W, channels) like `memory`, with `memory` at its size."""
    kernel(channels_last(memory), out.shape[:2], False, None, None, out=channels_last(out))
    return out


def interpolated(memory: Pixels, width: int, height: int, filter: Filter) -> Pixels:
    """One call of PyTorch's public function, on (H, W, channels)."""
    import torch

    if filter == "nearest":
        options: dict[str, Any] = {"mode": "nearest-exact"}
    else:
        options = {"mode": filter, "antialias": True, "align_corners": False}
    resized = torch.nn.functional.interpolate(channels_last(memory), size=(height, width), **options)
    result: Pixels = resized[0].permute(1, 2, 0).numpy()
    return result


def channels_last(memory: Pixels) -> torch.Tensor:
    """(H, W, channels) as PyTorch wants it, (1, channels, H, W), without a copy."""
    import torch

    # By NumPy, since each of PyTorch's views lets go of the interpreter and has to wait for it. `reshape` gives the new
    # axis the stride that it should have; with `None` for an index, 0 would hide that channels are last.
    return torch.from_numpy(memory.reshape(1, *memory.shape).transpose(0, 3, 1, 2))


def readable(pixels: Pixels) -> Pixels:
    """`pixels` in memory that PyTorch takes as it is: writeable, rows and columns in their own order."""
    rows, columns, channels = pixels.strides
    if pixels.flags.writeable and rows > columns >= 3 and channels == 1:
        return pixels
    return pixels.copy(order="C")


def resize_pillow(pixels: Pixels, width: int, height: int, filter: Filter) -> Pixels:
    """Pillow's kernel."""
    from PIL import Image

    image = Image.fromarray(pixels if pixels.flags.c_contiguous else pixels.copy(order="C"))
    return np.asarray(image.resize((width, height), Image.Resampling[filter.upper()]))


FILTERS: tuple[Filter, ...] = ("nearest", "bilinear", "bicubic", "lanczos")


PLANNED = (30, 20)
"""The size for which the canaries are decoded: small enough for `jpeg_scale` to halve them."""


def canaries(codec: str = "auto", backend: Backend = "torch", options: DecodeOptions = DEFAULT) -> str:
    """SHA-256 of what this machine's libraries make of a few small pictures: the fingerprint of pixels.

    Machines that agree here decode and resize alike as far as can be told in some milliseconds. Pictures that a codec
    chosen by name does not read are left out.
    """
    digest = hashlib.sha256()
    for name, data in canary_images().items():
        info = probe(data)
        if codec != "auto" and info.format not in codec_named(codec).formats:
            continue
        pixels = decode(data, info, codec, options, PLANNED)
        digest.update(name.encode() + pixels.tobytes())
        for filter in FILTERS:
            for width, height in ((40, 28), (90, 80)):
                digest.update(canary_resized(pixels, width, height, filter, backend))
    return digest.hexdigest()


def canary_resized(pixels: Pixels, width: int, height: int, filter: Filter, backend: Backend) -> bytes:
    """The resized pixels' bytes; none for a filter that this machine's PyTorch does not have."""
    try:
        return resize(pixels, width, height, filter, backend).tobytes()
    except RecipeError:
        return b""


kept_canaries = functools.cache(canaries)
"""`canaries`, run once a process: what loaders compare."""
