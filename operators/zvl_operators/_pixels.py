"""What the operators that decode share: errors that say which image of which sample, and operators on pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import numpy as np

from zvl import registry
from zvl.errors import BadData, OperatorError, RecipeError, isolate
from zvl.hashing import Rng, hash_ints, hash_text
from zvl.image import Image
from zvl.images import pixels as kernels
from zvl.images.options import DecodeOptions
from zvl.operator import Map, Operator, RandomMap, Sample, check_operator_class
from zvl.protocols import Pixels, Resize

__all__ = ["apply_pixel_operators", "check_codec", "check_pixel_operators", "decode", "probed", "resizer"]


def check_codec(codec: str) -> None:
    """Refuse a codec that is not installed; "auto" always is."""
    if codec != "auto":
        registry.load("codecs", codec)


def probed(sample: Sample) -> Sequence[Image]:
    """The sample's `images`, none if it has no such field; RecipeError unless `probe_images` came before."""
    images: Sequence[Image] = sample.get("images") or ()
    for image in images:
        if not isinstance(image, Image):
            raise RecipeError(
                f"expected 'images' of zvl.image.Image, got {type(image).__name__}: put .probe_images(processor) before"
            )
    return images


def decode(image: Image, codec: str, options: DecodeOptions, key: str, index: int, reuse: bool = False) -> Pixels:
    """Decode to uint8 (H, W, 3), `image.info.size`, or with `jpeg_scale` at least the planned size.

    With `reuse`, which is faster, the pixels last only until this thread decodes its next picture.

    BadData names the image's place in its sample, and the sample, and has the sha256 of the bytes, "" if they are gone.
    """
    data = b""
    try:
        data = image.read()
        return kernels.decode(data, image.info, codec, options, (image.plan.width, image.plan.height), reuse)
    except BadData as error:
        sha256 = hashlib.sha256(data).hexdigest() if data else ""
        raise BadData(error.reason, f"image {index} of sample {key!r}: {error.detail}", sha256) from error


def resizer(backend: kernels.Backend) -> Resize:
    """The `Resize` that a layout calls, with the processor's backend ("torch" or "pillow") filled in."""
    return partial(kernels.resize, backend=backend)


def check_pixel_operators(operators: Sequence[Operator]) -> tuple[Map | RandomMap, ...]:
    """Those operators as a tuple; RecipeError unless all are Maps or RandomMaps."""
    checked: list[Map | RandomMap] = []
    for operator in operators:
        check_operator_class(operator)
        if not isinstance(operator, Map | RandomMap):
            raise RecipeError(
                f"patchify(pixels=...): expected Maps and RandomMaps, got {operator.name!r}, which is neither: the "
                "number of images is fixed by then; put it before pack"
            )
        checked.append(operator)
    return tuple(checked)


def apply_pixel_operators(pixels: Pixels, operators: Sequence[Map | RandomMap], key: str, seed: int) -> Pixels:
    """Run `operators` on ``{"__key__": key, "pixels": uint8 (H, W, 3)}``, in order; shape and dtype must stay.

    The rng of a RandomMap depends on `seed`, `key`, the operator's name and how often that name came before.
    """
    sample: Sample = {"__key__": key, "pixels": pixels}
    names: list[str] = []
    for operator in operators:
        with isolate(partial(_failed, operator.name, key)):
            if isinstance(operator, RandomMap):
                occurrence = names.count(operator.name)
                rng = Rng(hash_ints(seed, hash_text(key), hash_text(operator.name), occurrence))
                sample = operator(sample, rng)
            else:
                sample = operator(sample)
        _check_kept(sample, pixels, operator.name, key)
        names.append(operator.name)
    kept: Pixels = sample["pixels"]
    return kept


def _failed(name: str, key: str, error: Exception) -> OperatorError:
    return OperatorError(name, key, f"{type(error).__name__}: {error}")


def _check_kept(sample: Sample, before: Pixels, name: str, key: str) -> None:
    after = sample.get("pixels") if isinstance(sample, dict) else None
    if isinstance(after, np.ndarray) and after.dtype == np.uint8 and after.shape == before.shape:
        return
    got = f"{after.dtype} {after.shape}" if isinstance(after, np.ndarray) else type(after).__name__
    raise OperatorError(
        name, key, f"expected 'pixels' as uint8 {before.shape}, got {got}; operators on pixels keep shape and dtype"
    )
