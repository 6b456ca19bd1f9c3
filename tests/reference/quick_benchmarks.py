"""Quick runs of benchmarks in one process, since each alone would import for seconds: FOLDER BENCHMARK ...

What each prints goes to FOLDER/NAME.
"""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path


def main() -> None:
    folder, *paths = map(Path, sys.argv[1:])
    sys.path.insert(0, str(paths[0].parent))
    environment = dict(os.environ)
    for path in paths:
        sys.argv = [str(path), "--quick", "--json"]
        with (folder / path.stem).open("w") as out, redirect_stdout(out):
            runpy.run_path(str(path), run_name="__main__")
        # One has a cache of its own, in which those behind it would make the demo's data anew.
        os.environ.clear()
        os.environ.update(environment)


if __name__ == "__main__":
    main()
