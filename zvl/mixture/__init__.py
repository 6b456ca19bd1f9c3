"""The built-in work source: which row of which dataset comes next on each lane."""

from zvl.mixture.policy import Forever, Once, Passes, PassPolicy, parse_passes
from zvl.mixture.source import Mixture

__all__ = ["Forever", "Mixture", "Once", "PassPolicy", "Passes", "parse_passes"]
