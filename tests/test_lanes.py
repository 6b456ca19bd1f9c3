"""zvl.lanes.Group: how many samples a planning task takes."""

from __future__ import annotations

import pytest

from zvl.lanes import Group


@pytest.mark.parametrize(
    ("seconds_a_sample", "sizes"),
    [(1e-6, [16, 32, 64, 64]), (1e-3, [16, 16, 16]), (0.05, [16, 8, 4, 2, 1, 1])],
)
def test_tasks_take_more_samples_where_these_are_tiny_and_fewer_where_slow(
    seconds_a_sample: float, sizes: list[int]
) -> None:
    group, found = Group(16, 64), [16]
    for _ in sizes[1:]:
        group.took(group.size, group.size * seconds_a_sample)
        found.append(group.size)
    assert found == sizes


def test_a_task_of_another_size_says_nothing() -> None:
    group = Group(16, 64)
    group.took(3, 1.0)
    assert group.size == 16
