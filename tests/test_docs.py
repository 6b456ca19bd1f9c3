"""docs/ and README.md: every code block runs, every link leads somewhere, every public name has its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages.blocks import PAGES, ROOT, blocks
from pages.run import run_page
from pages.shell import matches
from pages.world import World, small_shards

import zvl
from zvl import registry

WITH_CODE = [page for page in PAGES if blocks(page)]

NOT_RUN: dict[str, list[str]] = {
    "docs/from-your-loader.md": [
        "needs rows of your own, and eight worker processes",
        "grain is no dependency of the tests",
        "eight worker processes that never end",
        "megatron-energon is no dependency of the tests",
        "zephon is no dependency of the tests",
    ],
    "docs/ray.md": ["needs several machines"],
    "docs/soak.md": ["takes half an hour"],
    "docs/tutorial.md": ["here; tests/test_cli_demo.py runs it, with two steps, and compares"],
    "docs/training.md": [
        "here; tests/trainers/test_attention.py runs it with numbers of its own",
        "trains 10,000 steps; tests/trainers/test_transformers.py trains some",
        "trains without an end; tests/trainers/test_accelerate.py trains some steps",
        "here; tests/trainers/test_accelerate.py runs these lines on a model",
        "trains 10,000 steps; tests/trainers/test_lightning.py trains some",
        "a part of a configuration; tests/trainers/test_torchtitan.py has a whole one",
        "needs Megatron-LM, which no package holds",
    ],
}
"""Why blocks of a page are not run, in their order. A new one needs a line here, and a reason that holds."""


@pytest.fixture(scope="module")
def small(demo_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first rows of the demo with small pictures."""
    return small_shards(demo_shards, tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("page", WITH_CODE)
@pytest.mark.filterwarnings("ignore:pin_memory=True does nothing here")
def test_every_block_runs(
    page: str, demo_shards: Path, qwen_tokenizer: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert demo_shards.parent == qwen_tokenizer.parent
    left_out = run_page(page, World(tmp_path, demo_shards.parent, small, monkeypatch), monkeypatch)
    assert [block.not_run for block in left_out] == NOT_RUN.get(page, [])


def test_few_blocks_are_left_out() -> None:
    assert NOT_RUN.keys() <= set(WITH_CODE)
    assert sum(len(reasons) for reasons in NOT_RUN.values()) <= 15


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("one line\n", "one line"),
        ("a table  of\n", "a  table of   \n"),
        ("...\nlast\n", "first\nsecond\nlast\n"),
        ("fill 0.9...\n", "fill 0.9871\n"),
        ("8 images in 2.0 s, 4 images/s\n", "8 images in 31.5 s, 1,200 images/s\n"),
        ("", ""),
    ],
)
def test_what_a_page_may_show(shown: str, printed: str) -> None:
    assert matches(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("one line\n", "another line\n"),
        ("one line\n", "one line\nand more\n"),
        ("one line\n", ""),
        ("", "one line\n"),
        ("8 images\n", "9 images\n"),
        ("fill 0.98...\n", "fill 0.97\n"),
        ("2.0 seconds\n", "2.1 seconds\n"),
        ("...\nlast\n", "first\n"),
        ("0  a2c57b3d0e11  identical\n", "0  0123456789ab  identical\n"),
    ],
)
def test_what_it_may_not(shown: str, printed: str) -> None:
    assert not matches(shown, printed)


@pytest.mark.parametrize(
    ("page", "error"),
    [
        ("```python\nassert 1 == 2\n```", "AssertionError"),
        ("```console\n$ zvl operators\nnone\n```", "prints otherwise"),
        ("```bash\nzvl explain missing.toml\n```", "ended with 2"),
        ("```bash\nmake nonsense\n```", "no target nonsense"),
        ('```bash\npip install "zvl[nonsense]"\n```', "no extra nonsense"),
        ("```bash\nray start --head\n```", "nothing here runs ray"),
        ("```toml\nlanes = 1\n```", "expected at least one [[dataset]]"),
        ("```toml\nlanes = 1\n[[dataset]]\nname = 'x'\npath = 'missing.tar'\n```", "missing.tar"),
        ("```json\n{\n```", "Expecting"),
        ("```\nls\n```", "expected python"),
        ('```python title="script.py"\n1\n```', "no block runs or imports script.py"),
        ("<!-- given: nonsense -->\n```python\n1\n```", "nobody makes 'nonsense'"),
        ("<!-- not run: reason -->\nText.", "expected a code block behind the mark"),
    ],
)
def test_a_wrong_page_fails(
    page: str, error: str, demo_shards: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, demo_shards.parent, small, monkeypatch)
    (tmp_path / "page.md").write_text(page + "\n")
    with pytest.raises((AssertionError, ValueError, OSError)) as caught:
        run_page(str(tmp_path / "page.md"), world, monkeypatch)
    assert error in f"{caught.type.__name__}: {caught.value}"


@pytest.mark.parametrize("page", [*PAGES, *(f"{folder}/README.md" for folder in ("operators", "codecs", "benchmarks"))])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / page).parent.joinpath(link).exists(), f"{page} links to {link}"


def test_pages_named_in_code_are_there() -> None:
    sources = [*ROOT.glob("zvl/**/*.py"), *ROOT.glob("operators/zvl_operators/*.py"), ROOT / "Makefile"]
    named = {name for path in sources for name in re.findall(r"docs/[\w/.-]+\.md", path.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    assert {f"zvl.{name}" for name in zvl.__all__} <= shown
    operators = [registry.load("operators", name) for name in registry.catalogue("operators")]
    assert {f"{operator.__module__}.{operator.__name__}" for operator in operators} <= shown
