"""What a mixture takes as weights, by token and on a schedule, what it says about mistakes, and recipes that say it."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zvl
from zvl.errors import RecipeError
from zvl.mixture import Mixture
from zvl.recipe import load_recipe

TOKENS = {"a": 800.5, "b": 40}
RAMP = [(0, {"a": 9, "b": 1}), (100, {"a": 1, "b": 1})]


class Rows(SimpleNamespace):
    """A dataset of which only the row counts exist."""

    def fingerprint(self) -> list[int]:
        return [int(count) for count in self.shard_rows]


def rows(*sizes: int) -> Any:
    return Rows(shard_rows=np.array(sizes, dtype=np.int64), shards=["s"] * len(sizes), row_bytes=10)


def mixture(**arguments: Any) -> Mixture:
    return Mixture({"a": rows(500), "b": rows(600)}, **arguments)


def test_rows_are_drawn_by_weight_over_tokens() -> None:
    source = mixture(weights={"a": 2, "b": 1}, weigh_by="visual", tokens_per_row=TOKENS)
    found = [pointer.dataset for pointer in islice(iter(source.lane(0, 1).next, None), 10_000) if pointer]
    delivered = [found.count(0) * 800.5, found.count(1) * 40]
    assert delivered[0] / sum(delivered) == pytest.approx(2 / 3, rel=2e-3)


def test_tokens_per_row_do_not_matter_to_weights_of_samples() -> None:
    plain, told = mixture(), mixture(tokens_per_row=TOKENS)
    assert told.fingerprint() == plain.fingerprint()
    assert list(islice(iter(told.lane(0, 1).next, None), 300)) == list(islice(iter(plain.lane(0, 1).next, None), 300))


def test_the_fingerprint_holds_tokens_and_schedule() -> None:
    plain = mixture(weights={"a": 9, "b": 1}).fingerprint()
    assert "weigh_by" not in plain
    assert "schedule" not in plain
    by_token = mixture(weights={"a": 9, "b": 1}, weigh_by="loss", tokens_per_row=TOKENS).fingerprint()
    assert by_token == plain | {"weigh_by": "loss", "tokens_per_row": {"a": 800.5, "b": 40.0}}
    moving = mixture(schedule=RAMP).fingerprint()
    assert moving == plain | {"schedule": [[0, [9.0, 1.0]], [100, [1.0, 1.0]]], "schedule_by": "rows"}
    json.dumps([by_token, moving])


def test_a_pickled_mixture_keeps_its_schedule() -> None:
    source = mixture(schedule=RAMP, weigh_by="text", tokens_per_row=TOKENS, schedule_by="tokens")
    other = pickle.loads(pickle.dumps(source))
    assert list(islice(iter(other.lane(1, 3).next, None), 300)) == list(islice(iter(source.lane(1, 3).next, None), 300))


def test_explain_says_what_weights_count_and_the_schedule() -> None:
    source = mixture(schedule=RAMP, weigh_by="tokens", tokens_per_row=TOKENS, schedule_by="tokens")
    text = zvl.Pipeline(source, lanes=2).explain(workers=1)
    assert "source  a: 500 rows in 1 shard, 90.0% of tokens at first, forever, shuffle=chunks\n" in text
    assert "source  weights of tokens, of which a row has: a 800.5, b 40\n" in text
    assert (
        "source  schedule over estimated tokens of a lane, straight between the points: "
        "0: a 90.0%, b 10.0%; 100: a 50.0%, b 50.0%\n"
    ) in text
    assert "source  weights" not in zvl.Pipeline(mixture(), lanes=2).explain(workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weigh_by": "bytes"}, "weigh_by as one of 'samples', 'tokens', 'text', 'visual', 'loss', got 'bytes'"),
        (
            {"weigh_by": "visual"},
            "weigh_by='visual' needs tokens_per_row, the mean visual tokens of a row of 'a', 'b': "
            "`zvl weigh RECIPE --by visual --write` measures them",
        ),
        ({"tokens_per_row": {"a": 3}}, "expected tokens_per_row for 'a', 'b', got 'a'"),
        (
            {"tokens_per_row": {"a": 3, "b": 0}},
            "tokens_per_row of 'b' as a number above 0, got 0; a dataset without such tokens can have no share",
        ),
        ({"tokens_per_row": {"a": 3, "b": float("nan")}}, "tokens_per_row of 'b' as a number above 0, got nan"),
        ({"schedule": []}, "expected a schedule as a list of (place, weights), got []"),
        ({"schedule": [(0, {"a": 1, "b": 1}, 3)]}, "expected schedule[0] as (place, weights), got (0, "),
        ({"schedule": [(-1, {"a": 1, "b": 1})]}, "the place of schedule[0] as a whole number of 0 or more, got -1"),
        (
            {"schedule": [(5, {"a": 1, "b": 1}), (5, {"a": 1, "b": 2})]},
            "the place of schedule[1] as a whole number of 6 or more, got 5: places rise from point to point",
        ),
        ({"schedule": [(0, {"a": 1})]}, "expected schedule[0] for 'a', 'b', got 'a'"),
        ({"schedule": [(0, {"a": 1, "b": -1})]}, "schedule[0]: the weight of 'b' as a number 0 or more, got -1"),
        ({"schedule": [(0, {"a": 0, "b": 0})]}, "expected a weight above 0 in schedule[0], got none"),
        ({"schedule": [(0, {"a": 1, "b": 0})]}, "a weight of 'b' above 0 in some point of the schedule, got none"),
        ({"schedule": RAMP, "weights": {"a": 1, "b": 1}}, "expected weights or a schedule, got both"),
        ({"schedule": RAMP, "schedule_by": "steps"}, "expected schedule_by as one of 'rows', 'tokens', got 'steps'"),
        ({"schedule": RAMP, "schedule_by": "tokens"}, "schedule_by='tokens' counts the tokens that weigh_by names"),
    ],
)  # fmt: skip
def test_weights_that_cannot_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        mixture(**arguments)
    assert str(caught.value).startswith("Mixture: ")
    assert message in str(caught.value)


RECIPE = """\
lanes = 2
weigh_by = "text"
schedule_by = "tokens"
[[dataset]]
name = "a"
path = "a.jsonl"
tokens_per_row = 800.5
[[dataset]]
name = "b"
path = "b.jsonl"
tokens_per_row = 40
[[schedule]]
at = 0
weights = {a = 9, b = 1}
[[schedule]]
at = 100
weights = {a = 1, b = 1}
"""


def load(tmp_path: Path, text: str) -> Any:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "r.toml").write_text(text)
    return load_recipe(tmp_path / "r.toml").source


def test_a_recipe_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    source = load(tmp_path, RECIPE)
    files = {name: zvl.open_dataset(tmp_path / f"{name}.jsonl") for name in "ab"}
    expected = Mixture(files, schedule=RAMP, weigh_by="text", tokens_per_row=TOKENS, schedule_by="tokens")
    assert source.fingerprint() == expected.fingerprint()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("at = 100\n", "", "r.toml:15: schedule[1]: missing field 'at': expected an integer"),
        ('path = "b.jsonl"', 'path = "b.jsonl"\nweight = 2',
         "r.toml:11: dataset[1] (b): weight: the recipe has a [[schedule]], whose points say it: leave it out"),
        ("tokens_per_row = 40\n", "", "r.toml: Mixture: expected tokens_per_row for 'a', 'b', got 'a'"),
        ("b = 1}\n[[schedule]]", "c = 1}\n[[schedule]]", "expected schedule[0] for 'a', 'b', got 'a', 'c'"),
        ('weigh_by = "text"', 'weigh_by = "txt"', "r.toml:2: weigh_by: expected one of"),
    ],
)  # fmt: skip
def test_a_recipe_at_fault_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    assert old in RECIPE
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, RECIPE.replace(old, new))
    assert message in str(caught.value)
