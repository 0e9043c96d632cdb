"""What the driver says of itself to the kubelet."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bayplan_dra.driver.kubelet.services import registration_handler
from bayplan_dra.driver.proto import registration_pb2 as registration


def test_the_kubelet_is_told_a_path_that_holds_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handler = registration_handler("dra.bayplan.dev", Path("plugins/dra.sock"), print)
    method = handler.service(SimpleNamespace(method="/pluginregistration.Registration/GetInfo"))
    assert method is not None
    answer = method.unary_unary(registration.InfoRequest(), None)
    assert Path(answer.endpoint) == tmp_path / "plugins" / "dra.sock"
