"""What all commands do in a terminal: colours, completion, estimates, and what was meant."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.paths import ROOT
from tests.pseudo_terminal import on_a_terminal, read_until

from bayplan.cli import cli, progress
from bayplan.cluster.manifests import load_manifests
from bayplan.errors import InputError
from bayplan.inputs.documents import similar_path

PENDING = str(ROOT / "configs/examples/pending")


# Colours --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "-f", PENDING),
        ("explain", "training-0", "-f", PENDING),
        ("top", "-f", PENDING),
        ("plugin", "list"),
        ("queue", "list", "-f", str(ROOT / "configs/examples/queues-drf")),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_pipe_gets_no_colours(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "bayplan.cli", *arguments]
    done = subprocess.run(command, capture_output=True, check=True)
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_told_otherwise(
    variables: dict[str, str], coloured: bool
) -> None:
    with on_a_terminal("simulate", "-f", PENDING, **variables) as (_, terminal):
        text = read_until(terminal, "shows what would help")
    # Yellow is what pending pods have.
    assert ("\x1b[33m" in text) is coloured


# Completion -----------------------------------------------------------------------------------


def completed(shell: str, words: str, number: str) -> list[str]:
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'bayplan'\nfrom bayplan.cli import *\nmain()",
    ]
    variables = {
        "_BAYPLAN_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": number,
    }
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_commands_are_completed() -> None:
    assert completed("bash", "bayplan si", "1") == ["plain,simulate"]
    assert "simulate" in completed("zsh", "bayplan si", "1")
    (line,) = completed("fish", "bayplan si", "si")
    assert line.startswith("plain,simulate\tPlace the pods")


def test_options_values_and_files_are_completed() -> None:
    assert completed("bash", "bayplan simulate --comp", "2") == ["plain,--compare"]
    assert completed("bash", "bayplan simulate -o j", "3") == ["plain,json"]
    assert completed("bash", "bayplan simulate --config x", "3") == ["file,x"]
    assert completed("bash", "bayplan queue t", "2") == ["plain,tree"]


def test_completing_a_command_imports_no_scheduler() -> None:
    code = (
        "import sys; from bayplan.cli.commands import cli; import click; "
        "print([one.value for one in cli.shell_complete(click.Context(cli), 'si')]); "
        "sys.exit('numpy' in sys.modules or 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "['simulate']\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_read(shell: str) -> None:
    code = "import sys; sys.argv[0] = 'bayplan'\nfrom bayplan.cli import *\nmain()"
    variables = {"_BAYPLAN_COMPLETE": f"{shell}_source"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert f"_BAYPLAN_COMPLETE={shell}_complete" in done.stdout
    there = shutil.which(shell)
    if there is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([there, "-n"], input=done.stdout, text=True, check=True)


# What was meant -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("simlate",), "simulate"),
        (("queue", "lst"), "list"),
        (("simulate", "--confg", "x"), "--config"),
        (("simulate", "-f", PENDING, "-o", "jsn"), "json"),
        (("usage", "-f", PENDING, "--by", "tenat"), "tenant"),
        (("run", "--log-format", "jso"), "json"),
        (("dra-driver", "--log-format", "jso"), "json"),
        (("bench", "basc"), "basic"),
    ],
)
def test_a_misspelt_word_is_told(arguments: tuple[str, ...], meant: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    text = result.output + str(result.exception)
    assert "did you mean" in text.lower()
    assert meant in text.lower().partition("did you mean")[2]


def test_a_misspelt_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.yaml").write_text("")
    wrong = tmp_path / "exmples" / "a.yaml"
    assert similar_path(wrong) == f'; did you mean "{tmp_path / "examples" / "a.yaml"}"?'
    assert similar_path(tmp_path / "exmples" / "b.yaml") == ""
    assert similar_path(tmp_path / "other" / "a.yaml") == ""
    with pytest.raises(InputError, match="did you mean"):
        load_manifests([str(wrong)])


def test_a_misspelt_context_is_told(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        json.dumps(
            {
                "contexts": [{"name": "production", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    given = ["top", "--kubeconfig", str(tmp_path / "config"), "--context", "prodction"]
    with pytest.raises(InputError, match='did you mean "production"'):
        CliRunner().invoke(cli, given, catch_exceptions=False)


# Estimates ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_tell_what_is_done_and_are_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm-256color")
    with progress.progress_bars() as bars:
        assert bars is not None
        bars("loading")(1, 4)
        bars("pods placed")(2, 4)
    text = screen.getvalue()
    assert "pods placed" in text
    assert "50%" in text
    # The last thing is to clear the line.
    assert text.endswith("\x1b[2K")


def test_who_waits_less_than_a_second_sees_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "_PATIENCE", 1e9)
    with progress.progress_bars() as bars:
        assert bars is not None
        bars("loading")(1, 4)
    assert screen.getvalue() == ""


def test_a_pipe_gets_no_bars() -> None:
    with progress.progress_bars() as bars:
        assert bars is None


NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n%d}\n"


@pytest.mark.parametrize("form", ["documents", "files", "list", "archive"])
def test_loading_reports_the_bytes_that_are_loaded(tmp_path: Path, form: str) -> None:
    names = range(1024)
    plain = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}"}} for i in names]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": plain})
    path = tmp_path / {"files": "", "archive": "a.zip", "list": "a.json"}.get(form, "a.yaml")
    if form == "documents":
        path.write_text("---\n".join(NODE % i for i in names))
    elif form == "files":
        for i in names:
            (tmp_path / f"{i}.yaml").write_text(NODE % i)
    elif form == "list":
        path.write_text(listed)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("about.json", "{}")
            archive.writestr("nodes.json", listed)
    told: list[tuple[int, int]] = []
    loaded = load_manifests([str(path)], report=lambda *given: told.append(given))
    assert len(loaded.objects) == 1024
    done = [given[0] for given in told]
    assert len(told) == 4
    assert done == sorted(done)
    (total,) = {given[1] for given in told}
    assert 0 < done[0] < total / 3
    assert 0.9 * total < done[-1] <= total


def test_a_benchmark_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from bayplan.cli.bench import _with_estimate

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(_with_estimate("gang", 2, iter("ab"))) == ["a", "b"]  # type: ignore[arg-type,comparison-overlap]
    first, second, end = screen.getvalue().split("\r\x1b[K")
    assert first == "gang: run 1 of 2"
    assert second == "gang: run 2 of 2, about 0s left"
    assert end == ""
