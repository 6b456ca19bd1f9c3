"""What the engine promises: order, errors in their place, bounded windows, no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import zvl

RUNNERS = ["inline", "threads"]


def source(rows: int, passes: Any = None, **settings: Any) -> zvl.Mixture:
    data = zvl.from_rows([{"n": n} for n in range(rows)])
    return zvl.Mixture(data, passes=passes or zvl.Once(), shuffle="none", **settings)


def numbers(batch: zvl.Batch) -> list[int]:
    return [int(n) for n in batch["n"]]


def same(sample: zvl.Sample) -> zvl.Sample:
    return dict(sample)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("zvl")]
    assert left == []


def bad_at(number: int) -> Callable[[zvl.Sample], zvl.Sample]:
    def check(sample: zvl.Sample) -> zvl.Sample:
        if sample["n"] == number:
            raise KeyError("colour")
        return dict(sample)

    return check


@dataclass(frozen=True, kw_only=True)
class Picky(zvl.Map):
    """Refuses one number; several are checked in one call that names none."""

    number: int

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        if sample["n"] == self.number:
            raise KeyError("colour")
        return dict(sample)

    def many(self, samples: Sequence[zvl.Sample]) -> list[zvl.Sample | Exception]:
        return [self(sample) for sample in samples]


@dataclass(frozen=True, kw_only=True)
class Refuse(zvl.Accumulate):
    """Hands everything on; raises at one number."""

    number: int

    def start(self, rng: zvl.Rng) -> zvl.Accumulator:
        return Refuser(self.number)


class Refuser:
    def __init__(self, number: int) -> None:
        self._number = number

    def push(self, sample: zvl.Sample) -> list[zvl.Sample]:
        if sample["n"] == self._number:
            raise KeyError("colour")
        return [sample]

    def flush(self) -> list[zvl.Sample]:
        return []


STAGES = {
    "map": lambda p: p.map(bad_at(41)).map(same, parallelism=1).batch(2),
    "many": lambda p: p.apply(Picky(number=41)).batch(2),
    "accumulate": lambda p: p.apply(Refuse(number=41)).map(same).batch(2),
    "behind": lambda p: p.batch(2).map(lambda batch: [][0] if 41 in batch["n"] else batch),
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("stage", STAGES)
def test_batches_before_an_error_are_delivered_first(stage: str, runner: str) -> None:
    pipeline = STAGES[stage](zvl.Pipeline(source(100), lanes=1))
    with pipeline.loader(runner=runner, workers=3) as loader:
        got = [next(loader) for _ in range(20)]
        assert [numbers(batch) for batch in got] == [[n, n + 1] for n in range(0, 40, 2)]
        with pytest.raises(zvl.OperatorError) as caught:
            next(loader)
        assert loader.state_dict() == got[-1].state
        with pytest.raises(zvl.ZvlError, match="stopped at an error or an interrupt: make a new one and load"):
            next(loader)
    key = "batch:0/0/20" if stage == "behind" else "data/rows#41@0"
    assert f"on sample {key!r}: " in str(caught.value)
    assert "Error: " in str(caught.value)
    assert caught.value.operator in {"map:check", "Picky", "Refuse", "map:<lambda>"}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_bad_row_behind_good_ones_waits_its_turn(runner: str) -> None:
    rows: list[dict[str, Any]] = [{"n": n} for n in range(9)] + [{"n": 9, "images": ["/no/such.jpg"]}]
    mixture = zvl.Mixture(zvl.from_rows(rows), passes=zvl.Once(), shuffle="none")
    pipeline = zvl.Pipeline(mixture, lanes=1).map(same).batch(2)
    with pipeline.loader(runner=runner) as loader:
        assert [numbers(next(loader)) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        with pytest.raises(
            zvl.OperatorError, match=r"operator 'read' failed on sample 'data/rows#9@0': missing: .*such\.jpg"
        ):
            next(loader)


@dataclass(frozen=True, kw_only=True)
class Odd(zvl.SplitMap):
    """Parts 3 and 1 of a batch fail, in this order of time."""

    gate: Any = None

    def begin(self, sample: zvl.Sample) -> tuple[Any, Sequence[Any]]:
        return sample, range(4)

    def part(self, state: Any, part: int) -> None:
        if part == 3:
            Odd.later.set()
        if part == 1:
            Odd.later.wait(0.3)
        if part in (1, 3):
            raise ValueError(f"part {part}")

    def finish(self, state: Any, outcomes: Sequence[Any]) -> zvl.Sample:
        return dict(state)


Odd.later = threading.Event()  # type: ignore[attr-defined]


@pytest.mark.parametrize("runner", RUNNERS)
def test_of_several_bad_parts_the_first_is_named(runner: str) -> None:
    with (
        zvl.Pipeline(source(4), lanes=1).batch(2).apply(Odd()).loader(runner=runner, workers=4) as loader,
        pytest.raises(zvl.OperatorError, match="ValueError: part 1"),
    ):
        next(loader)


@dataclass(frozen=True, kw_only=True)
class Returns(zvl.Accumulate):
    """Its accumulator returns something wrong."""

    what: Any

    def start(self, rng: zvl.Rng) -> zvl.Accumulator:
        return Returner(self.what)


class Returner:
    def __init__(self, what: Any) -> None:
        self._what = what

    def push(self, sample: zvl.Sample) -> Any:
        return self._what

    def flush(self) -> Any:
        return ()


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (None, r"expected push\(\) to return an iterable of samples, got NoneType"),
        ("x", r"expected push\(\) to return samples \(dicts\), got str among them"),
    ],
)
def test_an_accumulator_that_returns_no_samples_is_named(what: Any, message: str, runner: str) -> None:
    pipeline = zvl.Pipeline(source(4), lanes=1).apply(Returns(what=what))
    with pipeline.loader(runner=runner) as loader, pytest.raises(zvl.OperatorError, match=f"'Returns'.*{message}"):
        next(loader)


def test_a_map_without_a_result_is_an_error() -> None:
    pipeline = zvl.Pipeline(source(4), lanes=1).map(lambda sample: None).batch(2)  # type: ignore[arg-type,return-value]
    with (
        pipeline.loader(runner="inline") as loader,
        pytest.raises(zvl.OperatorError, match=r"got NoneType: return the sample, or make it a FilterMap"),
    ):
        next(loader)


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_close_ends_all_threads_at_any_moment(taken: int) -> None:
    loader = zvl.Pipeline(source(500, zvl.Forever()), lanes=4).map(same).batch(2).map(same).loader(workers=3)
    for _ in range(taken):
        next(loader)
    loader.close()
    loader.close()
    with pytest.raises(StopIteration):
        next(loader)


def test_an_interrupt_in_the_consumer_leaves_no_thread() -> None:
    """Thrown where the consumer waits: in a call of its own thread."""

    def interrupt(flag: bool) -> bool:
        raise KeyboardInterrupt

    pipeline = zvl.Pipeline(source(50), lanes=4).map(same).batch(2)
    loader = pipeline.loader(dp_rank=0, dp_size=2, reducer=interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(loader)
    with pytest.raises(zvl.ZvlError, match="make a new one"):
        next(loader)


def test_an_interrupt_while_planning_loses_nothing_in_silence() -> None:
    def interrupt(sample: zvl.Sample) -> zvl.Sample:
        if sample["n"] == 5:
            raise KeyboardInterrupt
        return dict(sample)

    loader = zvl.Pipeline(source(50), lanes=1).map(interrupt).batch(2).loader(runner="inline")
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    with pytest.raises(zvl.ZvlError, match="make a new one"):
        next(loader)


def test_close_frees_a_consumer_that_waits_in_another_thread() -> None:
    """An endless source of which nothing passes: next() would wait for ever."""
    reached = threading.Event()

    def nothing(sample: zvl.Sample) -> bool:
        if sample["n"] == 40:
            reached.set()
        return False

    loader = zvl.Pipeline(source(50, zvl.Forever()), lanes=2, flush_every=16).filter(nothing).batch(1).loader()
    errors: list[Exception] = []

    def consume() -> None:
        try:
            next(loader)
        except zvl.ZvlError as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert reached.wait(20)
    loader.close()
    consumer.join(20)
    assert not consumer.is_alive()
    assert "the loader was closed while its next batch was awaited" in str(errors[0])


def test_the_window_does_not_grow_while_the_trainer_is_slow() -> None:
    prefetch = 3
    lock = threading.Condition()
    counts = {"begun": 0, "taken": 0, "most": 0}

    def count(batch: zvl.Sample) -> zvl.Sample:
        with lock:
            counts["begun"] += 1
            counts["most"] = max(counts["most"], counts["begun"] - counts["taken"])
            lock.notify_all()
        return batch

    pipeline = zvl.Pipeline(source(100, zvl.Forever()), lanes=4).batch(2).map(count)
    with pipeline.loader(workers=4, prefetch=prefetch) as loader:
        for _ in range(30):
            next(loader)
            with lock:
                counts["taken"] += 1
                assert lock.wait_for(lambda: counts["begun"] - counts["taken"] >= prefetch, timeout=20)
    assert counts["most"] <= prefetch + 1


def meeting(calls: int) -> tuple[Callable[[zvl.Sample], zvl.Sample], threading.Event]:
    """A function that hands samples on when so many calls of it wait at once, and then always; whether they have."""
    met, lock, waiting = threading.Event(), threading.Lock(), [0]

    def meet(sample: zvl.Sample) -> zvl.Sample:
        with lock:
            waiting[0] += 1
            if waiting[0] >= calls:
                met.set()
        assert met.wait(30), f"{waiting[0]} calls at once, and no more"
        return dict(sample)

    return meet, met


def test_lanes_plan_at_the_same_time() -> None:
    """Of 16 lanes each has a call that waits for those of the others; one lane after another would never end."""
    meet, met = meeting(16)
    pipeline = zvl.Pipeline(source(16 * 40, chunk_rows=8), lanes=16)
    with pipeline.map(meet, parallelism=32).batch(4).loader(workers=32) as loader:
        assert sum(len(batch.segments) for batch in loader) == 640
    assert met.is_set()


def test_batches_are_made_at_the_same_time() -> None:
    """On 64 workers 48 batches are in the making at once."""
    meet, met = meeting(48)
    pipeline = zvl.Pipeline(source(2048), lanes=1).batch(4).map(meet)
    with pipeline.loader(workers=64) as loader:
        assert sum(1 for _ in loader) == 512
    assert met.is_set()


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_replay_makes_no_batch_again_that_was_delivered(runner: str) -> None:
    made: list[list[int]] = []

    def make(batch: zvl.Sample) -> zvl.Sample:
        made.append([int(n) for n in batch["n"]])
        return batch

    pipeline = zvl.Pipeline(source(96), lanes=1, flush_every=64).batch(4).map(make)
    with pipeline.loader(runner=runner, prefetch=1) as loader:
        for _ in range(15):
            state = next(loader).state
    made.clear()
    with pipeline.loader(runner=runner) as loader:
        loader.load_state_dict(state)
        assert [numbers(batch) for batch in loader] == [list(range(n, n + 4)) for n in range(60, 96, 4)]
    assert sorted(made) == [list(range(n, n + 4)) for n in range(60, 96, 4)]


def test_endless_short_intervals_do_not_pile_up() -> None:
    """Marks behind groups that never fill are handed on at once, without a future to wait for."""
    read = 0

    def count(sample: zvl.Sample) -> zvl.Sample:
        nonlocal read
        read += 1
        return dict(sample)

    pipeline = zvl.Pipeline(source(50, zvl.Forever()), lanes=1, flush_every=2).map(count).shuffle(2).map(same).batch(1)
    with pipeline.loader(runner="inline", workers=1) as loader:
        for _ in range(20):
            next(loader)
    assert read < 200


@pytest.mark.parametrize("runner", RUNNERS)
def test_drops_behind_the_last_batch_are_counted(runner: str) -> None:
    pipeline = zvl.Pipeline(source(21), lanes=2, flush_every=4).filter(lambda sample: sample["n"] < 10).batch(2)
    with pipeline.loader(runner=runner) as loader:
        assert sum(len(numbers(batch)) for batch in loader if "n" in batch) == 10
        assert loader.stats()["dropped"] == {"filter:<lambda>:filtered": 11}


def test_a_restart_counts_only_the_drops_behind_its_state() -> None:
    pipeline = zvl.Pipeline(source(40), lanes=1, flush_every=32).filter(lambda sample: sample["n"] % 3 > 0).batch(2)
    with pipeline.loader(runner="inline") as loader:
        for _ in range(7):
            state = next(loader).state
        before = loader.stats()["dropped"]["filter:<lambda>:filtered"]
    with pipeline.loader(runner="inline") as loader:
        loader.load_state_dict(state)
        list(loader)
        assert before + loader.stats()["dropped"]["filter:<lambda>:filtered"] == 14


def test_planning_overtakes_pixels() -> None:
    """One worker, busy: of the calls that wait, planning goes first, then the earliest batch."""
    from zvl.runners import make_runner

    runner = make_runner("threads", 1)
    gate, order = threading.Event(), []  # type: ignore[var-annotated]
    first = runner.submit(5, gate.wait, 20)
    futures = [runner.submit(priority, order.append, priority) for priority in (9, 3, 0, 7)]
    gate.set()
    for future in (first, *futures):
        future.result(20)
    runner.close()
    assert order == [0, 3, 7, 9]
    assert runner.submit(0, order.append, 1).cancelled()
