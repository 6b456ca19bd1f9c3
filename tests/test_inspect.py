"""`zvl inspect`: what is rebuilt from a batch, and what the page makes of it."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import zvl
from reference.families import families
from reference.family import FamilyTests
from reference.parts import load_tokenizer, template_text
from reference.pictures import png
from zvl.cli import app
from zvl.images.header import probe
from zvl.images.pixels import decode, resize
from zvl.inspect import Pack, rebuild, take_step, write_page
from zvl.inspect.page import BUDGET, data_url, page
from zvl.inspect.rebuild import Picture, Token
from zvl.inspect.sheet import sheet
from zvl.pipeline import Pipeline
from zvl.processor import Processor
from zvl.protocols import Pixels
from zvl_demo.tokenizer import small_tokenizer

FAMILIES = {name: classes[0] for name, classes in families().items()}
HOSTILE = '<script>alert("1")</script> & <img src=x onerror=alert(2)>'


def chat(question: str, answer: str, images: int = 1) -> list[dict[str, Any]]:
    parts: list[dict[str, str]] = [{"type": "image"}] * images
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": question}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


def processor_for(cls: type[FamilyTests], folder: Path) -> Processor:
    tokens = load_tokenizer(small_tokenizer(folder.parent), tuple(cls.image_tokens))
    settings = cls.settings if cls.tiny_settings is None else cls.tiny_settings
    return Processor(cls.layout, tokens, chat_template=template_text(folder, cls.template), **settings)


def qwen(folder: Path, **settings: Any) -> Processor:
    template = (folder.parent / "qwen2_5_vl/chat_template.jinja").read_text()
    return Processor("qwen2_5_vl", small_tokenizer(folder.parent), chat_template=template, **settings)


def packed(
    rows: list[dict[str, Any]], processor: Processor, max_tokens: int = 1024, mask: str = "raise", dummy: bool = False
) -> Pipeline:
    pack: dict[str, Any] = {"dummy_image": True, "processor": processor} if dummy else {}
    source = zvl.Mixture({"rows": zvl.from_rows(rows)}, passes={"rows": zvl.Once()}, seed=3)
    pipeline = Pipeline(source, lanes=1, flush_every=64).probe_images(processor, on_error="drop")
    if processor.layout.image_token:
        pipeline = pipeline.tokenize_chat(processor).pack(max_tokens=max_tokens, **pack)
    return pipeline.batch(1).patchify(processor, on_error=mask)


def packs(pipeline: Pipeline) -> list[Pack]:
    processor = pipeline.processor
    with pipeline.loader(workers=1) as loader:
        return [pack for batch in loader for pack in rebuild(batch, processor)]


def psnr(one: Pixels, other: Pixels) -> float:
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


@pytest.mark.parametrize("layout", sorted(FAMILIES))
def test_every_layout_shows_its_photos(layout: str, photos: dict[str, bytes], qwen_tokenizer: Path) -> None:
    """Through a whole pipeline: every image of every sample looks like its photo, and text and loss are the batch's."""
    processor = processor_for(FAMILIES[layout], qwen_tokenizer)
    chosen = ("quokka", "mountain")
    rows = [{"images": [photos[name]], "messages": chat(f"What is {name}?", "Look at it.")} for name in chosen]
    found = packs(packed(rows, processor, max_tokens=4096))
    samples = {sample.key: sample for pack in found for sample in pack.samples}
    assert len(samples) == 2
    for row, name in enumerate(chosen):
        (key,) = (key for key in samples if f"#{row}@" in key)
        (picture,) = samples[key].pictures
        source = decode(photos[name], probe(photos[name]))
        for pixels in picture.pixels:
            assert psnr(pixels, like(source, pixels, layout)) > 25
        if processor.layout.image_token:
            text = "".join(piece.text for piece in samples[key].pieces if isinstance(piece, Token))
            assert f"What is {name}?" in text
            assert samples[key].loss_tokens > 0
            assert sum(length for kind, length in samples[key].runs if kind == "image") == picture.places.size


def like(source: Pixels, pixels: Pixels, layout: str) -> Pixels:
    """The photo in the size of what was rebuilt; LLaVA cuts out the middle first."""
    height, width, _ = source.shape
    if layout == "llava":
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        source = source[top : top + side, left : left + side].copy()
    return resize(source, pixels.shape[1], pixels.shape[0], "bicubic", "pillow")


@pytest.fixture
def two(photos: dict[str, bytes], qwen_tokenizer: Path) -> Pipeline:
    rows = [
        {"images": [photos["quokka"]], "messages": chat("Which animal? \U0001f998 \u4f60\u597d", "A quokka, smiling.")},
        {"images": [photos["road"], photos["domes"]], "messages": chat(HOSTILE, f"No: {HOSTILE}", 2)},
    ]
    return packed(rows, qwen(qwen_tokenizer, max_pixels=60_000))


def test_text_loss_and_positions_are_those_of_the_batch(two: Pipeline) -> None:
    processor = two.processor
    with two.loader(workers=1) as loader:
        batch = next(loader)
    (pack,) = rebuild(batch, processor)
    assert pack.padding == int((batch["segment_ids"] == 0).sum())
    assert sum(sample.loss_tokens for sample in pack.samples) == int(batch["num_loss_tokens"])
    backend = processor.tokenizer.backend_tokenizer
    for sample in pack.samples:
        tokens = [piece for piece in sample.pieces if isinstance(piece, Token)]
        for token in tokens:
            ids = batch["input_ids"][0, token.place : token.place + len(token.ids)].tolist()
            assert list(token.ids) == ids
            assert list(token.position) == batch["position_ids"][:, 0, token.place].tolist()
            labels = batch["labels"][0, token.place : token.place + len(token.ids)].tolist()
            assert list(token.labels) == labels
        kept = [number for token in tokens for number in token.ids]
        assert "".join(token.text for token in tokens) == backend.decode(kept, skip_special_tokens=False)
        assert not any("\ufffd" in token.text for token in tokens)
        covered = len(kept) + sum(picture.places.size for picture in sample.pictures)
        assert covered == sample.stop - sample.start


def test_the_grid_of_an_image_is_that_of_its_positions(two: Pipeline) -> None:
    (pack,) = packs(two)
    for sample in pack.samples:
        for picture in sample.pictures:
            assert picture.grid is not None
            height, width, _ = picture.pixels[0].shape
            assert picture.grid == (height // 28, width // 28)
            assert picture.positions[:, 0].tolist() == [picture.positions[0, 0]] * 3
    picture = pack.samples[0].pictures[0]
    bent = Picture(0, picture.pixels, 1, picture.places, picture.positions[:, ::-1])
    assert bent.grid is None
    assert Picture(0, [], 1, picture.places, picture.positions[:1]).grid is None


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text of `.words`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.elements if name == tag]


def test_texts_are_data(two: Pipeline) -> None:
    text = page(f"title {HOSTILE}", packs(two), [{"key": HOSTILE, "operator": "x", "reason": "y", "detail": HOSTILE}])
    seen = Page(text)
    assert len(seen.all("script")) == 1
    assert all((image["src"] or "").startswith("data:image/") for image in seen.all("img"))
    assert not any(name.startswith("on") for _, found in seen.elements for name in found)
    body = unescape(re.sub("<[^>]*>", "", text))
    assert body.count(HOSTILE) >= 5


def test_the_page_asks_for_nothing(two: Pipeline) -> None:
    seen = Page(page("title", packs(two)))
    targets = [found.get(name) for _, found in seen.elements for name in ("src", "href") if found.get(name)]
    assert targets
    assert all((target or "").startswith(("data:", "#")) for target in targets)
    (policy,) = (found["content"] for found in seen.all("meta") if "http-equiv" in found)
    assert (policy or "").startswith("default-src 'none'; img-src data:;")


def test_images_are_in_their_planned_size(two: Pipeline) -> None:
    found = packs(two)
    images = Page(page("title", found)).all("img")
    pictures = [pixels for pack in found for sample in pack.samples for own in sample.pictures for pixels in own.pixels]
    sizes = [(int(image["width"] or 0), int(image["height"] or 0)) for image in images]
    assert sizes == [(pixels.shape[1], pixels.shape[0]) for pixels in pictures]


def test_pages_of_noise_stay_below_five_megabytes(qwen_tokenizer: Path) -> None:
    """4,096 tokens of what compresses worst, and pixels of tiles, which have many for each token."""
    noise = np.random.default_rng(1).integers(0, 256, (1_600, 1_800, 3), dtype=np.uint8)
    rows = [{"images": [png(noise)], "messages": chat("What?", "Noise.")}]
    (pack,) = packs(packed(rows, qwen(qwen_tokenizer), max_tokens=4096))
    assert sum(picture.places.size for picture in pack.samples[0].pictures) > 3_600
    assert len(page("noise", [pack]).encode()) < 5e6
    tile = np.ascontiguousarray(noise[:512, :512])
    assert 64 * len(data_url(tile, BUDGET * 4096 / (64 * tile.size))) < 5e6


def test_masked_and_dropped_samples_are_shown_as_what_they_are(
    photos: dict[str, bytes], qwen_tokenizer: Path, tmp_path: Path
) -> None:
    rows = [
        {"images": [photos["road"][:9_000]], "messages": chat("Cut off?", "Yes.")},
        {"images": [photos["quokka"]], "messages": chat("Whole?", "Yes.")},
        {"images": [b"no picture"], "messages": chat("Nothing?", "Nothing.")},
    ]
    taken = take_step(packed(rows, qwen(qwen_tokenizer, max_pixels=60_000), mask="mask"), 0, workers=1)
    (pack,) = (pack for batch in taken.batches for pack in rebuild(batch, processor_of_rows(qwen_tokenizer)))
    bad = next(sample for sample in pack.samples if "#0@" in sample.key)
    assert bad.masked
    assert bad.loss_tokens == 0
    assert not np.any(bad.pictures[0].pixels[0])
    (entry,) = taken.dropped
    assert "#2@" in entry["key"]
    write_page(tmp_path / "page.html", "title", [pack], taken.dropped)
    text = (tmp_path / "page.html").read_text()
    assert f"Masked: {bad.masked[0]}. Its labels are -100, and the pixels of its images are zero." in text
    assert entry["reason"] in text
    assert "1 masked" in text


def processor_of_rows(folder: Path) -> Processor:
    return qwen(folder, max_pixels=60_000)


def test_a_dummy_image_stands_in_the_padding(qwen_tokenizer: Path) -> None:
    processor = qwen(qwen_tokenizer)
    rows = [{"messages": chat("No picture here?", "None.", images=0)}]
    (pack,) = packs(packed(rows, processor, dummy=True))
    assert pack.samples[0].pictures == []
    (dummy,) = pack.dummies
    assert dummy.places[0] >= pack.tokens
    assert "A dummy image" in page("title", [pack])


def test_a_layout_without_unwrite_says_so(two: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    from zvl.layouts._qwen import QwenLayout

    monkeypatch.delattr(QwenLayout, "unwrite")
    found = packs(two)
    assert "not shown: its layout has no unwrite()" in page("title", found)
    assert sheet("title", found).width == 1400


def test_placeholders_that_do_not_fit_are_counted_as_text(two: Pipeline) -> None:
    processor = two.processor
    with two.loader(workers=1) as loader:
        batch = next(loader)
    batch["input_ids"] = batch["input_ids"].clone()
    batch["input_ids"][0, int((batch["input_ids"] == processor.image_token_id).nonzero()[0, 1])] = 0
    (pack,) = rebuild(batch, processor)
    assert all(picture.places.size == 0 for sample in pack.samples for picture in sample.pictures)
    assert "<|image_pad|> \u00d7 " in "".join(
        piece.text for sample in pack.samples for piece in sample.pieces if isinstance(piece, Token)
    )


def test_the_best_quality_that_fits() -> None:
    noise = np.random.default_rng(2).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    small, large = data_url(noise, 0.3), data_url(noise, 10)
    assert len(small) < len(large)
    assert large.startswith("data:image/webp;base64,")
    assert data_url(np.zeros((1, 17_000, 3), dtype=np.uint8), 10).startswith("data:image/jpeg;base64,")


RECIPE = """\
chunk_rows = 4
lanes = 2
flush_every = 16
[processor]
layout = "qwen2_5_vl"
tokenizer = "{tokenizer}"
chat_template = "{template}"
max_pixels = 40_000
[[dataset]]
name = "chats"
path = "chats.jsonl"
passes = "once"
[[operator]]
use = "probe_images"
[[operator]]
use = "tokenize_chat"
[[operator]]
use = "pack"
max_tokens = 256
[[operator]]
use = "batch"
size = 1
[[operator]]
use = "patchify"
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: dict[str, bytes], qwen_tokenizer: Path) -> Path:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    for name in ("quokka", "road"):
        (tmp_path / f"{name}.jpg").write_bytes(photos[name])
    rows = [{"images": [("quokka.jpg", "road.jpg")[n % 2]], "messages": chat(f"Row {n}?", "Yes.")} for n in range(16)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = RECIPE.format(
        tokenizer=small_tokenizer(qwen_tokenizer.parent), template=qwen_tokenizer / "chat_template.jinja"
    )
    (tmp_path / "a.toml").write_text(text)
    return tmp_path / "a.toml"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *(str(argument) for argument in arguments)])


def test_a_step_from_the_command_line(recipe: Path, tmp_path: Path) -> None:
    result = run(recipe, "--step", 1, "--html", tmp_path / "a.html", "--png", tmp_path / "a.png", "--workers", 2)
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 'a.html'}: 2 packs, 0." in result.stdout
    text = (tmp_path / "a.html").read_text()
    assert "Lane 0, row 0" in text
    assert "Lane 1, row 0" in text
    with Image.open(tmp_path / "a.png") as picture:
        assert (picture.format, picture.width) == ("PNG", 1400)
    keys = [keys for batch in one_step(recipe, 1) for row in batch.keys for keys in row]
    assert keys
    assert all(f"</span> {key}</h3>" in text for key in keys)


def one_step(recipe: Path, step: int) -> list[zvl.Batch]:
    from zvl.recipe import load_recipe

    with load_recipe(recipe).loader(workers=1) as loader:
        return [batch for batch in loader if batch.step == step]


def test_one_lane_is_the_same_alone(recipe: Path, tmp_path: Path) -> None:
    assert run(recipe, "--step", 1, "--html", tmp_path / "all.html").exit_code == 0
    assert run(recipe, "--step", 1, "--lane", 1, "--html", tmp_path / "one.html").exit_code == 0
    one, both = (re.findall("<article.*?</article>", (tmp_path / name).read_text(), re.S) for name in PAGES)
    assert one
    assert len(one) < len(both)
    assert set(one) < set(both)


PAGES = ("one.html", "all.html")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--step", 1), "expected --html FILE, --png FILE or both"),
        (("--step", 900, "--html", "a.html"), "step 900: expected a step of the run, but the data end before it"),
        (("--lane", 2, "--html", "a.html"), "--lane: expected 0 to 1, the recipe's lanes; got 2"),
        (("--lane", 1, "--dp-size", 2, "--html", "a.html"), "expected --lane or --dp-size, got both"),
        (("--html", "nowhere/a.html"), "--html: cannot write nowhere/a.html: No such file or directory; name a file"),
        (("--png", "nowhere/a.png"), "--png: cannot write nowhere/a.png: No such file or directory; name a file"),
    ],
)
def test_what_cannot_be_shown(
    arguments: tuple[object, ...], said: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(recipe, *arguments)
    assert result.exit_code == 2
    assert said in " ".join(re.sub("[│╭╰─╮╯]", " ", result.output).split())
