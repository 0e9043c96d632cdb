"""-w: what changes is read again, and what cannot be read for a while ends nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bayplan.cli import cli
from bayplan.cli.watching import changes
from bayplan.errors import InputError

NODE = """apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: %s, memory: 32Gi, pods: 110}}
"""
POD = """apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, resources: {requests: {cpu: 4}}}]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "node.yaml").write_text(NODE % 2)
    (tmp_path / "pod.yaml").write_text(POD)
    return tmp_path


class Hand:
    """Somebody who edits files while a command waits; in the end they press Ctrl-C."""

    def __init__(self, *edits: Callable[[], object]) -> None:
        self.edits = list(edits)

    def sleep(self, seconds: float) -> None:
        # The short naps wait for a file to rest.
        if seconds < 0.5:
            return
        if not self.edits:
            raise KeyboardInterrupt
        self.edits.pop(0)()


def watch(monkeypatch: pytest.MonkeyPatch, hand: Hand, *arguments: str) -> Result:
    monkeypatch.setattr(time, "sleep", hand.sleep)
    return CliRunner().invoke(cli, [*arguments, "-w"], catch_exceptions=False)


def test_simulate_runs_again_when_a_file_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(lambda: None, lambda: (folder / "node.yaml").write_text(NODE % 16))
    result = watch(monkeypatch, hand, "simulate", "-f", str(folder))
    assert result.exit_code == 0
    assert result.stdout.count("pods have a node") == 2
    assert "0 of 1 pods have a node" in result.stdout
    assert "1 of 1 pods have a node" in result.stdout
    assert "changed: " + str(folder / "node.yaml") in result.stderr


def test_a_file_that_cannot_be_used_is_told_and_watched_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = folder / "pod.yaml"
    hand = Hand(lambda: pod.write_text("kind: [\n"), lambda: pod.write_text(POD + "\n"))
    result = watch(monkeypatch, hand, "simulate", "-f", str(folder))
    assert f"bayplan: {pod}:" in result.stderr
    assert result.stdout.count("0 of 1 pods have a node") == 2


def test_explain_answers_again_when_a_profile_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "profile" / "profile.yaml"
    profile.parent.mkdir()
    profile.write_text("kind: KubeSchedulerConfiguration\n")
    off = "profiles: [{plugins: {multiPoint: {disabled: [{name: NodeResourcesFit}]}}}]\n"
    hand = Hand(lambda: profile.write_text("kind: KubeSchedulerConfiguration\n" + off))
    arguments = ["-f", str(folder / "node.yaml"), "-f", str(folder / "pod.yaml")]
    result = watch(monkeypatch, hand, "explain", "p", *arguments, "--config", str(profile))
    assert "default/p is pending" in result.stdout
    # Without the plugin, the kubelet refuses it.
    assert "default/p has ended (Failed); it was on n" in result.stdout


def test_standard_input_cannot_be_watched() -> None:
    with pytest.raises(InputError, match="is read once"):
        CliRunner().invoke(cli, ["simulate", "-f", "-", "-w"], input=POD, catch_exceptions=False)


def test_new_and_removed_files_of_a_folder_are_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = folder / "new.yaml", folder / "pod.yaml"
    hand = Hand(lambda: new.write_text(POD), old.unlink)
    monkeypatch.setattr(time, "sleep", hand.sleep)
    found = changes([folder])
    assert next(found) == [new]
    assert next(found) == [old]
