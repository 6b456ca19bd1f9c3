"""Runs a page: its blocks in order, each by its language.

==========  ============================================================================================
``python``  executed, all blocks of a page in one namespace, which has zvl; with ``title="FILE"`` it is that file,
            which a later block imports or runs
``toml``    a recipe that loads; without ``lanes`` a part of one, which is added to the page's last recipe
``console`` commands behind ``$``, and what they print, compared
``bash``    commands that succeed, with small pictures and few steps
``json``    a value, or lines of them
==========  ============================================================================================
"""

from __future__ import annotations

import json
import logging
import sys
import tomllib
from contextlib import ExitStack
from types import ModuleType

import pytest

import zvl
from pages.blocks import Block, blocks
from pages.given import Givens
from pages.shell import Shell
from pages.world import World, end_early
from zvl.recipe import load_recipe

__all__ = ["run_page"]

MODULE = "page"
"""The module that a page's Python is, so that its functions and classes have a home."""


def run_page(page: str, world: World, patch: pytest.MonkeyPatch) -> list[Block]:
    """Run the page in the folder of `world`. The blocks that are marked as not run."""
    found = blocks(page)
    with ExitStack() as stack:
        logger = logging.getLogger("zvl")
        patch.setattr(logger, "handlers", list(logger.handlers))
        stack.callback(logger.setLevel, logger.level)
        running = _Page(world, patch, Givens(stack, patch))
        for block in found:
            if not block.not_run:
                _run(running, block)
        running.check_files()
    return [block for block in found if block.not_run]


def _run(running: _Page, block: Block) -> None:
    """Run one block; an error says which."""
    assert block.language in LANGUAGES, f"{block}: expected {', '.join(LANGUAGES)}, got {block.language!r}"
    try:
        running.module.__dict__.update({name: running.given[name] for name in block.given})
        LANGUAGES[block.language](running, block)
    except Exception as error:
        error.add_note(f"in {block}")
        raise


class _Page:
    """What one page's blocks share."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch, given: Givens) -> None:
        self.folder = folder = world.folder
        self._world = world
        self.given = given
        self.shell = Shell(folder, patch)
        self.module = ModuleType(MODULE)
        self.module.__dict__["zvl"] = zvl
        self.recipe = ""
        self._patch = patch
        self._files: set[str] = set()
        patch.setitem(sys.modules, MODULE, self.module)
        patch.syspath_prepend(str(folder))

    def python(self, block: Block) -> None:
        if block.title:
            self._write(block)
            self._files.add(block.title)
            return
        # Empty lines in front, so that a traceback has the page's own line numbers.
        code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
        with self._patch.context() as patch:
            end_early(patch)
            exec(code, self.module.__dict__)

    def toml(self, block: Block) -> None:
        table = tomllib.loads(block.text)
        if block.title:
            self._write(block)
        if "lanes" in table:
            self.recipe = block.text
        elif "project" in table:
            return  # of a package: it is valid TOML
        elif block.text.lstrip().startswith("["):
            self.recipe = f"{self.recipe}\n{block.text}"
        else:
            self.recipe = f"{block.text}\n{self.recipe}"
        (self.folder / "of-the-page.toml").write_text(self.recipe)
        load_recipe(self.folder / "of-the-page.toml")

    def console(self, block: Block) -> None:
        self.shell.session(block.text)

    def bash(self, block: Block) -> None:
        with self._world.small_demo():
            self.shell.listing(block.text)

    def json(self, block: Block) -> None:
        if block.title:
            self._write(block)
        try:
            json.loads(block.text)
        except json.JSONDecodeError:
            for line in block.text.splitlines():
                json.loads(line)

    def check_files(self) -> None:
        """A script that nothing ran proves nothing."""
        used = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        for name in self._files - self.shell.ran:
            assert str(self.folder / name) in used, f"no block runs or imports {name}"

    def _write(self, block: Block) -> None:
        path = self.folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)


LANGUAGES = {
    "python": _Page.python,
    "toml": _Page.toml,
    "console": _Page.console,
    "bash": _Page.bash,
    "json": _Page.json,
}
