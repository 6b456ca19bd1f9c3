"""What a sidecar holds of a header belongs to the sidecar's version."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from zvl import sidecar
from zvl.errors import BadData
from zvl.images.header import read_header


def plain_headers() -> list[bytes]:
    """The beginnings of files of every kind that zvl parses by itself, made of bytes alone."""
    webp = b"RIFF\x40\0\0\0WEBP"
    frame = b"\xff\xc0\0\x11\x08" + (300).to_bytes(2, "big") + (400).to_bytes(2, "big") + b"\x03" + bytes(9)
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    return [
        b"\xff\xd8" + frame + b"\xff\xda",
        b"\xff\xd8\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + frame + b"\xff\xda",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x01\x90\0\0\x01\x2c\x08\x02\0\0\0\xaa\xbb\xcc\xdd\0\0\0\0IDAT",
        b"GIF89a\x90\x01\x2c\x01\0\0\0\x2c\0\0\0\0\x90\x01\x2c\x01\0\0",
        b"BM" + bytes(12) + b"\x28\0\0\0\x90\x01\0\0\x2c\x01\0\0\x01\0\x18\0" + bytes(30),
        webp + b"VP8 \x20\0\0\0\0\0\0\x9d\x01\x2a\x90\x01\x2c\x01" + bytes(20),
        webp + b"VP8L\x20\0\0\0\x2f\x8f\xc1\x4a\0" + bytes(20),
        webp + b"VP8X\x0a\0\0\0\x10\0\0\0\x8f\x01\0\x2b\x01\0" + bytes(20),
    ]


def test_what_sidecars_hold_is_pinned() -> None:
    # Who changes what a header reads as must raise sidecar.VERSION: else plans with and without a sidecar differ.
    found = []
    for data in plain_headers():
        for cut in [*range(16, len(data), 5), len(data)]:
            try:
                found.append([*dataclasses.astuple(read_header(data[:cut]))])
            except BadData as error:
                found.append([error.reason, error.detail])
    assert sum(entry[1:3] == [400, 300] for entry in found) >= 8
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()
    assert (sidecar.VERSION, digest) == (1, "e2afd0bf0049ad62a5447bdaf9278f914ef3b374052800fd5331f757a9f76be4")
