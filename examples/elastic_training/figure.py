"""The figure: losses of all runs, and how far those that went on are from the one that was never stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw"]

TITLES = {"zvl": "zvl", "baseline": "DistributedSampler, packed on each rank"}
# Wide, pale lines below narrow, dark ones: those that coincide can all be seen.
STYLES = {"1": ("#f0b040", 5.0), "2": ("#56b4e9", 2.8), "4": ("#004d80", 1.1)}
ZERO = 1e-9
"""Where a distance of exactly 0 stands on the axis, nats a token."""
BEFORE = 6
"""Steps that are shown before the checkpoint."""

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def draw(found: Mapping[str, Runs], save_at: int, folder: Path) -> list[Path]:
    """Write figure.svg and figure.png for the records of each loader's runs; their paths."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, len(found), sharex=True, sharey="row", height_ratios=(3, 2), squeeze=False)
    for column, (loader, runs) in enumerate(found.items()):
        _losses(axes[0][column], runs, save_at)
        _distances(axes[1][column], runs)
        axes[0][column].set_title(TITLES.get(loader, loader), fontweight="bold")
        axes[1][column].set_xlabel("global step")
    axes[0][0].set_ylabel("training loss\n(nats a token)")
    axes[1][0].set_ylabel("distance from the run\nthat was not stopped\n(nats a token)")
    for one in axes.flat:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
        one.axvline(save_at - 0.5, color="#888888", linewidth=1, linestyle=":")
    paths = [folder / "figure.svg", folder / "figure.png"]
    # Neither a date nor random ids: the same runs give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "zvl"}):
        figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=110)
    return paths


def _losses(axes: Any, runs: Runs, save_at: int) -> None:
    whole = [record for record in runs["whole"] if record["step"] >= save_at - BEFORE]
    axes.plot(*_series(whole), color="#777777", linewidth=1.1, label="2 ranks, not stopped")
    for ranks, (color, width) in STYLES.items():
        label = f"goes on with {ranks} rank{'' if ranks == '1' else 's'}"
        axes.plot(*_series(runs[ranks]), color=color, linewidth=width, label=label, solid_capstyle="round")
    axes.annotate(
        f"saved on 2 ranks\nafter {save_at} steps",
        (save_at - 0.5, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(6, -4),
        textcoords="offset points",
        va="top",
        color="#555555",
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _distances(axes: Any, runs: Runs) -> None:
    whole = dict(zip(*_series(runs["whole"]), strict=True))
    worst = {}
    for ranks, (color, width) in STYLES.items():
        steps, losses = _series(runs[ranks])
        apart = [abs(loss - whole[step]) for step, loss in zip(steps, losses, strict=True)]
        worst[ranks] = max(apart)
        axes.plot(steps, [max(ZERO, one) for one in apart], color=color, linewidth=width, solid_capstyle="round")
    _label(axes, {ranks: one for ranks, one in worst.items() if one})
    _label(axes, {ranks: one for ranks, one in worst.items() if not one})
    axes.set_yscale("log")
    axes.set_ylim(ZERO / 60, 40)
    axes.set_yticks([ZERO, 1e-6, 1e-3, 1], ["0", "$10^{-6}$", "$10^{-3}$", "1"])
    axes.minorticks_off()


def _label(axes: Any, worst: Mapping[str, float]) -> None:
    """Say beside their lines which ranks these are, and how far from the run at most."""
    if worst:
        top = max(worst.values())
        text = f"{' and '.join(worst)} rank{'' if list(worst) == ['1'] else 's'}: "
        text += f"at most {top:.1e}" if top else "always 0"
        place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom" if top else "top"}
        axes.text(0.99, top * 2.5 if top else ZERO / 2.5, text, fontsize=9, color="#555555", **place)


def _series(records: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    return [record["step"] for record in records], [record["loss"] for record in records]
