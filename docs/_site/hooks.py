"""What mkdocs does not do by itself: pages that lie beside docs/, links to them, and the list of decisions.

Files of the repository keep their places on the site, but for docs/ itself, which is its root. So a link from one file
of the repository to another leads to the same page on the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = "docs/"
OUTSIDE = (
    "operators/README.md",
    "codecs/README.md",
    "examples/demo.toml",
    "examples/elastic_training/README.md",
    "examples/elastic_training/figure.svg",
    "examples/plugin/README.md",
    "benchmarks/README.md",
    "benchmarks/results/**/*.md",
    "benchmarks/results/**/*.svg",
    "benchmarks/results/**/*.png",
)
"""Patterns of what becomes part of the site."""

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
CODE = re.compile(r"`[^`]+`")


def on_config(config: MkDocsConfig) -> None:
    """Put every decision into the navigation, the newest first, and the results behind the benchmarks."""
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"), reverse=True)
    results = sorted((ROOT / "benchmarks/results").rglob("*.md"), reverse=True)
    for entry in config.nav or []:
        if "Decisions" in entry:
            entry["Decisions"] = [f"decisions/{path.name}" for path in decisions]
        if "Evidence" in entry:
            entry["Evidence"] += [path.relative_to(ROOT).as_posix() for path in results]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies beside docs/."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files, **_: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    source = page.file.src_uri
    inside = Path(config.docs_dir, source).is_file()
    folder = PurePosixPath(DOCS + source if inside else source).parent

    def link(found: re.Match[str]) -> str:
        target = normpath(str(folder / found[1]))
        return relpath(target.removeprefix(DOCS), str(PurePosixPath(source).parent))

    lines = LINK.sub(link, markdown).split("\n")
    return "\n".join(_unescaped(line) if line.startswith("|") else line for line in lines)


def _unescaped(row: str) -> str:
    """A table's row. GitHub wants a bar in code escaped; this Markdown shows the backslash."""
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row)
