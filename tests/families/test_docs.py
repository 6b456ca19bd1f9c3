"""docs/layouts.md: every layout has a row, and the worked example works as a package of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pages.blocks import blocks

from zvl import registry

PAGE = (Path(__file__).parents[2] / "docs/layouts.md").read_text(encoding="utf-8")

USE = """
import io, sys
import numpy as np, torch
from PIL import Image
import zvl

buffer = io.BytesIO()
Image.fromarray(np.arange(48 * 32 * 3, dtype=np.uint8).reshape(48, 32, 3)).save(buffer, "png")
chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "A pattern."}]
rows = [{"messages": chat, "images": [buffer.getvalue()]}] * 3
processor = zvl.Processor("square", sys.argv[1], side=32)
source = zvl.Mixture({"rows": zvl.from_rows(rows)}, passes={"rows": zvl.Passes(1)}, seed=1)
pipeline = zvl.Pipeline(source, lanes=1, flush_every=8).probe_images(processor).tokenize_chat(processor)
pipeline = pipeline.pack(max_tokens=128).batch(1).patchify(processor)
with pipeline.loader() as loader:
    images = 0
    for batch in loader:
        inputs = processor.model_inputs(batch, device="cpu", dtype=torch.float32)
        assert inputs["pixel_values"].shape[1:] == (3, 16, 16)
        images += len(inputs["pixel_values"]) // 4
print(images)
"""


def test_every_layout_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(rows) == sorted(registry.catalogue("layouts"))


def test_the_example_works_as_a_package(tmp_path: Path, qwen_tokenizer: Path) -> None:
    (code,) = (block.text for block in blocks("docs/layouts.md") if block.title == "my_layouts/square.py")
    (entry,) = re.findall(r'\[project.entry-points."(zvl.layouts)"\]\nmine = "my_layouts"', PAGE)
    (tmp_path / "my_layouts").mkdir()
    (tmp_path / "my_layouts/__init__.py").touch()
    (tmp_path / "my_layouts/square.py").write_text(code)
    info = tmp_path / "my_layouts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-layouts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{entry}]\nmine = my_layouts\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USE}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(qwen_tokenizer)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
