"""zvl beside other loaders: the same rows, the same cores, in turns. `make bench` runs it in an environment of its own.

    benchmarks/.venv/bin/python benchmarks/compare.py [--quick] [--only grain] [--parts rounds,noop] [--out FOLDER]

Writes results.json after every part, and results.md and results.png from it at the end: benchmarks/results/DATE-cpu.
benchmarks/README.md says what is measured and how.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import corpus
from _children import Child, Failed
from _machine import describe
from _measure import in_turn
from _results import write
from peers import NOOPS, SUBJECTS, Subject, Task

HERE = Path(__file__).parent
LOGS = HERE.parent / "build" / "bench-logs"
ANCHOR = "zvl, threads"
QUICK_FLUSH = 64
SIZES = {"zvl": (16, 32, 64, 128, 256), "grain": (1, 2, 4, 7, 8, 16, 32, 64), "zephon": (1, 2, 4, 7, 8, 16, 32, 64)}
"""Of `fills`: zvl's windows, in samples, and the others' open bins. 7 bins hold as many samples as a window of 64."""


def chosen(only: Sequence[str]) -> list[Subject]:
    """The subjects of those names: a label, or a module, which means all of its subjects; all if there are none."""
    labels = {one.label for one in SUBJECTS}
    return [
        one
        for one in SUBJECTS
        if not only or any(one.label == name if name in labels else one.module == name for name in only)
    ]


class Run:
    """One run of everything: what is asked for, and what was found so far."""

    def __init__(self, given: argparse.Namespace, tasks: dict[str, Task]) -> None:
        self.given = given
        quick = {"flush_every": QUICK_FLUSH} if given.quick else {}
        self.tasks = {name: asdict(task) | quick for name, task in tasks.items()}
        self.out = Path(given.out)
        self.subjects = chosen(given.only)
        self.children: dict[str, Child] = {}
        self.best: dict[str, dict[str, Any]] = {}
        self.found: dict[str, Any] = {"machine": describe(given), "tuning": {}, "failed": {}}
        self.begun = time.monotonic()

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.begun:6.0f} s  {line}", flush=True)

    def save(self) -> None:
        self.found["seconds"] = round(time.monotonic() - self.begun)
        write(self.found, self.out)

    def fail(self, subject: str, what: str, error: Failed) -> None:
        self.found["failed"][f"{subject}: {what}"] = str(error)
        self.say(f"FAILED {subject}: {what}: {error}")

    def child(self, subject: Subject) -> Child:
        """The subject's process, with everything imported."""
        if subject.label not in self.children:
            made = self.open(subject, self.best.get(subject.label, subject.settings[0]))
            self.children[subject.label] = made
        return self.children[subject.label]

    def open(self, subject: Subject, setting: dict[str, Any]) -> Child:
        child = Child(subject.module, self.given.python, self.log(subject.label))
        base = child.ask("prepare", column=subject.column, setting=setting)["memory"]
        self.found.setdefault("imports", {})[subject.label] = base
        return child

    def log(self, name: str) -> Path:
        """Where a process writes what it has to say."""
        return LOGS / f"{name.replace(', ', '-').replace(' ', '_')}.log"

    def drop(self, subject: Subject) -> None:
        """End the subject's process, so that the next order finds a fresh one."""
        if subject.label in self.children:
            self.children.pop(subject.label).end()

    def live(self, task: str = "photos") -> list[Subject]:
        """Who has not failed and takes that task."""
        failed = {key.partition(":")[0] for key in self.found["failed"]}
        return [one for one in self.subjects if task in one.tasks and one.label not in failed]

    def visit(self, subject: Subject, task: str, samples: int, **more: Any) -> dict[str, Any] | None:
        """One visit with the best setting; None, and noted, if it fails."""
        setting = more.pop("setting", self.best.get(subject.label, subject.settings[0]))
        try:
            return (more.pop("child", None) or self.child(subject)).ask(
                "visit",
                task=self.tasks[task],
                column=subject.column,
                setting=setting,
                untimed=16 if self.given.quick else subject.settle,
                timed=samples,
                **more,
            )
        except Failed as error:
            self.fail(subject.label, f"{task} {setting}", error)
            self.children.pop(subject.label, None)
            return None


def samples(run: Run, subject: Subject) -> int:
    """Of a visit: as many as take a few seconds."""
    if subject.column == "kernels" or run.given.quick:
        return run.given.samples
    return max(subject.least, run.given.samples // 4)


def tune(run: Run) -> None:
    """The best setting of each subject, by images/s; the two best are tried again where they are close."""
    for subject in run.live():
        tried: list[dict[str, Any]] = [{"setting": setting, "images_per_s": []} for setting in subject.settings]
        if len(tried) > 1 and not run.given.quick:
            for one in tried:
                try_setting(run, subject, one)
            first, second, *_ = sorted(tried, key=speed, reverse=True)
            for one in (first, second) if speed(second) > 0.9 * speed(first) else ():
                try_setting(run, subject, one)
            run.found["tuning"][subject.label] = tried
            run.drop(subject)
        best = max(tried, key=speed)
        run.best[subject.label] = best["setting"]
        run.say(f"tuned {subject.label}: {best['setting']}, {speed(best):.0f} images/s")
        run.save()
    run.found["settings"] = run.best


def speed(tried: dict[str, Any]) -> float:
    return statistics.mean(tried["images_per_s"]) if tried["images_per_s"] else 0.0


def try_setting(run: Run, subject: Subject, tried: dict[str, Any]) -> None:
    """One visit; a setting that fails is noted and out."""
    if tried.get("failed"):
        return
    try:
        child = run.child(subject)
        child.ask("prepare", column=subject.column, setting=tried["setting"])
        found = child.ask(
            "visit",
            task=run.tasks["photos"],
            column=subject.column,
            setting=tried["setting"],
            untimed=subject.settle,
            timed=samples(run, subject) // 2,
            timeout_s=120,
        )
        tried["images_per_s"].append(found["images"] / found["wall_s"])
    except Failed as error:
        run.children.pop(subject.label, None)
        tried["failed"] = str(error)
        run.say(f"FAILED {subject.label} {tried['setting']}: {error}")


def memories(run: Run, task: str) -> None:
    """The most memory of a fresh process: buffers fill while the trainer rests, then it takes what it can."""
    for subject in run.live(task):
        run.drop(subject)
        read = run.visit(subject, task, samples(run, subject) // 2, watch=True, rest_s=3.0)
        if read:
            note_memory(run, subject, task, read)
        run.save()


def note_memory(run: Run, subject: Subject, task: str, read: dict[str, Any]) -> None:
    base = run.found["imports"][subject.label]
    peaks = {name: read[name] - base[name.removeprefix("peak_")] for name in ("peak_rss", "peak_pss")}
    run.found.setdefault("memory", {}).setdefault(task, {})[subject.label] = peaks
    run.say(f"memory {task} {subject.label}: {peaks['peak_pss'] / 1e6:.0f} MB PSS above imports")


def rounds(run: Run, task: str) -> None:
    """Everyone in turns, several times; those as their users write them, which are slow, in every second round."""
    found: dict[str, list[Any]] = run.found.setdefault("rounds", {}).setdefault(task, {})
    quick = run.given.quick
    for number in range(run.given.repeats if task == "photos" else run.given.repeats // 2 + 1):
        for subject in in_turn(run.live(task), number):
            if subject.column == "written" and number % 2:
                continue
            read = run.visit(subject, task, samples(run, subject), watch=quick)
            if read:
                found.setdefault(subject.label, []).append({"round": number, **read})
                rate = read["images"] / read["wall_s"]
                run.say(f"round {number} {task} {subject.label}: {rate:.0f} images/s, first {read['first_s']:.2f} s")
                if quick and task == "photos":
                    note_memory(run, subject, task, read)
        run.save()


def restarts(run: Run) -> None:
    """From the worst point behind an interval; zvl with 8 lanes too."""
    found = run.found.setdefault("restart", {})
    behind = QUICK_FLUSH if run.given.quick else 2048
    for subject in run.live():
        slow = "processes" in subject.label or "isolated" in subject.label  # they start processes seven times
        if subject.column == "kernels" and not (slow and run.given.quick):
            found[subject.label] = restart(run, subject, "photos", behind, 0)
            run.save()
    lanes = [one for one in run.live() if one.label == ANCHOR]
    if lanes and not run.given.quick:
        run.tasks["photos, 8 lanes"] = run.tasks["photos"] | {"name": "photos, 8 lanes", "lanes": 8}
        found[f"{ANCHOR}, 8 lanes"] = restart(run, lanes[0], "photos, 8 lanes", 64, 240)
        run.save()


def restart(run: Run, subject: Subject, task: str, behind: int, skip: int) -> dict[str, Any]:
    try:
        read = run.child(subject).ask(
            "restart",
            task=run.tasks[task],
            column=subject.column,
            setting=run.best.get(subject.label, subject.settings[0]),
            samples=behind,
            repeats=1 if run.given.quick else 3,
            skip=skip,
        )
        run.say(f"restart {task} {subject.label}: {read.get('none') or read['restored_s']}")
        return read
    except Failed as error:
        run.fail(subject.label, "restart", error)
        run.children.pop(subject.label, None)
        return {"none": f"failed: {error}"}


def noops(run: Run) -> None:
    """Rows that pass through a map that does nothing, in batches of 64. In processes that have done nothing else, but
    in a quick run."""
    found: dict[str, Any] = run.found.setdefault("noop", {})
    modules = {one.module for one in run.live()}
    children: dict[str, Child] = {one.module: run.child(one) for one in run.live()} if run.given.quick else {}
    for number in range(run.given.repeats):
        for noop in in_turn(NOOPS, number):
            if noop.module not in modules or f"no-op {noop.name}" in run.found["failed"]:
                continue
            if noop.module not in children:
                children[noop.module] = Child(noop.module, run.given.python, run.log(f"noop-{noop.module}"))
            batches = 20 if run.given.quick else 400
            try:
                lap = children[noop.module].ask("noop", untimed=20, batches=batches, setting=noop.setting)
                found.setdefault(noop.name, {"where": noop.where, "laps": []})["laps"].append(lap)
            except Failed as error:
                run.found["failed"][f"no-op {noop.name}"] = str(error)
                children.pop(noop.module).end()
    for child in () if run.given.quick else children.values():
        child.end()
    run.save()


def fills(run: Run) -> None:
    """The packers of those that have one, on the lengths of the photos' samples; zvl's plan with both budgets."""
    from peers._kernels import Kernels
    from peers._rows import Rows

    kernels, rows = Kernels(), Rows(run.tasks["photos"]["shards"]["photos"])
    planned = [kernels.plan(rows[number]) for number in range(64 if run.given.quick else len(rows))]
    lengths = [len(sample["input_ids"]) for sample in planned]
    images = [image for sample in planned for image in sample["images"]]
    run.found["sample_bytes"] = {
        "compressed": sum(len(image.data) for image in images) / len(planned),
        "uint8 patches": sum(588 * image.plan.rows for image in images) / len(planned),
        "float32 patches": sum(4 * 1176 * image.plan.rows for image in images) / len(planned),
    }
    found = run.found.setdefault("fill", {})
    for module, sizes in SIZES.items():
        if any(one.module == module for one in run.live()):
            child = Child(module, run.given.python, run.log(f"fill-{module}"))
            count = 256 if run.given.quick else 8192
            chosen = sizes[2:4] if run.given.quick else sizes
            try:
                found[module] = child.ask("fills", lengths=lengths, samples=count, sizes=chosen)
            except Failed as error:
                run.found["failed"][f"fill {module}"] = str(error)
            child.end()
            run.say(f"fill {module}: {found.get(module)}")
            run.save()
    balance(run)


def balance(run: Run) -> None:
    """Planned steps of the mixture with zvl's second budget, and without."""
    if not any(one.module == "zvl" for one in run.live()):
        return
    child = Child("zvl", run.given.python, run.log("balance"))
    for name, patches in (("both budgets", run.tasks["mixture"]["max_patches"]), ("tokens alone", None)):
        task = run.tasks["mixture"] | {"max_patches": patches}
        steps = 4 if run.given.quick else 200
        run.found.setdefault("balance", {})[name] = {
            "max_patches": patches,
            **child.ask("balance", task=task, steps=steps),
        }
    child.end()
    run.say(f"balance: {run.found['balance']}")
    run.save()


def parts(run: Run) -> Iterator[tuple[str, Any]]:
    """What is done, most wanted first."""
    yield "tune", lambda: tune(run)
    if not run.given.quick:  # which looks at memory in its only round
        yield "memory", lambda: memories(run, "photos")
    yield "rounds", lambda: rounds(run, "photos")
    yield "restart", lambda: restarts(run)
    yield "noop", lambda: noops(run)
    yield "fill", lambda: fills(run)
    yield "mixture", lambda: rounds(run, "mixture")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs, and measures nothing")
    parser.add_argument("--only", action="append", default=[], help="a subject's name or module; may be given again")
    parser.add_argument("--parts", default="", help="of tune,memory,rounds,restart,noop,fill,mixture; all if not given")
    parser.add_argument("--repeats", type=int, help="rounds (default 5)")
    parser.add_argument("--samples", type=int, help="samples timed in a visit with zvl's kernels (default 1,000)")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the subjects")
    parser.add_argument("--cores", type=int, default=2, help="the first so many CPUs are used (default 2)")
    parser.add_argument("--out", default=str(HERE / "results" / time.strftime("%Y-%m-%d-cpu")))
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 5)
    given.samples = given.samples or (24 if given.quick else 1000)
    return given


def main() -> None:
    given = options()
    os.environ.setdefault("ZVL_CACHE", str(HERE.parent / ".cache" / "zvl"))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    wanted = given.parts.split(",") if given.parts else ["mixture"]
    run = Run(given, corpus.tasks(mixture=bool({"mixture", "fill"} & {*wanted})))
    for name, part in parts(run):
        if not given.parts or name in given.parts.split(","):
            run.say(f"-- {name}")
            part()
    for subject in run.subjects:
        run.drop(subject)
    run.save()
    print((run.out / "results.md").read_text())


if __name__ == "__main__":
    main()
