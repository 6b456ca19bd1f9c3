"""`examples/plugin` is installed into a fresh environment, and a recipe there uses all four of its plugins."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zvl
from zvl_demo.tokenizer import small_tokenizer

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "examples/plugin"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}<|image_pad|>"
    "{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
CHECKS = """
import json, sys
from zvl.testing import check_codec, check_format, check_layout, check_operator
from shapes.codecs.plainppm import PlainPpm
from shapes.formats.captions import Captions
from shapes.layouts.one_square import OneSquare
from shapes.operators.long_captions import LongCaptions
rows = Captions(sys.argv[1]).read(0, range(6))
reports = [check_operator(LongCaptions(min_words=3), rows), check_codec(PlainPpm), check_layout(OneSquare())]
print(json.dumps([str(report) for report in [*reports, check_format(Captions, sys.argv[1])]]))
"""


def run(*words: Any, **options: Any) -> str:
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment with the plugin; zvl and the libraries are borrowed from this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, "--without-pip")
    python = folder / "bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # addsitedir and no plain path: an editable zvl comes by .pth files of its own.
    (site / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", PLUGIN)
    return folder / "bin"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, qwen_tokenizer: Path) -> Path:
    """A folder with pictures, captions and the README's recipe."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "data").mkdir()
    lines = []
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (30 + number, 40, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PPM")
        (folder / f"data/{number}.ppm").write_bytes(file.getvalue())
        lines.append(f"{number}.ppm\t{'a very small' if number % 3 else 'a'} square")
    for name, own in (("a", lines[:6]), ("b", lines[6:])):
        (folder / f"data/{name}.captions").write_text("\n".join(own) + "\n")
    (recipe,) = re.findall("```toml\n(.*?)```", (PLUGIN / "README.md").read_text(), re.DOTALL)
    tokenizer = small_tokenizer(qwen_tokenizer.parent)
    (folder / "recipe.toml").write_text(recipe.replace("assets/tokenizer", str(tokenizer)))
    (folder / "chatml.jinja").write_text(CHATML)
    return folder


def test_it_is_listed_with_its_package(environment: Path, work: Path) -> None:
    for kind, name in (
        ("operators", "long_captions"),
        ("codecs", "plainppm"),
        ("layouts", "one_square"),
        ("formats", "captions"),
    ):
        lines = run(environment / "python", "-c", "from zvl.cli import main; main()", kind, cwd=work).splitlines()
        (line,) = [line for line in lines if line.startswith(name)]
        assert line.split()[1] == f"shapes.{kind}"
        assert len(line.split()) > 4, "what it does, from its docstring"


def test_a_recipe_uses_all_four(environment: Path, work: Path) -> None:
    code = (
        "import json; from zvl.recipe import load_recipe\n"
        "with load_recipe('recipe.toml').loader(max_steps=3) as loader:\n"
        "    batch = next(iter(loader))\n"
        "print(json.dumps([list(batch['pixel_values'].shape), batch.keys, int(batch['num_loss_tokens'])]))"
    )
    shape, keys, loss = json.loads(run(environment / "python", "-c", code, cwd=work))
    assert shape[1:] == [24, 24, 3]
    names = [key for row in keys for key in row]
    assert len(names) == shape[0] > 0
    assert loss > 0
    kept = [int(re.findall(r"#(\d+)@", name)[0]) + 6 * ("b.captions" in name) for name in names]
    assert all(number % 3 for number in kept), "captions of two words are dropped"


def test_it_passes_the_checks(environment: Path, work: Path) -> None:
    reports = json.loads(run(environment / "python", "-c", CHECKS, work / "data"))
    assert [re.sub(r" \d+ ", " ", report) for report in reports] == [
        "LongCaptions passes checks",
        "PlainPpm passes checks",
        "OneSquare passes checks",
        "Captions passes checks",
    ]


def test_it_is_not_installed_here() -> None:
    assert "long_captions" not in zvl.registry.catalogue("operators")
