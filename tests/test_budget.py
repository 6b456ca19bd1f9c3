"""zvl.budget: affinity and cgroup quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zvl.budget import LOCAL_RANKS, cpu_budget


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 16), ("400000 100000", 4), ("250000 100000", 2), ("10000 100000", 1), ("?", 16)]
)
def test_version_2_of_cgroups(many_cpus: None, tmp_path: Path, quota: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert cpu_budget(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 16), ("300000", 3)])
def test_version_1_of_cgroups(many_cpus: None, tmp_path: Path, quota: str, cpus: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert cpu_budget(tmp_path) == cpus


@pytest.mark.parametrize(
    ("environment", "cpus"),
    [
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 5),
        ({"SLURM_NTASKS_PER_NODE": "2"}, 8),
        ({"SLURM_NTASKS_PER_NODE": "8", "SLURM_CPUS_PER_TASK": "16"}, 16),
        ({"SLURM_NTASKS_PER_NODE": "2(x3)"}, 16),
        ({"LOCAL_WORLD_SIZE": "64"}, 1),
    ],
)
def test_ranks_of_a_node_share_it(
    many_cpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], cpus: int
) -> None:
    for name in LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cpu_budget(tmp_path) == cpus


def test_no_cgroup(many_cpus: None, tmp_path: Path) -> None:
    assert cpu_budget(tmp_path) == 16
