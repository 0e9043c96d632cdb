"""The command line, run in this process as the console script runs it."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest
from tests.paths import ROOT

from bayplan.cli import main

__all__ = ["Answer", "bayplan"]


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit status."""

    status: int
    stdout: str
    stderr: str


def bayplan(*arguments: str) -> Answer:
    """Run a command in the root of the project."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["bayplan", *arguments])
        patch.chdir(ROOT)
        try:
            main()
        except SystemExit as exc:
            status = int(exc.code or 0)
    return Answer(status, out.getvalue(), err.getvalue())
