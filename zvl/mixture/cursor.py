"""One lane's walk through a mixture, its state, and which dataset comes next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import gcd
from typing import Any, TypeGuard

from zvl.errors import StateError
from zvl.hashing import GOLDEN, MASK, hash_ints, hash_text
from zvl.mixture.order import DatasetOrder, PassOrder
from zvl.mixture.shares import Shares
from zvl.protocols import Pointer

__all__ = ["MixtureCursor", "Track", "borders", "lane_phase"]


LOOKS = 4
"""Places that `upcoming` looks at for each shard it is asked for."""


class MixtureCursor:
    """One lane's place in a `Mixture`. Used by one thread at a time; several cursors may run in several threads.

    **State.** ``{"position": n, "datasets": [[pass, k, row], ...]}``, one entry a dataset in the recipe's order:

    * ``n``: rows the lane has handed out; it decides which dataset is next, together with which are exhausted. A
      schedule of weights follows it too.
    * ``pass``: the dataset's pass that the lane is in, from 0.
    * ``k``: the lane's k-th chunk of that pass, from 0. The lane has those chunks whose place j in the order of
      the pass satisfies ``(j + pass) % lanes == lane``: j = (lane - pass) % lanes + k * lanes.
    * ``row``: rows of that chunk that were handed out, in the chunk's own, shuffled, order; the next one is
      that order's row-th, from 0.

    The lane's end of a pass may be written as the number of its chunks with row 0, or as ``[pass + 1, 0, 0]``;
    a dataset that is exhausted after p passes is ``[p, 0, 0]``. So ``[0, 0, 0]`` everywhere is the beginning, and
    ``[3, 0, 0]`` skips three passes. Nothing ties ``n`` to the other numbers: a state written by hand may combine
    any. `state()` writes the second form of an end, and skips passes in which the lane has no chunk.
    """

    __slots__ = ("_alive", "_borders", "_phase", "_shares", "_tracks", "_until", "_where", "position")

    def __init__(
        self,
        orders: Sequence[DatasetOrder],
        limits: Sequence[int | None],
        shares: Shares,
        seed: int,
        lane: int,
        lanes: int,
    ) -> None:
        self.position = 0
        self._phase = lane_phase(seed, lane, lanes)
        self._shares = shares
        self._where = f"lane {lane} of {lanes}"
        self._tracks = [
            Track(index, order, limit, lane, lanes)
            for index, (order, limit) in enumerate(zip(orders, limits, strict=True))
        ]
        self._choose_alive()

    def next(self) -> Pointer | None:
        """The next row, or None when every dataset of the lane is exhausted."""
        if self.position >= self._until:
            self._choose_alive()
        alive = self._alive
        if len(alive) > 1:
            point = (self._phase + self.position * GOLDEN) & MASK
            track = alive[bisect_right(self._borders, point)]
        elif alive:
            track = alive[0]
        else:
            return None
        pointer = track.next()
        self.position += 1
        if track.exhausted:
            self._choose_alive()
        return pointer

    def upcoming(self, dataset: int, count: int) -> list[int]:
        """Shards of the lane's next chunks of that dataset behind the open one: each once, in order, `count` at most.

        Goes on into the next passes. Looks at `LOOKS` places for each shard asked for, so that it finds fewer where
        chunks of few shards keep returning.
        """
        return self._tracks[dataset].upcoming(count)

    def state(self) -> dict[str, Any]:
        """Small JSON: all that `seek` needs; see the class for its form."""
        return {"position": self.position, "datasets": [track.place() for track in self._tracks]}

    def seek(self, state: Any) -> None:
        """Go to a state; O(1), but with shuffle="shards" the pass's shard order may have to be made.

        A state of another form, or out of range, raises StateError, and the cursor stays where it was.
        """
        position, entries = self._check(state)
        places = [
            track.check(entry, f'cannot seek {self._where}: expected state["datasets"][{index}]')
            for index, (track, entry) in enumerate(zip(self._tracks, entries, strict=True))
        ]
        self.position = position
        for track, place in zip(self._tracks, places, strict=True):
            track.go(*place)
        self._choose_alive()

    def _check(self, state: Any) -> tuple[int, list[Any]]:
        if not isinstance(state, dict) or state.keys() != {"position", "datasets"}:
            raise StateError(
                f"cannot seek {self._where}: expected a state of the form "
                f'{{"position": n, "datasets": [[pass, k, row], ...]}}, got {state!r:.200}'
            )
        position, entries = state["position"], state["datasets"]
        if not _is_count(position):
            raise StateError(
                f'cannot seek {self._where}: expected state["position"] as a whole number of 0 or more, '
                f"got {position!r:.200}"
            )
        if not isinstance(entries, list) or len(entries) != len(self._tracks):
            names = ", ".join(repr(track.name) for track in self._tracks)
            got = f"{len(entries)} entries" if isinstance(entries, list) else f"{entries!r:.200}"
            raise StateError(
                f'cannot seek {self._where}: expected state["datasets"] as a list with an entry for each of '
                f"{len(self._tracks)} datasets ({names}), got {got}"
            )
        return position, entries

    def _choose_alive(self) -> None:
        """Follow a dataset that was exhausted, a schedule, or a seek."""
        self._alive = [track for track in self._tracks if not track.exhausted]
        weights, self._until = self._shares.stretch(self.position)
        self._borders = borders([weights[track.index] for track in self._alive])


class Track:
    """One lane's place in one dataset: its pass, chunk and row; holds the row numbers of the open chunk."""

    __slots__ = (
        "_chunks", "_k", "_lane", "_lanes", "_limit", "_order", "_passes", "_row", "_rows", "_shard", "_start",
        "_stop", "epoch", "exhausted", "index", "name",
    )  # fmt: skip

    def __init__(self, index: int, order: DatasetOrder, limit: int | None, lane: int, lanes: int) -> None:
        self.index = index
        self.name = order.name
        self._order = order
        self._chunks = order.table.total
        self._limit = limit
        self._lane = lane
        self._lanes = lanes
        self._passes: dict[int, PassOrder] = {}
        """The pass's order, and near its end the next one's."""
        self._shard = self._start = self._stop = 0
        self._rows: list[int] = []
        self._row = 0
        self.exhausted = False
        """No row is left in any pass."""
        self.go(0, 0, 0)

    def next(self) -> Pointer:
        """The next row; only while not `exhausted`."""
        rows = self._rows or self._open()
        row = self._row
        pointer = Pointer(self.index, self._shard, rows[row], self.epoch, self._start, self._stop)
        self._row = row + 1
        if row + 1 == len(rows):
            self.go(self.epoch, self._k + 1, 0)
        return pointer

    def upcoming(self, count: int) -> list[int]:
        """See `MixtureCursor.upcoming`. A chunk of which no row was handed out since `go` is not open yet."""
        shards: dict[int, None] = {}
        epoch, k = self.epoch, self._k + bool(self._rows)
        for _ in range(LOOKS * count):
            if k >= self._count(epoch):
                epoch, k = self._next_pass(epoch + 1), 0
            if len(shards) == count or epoch == self._limit:
                break
            first = (self._lane - epoch) % self._lanes
            shard, end = self._pass_order(epoch).shard_run(first + k * self._lanes)
            shards[shard] = None
            k = -(-(end - first) // self._lanes)
        return list(shards)

    def place(self) -> list[int]:
        """[pass, k, row]."""
        return [self.epoch, self._k, self._row]

    def go(self, epoch: int, k: int, row: int) -> None:
        """Go to a place that `check` accepts. The end of a pass becomes the start of the lane's next one."""
        if k == self._count(epoch):
            epoch, k = self._next_pass(epoch + 1 if k else epoch), 0
        self.epoch = epoch
        self._k = k
        self._row = row
        self._rows = []
        self.exhausted = self._limit is not None and epoch >= self._limit

    def check(self, entry: Any, expected: str) -> tuple[int, int, int]:
        """The place that a state's entry names; `expected` begins the error's sentence."""
        if not (isinstance(entry, list) and len(entry) == 3 and all(map(_is_count, entry))):
            raise self._misfit(entry, expected, "as [pass, k, row], three whole numbers of 0 or more")
        epoch, k, row = entry
        if self._limit is not None and epoch >= self._limit and entry != [self._limit, 0, 0]:
            raise self._misfit(entry, expected, f"in pass 0..{self._limit - 1}, or [{self._limit}, 0, 0] at the end")
        count = self._count(epoch)
        if k > count or (k == count and row):
            raise self._misfit(entry, expected, f"with k below {count}, the lane's chunks in that pass")
        if row and row >= (size := self._chunk_size(epoch, k)):
            raise self._misfit(entry, expected, f"with row below {size}, the rows of that chunk")
        return epoch, k, row

    def _misfit(self, entry: Any, expected: str, form: str) -> StateError:
        return StateError(f"{expected} (dataset {self.name!r}) {form}, got {entry!r:.200}")

    def _count(self, epoch: int) -> int:
        """Chunks of the lane in a pass: those at places first, first + lanes, ..."""
        first = (self._lane - epoch) % self._lanes
        return max(0, -(-(self._chunks - first) // self._lanes))

    def _next_pass(self, epoch: int) -> int:
        """The least pass from `epoch` on in which the lane has a chunk; the limit if there is none before it."""
        limit = self._limit
        if self._chunks == 0:
            assert limit is not None, "Mixture refuses Forever() without rows"
            return limit
        first = (self._lane - epoch) % self._lanes  # falls by one each pass
        epoch += max(0, first - self._chunks + 1)
        return epoch if limit is None else min(epoch, limit)

    def _chunk_size(self, epoch: int, k: int) -> int:
        chunk = self._pass_order(epoch).chunk((self._lane - epoch) % self._lanes + k * self._lanes)
        return chunk.stop - chunk.start

    def _open(self) -> list[int]:
        order = self._pass_order(self.epoch)
        chunk = order.chunk((self._lane - self.epoch) % self._lanes + self._k * self._lanes)
        _, self._shard, self._start, self._stop = chunk
        self._rows = order.rows(chunk)
        return self._rows

    def _pass_order(self, epoch: int) -> PassOrder:
        if epoch not in self._passes:
            kept = {number: order for number, order in self._passes.items() if number == self.epoch}
            self._passes = kept | {epoch: self._order.pass_order(epoch)}
        return self._passes[epoch]


def borders(weights: Sequence[int]) -> list[int]:
    """Where [0, 2**64) is cut so that its pieces are as the weights: one number less than there are weights.

    Where all are 0 (a schedule's others are exhausted), the pieces are equal.

    >>> borders([1, 3]) == [2**62]
    True
    """
    if not any(weights):
        weights = [1] * len(weights)
    total = sum(weights)
    return [(reached << 64) // total for reached in accumulate(weights[:-1])]


def lane_phase(seed: int, lane: int, lanes: int) -> int:
    """Where a lane's golden-ratio sequence begins, 0..2**64-1.

    The lanes' beginnings are evenly spaced, so that at any position the lanes together have each dataset's share
    to within one row; and permuted as a lattice, so that neighbouring lanes, which one rank owns, differ too.
    """
    step = max(1, round(lanes * 0.6180339887498949))
    while gcd(step, lanes) != 1:
        step += 1
    return (hash_ints(seed, hash_text("mixture")) + (lane * step % lanes << 64) // lanes) & MASK


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0
