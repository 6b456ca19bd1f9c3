"""How often a dataset is passed over: `Once() | Passes(n) | Forever()`."""

from __future__ import annotations

from dataclasses import dataclass

from zvl.errors import RecipeError

__all__ = ["Forever", "Once", "PassPolicy", "Passes", "parse_passes"]


@dataclass(frozen=True)
class Once:
    """Every row once; then the dataset leaves the mixture."""

    @property
    def limit(self) -> int | None:
        """Passes allowed; None: no end."""
        return 1


@dataclass(frozen=True)
class Passes:
    """Every row `count` times, once a pass; then the dataset leaves the mixture.

    >>> Passes(2).limit
    2
    """

    count: int
    """Passes over the dataset, 1 or more."""

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise RecipeError(
                f"Passes: expected a whole number of passes, 1 or more, got {self.count!r}; "
                "for no end use Forever(), to leave a dataset out remove it from the mixture"
            )

    @property
    def limit(self) -> int | None:
        """Passes allowed; None: no end."""
        return self.count


@dataclass(frozen=True)
class Forever:
    """Pass after pass without end, each in a new order."""

    @property
    def limit(self) -> int | None:
        """Passes allowed; None: no end."""
        return None


PassPolicy = Once | Passes | Forever


def parse_passes(value: object) -> PassPolicy:
    """A recipe's ``passes``: "forever", "once" or a whole number of passes.

    >>> parse_passes("once"), parse_passes(3)
    (Once(), Passes(count=3))
    """
    if value == "forever":
        return Forever()
    if value == "once":
        return Once()
    if type(value) is int and value >= 1:
        return Passes(value)
    raise RecipeError(f'passes: expected "forever", "once" or a whole number of 1 or more, got {value!r}')
