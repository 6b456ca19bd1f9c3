import pytest

from zvl.errors import StorageError
from zvl.stores.retry import Passing, Patience, persist


class Clock:
    """Time that only pauses make pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr("zvl.stores.retry.time.monotonic", lambda: self.now)
        monkeypatch.setattr("zvl.stores.retry.time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Failing:
    def __init__(self, times: int) -> None:
        self.times = times
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise Passing(f"reset {self.calls}")
        return "done"


def test_what_passes_is_tried_again_with_growing_pauses(clock: Clock) -> None:
    call = Failing(4)
    assert persist(call, "read x", Patience(first=1.0, longest=4.0)) == "done"
    assert call.calls == 5
    nominal = [1.0, 2.0, 4.0, 4.0]
    assert all(most / 2 <= pause <= most for pause, most in zip(clock.pauses, nominal, strict=True)), clock.pauses


def test_pauses_differ_between_requests_and_not_between_runs() -> None:
    patience = Patience()
    assert patience.pause(1, "read a") == patience.pause(1, "read a")
    assert len({patience.pause(1, f"read {i}") for i in range(20)}) == 20


def test_the_end_says_what_was_tried_and_why_it_failed(clock: Clock) -> None:
    call = Failing(99)
    message = (
        r"cannot read bytes 0 to 9 of s3://b/x: gave up after 3 attempts in \d s; the last one failed with: reset 3; "
    )
    with pytest.raises(
        StorageError, match=message + r"see that .* go on from the last checkpoint: nothing was skipped"
    ):
        persist(call, "read bytes 0 to 9 of s3://b/x", Patience(attempts=3, first=1.0))
    assert call.calls == 3


def test_no_try_begins_after_the_total_time(clock: Clock) -> None:
    call = Failing(99)
    with pytest.raises(StorageError, match=r"gave up after [4-7] attempts"):
        persist(call, "read x", Patience(attempts=99, first=10.0, longest=10.0, total=35.0))
    assert clock.now <= 35.0


def test_what_does_not_pass_is_not_tried_again(clock: Clock) -> None:
    def call() -> None:
        raise StorageError("forbidden")

    with pytest.raises(StorageError, match="forbidden"):
        persist(call, "read x", Patience())
    assert clock.pauses == []
