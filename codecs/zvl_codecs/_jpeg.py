"""Whether a JPEG has all of its pixels: a question that Pillow does not answer."""

from __future__ import annotations

import re

from zvl.errors import BadData

__all__ = ["check_complete"]

SHORT = re.compile(r"premature end of data segment|found marker 0xd9 instead of RST")
"""What libjpeg-turbo says of a scan that ends before the last row; 0xd9 is the end of the image."""


def check_complete(data: bytes) -> None:
    """Raise BadData "decode" where the first fault that libjpeg-turbo finds is a scan that ends too soon.

    So it is where the header claims more rows than there are, and often where damage inside the scan swallowed some.
    Pillow fills what is missing with gray. Other faults, and a second one, are left to it.
    """
    import simplejpeg

    try:
        four = simplejpeg.decode_jpeg_header(data)[2] in ("CMYK", "YCCK")
        simplejpeg.decode_jpeg(data, "CMYK" if four else "RGB", min_factor=8)
    except ValueError as error:
        if SHORT.search(str(error)):
            raise BadData("decode", f"the picture's data end before its last row ({error})") from error
