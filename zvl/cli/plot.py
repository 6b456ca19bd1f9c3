"""Pictures for the command line. Needs matplotlib: ``pip install zvl[plot]``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zvl.errors import RecipeError

if TYPE_CHECKING:
    from zvl.forecast import Forecast

__all__ = ["draw_forecast"]


def draw_forecast(found: Forecast, path: Path) -> None:
    """Fill, patches of the fullest and the emptiest rank, and images, over the steps; the suffix says which kind."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecipeError("--plot needs matplotlib: pip install zvl[plot]") from error
    steps = [step.step for step in found.steps]
    figure = Figure(figsize=(9, 6), layout="constrained")
    fill, patches, loss = figure.subplots(3, sharex=True)
    if found.fill is not None:
        fill.plot(steps, [sum(step.tokens) / step.places for step in found.steps], color="#0b6e99", linewidth=1)
    fill.set_ylabel("fill\n(of all places)")
    patches.plot(steps, [max(step.patches) for step in found.steps], color="#b3541e", linewidth=1)
    patches.plot(steps, [min(step.patches) for step in found.steps], color="#d9a441", linewidth=1)
    patches.set_ylabel("patches of the\nfullest, emptiest rank")
    patches.set_ylim(bottom=0)
    loss.plot(steps, [step.loss_tokens for step in found.steps], color="#4a7c59", linewidth=1)
    loss.set_ylabel("tokens with loss")
    loss.set_ylim(bottom=0)
    loss.set_xlabel("step")
    for axes in (fill, patches, loss):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise RecipeError(f"cannot draw {path}: {error}; name a file that ends in .svg or .png") from error
