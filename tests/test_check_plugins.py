"""`check_codec`, `check_layout`, `check_format`: built-in plugins pass, planted faults are found by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_plugins import CODECS, FORMATS, LAYOUTS, Codec, Format, Layout
from formats_corpus import WRITERS, corpus

from zvl import registry
from zvl.testing import CheckFailed, Report, check_codec, check_format, check_layout

SMALL = ((64, 64), (97, 61), (56, 120))


def failed(check: Callable[..., Report], *arguments: Any) -> dict[str, str]:
    with pytest.raises(CheckFailed) as caught:
        check(*arguments)
    return caught.value.report.failed


@pytest.fixture
def lines(tmp_path: Path) -> str:
    for name in ("a", "b"):
        (tmp_path / f"{name}.lines").write_text("".join(f"{name}{row}\n" for row in range(40)))
    return str(tmp_path)


@pytest.mark.parametrize("kind", CODECS, ids=lambda kind: kind.__name__)
def test_a_codecs_fault_is_found(kind: type[Codec]) -> None:
    assert CODECS[kind] in failed(check_codec, kind)


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.__name__)
def test_a_layouts_fault_is_found(kind: type[Layout]) -> None:
    assert LAYOUTS[kind] in failed(check_layout, kind(), SMALL)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
def test_a_formats_fault_is_found(kind: type[Format], lines: str) -> None:
    assert FORMATS[kind] in failed(check_format, kind, lines)


def test_those_that_the_bad_ones_are_made_of_pass(lines: str) -> None:
    assert str(check_codec(Codec)) == "Codec passes 9 checks"
    assert str(check_layout(Layout(), SMALL)) == "Layout passes 11 checks"
    assert str(check_format(Format, lines)) == "Format passes 10 checks"


def test_what_is_said(lines: str) -> None:
    found = {kind.__name__: kind for kind in (*CODECS, *LAYOUTS, *FORMATS)}
    assert failed(check_codec, found["Unheard"])["files"] == (
        "no picture in unheard-of to check with: pass some as `files`"
    )
    assert failed(check_layout, found["LeavesBorder"](), SMALL)["write"] == "64x64: left 84 of 2352 bytes unwritten"
    assert (
        "shard 0, row 1: ['images'][0]: b'a1', then b'a0'"
        in failed(check_format, found["LateFetch"], lines)["late_fetch"]
    )


@pytest.mark.parametrize("name", [name for name in registry.catalogue("codecs") if name != "heif"])
def test_built_in_codecs_pass(name: str) -> None:
    check_codec(registry.load("codecs", name))


def test_the_codec_of_heic_passes_with_a_file() -> None:
    import io

    import pillow_heif

    from reference.image_files import photo

    file = io.BytesIO()
    pillow_heif.from_pillow(photo()).save(file)
    check_codec(registry.load("codecs", "heif"), [file.getvalue()])


@pytest.mark.parametrize("name", registry.catalogue("layouts"))
def test_built_in_layouts_pass(name: str) -> None:
    check_layout(registry.load("layouts", name)(), SMALL)


@pytest.mark.parametrize("name", WRITERS)
def test_built_in_formats_pass(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    path = WRITERS[name](tmp_path / "data", [rows[:6] for rows in corpus()[:2]])
    check_format(registry.load("formats", name.partition("-")[0]), path)
