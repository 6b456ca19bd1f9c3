"""A step as one HTML page: nothing outside it is asked for, and texts are data."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from zvl.errors import RecipeError
from zvl.inspect.rebuild import Pack, Picture, Sample, Token
from zvl.ledger import key_parts
from zvl.masking import NO_LOSS
from zvl.protocols import Pixels

__all__ = ["counted", "page", "write_page"]

QUALITIES = (90, 70, 40, 15, 1)
"""Of WebP, from the best."""

BUDGET = 1_000
"""Characters of images for each token of a pack: a page of 4,096 tokens stays below 5 MB."""

TOKENLESS = 4_096
"""Tokens that a row without `input_ids` counts as."""

WEBP_SIDE = 16_383
"""The longest side of a WebP picture, in pixels."""

KINDS = (("text", "text"), ("loss", "text with loss"), ("image", "image"), ("padding", "padding"))


def write_page(path: Path, title: str, packs: Sequence[Pack], dropped: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write `page` to a file; RecipeError if that cannot be."""
    try:
        path.write_text(page(title, packs, dropped), encoding="utf-8")
    except OSError as error:
        raise RecipeError(
            f"--html: cannot write {path}: {error.strerror}; name a file in a folder that exists"
        ) from error


def page(title: str, packs: Sequence[Pack], dropped: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page of these rows, and of the ledger's entries for what was dropped before them."""
    script = _resource("page.js")
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{_sha256(script)}'"
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">',
        f"<style>{_resource('page.css')}</style>\n</head>\n<body>",
        _header(title, packs),
        "<main>",
        *(_pack(pack, alone=len(packs) == 1) for pack in packs),
        _dropped(dropped),
        "</main>\n<footer>Rebuilt from the batch as the trainer gets it. Point at a word or an image, or move to one "
        "with Tab and then the arrow keys: the token and its position stand at the bottom.</footer>",
        '<output id="readout"></output>',
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _resource(name: str) -> str:
    return files("zvl.inspect").joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _header(title: str, packs: Sequence[Pack]) -> str:
    legend = "".join(f'<li><i class="k-{kind}"></i>{name}</li>' for kind, name in KINDS)
    links = "".join(f'<a href="#{_id(pack)}">{escape(_name(pack))}</a>' for pack in packs)
    return (
        f'<header class="page">\n<h1>{escape(title)}</h1>\n<p class="facts">{_totals(packs)}</p>\n'
        f'<ul class="legend">{legend}</ul>\n'
        + (f'<nav aria-label="packs">{links}</nav>\n' if len(packs) > 1 else "")
        + "</header>"
    )


def _totals(packs: Iterable[Pack]) -> str:
    """The numbers of some packs, in words."""
    packs = list(packs)
    samples = [sample for pack in packs for sample in pack.samples]
    tokens, places = sum(pack.tokens for pack in packs), sum(pack.length for pack in packs)
    facts = [counted(len(packs), "pack")] if len(packs) > 1 else []
    facts += [counted(len(samples), "sample"), counted(sum(len(sample.pictures) for sample in samples), "image")]
    if places:
        facts.append(f"{tokens:,} of {places:,} tokens ({tokens / places:.1%})")
        facts.append(f"{sum(sample.loss_tokens for sample in samples):,} carry loss")
    masked = sum(bool(sample.masked) for sample in samples)
    return " · ".join([*facts, *([f"{masked} masked"] if masked else [])])


def counted(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _name(pack: Pack) -> str:
    batch = f", batch {pack.batch}" if pack.batch else ""
    return f"lane {pack.lane}{batch}, row {pack.row}"


def _id(pack: Pack, sample: Sample | None = None) -> str:
    name = f"l{pack.lane}-b{pack.batch}-r{pack.row}"
    return name if sample is None else f"{name}-s{sample.number}"


def _pack(pack: Pack, alone: bool) -> str:
    """A row; alone on the page, its numbers stand at the top already."""
    budget = BUDGET * (pack.length or TOKENLESS)
    pictures = [picture for sample in pack.samples for picture in sample.pictures] + list(pack.dummies)
    area = sum(pixels.size for picture in pictures for pixels in picture.pixels)
    per_byte = budget / max(area, 1)
    name = _name(pack)
    return "\n".join(
        [
            f'<section id="{_id(pack)}" aria-label="{escape(name)}">',
            f"<h2>{escape(name[0].upper() + name[1:])}</h2>",
            "" if alone else f'<p class="facts">{_totals([pack])}</p>',
            _strip(pack),
            *(_sample(pack, sample, per_byte) for sample in pack.samples),
            _padding(pack, per_byte),
            "</section>",
        ]
    )


def _strip(pack: Pack) -> str:
    """The samples side by side, as wide as they have tokens."""
    if not pack.length:
        return ""
    parts = []
    for sample in pack.samples:
        length, place, rects = sample.stop - sample.start, 0, []
        for kind, count in sample.runs:
            rects.append(f'<rect class="{kind}" x="{place}" width="{count}" height="1"/>')
            place += count
        told = escape(f"sample {sample.number}: {sample.key}, {length:,} tokens" + ", masked" * bool(sample.masked))
        parts.append(
            f'<a href="#{_id(pack, sample)}" style="flex-grow:{length}" title="{told}" aria-label="{told}"'
            f"{' class=masked' if sample.masked else ''}>"
            f'<svg viewBox="0 0 {length} 1" preserveAspectRatio="none" aria-hidden="true">{"".join(rects)}</svg>'
            f"{sample.number}</a>"
        )
    if pack.padding:
        parts.append(
            f'<span style="flex-grow:{pack.padding}" title="{pack.padding:,} of padding">'
            '<i class="k-padding"></i></span>'
        )
    return f'<div class="strip">{"".join(parts)}</div>'


def _sample(pack: Pack, sample: Sample, per_byte: float) -> str:
    facts = [_origin(sample.key)]
    if pack.length:
        length = sample.stop - sample.start
        facts.append(f"tokens {sample.start:,} to {sample.stop - 1:,} ({length:,})")
        facts.append(f"{sample.loss_tokens:,} carry loss")
    why = ""
    if sample.masked:
        reason, *sha256 = sample.masked
        image = f" The sha256 of the image: {sha256[0][:16]}…" if sha256 and sha256[0] else ""
        told = f"Masked: {reason}. Its labels are -100, and the pixels of its images are zero.{image}"
        why = f'\n<p class="why">{escape(told)}</p>'
    words = "".join(_pieces(sample.pieces, per_byte))
    return (
        f'<article id="{_id(pack, sample)}"{" class=masked" if sample.masked else ""}>'
        f'\n<h3><span class="no">{sample.number}</span> {escape(sample.key)}</h3>'
        f'\n<p class="facts">{" · ".join(fact for fact in facts if fact)}</p>{why}'
        f'\n<div class="words" tabindex="0" role="group" aria-label="text of sample {sample.number}">{words}</div>'
        "\n</article>"
    )


def _origin(key: str) -> str:
    """Dataset, shard, row and pass."""
    return escape(", ".join(f"{name} {value}" for name, value in key_parts(key).items()))


def _pieces(pieces: Sequence[Token | Picture], per_byte: float) -> Iterator[str]:
    """Text, what carries loss in one mark, and images."""
    for loss, group in groupby(pieces, lambda piece: isinstance(piece, Token) and piece.loss):
        parts = [_token(piece) if isinstance(piece, Token) else _figure(piece, per_byte) for piece in group]
        yield f"<mark>{''.join(parts)}</mark>" if loss else "".join(parts)


def _token(token: Token) -> str:
    ids = _numbers(token.ids[:8]) + ("…" if len(token.ids) > 8 else "")
    # The label is the token itself, unless somebody made it another.
    odd = [label for own, label in zip(token.ids, token.labels, strict=True) if label not in (NO_LOSS, own)]
    fields = f'data-i="{token.place}" data-d="{ids}"' + (
        f' data-p="{_numbers(token.position)}"' if token.position else ""
    )
    fields += f' data-l="{_numbers(token.labels)}"' if odd else ""
    kind = ' class="special"' if token.special else ""
    return f"<b{kind} {fields}>{escape(_shown(token.text))}</b>"


def _numbers(values: Iterable[int]) -> str:
    return " ".join(map(str, values))


def _shown(text: str) -> str:
    """Control characters by their signs: HTML has no place for them."""
    return "".join(chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else c for c in text)


def _figure(picture: Picture, per_byte: float) -> str:
    """An image with its overview, its grid and a line of numbers. It is no part of the text: arrow keys move in it."""
    grid, fields = picture.grid, ""
    inside = ""
    if grid:
        first = _numbers(picture.positions[:, 0].tolist())
        fields = f' tabindex="0" data-grid="{grid[0]} {grid[1]}" data-p="{first}" data-i="{picture.places[0]}"'
        mesh = f"background-size:{100 / grid[1]:.4f}% {100 / grid[0]:.4f}%"
        inside = f'<span class="mesh" style="{mesh}"></span><span class="cell"></span>'
    names = ["image", "overview of image"]
    shots = "".join(
        f'<span class="shot"><img src="{data_url(pixels, per_byte)}" width="{pixels.shape[1]}" '
        f'height="{pixels.shape[0]}" alt="{name} {picture.number}">{inside if name == "image" else ""}</span>'
        for name, pixels in zip(names, picture.pixels, strict=False)
    )
    kind = "shots tiles" if len(picture.pixels) > 1 else "shots"
    caption = escape(_caption(picture))
    label = f' aria-label="{caption}"' if grid else ""
    return f'<figure{fields}{label}><div class="{kind}">{shots}</div><figcaption>{caption}</figcaption></figure>'


def _caption(picture: Picture) -> str:
    facts = [f"image {picture.number}"]
    sizes = [f"{pixels.shape[1]} \u00d7 {pixels.shape[0]} px" for pixels in picture.pixels]
    facts.append(" and ".join(sizes) or "not shown: its layout has no unwrite()")
    facts.append(f"{counted(picture.rows, 'row')} of pixel_values")
    if picture.places.size:
        first, last = picture.places[0], picture.places[-1]
        facts.append(f"{counted(picture.places.size, 'token')}, {first:,} to {last:,}")
    if picture.grid:
        time, height, width = picture.positions[:, 0].tolist()
        rows, columns = picture.grid
        facts.append(f"t {time}, h {height} to {height + rows - 1}, w {width} to {width + columns - 1}")
    return " · ".join(facts)


def data_url(pixels: Pixels, per_byte: float) -> str:
    """The picture in its own size, in the best quality of at most `per_byte` characters for each of its bytes."""
    from PIL import Image

    image = Image.fromarray(pixels if pixels.flags.c_contiguous else pixels.copy(order="C"))
    kind = "webp" if max(image.size) <= WEBP_SIDE else "jpeg"
    for quality in QUALITIES:
        file = io.BytesIO()
        image.save(file, kind, quality=quality)
        data = base64.b64encode(file.getbuffer()).decode()
        if len(data) <= per_byte * pixels.size:
            break
    return f"data:image/{kind};base64,{data}"


def _padding(pack: Pack, per_byte: float) -> str:
    if not pack.padding:
        return ""
    figures = "".join(_figure(picture, per_byte) for picture in pack.dummies)
    note = (
        f"<p class=facts>A dummy image, so that every row has one; it carries no loss.</p>{figures}" if figures else ""
    )
    return (
        f'<article><p class="pad"><i class="k-padding"></i>{pack.padding:,} tokens of padding, '
        f"{pack.tokens:,} to {pack.length - 1:,}</p>{note}</article>"
    )


def _dropped(entries: Sequence[Mapping[str, Any]]) -> str:
    """What left the stream as bad data while these packs were planned."""
    if not entries:
        return ""
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(_shown(str(entry.get(name, ''))))}</td>" for name in FIELDS) + "</tr>"
        for entry in entries
    )
    heads = "".join(f"<th>{name}</th>" for name in FIELDS)
    return (
        '<section id="dropped"><h2>Dropped while planning</h2>'
        f'<p class="facts">{counted(len(entries), "sample")}, in none of these packs</p>'
        f'<div class="table"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


FIELDS = ("key", "operator", "reason", "detail")
