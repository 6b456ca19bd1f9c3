"""`Mixture`: several datasets in given shares, each shuffled and passed over as often as asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from zvl.errors import RecipeError
from zvl.mixture.cursor import MixtureCursor
from zvl.mixture.order import DatasetOrder, Shuffle
from zvl.mixture.outlook import Flow, Outlook, outlook
from zvl.mixture.policy import Forever, Once, Passes, PassPolicy
from zvl.mixture.shares import ScheduleBy, WeighBy
from zvl.mixture.weights import Point, check_pace, make_weights, quoted
from zvl.protocols import Dataset

__all__ = ["Mixture"]

T = TypeVar("T")


class Mixture:
    """The built-in `WorkSource`: a weighted mixture of datasets.

    Args:
        datasets: by name, in the order of `Pointer.dataset`; or one dataset, which is then named "data". Names are
            part of samples' keys and of the order.
        weights: share of each dataset, in any unit; equal if not given.
        weigh_by: what the shares are of: "samples", or tokens that reach the trainer: "tokens" (all), "text",
            "visual" (placeholders of images) or "loss" (those with a label). Tokens need `tokens_per_row`.
        tokens_per_row: by dataset, the mean number of such tokens that come of one row drawn (rows that are dropped
            count too). `zvl.estimate_tokens` and `zvl weigh` measure it. A lane's rows are drawn by weight over
            tokens a row, so shares are as good as these numbers.
        schedule: instead of weights, points (place, weights), places rising: weights move in a straight line from
            point to point, and stand before the first and behind the last. A weight may be 0 in some of them. They
            change every 16 rows of a lane.
        schedule_by: what a place counts: "rows" of a lane, or "tokens" of the kind that `weigh_by` names, in rows
            of a lane, as estimated.
        passes: `Once()`, `Passes(n)` or `Forever()`, for all or by name; Forever() where not given. A dataset that
            is exhausted on a lane leaves that lane's mixture, and the others share its part by their weights. A
            dataset without rows is exhausted from the start; with Forever() it is an error.
        shuffle: "chunks", "shards", "rows" or "none" (see `zvl.mixture.order`), for all or by name; "chunks"
            where not given.
        chunk_rows: most rows in a chunk, the unit of reading and of shuffling. Larger chunks read faster and mix
            less: neighbours of a shard follow each other in a lane.
        seed: 0..2**64-1; another seed gives other orders.

    All row counts are read when it is made, no row ever is. What cannot work raises RecipeError.
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset] | Dataset,
        *,
        weights: Mapping[str, float] | None = None,
        weigh_by: WeighBy = "samples",
        tokens_per_row: Mapping[str, float] | None = None,
        schedule: Sequence[Point] | None = None,
        schedule_by: ScheduleBy = "rows",
        passes: Mapping[str, PassPolicy] | PassPolicy | None = None,
        shuffle: Mapping[str, Shuffle] | Shuffle = "chunks",
        chunk_rows: int = 64,
        seed: int = 0,
    ) -> None:
        named = dict(datasets) if isinstance(datasets, Mapping) else {"data": datasets}
        _check_datasets(named)
        _check_whole("chunk_rows", chunk_rows, 1, 2**40)
        _check_whole("seed", seed, 0, 2**64 - 1)
        self.seed = seed
        self.chunk_rows = chunk_rows
        self._weights = make_weights(list(named), weights, schedule, weigh_by, tokens_per_row, schedule_by)
        self.passes: dict[str, PassPolicy] = _by_name("passes", passes, list(named), Forever())
        self.shuffle: dict[str, Shuffle] = _by_name("shuffle", shuffle, list(named), "chunks")
        self._datasets = named
        _check_policies(self.passes, self.shuffle)
        self._orders = self._make_orders()
        self._shares = self._weights.shares()

    def _make_orders(self) -> list[DatasetOrder]:
        orders = []
        for name, dataset in self._datasets.items():
            order = DatasetOrder(name, dataset.shard_rows, self.shuffle[name], self.chunk_rows, self.seed)
            if order.table.total == 0 and self.passes[name].limit is None:
                raise RecipeError(
                    f"Mixture: expected rows in {name!r}, which is passed over forever, got none in its "
                    f"{len(order.table.rows)} shards; check its path, or leave it out"
                )
            orders.append(order)
        return orders

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the datasets, in the order of `Pointer.dataset`."""
        return tuple(self._datasets)

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets, in the order of `Pointer.dataset`."""
        return tuple(self._datasets.values())

    @property
    def weights(self) -> dict[str, float]:
        """As given; with a schedule those of its first point."""
        return self._weights.points[0][1]

    @property
    def finite(self) -> bool:
        """Whether every lane ends: no dataset has Forever()."""
        return all(policy.limit is not None for policy in self.passes.values())

    def lane(self, lane: int, lanes: int) -> MixtureCursor:
        """A cursor at the beginning of lane `lane` of `lanes`."""
        if not 0 <= lane < lanes:
            raise RecipeError(f"Mixture: expected a lane in 0..{lanes - 1}, got {lane}")
        limits = [self.passes[name].limit for name in self._datasets]
        return MixtureCursor(self._orders, limits, self._shares, self.seed, lane, lanes)

    def weights_at(self, position: int) -> list[int]:
        """The datasets' row weights at a position of a lane, relative to each other, as long as none is exhausted."""
        return self._shares.at(position)

    def fingerprint(self) -> dict[str, Any]:
        """JSON that names everything that determines the order. Asks every dataset, which may be slow."""
        return {
            "source": "mixture",
            "seed": self.seed,
            "chunk_rows": self.chunk_rows,
            "datasets": [
                {
                    "name": name,
                    "weight": float(self.weights[name]),
                    "passes": self.passes[name].limit or "forever",
                    "shuffle": self.shuffle[name],
                    "data": dataset.fingerprint(),
                }
                for name, dataset in self._datasets.items()
            ],
            **self._weights.fingerprint(),
        }

    def describe(
        self,
        steps: int,
        *,
        lanes: int,
        rows_per_step: float | None = None,
        tokens_per_step: float | None = None,
        tokens_per_row: Mapping[str, float] | None = None,
        window: int | None = None,
    ) -> Outlook:
        """What `steps` steps will bring: shares of samples and tokens, passes, when datasets end; by windows too.

        A step takes so many rows or delivers so many tokens of all lanes together: say one of the two. Tokens need
        `tokens_per_row`, those of text and images together; the mixture's own serve if `weigh_by` is "tokens".
        `window` is in steps; a tenth of all if not given. Takes a few milliseconds however many the steps are.
        """
        _check_whole("steps", steps, 1, 2**53)
        _check_whole("lanes", lanes, 1, 2**40)
        window = -(-steps // 10) if window is None else window
        _check_whole("window", window, -(-steps // 10_000), 2**53)
        tokens = tokens_per_row or (self._weights.tokens_per_row if self._weights.weigh_by == "tokens" else None)
        check_pace(rows_per_step, tokens_per_step, tokens, self.names)
        flow = Flow(
            lanes=lanes,
            weights_at=self.weights_at,
            sizes=[int(order.table.rows.sum()) for order in self._orders],
            limits=[self.passes[name].limit for name in self.names],
            points=[float(row) for row in self._shares.point_rows()],
            tokens=None if tokens is None else [tokens[name] for name in self.names],
            rows_per_step=rows_per_step,
            tokens_per_step=tokens_per_step,
        )
        return outlook(flow, self.names, steps, window)

    def describe_dataset(self, place: int) -> str:
        """One dataset's part in a few words, for `explain()`: its share, passes, order."""
        name = self.names[place]
        limit = self.passes[name].limit
        passes = "forever" if limit is None else "once" if limit == 1 else f"{limit} passes"
        return f"{self._weights.share(name)}, {passes}, shuffle={self.shuffle[name]}"

    def describe_weights(self) -> list[str]:
        """Lines for `explain()`: what weights count, where it is not samples, and the schedule."""
        return list(self._weights.lines())

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_orders"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._orders = self._make_orders()


def _check_datasets(datasets: Mapping[str, Dataset]) -> None:
    if not datasets:
        raise RecipeError("Mixture: expected one dataset or more, got none")
    for name, dataset in datasets.items():
        if not isinstance(name, str) or not name or set(name) & set("/#@"):
            raise RecipeError(
                f'Mixture: expected a dataset name that is not empty and has no "/", "#" or "@", got {name!r}: '
                "names are part of keys like web/shard.tar#345@1"
            )
        if not hasattr(dataset, "shard_rows"):
            raise RecipeError(
                f"Mixture: expected a dataset for {name!r}, got {type(dataset).__name__}; "
                "zvl.open_dataset(path) makes one"
            )


def _check_whole(what: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise RecipeError(f"Mixture: expected {what} as a whole number in {least}..{most}, got {value!r}")


def _by_name(what: str, value: Mapping[str, T] | T | None, names: list[str], default: T) -> dict[str, T]:
    """One value for all names, or the mapping's and the default for names that it lacks."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, default if value is None else value)
    if unknown := [name for name in value if name not in names]:
        raise RecipeError(f"Mixture: expected {what} for names among {quoted(names)}, got {quoted(unknown)}")
    return {name: value.get(name, default) for name in names}


def _check_policies(passes: Mapping[str, PassPolicy], shuffle: Mapping[str, Shuffle]) -> None:
    for name, policy in passes.items():
        if not isinstance(policy, Once | Passes | Forever):
            raise RecipeError(f"Mixture: expected passes of {name!r} as Once(), Passes(n) or Forever(), got {policy!r}")
    words = get_args(Shuffle)
    for name, word in shuffle.items():
        if word not in words:
            raise RecipeError(f"Mixture: expected shuffle of {name!r} as one of {quoted(words)}, got {word!r}")
