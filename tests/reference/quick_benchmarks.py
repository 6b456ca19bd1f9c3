"""Quick runs of benchmarks in one process, since each alone would import for seconds: FOLDER BENCHMARK ...

What each prints goes to FOLDER/NAME.
"""

from __future__ import annotations

import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path


def main() -> None:
    folder, *paths = map(Path, sys.argv[1:])
    sys.path.insert(0, str(paths[0].parent))
    for path in paths:
        sys.argv = [str(path), "--quick", "--json"]
        with (folder / path.stem).open("w") as out, redirect_stdout(out):
            runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
