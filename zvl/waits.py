"""What the trainer waited for, and what operators took: measured where the work is done, told by `loader.stats()`.

While `next` waits, what is awaited is the oldest batch that was not delivered yet. Up to the moment at which its plan
was complete it is being planned; the wait is then shared out by what its lane waited for since its last batch. From
that moment on it waits for workers, which plan before all else: that goes to the operators that plan. Once work on it
has begun, the wait is shared out by what each operator took for that batch, part by part.
Nothing here looks at the order of batches, nor can change it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zvl.batch import Counts

__all__ = [
    "COSTS",
    "NOT_MADE",
    "NO_PLAN",
    "OTHER",
    "RANKS",
    "READ",
    "START",
    "Clock",
    "Costs",
    "Made",
    "On",
    "Plan",
    "Stage",
    "Waits",
    "kind_of",
    "size_class",
]

Costs = dict[tuple[str, str, str], float]
"""Seconds by (operator, dataset, size class); "" for a dataset or size that is not known."""

Makeup = dict[tuple[str, str], float]
"""What samples are, by (dataset, "text" or "other"); weights of any sum."""

Made = tuple[float, Costs]
"""When work on a batch began, by `time.perf_counter`, and what it took."""

COSTS = "__costs__"
"""The field in which a batch that is being made carries its `Made`; `Loader` takes it out."""

READ, PLANNING, START, DELIVERY, RANKS = "read", "planning", "start", "delivery", "ranks"
"""What is no operator: reading rows; the planner's own work; starting; turning arrays into a Batch; other ranks."""

OTHER = "other"
"""The dataset, or size class, of work that belongs to several, or to none."""

DELIVERED = (DELIVERY, OTHER, OTHER)

TEXT = "text"

SIZES = ((300_000, "<0.3"), (1_000_000, "0.3-1"), (4_000_000, "1-4"), (16_000_000, "4-16"))
"""Size classes: pixels below which a picture is in it, and its name, in megapixels."""

TIMED_EVERY = 32
"""Of a lane's batches one in so many is planned with a clock on each push: that costs about 0.15 µs a sample."""

POOLED, POOLED_S = 64, 0.02
"""Waits are shared out together, by what the last of their batches took, after so many batches or so many seconds."""

AT_ONCE = 16
"""So many batches are counted together."""

LOOKED_AT = 8
"""Samples of a batch that are looked at for their datasets, where the work itself does not say."""


KEPT = 0.8
"""Planning works ahead of the awaited batch, on samples like those of late: batches before the newest count
too, each less by this factor."""


def size_class(pixels: int) -> str:
    """The class of a picture by its size, named in megapixels.

    >>> [size_class(side * side) for side in (300, 1000, 3000, 5000)]
    ['<0.3', '1-4', '4-16', '>16']
    """
    return next((name for below, name in SIZES if pixels < below), ">16")


def kind_of(part: Any) -> tuple[str, str]:
    """(dataset, size class) of a part of a SplitMap that has the fields `key` and `image`, as those of `patchify`."""
    info = getattr(getattr(part, "image", None), "info", None)
    size = "" if info is None else size_class(info.width * info.height)
    return getattr(part, "key", "").partition("/")[0], size


On = tuple[tuple[str, ...], str]
"""What a lane waits for: operators that share a task, or a read, and its dataset."""

Plan = tuple[dict[On, float], dict[str, float], float, dict[str, float], float]
"""What planning a batch took, since the lane's last one, in seconds: waits for others; operators, wherever they ran;
the planner itself. The Accumulates' shares of that. When the plan was complete, by `time.perf_counter`, which all
processes of a machine share: 0 where it was made in `next` itself."""

NO_PLAN: Plan = {}, {}, 0.0, {}, 0.0

NOT_MADE: Made = 0.0, {}


class Clock:
    """What planning takes in one lane, from batch to batch. Used by the planner's thread alone."""

    def __init__(self, lane: int = 0) -> None:
        self.lane = lane
        self.on: On | None = None
        """What the lane waits for now."""
        self.timing = True
        """Whether pushes are to be timed."""
        self._since = perf_counter()
        self._own = self._timed_own = 0.0
        self._waits: dict[On, float] = {}
        self._busy: dict[str, float] = {}
        self._pushed: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._batches = 0

    def start(self) -> None:
        """The planner goes on with this lane."""
        now = perf_counter()
        if self.on is not None:
            self._waits[self.on] = self._waits.get(self.on, 0.0) + now - self._since
            self.on = None
        self._since = now

    def stop(self, on: On | None) -> None:
        """The planner leaves it, since it waits."""
        now = perf_counter()
        self._own += now - self._since
        self.on, self._since = on, now

    def spend(self, on: On, seconds: Sequence[float], here: bool) -> None:
        """The operators of `on` took that long, in workers or `here`, in the planner's thread, which waits for it."""
        busy = self._busy
        for operator, spent in zip(on[0], seconds):  # noqa: B905  as many as each other; this is called for every task
            busy[operator] = busy.get(operator, 0.0) + spent
        if here:
            total = sum(seconds)
            self._waits[on] = self._waits.get(on, 0.0) + total
            self._own -= total

    def push(self, operator: str, seconds: float) -> None:
        """An Accumulate took that long, while `timing`."""
        self._pushed[operator] = self._pushed.get(operator, 0.0) + seconds

    def batch(self) -> Plan:
        """A batch is planned: what it took. Begins anew."""
        self.stop(None)
        own, self._own = max(0.0, self._own), 0.0
        if self.timing:
            self._timed_own += own
            most = max(self._timed_own, sum(self._pushed.values())) or 1.0
            self._shares = {operator: seconds / most for operator, seconds in self._pushed.items()}
        self._batches += 1
        self.timing = self._batches % TIMED_EVERY == 0
        plan = self._waits, self._busy, own, self._shares, 0.0
        self._waits, self._busy = {}, {}
        return plan


class Stage:
    """Planning operators that share a task, in one lane."""

    def __init__(self, clock: Clock, operators: Sequence[str]) -> None:
        self.on: On = tuple(operators), ""
        self._clock = clock

    def runs_here(self, runs: bool) -> None:
        """A task begins in the planner's thread, or has ended: that thread waits for it."""
        self._clock.on = self.on if runs else None

    def land(self, timed: tuple[list[Any], Sequence[float]], here: bool) -> list[Any]:
        """Note the seconds of a group that is done, in a worker or `here`, in the planner's thread; its elements."""
        elements, seconds = timed
        self._clock.spend(self.on, seconds, here)
        return elements


class Waits:
    """What the trainer waited for in one loader, in seconds. It adds up to all the time spent in `next`."""

    def __init__(self, datasets: Sequence[str]) -> None:
        self._only = datasets[0] if len(datasets) == 1 else ""
        self._waiting = False
        self._mark = 0.0
        self._given: deque[tuple[Counts, Plan, float, float, float]] = deque()
        """Delivered and not counted yet: with when `next` began to wait, when they were there, and when it ended."""
        self._lock = threading.RLock()
        """Whoever counts has it."""
        self._planning = self._queued = self._making = 0.0
        """Waits that are not shared out yet."""
        self._waited: Costs = {}
        self._busy: dict[str, float] = {}
        self._recent: Makeup = {}
        self._inline: Costs = {}
        self._planned: Costs = {}
        """What workers did of late for planning."""
        self._overtaken = 0.0
        """Waits for workers that were planning."""
        self._counts = {"batches": 0, "images": 0, "tokens": 0, "loss_tokens": 0}

    def begin(self) -> float:
        """`next` begins to wait: now, by `time.perf_counter`."""
        self._waiting = True
        self._mark = now = perf_counter()
        return now

    def lap(self, operator: str) -> None:
        """The time since the last mark, if `next` waits, was that of `operator`."""
        if self._waiting:
            now = perf_counter()
            with self._lock:
                _add(self._waited, (operator, OTHER, OTHER), now - self._mark)
            self._mark = now

    def deliver(self, given: Counts, plan: Plan | None, ready: float) -> None:
        """`next` ends with a batch that was there at `ready`, by `time.perf_counter`."""
        self._given.append((given, plan or NO_PLAN, self._mark, ready, perf_counter()))
        self._waiting = False
        if len(self._given) >= AT_ONCE or ready - self._mark > POOLED_S:
            with self._lock:
                self._count()

    def _count(self) -> None:
        """What was delivered since the last time, in order: at once, since each would find the caches empty."""
        while self._given:
            self._count_one(*self._given.popleft())

    def _count_one(self, given: Counts, plan: Plan, mark: float, ready: float, end: float) -> None:
        counts = self._counts
        counts["batches"] += 1
        counts["images"] += given.images
        counts["tokens"] += given.tokens
        counts["loss_tokens"] += given.loss_tokens
        begun, costs = given.made
        for operator, seconds in plan[1].items():
            self._busy[operator] = self._busy.get(operator, 0.0) + seconds
        for operator, share in plan[3].items():
            self._busy[operator] = self._busy.get(operator, 0.0) + share * plan[2]
        for (operator, _, _), seconds in costs.items():
            _add(self._busy, operator, seconds)
        complete = min(max(mark, plan[4]), ready)
        begun = begun if complete < begun < ready else complete
        self._planning += complete - mark
        self._queued += begun - complete
        self._making += ready - begun
        if self._planning + self._queued + self._making > POOLED_S or counts["batches"] % POOLED == 1:
            self._share_out(plan, costs, self._makeup(given.segments))
        self._waited[DELIVERED] = self._waited.get(DELIVERED, 0.0) + end - ready

    def _share_out(self, plan: Plan, costs: Costs, makeup: Makeup) -> None:
        """Book what was waited for since the last time, by what this batch took."""
        _blend(self._recent, makeup)
        waited = _planning_costs(plan)
        if plan[4]:
            _blend(self._planned, {(name, "", ""): each for name, each in plan[1].items() if name != READ})
            if self._counts["batches"] == 1:
                self._book_start(sum(plan[1].values()) + plan[2])
            self._book(self._planning, waited, self._recent)
            # Only planning goes before the oldest batch: so much of it as there has been.
            spent = sum(self._busy[operator] for operator, _, _ in self._planned)
            queued = min(self._queued, max(0.0, spent - self._overtaken))
            self._overtaken += queued
            self._book(queued, self._planned, self._recent)
            self._book(self._making + self._queued - queued, costs, makeup)
        else:  # all was done in `next`, for this batch and for those behind it
            _blend(self._inline, {key: waited.get(key, 0.0) + costs.get(key, 0.0) for key in {**waited, **costs}})
            self._book(self._making, self._inline, self._recent)
        self._planning = self._queued = self._making = 0.0

    def _book_start(self, planned: float) -> None:
        """The first batch waits for workers to start, as far as that is not what planning took."""
        started = max(0.0, self._planning - planned) + self._queued
        self._planning, self._queued = min(self._planning, planned), 0.0
        if started:
            _add(self._waited, (START, OTHER, OTHER), started)

    def _book(self, seconds: float, costs: Costs, makeup: Makeup) -> None:
        """Share out a wait by what was done meanwhile; what belongs to no sample, by what the samples are."""
        if seconds <= 0.0:
            return
        total = sum(costs.values())
        if total <= 0.0:
            costs, total = {(PLANNING, OTHER, OTHER): 1.0}, 1.0
        for (operator, dataset, size), cost in costs.items():
            share = seconds * cost / total
            if size:
                _add(self._waited, (operator, dataset or OTHER, size), share)
                continue
            kinds = [kind for kind in makeup if dataset in ("", kind[0])] or [(dataset or self._only or OTHER, OTHER)]
            parts = _shared(share, [makeup.get(kind, 1.0) for kind in kinds])
            for kind, part in zip(kinds, parts, strict=True):
                _add(self._waited, (operator, *kind), part)

    def _makeup(self, segments: Sequence[Sequence[Any]]) -> Makeup:
        """Tokens of a batch's samples by kind. Of many samples a few are looked at, others each time."""
        found = [segment for row in self._some(segments) for segment in row]
        tokens: Makeup = {}
        for key, start, stop, first_image, last_image in self._some(found):
            kind = self._only or key.partition("/")[0], OTHER if last_image > first_image else TEXT
            _add(tokens, kind, float(stop - start) or 1.0)
        return tokens

    def _some(self, items: Sequence[Any]) -> Sequence[Any]:
        count = len(items)
        if count <= LOOKED_AT:
            return items
        first = self._counts["batches"]
        return [items[(place * count // LOOKED_AT + first) % count] for place in range(LOOKED_AT)]

    def stats(self) -> dict[str, Any]:
        """The part of `loader.stats()` that this class knows; may be called from any thread."""
        with self._lock:
            self._count()
            waited, busy, counts = self._waited.copy(), self._busy.copy(), self._counts.copy()
            pooled = self._planning + self._queued + self._making
        total = sum(waited.values())
        seconds = {axis: _along(waited, place) for place, axis in enumerate(("operator", "dataset", "size"))}
        percent = {
            axis: {name: 100.0 * each / total if total else 0.0 for name, each in names.items()}
            for axis, names in seconds.items()
        }
        return {
            **counts,
            "waited_s": total + pooled,
            "waited_for_s": seconds,
            "waited_for_percent": percent,
            "busy_s": busy,
        }


def _planning_costs(plan: Plan) -> Costs:
    """What a lane waited for, by operator."""
    waits, busy, own, shares, _ = plan
    costs: Costs = {}
    for (operators, dataset), seconds in waits.items():
        parts = _shared(seconds, [busy.get(operator, 0.0) for operator in operators])
        for operator, part in zip(operators, parts, strict=True):
            _add(costs, (operator, dataset, ""), part)
    for operator, share in shares.items():
        _add(costs, (operator, "", ""), own * share)
    if own:
        _add(costs, (PLANNING, "", ""), own * (1.0 - sum(shares.values())))
    return costs


def _shared(seconds: float, shares: Sequence[float]) -> list[float]:
    """`seconds` in parts as the shares are; equal ones if those are all 0."""
    total = sum(shares)
    return [seconds * share / total for share in shares] if total else [seconds / len(shares)] * len(shares)


def _add(to: dict[Any, float], key: Any, value: float) -> None:
    to[key] = to.get(key, 0.0) + value


def _blend(recent: dict[Any, float], new: Mapping[Any, float]) -> None:
    """Let what is new count beside what was."""
    for key in {**recent, **new}:
        recent[key] = KEPT * recent.get(key, 0.0) + new.get(key, 0.0)


def _along(costs: Costs, place: int) -> dict[str, float]:
    """Sums by one part of the key, the largest first."""
    sums: dict[str, float] = {}
    for key, seconds in costs.items():
        _add(sums, key[place], seconds)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
