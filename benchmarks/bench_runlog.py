"""What a run log costs: the demo's pipeline with `zvl.RunLog`, beside the same without.

    python benchmarks/bench_runlog.py [--json] [--repeats N]

"log" lets the workers hash the pixels (`hash_images`), as `zvl run --log` does; "log alone" hashes them in the
trainer's thread. The subjects run in processes of their own and take turns. Beside the ratios of whole stretches, which
vary by more than a log costs, stands the CPU time of `write` itself.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from _measure import WORKERS, Count, Subject, demo_pipeline, in_turn, options, report, spread

import zvl

LANES = 8


def loader(hash_images: bool, log: bool) -> Generator[Count]:
    """Batches, logged or not. `tokens` are the nanoseconds of CPU that `write` took."""
    pipeline = demo_pipeline(LANES)
    with (
        tempfile.TemporaryDirectory() as folder,
        zvl.RunLog(Path(folder) / "run.jsonl", pipeline) as written,
        pipeline.loader(workers=WORKERS, hash_images=hash_images) as batches,
    ):
        for batch in batches:
            begun = time.thread_time_ns()
            if log:
                written.write(batch)
            yield Count(len(batch.image_rows), time.thread_time_ns() - begun)


def main() -> None:
    given = options(__doc__, repeats=(15, 1, "stretches of each subject"), batches=(60, 4, "batches in a stretch"))
    subjects = [
        Subject("no log", loader, False, False),
        Subject("log", loader, True, True),
        Subject("log alone", loader, False, True),
    ]
    for number in range(given.repeats):
        for subject in in_turn(subjects, number):
            subject.run(8, given.batches)
    rows, result = [], {}
    for subject in subjects:
        subject.close()
        pairs = list(zip(subject.readings, subjects[0].readings, strict=True))
        wall = [one.time.wall / one.images / (other.time.wall / other.images) for one, other in pairs]
        cpu = [one.time.cpu / one.images / (other.time.cpu / other.images) for one, other in pairs]
        write = statistics.median(one.tokens / one.batches / 1e6 for one in subject.readings)
        share = statistics.median(one.tokens / 1e9 / one.time.cpu for one in subject.readings)
        rows.append([subject.name, spread(wall, 3), spread(cpu, 3), f"{write:.3f}", f"{share:.2%}"])
        result[subject.name] = {
            "wall_ratio": round(statistics.median(wall), 4),
            "cpu_ratio": round(statistics.median(cpu), 4),
            "write_ms_per_batch": round(write, 4),
            "write_share_of_cpu": round(share, 5),
        }
    heads = ["subject", "wall an image, of no log", "CPU an image, of no log", "write, CPU ms a batch", "of all CPU"]
    report(f"{WORKERS} workers, {LANES} lanes, median (range) of {given.repeats} stretches", heads, rows, result, given)


if __name__ == "__main__":
    main()
