"""Small pictures, of which `zvl.images.pixels.canaries` hashes what this machine makes.

72x56 and 36x28 pixels of colour waves with an edge and grain, written once by Pillow: a JPEG with 4:2:0 subsampling, a
gray progressive one, a PNG with alpha and a lossy WebP. Changing a byte here changes every pixel fingerprint.
"""

from __future__ import annotations

import functools
import struct
from base64 import b64decode

__all__ = ["canary_images", "wide_profile", "with_profile"]

TEXTS = {
    "jpeg": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAoHBwgHBgoICAgLCgoLDhgQDg0NDh0VFhEYIx8lJCIfIiEmKzcvJik0KSEiMEEx"
        "NDk7Pj4+JS5ESUM8SDc9Pjv/2wBDAQoLCw4NDhwQEBw7KCIoOzs7Ozs7Ozs7Ozs7Ozs7Ozs7Ozs7Ozs7Ozs7Ozs7Ozs7Ozs7"
        "Ozs7Ozs7Ozs7Ozs7Ozv/wAARCAA4AEgDASIAAhEBAxEB/8QAHAAAAgMBAQEBAAAAAAAAAAAAAAUBAwQGAgcI/8QAJhAAAQQC"
        "AgEEAgMAAAAAAAAAAQACAxEEIRIxQQUTUWGRsXGBwf/EABoBAAMBAQEBAAAAAAAAAAAAAAQFBgIDAQj/xAAhEQACAgICAwEB"
        "AQAAAAAAAAABAgADBBEhMQUSMlETFP/aAAwDAQACEQMRAD8A4jDdVFOMaVvEDS5+KXj4WyLKo9oO2stLH/YKhox+2QeCodR6"
        "7S6HJvzr9rfCQ6rO/KBZPWKcvIFw0Ie2b0FfBE7ldLRFj8ux9pji4Je4HfEdlcwWsYIg2TJjIwGY+0n0/Hc8i9NHa6rC4saG"
        "iv4SyCARtpooLbFJxrafUYaUJxyx7MA5p7j/AB5RX+ISuLK41vr5QsNSSZk+SUcT4A91Orteo3kd9qCzkrWQny1ekjUsM5HL"
        "cTXivOk9wjdaSbGhIqgbCe+nQueRZpo7KCetrW9EGyYFSGU7aPPToPdIPQHlP4omtbTRQH9JRhyCNgaAKCaR5ArtNaMFcZeO"
        "WPZhr3IV5mhzPj9qtxUiTqijhfz+F3A13JPyWm+ZDHuBGzSFbHAbFDSFksNyNsrs9p8Wx2B5HhMocUEbWLDo7T7CiEleGjsp"
        "Uy2WOEQbJn0EtCMu2kY2E5xBNho7KZMaIhTRQ+lawNa2migPC8OFg7VLh4i46/rHsyf8igTkS9k9efta4cm/NJS4n8LRBYPx"
        "pFPWCJFZGU6toR/BNyoWmmPHy7F6SPCJsWdroMHdWlOQPXqeUn+v1NsONYFDtC3QAUBoISprDuFnDrM/PGECavQHZT6CcMbQ"
        "+OkIVV4/GrSgWAct3Lq2914E2smvd2rQeXVIQu7ACJ8ixn7lzIOQ6WqDFQhCOx1J++hDzGeNEW14TbFeGgfSEJdbzA/j5jOH"
        "I4jzpCEJcyDcwb3/AGf/2Q=="
    ),
    "jpeg gray progressive": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdB"
        "RkxOUlNSMj5aYVpQYEpRUk//wgALCAA4AEgBAREA/8QAGgAAAgMBAQAAAAAAAAAAAAAAAwQBAgYABf/aAAgBAQAAAAHymSdF"
        "2vQZxRCmMZkpcdxm3XLV7K2M28xMzlzmPch2DZFtmK3ZcbxbZbWIdk//xAAZEAEBAQEBAQAAAAAAAAAAAAABAAIRECD/2gAI"
        "AQEAAQUCzD8FgsxDDDEFnMEQ+lmwdg+eQWCzd95EEZ87DDEFmz8FmzFmG75yCIhv/8QAFBABAAAAAAAAAAAAAAAAAAAAUP/a"
        "AAgBAQAGPwJ//8QAGxAAAwEBAAMAAAAAAAAAAAAAAAERECEgYXH/2gAIAQEAAT8hHIuQQoc8HIavWNX6IIbFsTH2EJcIMTJR"
        "YqfBohCkEFuNhKC0y6loh+bZCwsKj4//2gAIAQEAAAAQALuce0BKKfv/xAAeEAADAAMBAQEBAQAAAAAAAAAAAREhMUFRYRBx"
        "gf/aAAgBAQABPxB4KwwJRxl3Q+0ey4ukIkE/gj0t/D2ZThAfGxcksEZkjMmQctmoyMZ6XpAYIfgYYnsYO6hymMjmzjpi0JSI"
        "X6LWMyPPQhi6yPbNi2xSxKL4fc+kKQrtUslCRM8S2xElEokZDbLTGdzs5oqiEb3hdEpEW6J3wqtfm9Ev8JLp/9k="
    ),
    "png": (
        "iVBORw0KGgoAAAANSUhEUgAAACQAAAAcCAYAAAAJKR1YAAACBklEQVR42r1Xy7HkMAjsdTmIDsNhbBgvDIfcYbyDRxZCCDF7"
        "WFd5xtYHUAMN/nODIPDeIEh8rmcKACCCas/mvT23cbsHRt7nJvkXxA/Ipu5Z1ZQedq/c/zAu80yUr3HpBeAHACcdbeBYjEPm"
        "9kZqoZTRuNr4BfDuEuT08Xk+vRIGCidtMliPr9Pc83OBuN85uX1W3znIoDNG87G1dcs4QVwA7nkhZ3mMEKqgMiAQbHmXyrrJ"
        "HUyzfNEgtEIkMo7ZNE3M4I4PGgFA47KdS7xSCS83MAhi0Lhpk8Ve3+k3KDFGcRiMY8YYuz4K4MjAAyPZAS4NteEoa9wQwJZs"
        "bdwY+RHNHB5TJcS4zDD11HasvzTOygsRmoJT+IKODTJmH1Xlh8SgbHMszwVwr4Rp8PZsTIJ65JDKiS4IrTzro1S1rFXMZ2dk"
        "TIY0A2RU9K+SkqMVQhUP8iW9RyyrIcd9CJxb5k1jJnBSwdVMjDtRbCUUBXAUJyzmSCWG2swVShgZeEmWik+vxYGZuYzW6kFw"
        "r9ra1aeCMZk3jrgEzMhUu1ZpLjlZa8MVMTIwiq3Tezs3BgZvevFV3dNMkvQIMcsmfsM4X15auKyfNM6m/3Eds5G90/vXrw66"
        "WGQCio+1M6pNK1jFuJ1VgVxtfSx+dSTGZA2/q0cXawaKcd08t8jUS1P/MAxQiDZECfILj+jKgMBHfgAAAAAASUVORK5CYII="
    ),
    "webp": (
        "UklGRg4CAABXRUJQVlA4IAICAACQEACdASpIADgAPrVKn0onJCKhrNYNUOAWiWwAtRrCRaexeZjZf8JvAc6eZIyAbyUDfnHV"
        "fNASMUVrTuaHvOP1qf/X6ULeTx3zFmZuFcaB/8H/GghGSR1qg7A0Euew3m2bbIarJ2w+nF09H4qevXdgvpKb4MnVLWR3kKpj"
        "+HuSUxDSMUOf0BgU/ySKMsAA/viMU97/J/Ynj7HGjhPnf/pTt+VxT0a1uySk+HsGr2D2qrnyFUihBfLA3sv38430qKUBznDj"
        "oJ9StPSF35SAqOk1cvZSmlAcckbo+tGPksnMZv4Wc2hwWVCupw4QIPseq1A0wBJuYmUOC6QFKD+9lz2JVSvr9Z8bUf4TkajX"
        "Z/iXTj2jxMM5NgeT3zww2yk0lz6uiKt6BT3JEDyCXkdX3a57XIFGFS0NBwDPrlODnH1GYVg0UVZYOrqBnk+f/QJ0mrdHsoUs"
        "hcDTGxZBKth3phHEywvhmCAkeTom6G3ztRCwCY6C9Ild4N8RO3Irk2RqRWUtS4HmVnG2A9DS2OGiIoGSNmhy7lbUiaoDs+Ez"
        "uEQUf0oa+kdTF2DTtpjkr0NMsRmXwjGwj5pms70Oo6yr8S6dEjqEkQFynuLcG9sNmfN2ZpNhWMN7lrZDaxFauibToMI5RtN4"
        "f0t1bBrUy3p4E6ofzijPmzVpSHzQb/Q3BRu1fAAA"
    ),
}


@functools.cache
def canary_images() -> dict[str, bytes]:
    """Name to file, in a fixed order. The last is the first with a colour profile, for ``icc="srgb"``."""
    files = {name: b64decode(text) for name, text in TEXTS.items()}
    return {**files, "jpeg profile": with_profile(files["jpeg"], wide_profile())}


def with_profile(jpeg: bytes, profile: bytes) -> bytes:
    """A JPEG with a colour profile of less than 64 kB in a segment of its own."""
    body = b"ICC_PROFILE\0\1\1" + profile
    return jpeg[:2] + b"\xff\xe2" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def wide_profile() -> bytes:
    """A colour profile with the primaries of Adobe RGB (1998) and a gamma of 2.2; source: ICC.1:2001-04."""
    points = {
        b"wtpt": (0.9642, 1.0, 0.8249),
        b"rXYZ": (0.6097, 0.3111, 0.0195),
        b"gXYZ": (0.2053, 0.6257, 0.0609),
        b"bXYZ": (0.1492, 0.0632, 0.7446),
    }
    tags = {name: b"XYZ \0\0\0\0" + b"".join(fixed(value) for value in xyz) for name, xyz in points.items()}
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), b"curv\0\0\0\0" + struct.pack(">IHxx", 1, round(2.2 * 256)))
    tags |= {b"desc": b"desc\0\0\0\0\0\0\0\5wide\0" + bytes(79), b"cprt": b"text\0\0\0\0none\0\0\0\0"}
    table, bodies, place = struct.pack(">I", len(tags)), b"", 132 + 12 * len(tags)
    for name, body in tags.items():
        table += struct.pack(">4sII", name, place + len(bodies), len(body))
        bodies += body
    header = struct.pack(">I4sI4s4s4s", place + len(bodies), bytes(4), 0x02100000, b"mntr", b"RGB ", b"XYZ ")
    header += struct.pack(">6H4s", 2026, 1, 1, 0, 0, 0, b"acsp") + bytes(28)
    header += b"".join(fixed(value) for value in points[b"wtpt"]) + bytes(48)
    return header + table + bodies


def fixed(value: float) -> bytes:
    """A number as ICC writes it: 32 bits, 16 of them behind the point."""
    return struct.pack(">i", round(value * 65536))
