"""A batch made visible: taken apart again into text, images and samples, as one HTML page or one picture."""

from __future__ import annotations

from zvl.inspect.page import write_page
from zvl.inspect.rebuild import Pack, rebuild
from zvl.inspect.sheet import write_sheet
from zvl.inspect.take import Taken, take_step

__all__ = ["Pack", "Taken", "rebuild", "take_step", "write_page", "write_sheet"]
