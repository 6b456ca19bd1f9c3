"""What checks found, and how they are run: one that fails does not keep the others from running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from zvl.errors import ZvlError, isolate

__all__ = ["Check", "CheckFailed", "Checks", "Problem", "Report"]


class Problem(ZvlError):
    """What differs, and on which sample."""


class Check(NamedTuple):
    """One check: its name, what it demands, and what it found; `problem` is "" where all is well."""

    name: str
    demand: str
    problem: str

    @property
    def passed(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class Report:
    """All checks of one plugin, in the order in which they ran."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> dict[str, str]:
        """The problem of each check that failed, by its name."""
        return {check.name: check.problem for check in self.checks if not check.passed}

    def __str__(self) -> str:
        if not self.failed:
            return f"{self.subject} passes {len(self.checks)} checks"
        lines = [f"{self.subject} fails {len(self.failed)} of {len(self.checks)} checks:"]
        lines += [f"  {name}: {problem}" for name, problem in self.failed.items()]
        return "\n".join(lines)


class CheckFailed(AssertionError):
    """At least one check failed; `report` has them all."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


class Checks:
    """Runs checks one after the other. A check is a function that raises where something is wrong."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._checks: list[Check] = []

    def run(self, name: str, demand: str, check: Callable[..., object], *args: Any) -> bool:
        """Whether ``check(*args)`` raised nothing."""
        problem = ""
        try:
            with isolate(_raised):
                check(*args)
        except ZvlError as error:
            problem = str(error) or type(error).__name__
        self._checks.append(Check(name, demand, problem))
        return not problem

    def report(self) -> Report:
        """What was found. Raises CheckFailed if anything was."""
        report = Report(self._subject, tuple(self._checks))
        if report.failed:
            raise CheckFailed(report)
        return report


def _raised(error: Exception) -> ZvlError:
    return Problem(str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}")
