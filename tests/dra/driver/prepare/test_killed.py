"""The driver's state after it was killed at random moments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_no_kill_loses_a_claim_or_gives_a_device_twice(tmp_path: Path) -> None:
    program = Path(__file__).with_name("killed.py")
    answer = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "state"), "7", "200", "1000"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(answer.stdout)
    assert found["wrong"] == []
    assert found["kills"] >= 200
    assert found["calls"] >= 1000
    assert found["inFlight"] > 0
