"""Public helpers that hold pipelines and plugins to the contract. All raise AssertionError where it is broken."""

from __future__ import annotations

from zvl.testing.codecs import check_codec
from zvl.testing.formats import check_format
from zvl.testing.layouts import check_layout
from zvl.testing.operators import check_operator
from zvl.testing.report import Check, CheckFailed, Report
from zvl.testing.resume import check_resume

__all__ = [
    "Check",
    "CheckFailed",
    "Report",
    "check_codec",
    "check_format",
    "check_layout",
    "check_operator",
    "check_resume",
]
