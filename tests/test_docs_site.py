"""The site of docs/ builds without a warning, needs no other server, and has every page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", site],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / (name.parent if name.name == "index" else name) / "index.html").is_file(), page
    for page in ("operators", "codecs", "benchmarks", "examples/plugin", "examples/elastic_training"):
        assert (site / page / "index.html").is_file(), page
    assert not (site / "_site").exists()


def test_the_reference_has_what_docstrings_say(site: Path) -> None:
    text = (site / "api/pipeline/index.html").read_text()
    assert 'id="zvl.Pipeline.loader"' in text
    assert "What determines the data: source, operators, lanes" in text
    assert 'id="zvl_operators.pack.Pack.max_tokens"' in (site / "api/operators/index.html").read_text()
    assert "<blockquote>" not in "".join(page.read_text() for page in site.glob("api/*/index.html"))


def test_links_that_leave_docs_lead_to_pages(site: Path) -> None:
    text = (site / "write-an-operator/index.html").read_text()
    assert 'href="../operators/"' in text
    assert 'href="../examples/plugin/"' in text
    assert 'href="../examples/demo.toml"' in (site / "tutorial/index.html").read_text()


def test_no_page_asks_another_server(site: Path) -> None:
    for page in site.rglob("*.html"):
        asked = re.findall(r"<(?:script|img|iframe)[^>]* src=\"(https?:[^\"]*)", page.read_text())
        asked += re.findall(
            r"<link[^>]* rel=\"(?:stylesheet|preconnect|preload)\"[^>]* href=\"(https?:[^\"]*)", page.read_text()
        )
        assert not asked, f"{page.relative_to(site)} loads {asked}"


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("[A page](missing.md), [a heading](index.md#missing)", ["missing.md", "#missing"]),
        ("::: zvl.missing", ["zvl.missing"]),
    ],
)
def test_a_wrong_page_stops_the_build(page: str, says: list[str], tmp_path: Path) -> None:
    """Of a site of one page, with the settings of the whole."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# Home\n\n{page}\n")
    shutil.copytree(ROOT / "docs/_site", tmp_path / "docs/_site")
    settings = re.sub(r"^nav:\n.*", "nav: [index.md]\n", (ROOT / "mkdocs.yml").read_text(), flags=re.M | re.S)
    (tmp_path / "mkdocs.yml").write_text(settings.replace("[., operators, codecs, examples]", f"['{ROOT}']"))
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert all(name in done.stderr for name in says), done.stderr
