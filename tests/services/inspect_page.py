"""The page of `zvl inspect` in a real browser: run by `make test-services`, which installs it. Nothing is skipped.

With SHOTS naming a folder, screenshots are kept there.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from services.chromium import Chromium
from zvl.cli.demo_recipe import demo_recipe
from zvl.images.header import probe
from zvl.images.pixels import decode, resize
from zvl.inspect import Pack, rebuild, take_step, write_page
from zvl.inspect.rebuild import Picture, Token
from zvl.ledger import key_parts
from zvl.pipeline import Pipeline
from zvl.protocols import Pixels
from zvl.recipe import load_recipe

STEP, LANE = 1, 4


class Shown(NamedTuple):
    """A page, and what it was made of."""

    path: Path
    pack: Pack
    pipeline: Pipeline


@pytest.fixture(scope="module")
def shown(qwen_tokenizer: Path, demo_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A pack of 4,096 tokens of the demo."""
    pipeline = load_recipe(demo_recipe(qwen_tokenizer.parent))
    taken = take_step(pipeline, STEP, dp_rank=LANE, dp_size=pipeline.lanes)
    (pack,) = (pack for batch in taken.batches for pack in rebuild(batch, pipeline.processor))
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(path, f"demo, step {STEP}, lane {LANE}", [pack], taken.dropped)
    return Shown(path, pack, pipeline)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    return Path(os.environ.get("SHOTS") or tmp_path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_complains_and_nothing_is_asked_for(
    width: int, scheme: str, shown: Shown, browser: Chromium, shots: Path
) -> None:
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(shown.path, width, 1000, scheme)
    browser.screenshot(shots / f"inspect-{width}-{scheme}.png")
    assert (shots / f"inspect-{width}-{scheme}.png").stat().st_size > 10_000
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [shown.path.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(22, 22, 20)") is (scheme == "dark")


def test_a_console_error_would_be_seen(browser: Chromium, tmp_path: Path) -> None:
    browser.complaints.clear()
    (tmp_path / "bad.html").write_text("<script>console.error('seen')</script>")
    browser.open(tmp_path / "bad.html")
    assert browser.complaints
    browser.complaints.clear()


def test_the_page_is_small(shown: Shown) -> None:
    assert shown.pack.length == 4096
    assert shown.path.stat().st_size < 5e6


def test_every_image_is_the_photo_it_came_from(shown: Shown, browser: Chromium) -> None:
    """As the browser decodes it: its natural size is the planned one, and its pixels are close to the source's."""
    browser.open(shown.path)
    pictures = [(sample.key, picture) for sample in shown.pack.samples for picture in sample.pictures]
    assert browser.evaluate("document.images.length") == len(pictures) > 3
    sources = {key: originals(shown.pipeline, key) for key in {key for key, _ in pictures}}
    for number, (key, picture) in enumerate(pictures):
        seen = pixels_of(browser, number)
        assert seen.shape == picture.pixels[0].shape
        source = sources[key].pop(0)
        assert psnr(seen, resize(source, seen.shape[1], seen.shape[0], "bicubic", "pillow")) > 30
        assert psnr(seen[:, ::-1], seen) < 30


def originals(pipeline: Pipeline, key: str) -> list[Pixels]:
    """The pictures of the row that `key` names, in full, read again."""
    place = key_parts(key)
    dataset = pipeline.source.datasets[pipeline.source.names.index(place["dataset"])]
    (row,) = dataset.read(list(dataset.shards).index(place["shard"]), [place["row"]])
    assert isinstance(row, dict)
    return [decode(data, probe(data)) for data in row["images"]]


def pixels_of(browser: Chromium, number: int) -> Pixels:
    """An image's pixels in its natural size, as the browser draws them."""
    script = """(() => {
        const image = document.images[%d], canvas = document.createElement("canvas");
        canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
        canvas.getContext("2d").drawImage(image, 0, 0);
        return canvas.toDataURL("image/png").split(",")[1];
    })()"""
    data = base64.b64decode(browser.evaluate(script % number))
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def psnr(one: Pixels, other: Pixels) -> float:
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def first_picture(pack: Pack) -> Picture:
    return next(picture for sample in pack.samples for picture in sample.pictures)


def place_of(browser: Chromium, selector: str) -> dict[str, Any]:
    browser.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'nearest'}})")
    found: dict[str, Any] = browser.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
    return found


def readout(browser: Chromium) -> str:
    text: str = browser.evaluate("document.getElementById('readout').textContent")
    return text


def test_pointing_at_an_image_tells_its_grid(shown: Shown, browser: Chromium, shots: Path) -> None:
    browser.open(shown.path, 1000, 1060)
    picture = first_picture(shown.pack)
    assert picture.grid is not None
    rows, columns = picture.grid
    area = place_of(browser, "figure .shot")
    row, column = rows // 2, columns // 3
    browser.point(
        area["left"] + (column + 0.5) * area["width"] / columns, area["top"] + (row + 0.5) * area["height"] / rows
    )
    place = row * columns + column
    time, height, width = picture.positions[:, place].tolist()
    assert readout(browser) == (
        f"token {picture.places[place]}  t {time}  h {height}  w {width}  "
        f"row {row + 1} of {rows}, column {column + 1} of {columns}"
    )
    browser.screenshot(shots / "inspect-pointing.png")


def test_pointing_at_a_word_tells_its_token(shown: Shown, browser: Chromium) -> None:
    browser.open(shown.path)
    token = next(piece for sample in shown.pack.samples for piece in sample.pieces if wanted(piece))
    assert isinstance(token, Token)
    area = place_of(browser, f'b[data-i="{token.place}"]')
    browser.point(area["left"] + area["width"] / 2, area["top"] + area["height"] / 2)
    time, height, width = token.position
    assert readout(browser) == f"token {token.place}  id {token.ids[0]}  t {time}  h {height}  w {width}  carries loss"


def wanted(piece: Token | Picture) -> bool:
    return isinstance(piece, Token) and piece.loss and len(piece.ids) == 1 and len(piece.text.strip()) > 3


def test_the_keyboard_reaches_everything(shown: Shown, browser: Chromium) -> None:
    """Tab stops at every sample of the strip, every text and every image; arrows move within, Escape leaves."""
    browser.open(shown.path)
    samples = len(shown.pack.samples)
    images = sum(len(sample.pictures) for sample in shown.pack.samples)
    stops = []
    for _ in range(2 * samples + images):
        browser.press("Tab")
        stops.append(browser.evaluate("document.activeElement.className || document.activeElement.tagName"))
    assert sorted(stops) == sorted(["A"] * samples + ["words"] * samples + ["FIGURE"] * images)
    browser.evaluate("document.querySelector('figure').focus()")
    picture = first_picture(shown.pack)
    assert readout(browser).startswith(f"token {picture.places[0]} ")
    browser.press("ArrowRight")
    assert readout(browser).startswith(f"token {picture.places[1]} ")
    assert picture.grid is not None
    browser.press("ArrowDown")
    assert readout(browser).startswith(f"token {picture.places[picture.grid[1] + 1]} ")
    browser.evaluate("document.querySelector('.words').focus()")
    browser.press("ArrowRight")
    assert readout(browser).startswith("token 0 ")
    browser.press("Escape")
    assert readout(browser) == ""
