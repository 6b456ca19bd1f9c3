from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_of_the_manual_work() -> None:
    outcome = doctest.testfile(str(Path(__file__).parents[1] / "README.md"), module_relative=False)
    assert outcome.attempted > 10
    assert outcome.failed == 0
