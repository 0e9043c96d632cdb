"""Where tests find what is not theirs."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The project."""
SHARED = ROOT.parent / "shared"
"""Fixtures of other projects, beside this one; tests that need them say so where it is missing."""
