"""The manual lists every codec, and its worked example works as a package of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from reference.image_files import sample_images
from zvl import registry
from zvl.images.pixels import codec_named

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")

USE = """
from pathlib import Path
import numpy as np
from zvl import registry
from zvl.errors import BadData
from zvl.images.header import probe
from zvl.images.pixels import decode

assert registry.catalogue("codecs")["plainppm"] == "my_codecs.plainppm"
data = Path(sys.argv[1]).read_bytes()
pixels = decode(data, probe(data), "plainppm")
assert np.array_equal(pixels, decode(data, probe(data), "pillow"))
for tenth in range(1, 10):
    cut = data[: len(data) * tenth // 10]
    try:
        decode(cut, probe(cut), "plainppm")
    except BadData as error:
        assert error.reason == "decode", error
    else:
        raise AssertionError(tenth)
print("fine")
"""


def test_every_codec_has_its_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, flags=re.MULTILINE))
    assert sorted(rows) == sorted(registry.catalogue("codecs"))
    written = {"JPEG 2000": "jpeg2000", "HEIC": "heif"}
    for name, cell in rows.items():
        assert {written.get(word, word.lower()) for word in cell.split(", ")} == codec_named(name).formats


def test_the_example_works_as_a_package(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n# my_codecs/plainppm.py\n(.*?)```", PAGE, flags=re.DOTALL)
    (entry,) = re.findall(r'\[project.entry-points."(zvl.codecs)"\]\nmine = "my_codecs"', PAGE)
    (tmp_path / "my_codecs").mkdir()
    (tmp_path / "my_codecs/__init__.py").touch()
    (tmp_path / "my_codecs/plainppm.py").write_text(code)
    info = tmp_path / "my_codecs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-codecs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{entry}]\nmine = my_codecs\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USE}"
    picture = tmp_path / "picture.ppm"
    picture.write_bytes(sample_images()["ppm"])
    done = subprocess.run([sys.executable, "-c", program, str(picture)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
