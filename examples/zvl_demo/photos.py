"""The photos that the demo data is cut from, with what a person sees in each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zvl_demo.assets import fetch

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["PHOTOS", "OpenPhoto", "Photo", "open_photo"]

SIGAL = "tests/sample/pictures"
NASA = f"{SIGAL}/nomedia"


@dataclass(frozen=True)
class Photo:
    """A picture file in one of the pinned packages."""

    package: str
    path: str
    """Below the package's folder."""
    subject: str
    shrink: int = 1
    """Divide both sides by this when opening (scanned line drawings need it to turn gray)."""

    @property
    def name(self) -> str:
        """The file's name without its folders."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class OpenPhoto:
    """A photo's pixels (mode RGB or L) and its caption, empty where the package has none."""

    photo: Photo
    image: Image.Image
    caption: str


PHOTOS = (
    Photo("imgaug", "imgaug/quokka.jpg", "a photo of a quokka that stands upright and looks into the camera"),
    Photo("sigal", f"{SIGAL}/dir1/test1/11.jpg", "a photo of a frozen waterfall on a cliff with patches of snow"),
    Photo("sigal", f"{SIGAL}/dir1/test3/3.jpg", "a photo of a snowy mountain peak under a cloudy sky"),
    Photo(
        "sigal",
        f"{SIGAL}/dir2/Hubble Interacting Galaxy NGC 5257.jpg",
        "a photo of two galaxies that pull at each other",
    ),
    Photo("sigal", f"{SIGAL}/dir2/Hubble ultra deep field.jpg", "a photo of thousands of distant galaxies on black"),
    Photo("sigal", f"{SIGAL}/dir2/KeckObservatory20071020.jpg", "a photo of two open telescope domes under a pink sky"),
    Photo(
        "sigal",
        f"{SIGAL}/dir2/m57_the_ring_nebula-587px.jpg",
        "a photo of a ring nebula, blue inside and red at the rim",
    ),
    Photo("sigal", f"{SIGAL}/dir1/test1/CMB_Timeline300_no_WMAP.jpg", "a diagram of the universe since the big bang"),
    Photo("sigal", f"{SIGAL}/iptcTest/1.jpg", "a photo of a wide road with a few cars under a blue sky"),
    Photo(
        "sigal",
        f"{SIGAL}/webp/_MG_7805_lossy80.webp",
        "a photo of a cork, straps, earplugs and a red cord on grey cloth",
    ),
    Photo("sigal", f"{SIGAL}/webp/_MG_7808_lossy80.webp", "a photo of straps, a cork and a red cord on dark cloth"),
    Photo(
        "sigal", f"{NASA}/created/should_be_created.jpg", "a photo of a spacecraft that drifts in front of a dark sky"
    ),
    Photo(
        "sigal",
        f"{NASA}/created/ignored/should_be_ignored2.jpg",
        "a photo of an astronaut in a helmet, seen from the side",
    ),
    Photo("sigal", f"{NASA}/created/should_be_ignored3.jpg", "a photo of an astronaut in a dark cabin"),
    Photo(
        "sigal",
        f"{NASA}/ignored/recursively_ignored/should_be_ignored.jpg",
        "a photo of clouds over the Earth, from orbit",
    ),
    Photo("sigal", f"{NASA}/ignored/should_be_ignored_1.jpg", "a photo of an astronaut in a narrow, bright cabin"),
    Photo(
        "sorl-thumbnail", "tests/data/icc_profile_test.jpg", "a photo of the heart of a pink flower with yellow stamens"
    ),
    Photo("piexif", "tests/images/large.jpg", "a photo of a street that leads to a church with a green dome"),
    Photo("filetype", "tests/fixtures/sample.jpg", "a photo of carved pumpkins that glow in the dark"),
    Photo("filetype", "tests/fixtures/sample.jpx", "the front page of an old Danish police gazette"),
    Photo("filetype", "tests/fixtures/sample.png", "a photo of a yellow rubber duck"),
    Photo("filetype", "tests/fixtures/sample.tif", "a line drawing of an oil platform", shrink=2),
)


def open_photo(photo: Photo, cache: Path | None = None) -> OpenPhoto:
    """Fetch, decode and caption a photo. Transparency becomes white; nothing is enlarged."""
    from PIL import Image

    path = fetch(photo.package, cache) / photo.path
    with Image.open(path) as stored:
        if stored.mode == "1":
            image = stored.convert("L").reduce(photo.shrink)
        elif stored.mode == "RGBA":
            image = Image.new("RGB", stored.size, "white")
            image.paste(stored, mask=stored)
        else:
            image = stored.convert("RGB")
    return OpenPhoto(photo, image, caption_of(path))


def caption_of(path: Path) -> str:
    """The caption of a picture in sigal's form: its own ``.md`` file, or its line in the folder's ``index.md``."""
    own = path.with_suffix(".md")
    if own.is_file():
        _, _, body = own.read_text(encoding="utf-8").partition("\n\n")
        return plain(body)
    index = path.with_name("index.md")
    if not index.is_file():
        return ""
    item = re.compile(r"^- \*" + re.escape(path.stem) + r"(?:\.\w+)?\* : (.+?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
    match = item.search(index.read_text(encoding="utf-8"))
    return plain(match[1]) if match else ""


def plain(markdown: str) -> str:
    """Markdown without tags, emphasis and line breaks.

    >>> plain("A *red*\\n<b>dome</b>.")
    'A red dome.'
    """
    return " ".join(re.sub(r"<[^>]*>|[*`]", "", markdown).split())
