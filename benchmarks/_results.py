"""results.json, results.md and results.png of `compare.py`, from what was found so far.

python benchmarks/_results.py FOLDER      writes the other two anew from FOLDER/results.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from _measure import spread

__all__ = ["figures", "write"]

ZVL, LIMIT = "zvl, threads", "limit"


def write(found: dict[str, Any], out: Path) -> None:
    """All files of a run."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "results.md").write_text("\n".join(page(found)) + "\n")
    if found.get("rounds", {}).get("photos"):
        plot(found, out / "results.png")


def figures(found: dict[str, Any], task: str) -> dict[str, dict[str, list[float]]]:
    """By subject and figure: one number a round. Ratios are those of the same round."""
    rounds = found.get("rounds", {}).get(task, {})
    made = {label: of_subject(reads) for label, reads in rounds.items()}
    for base, name in ((LIMIT, "of_limit"), (ZVL, "zvl_over")):
        known = {read["round"]: read["images"] / read["wall_s"] for read in rounds.get(base, ())}
        for label, reads in rounds.items():
            pairs = [
                (read["images"] / read["wall_s"], known[read["round"]]) for read in reads if read["round"] in known
            ]
            made[label][name] = [own / other if base == LIMIT else other / own for own, other in pairs]
    return made


def of_subject(reads: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        "images_per_s": [read["images"] / read["wall_s"] for read in reads],
        "tokens_per_s": [read["tokens"] / read["wall_s"] for read in reads],
        "cpu_s_per_1000": [read["cpu_s"] / read["images"] * 1e3 for read in reads],
        "first_s": [read["first_s"] for read in reads],
        "fill": [read["tokens"] / read["slots"] for read in reads],
        "imbalance": [read["imbalance"] for read in reads if read["imbalance"]],
    }


def page(found: dict[str, Any]) -> list[str]:
    """The Markdown, line by line."""
    lines = ["# zvl beside other loaders", ""]
    lines += machine(found)
    lines += throughput(found, "photos", "Photos: 545 conversations, 689 pictures, packed to 4,096 tokens, 1 lane")
    lines += restarts(found)
    lines += noops(found)
    lines += fills(found)
    lines += throughput(found, "mixture", "Mixture: photos, document pages and text, 8 lanes")
    lines += balance(found)
    lines += settings(found)
    return lines


def machine(found: dict[str, Any]) -> list[str]:
    about = found["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    quick = (
        "**A quick run: it shows that everything runs and measures nothing.** " if about["settings"]["quick"] else ""
    )
    return [
        f"{quick}{about['cpu']}, {about['cpus_used']} of {about['cpus']} CPUs, {about['memory_gb']} GB; "
        f"{about['system']}; Python {about['python']}; commit {about['commit']}; load when it began "
        f"{about['load_at_start']:.1f}.",
        "",
        f"Versions: {versions}.",
        "",
        "Median (least to most) of the rounds; subjects take turns within a round, and ratios are of the same round. "
        "**Bold** is the best of its column among loaders (the limit is none). Memory is above what the imports take, "
        "over all processes: PSS counts shared pages in parts, RSS in full in each. The first batch counts from making "
        "the loader, imports and tokenizer done, index warm.",
        "",
    ]


def throughput(found: dict[str, Any], task: str, title: str) -> list[str]:
    made, memory = figures(found, task), found.get("memory", {}).get(task, {})
    if not made:
        return []
    lines = [f"## {title}", ""]
    for column, head in ((False, "With zvl's own kernels in their map function"), (True, "As their users write it")):
        chosen = {label: one for label, one in made.items() if label.endswith("as written") == column}
        if column:
            chosen = {ZVL: made[ZVL], **chosen} if ZVL in made and chosen else chosen
        if chosen:
            lines += [f"### {head}", "", *table(rows_of(chosen, memory), COLUMNS), ""]
    return lines


COLUMNS: tuple[tuple[str, Callable[[Any], float], int], ...] = (
    ("images/s", max, 0),
    ("of the limit", max, 2),
    ("zvl threads over it", max, 2),
    ("tokens/s, thousands", max, 1),
    ("CPU s a 1,000 images", min, 2),
    ("first batch, s", min, 2),
    ("peak PSS, MB", min, 0),
    ("peak RSS, MB", min, 0),
    ("fill", max, 4),
    ("patches, fullest of 8 / mean", min, 2),
)
"""Name, which is best, digits."""

UNRANKED = {"of the limit", "zvl threads over it"}


def rows_of(made: dict[str, Any], memory: dict[str, Any]) -> dict[str, list[list[float]]]:
    """A subject's figures in the order of COLUMNS; [] where there is none."""
    rows = {}
    for label, one in made.items():
        held = memory.get(label)
        peaks = [[held[name] / 1e6] if held else [] for name in ("peak_pss", "peak_rss")]
        names = ("images_per_s", "of_limit", "zvl_over", "tokens_per_s", "cpu_s_per_1000", "first_s")
        figures = [one[name] for name in names]
        figures[3] = [figure / 1e3 for figure in figures[3]]
        rows[label] = [*figures, *peaks, one["fill"], one["imbalance"] if label != LIMIT else []]
    return rows


def table(rows: dict[str, list[list[float]]], columns: Sequence[tuple[str, Any, int]]) -> list[str]:
    """Markdown, the best of each column bold."""
    lines = ["| | " + " | ".join(name for name, _, _ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    leads = []
    for place, (name, best, _) in enumerate(columns):
        middles = {n: statistics.median(r[place]) for n, r in rows.items() if r[place] and n != LIMIT}
        leads.append(best(middles, key=middles.__getitem__) if middles and name not in UNRANKED else None)
    for label, row in rows.items():
        cells = []
        for place, (_, _, digits) in enumerate(columns):
            cell = (
                (spread(row[place], digits) if len(row[place]) > 1 else one(row[place], digits)) if row[place] else "-"
            )
            cells.append(f"**{cell}**" if leads[place] == label else cell)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def one(figures: Sequence[float], digits: int) -> str:
    return f"{figures[0]:,.{digits}f}"


def restarts(found: dict[str, Any]) -> list[str]:
    reads = found.get("restart", {})
    if not reads:
        return []
    lines = [
        "## Checkpoint and restart",
        "",
        "The state at the worst point behind 2,048 samples: just before what a restart does anew becomes less. Cold "
        "and restored: seconds from making the loader to its first batch, for 8 lanes to the first complete step. "
        "Exact: the first new batch is the one that came behind the state. Share: (restored - cold) / delivering what "
        "is replayed anew.",
        "",
        "| | state, bytes | saving, ms | cold, s | restored, s | exact | share |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, read in reads.items():
        if "none" in read:
            lines.append(f"| {label} | none: {read['none']} | | | | | |")
            continue
        share = replay_share(read)
        lines.append(
            f"| {label} | {read['bytes']:,} | {read['save_ms']:.2f} | {spread(read['cold_s'], 2)} | "
            f"{spread(read['restored_s'], 2)} | {'yes' if read['exact'] else 'no'} | "
            f"{f'{share:.3f}' if share is not None else '-'} |"
        )
    return [*lines, ""]


def replay_share(read: dict[str, Any]) -> float | None:
    """Of what delivering the replayed samples takes; where the loader does not say how many it replays, None."""
    if not read["replayed"]:
        return None
    extra = statistics.median(read["restored_s"]) - statistics.median(read["cold_s"])
    return extra / (read["replayed"] * read["deliver_ms"] / 1e3)


def noops(found: dict[str, Any]) -> list[str]:
    reads = found.get("noop", {})
    if not reads:
        return []
    lines = ["## A pipeline that does nothing: rows, identity, batches of 64; µs a sample", ""]
    for where in ("threads ahead", "trainer's thread"):
        chosen = {name: read["laps"] for name, read in reads.items() if read["where"] == where}
        rows = {name: [[lap[kind] for lap in laps] for kind in ("wall_us", "cpu_us")] for name, laps in chosen.items()}
        if rows:
            head = "Threads run ahead of the trainer" if where == "threads ahead" else "In the trainer's thread"
            lines += [f"{head}:", "", *table(rows, (("wall", min, 1), ("CPU", min, 1))), ""]
    lines += ["Energon reads prepared tar files only, so it is not here.", ""]
    return lines


def fills(found: dict[str, Any]) -> list[str]:
    reads, sizes = found.get("fill", {}), found.get("sample_bytes")
    if not reads or not sizes:
        return []
    lines = [
        "## How full each one's own packer makes rows of 4,096 tokens",
        "",
        f"8,192 samples of the photos' lengths; zvl flushes every 2,048. Held: the samples that the window, or so "
        f"many full open rows, have at once, as compressed files ({sizes['compressed'] / 1e3:.0f} kB a sample), as "
        f"uint8 patches ({sizes['uint8 patches'] / 1e6:.2f} MB) and as the float32 patches of the Hugging Face "
        f"processor ({sizes['float32 patches'] / 1e6:.2f} MB).",
        "",
        "| | packer | fill | samples held | MB compressed | MB uint8 | MB float32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for module, packers in reads.items():
        for name, read in packers.items():
            held = " | ".join(f"{read['samples_held'] * size / 1e6:.1f}" for size in sizes.values())
            lines.append(f"| {module} | {name} | {read['fill']:.4f} | {read['samples_held']} | {held} |")
    return [*lines, "", *equal_memory(reads, sizes), ""]


def equal_memory(reads: dict[str, Any], sizes: dict[str, float]) -> list[str]:
    """The best fill of the others within the bytes of zvl's default window."""
    window = reads.get("zvl", {}).get("knapsack, window 64")
    if not window:
        return []
    budget = window["samples_held"] * sizes["compressed"]
    lines = [f"At the memory of zvl's window of 64 ({budget / 1e6:.1f} MB; zvl fills {window['fill']:.4f}):"]
    for module, packers in reads.items():
        for kind, size in sizes.items():
            fitting = {n: r["fill"] for n, r in packers.items() if r["samples_held"] * size <= budget}
            if module != "zvl":
                best = max(fitting, key=fitting.__getitem__, default=None)
                lines.append(
                    f"- {module}, holding {kind}: {f'{fitting[best]:.4f} ({best})' if best else 'not one row fits'}"
                )
    return lines


def balance(found: dict[str, Any]) -> list[str]:
    reads = found.get("balance", {})
    lines = ["## The mixture planned with zvl's two budgets, and with one", ""] if reads else []
    lines += ["| | max_patches | fullest lane's patches / mean | fill |", "|---|---|---|---|"] if reads else []
    for name, read in reads.items():
        lines.append(f"| {name} | {read['max_patches']} | {read['imbalance']:.3f} | {read['fill']:.4f} |")
    return [*lines, ""]


def settings(found: dict[str, Any]) -> list[str]:
    lines = ["## Settings", "", "The best of what was tried, by images/s on the photos:", ""]
    lines += [f"- {label}: {said(setting)}" for label, setting in found.get("settings", {}).items() if setting]
    if found["tuning"]:
        lines += ["", "| tried | setting | images/s |", "|---|---|---|"]
    for label, tried in found["tuning"].items():
        for each in tried:
            rates = ", ".join(f"{rate:.0f}" for rate in each["images_per_s"])
            lines.append(f"| {label} | {said(each['setting'])} | {rates or each.get('failed', '-')} |")
    if found["failed"]:
        lines += ["", "Failed:", "", *(f"- {what}: {why}" for what, why in found["failed"].items())]
    return lines


def said(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in setting.items())


def plot(found: dict[str, Any], target: Path) -> None:
    """Images a second, and memory, of everyone."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    made, memory = figures(found, "photos"), found.get("memory", {}).get("photos", {})
    labels = sorted(made, key=lambda label: statistics.median(made[label]["images_per_s"]))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 0.34 * len(labels) + 1.4), sharey=True)
    colours = ["tab:blue" if n.startswith("zvl") else "0.35" if n == LIMIT else "tab:orange" for n in labels]
    speeds = [made[label]["images_per_s"] for label in labels]
    middles = [statistics.median(each) for each in speeds]
    ranges = [bars(middle - min(each) for middle, each in zip(middles, speeds, strict=True))]
    ranges.append(bars(max(each) - middle for middle, each in zip(middles, speeds, strict=True)))
    left.barh(labels, middles, xerr=ranges, color=colours, ecolor="0.5")
    left.set_xlabel("images/s")
    right.barh(labels, [memory.get(label, {}).get("peak_pss", 0) / 1e6 for label in labels], color=colours)
    right.set_xlabel("peak memory above imports (PSS), MB")
    figure.suptitle(f"{found['machine']['cpus_used']} CPUs, median and range of rounds", fontsize=10)
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    pyplot.close(figure)


def bars(lengths: Iterable[float]) -> list[float]:
    return [max(0.0, length) for length in lengths]


def main() -> None:
    out = Path(sys.argv[1])
    write(json.loads((out / "results.json").read_text()), out)


if __name__ == "__main__":
    main()
