"""The files of other projects: from a server, from a checkout, and what is wrong with them."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from click.testing import CliRunner
from tests.paths import SHARED

from bayplan.api import KINDS
from bayplan.cli.crds import command
from bayplan.errors import BayplanError
from bayplan.schemas.upstream import SYSTEMS, System, downloaded, read_from

CRDS = SHARED / "peers" / "crds"
INDEX = CRDS / "INDEX.tsv"
SMALL = SYSTEMS["scheduler-plugins"]
NAME = "podgroups.scheduling.x-k8s.io"


def definition(name: str = NAME) -> str:
    plural, _, group = name.partition(".")
    version = {"name": "v1alpha1", "served": True, "storage": True}
    spec = {"group": group, "names": {"plural": plural}, "versions": [version]}
    content = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": spec,
    }
    return yaml.safe_dump(content)


def checkout(folder: Path, system: System, text: str) -> Path:
    """Write the same text as each file of a system, where its project has them."""
    for _, path in system.paths():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """A server of one version of one project."""
    root = tmp_path / "served"
    checkout(root / SMALL.repository / "v0.34.7", SMALL, f"# as they wrote it\n{definition()}")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=str)
def test_every_kind_is_one_that_bayplan_follows(system: System) -> None:
    followed = {f"{kind.plural}.{kind.group}" for kind in KINDS.values()}
    assert {name for name, _ in system.paths()} <= followed


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=str)
def test_every_path_is_one_of_its_repository(system: System) -> None:
    if not INDEX.exists():
        pytest.skip(f"there is no {INDEX}")
    with INDEX.open() as lines:
        known = {(row["repository"], row["path"]) for row in csv.DictReader(lines, delimiter="\t")}
    assert {(system.repository, path) for _, path in system.paths()} <= known


def test_a_definition_is_written_as_its_project_wrote_it(mirror: str, tmp_path: Path) -> None:
    arguments = ["fetch", "scheduler-plugins", "--mirror", mirror, "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    written = tmp_path / "out" / "scheduling.x-k8s.io_podgroups.yaml"
    assert done.output == f"{written}\n"
    assert written.read_text() == f"# as they wrote it\n{definition()}"


def test_a_version_that_does_not_exist_is_named_with_its_address(mirror: str) -> None:
    said = r"/v9\.9\.9/config/crd/bases/.*: there is no such file; is the version right\?"
    with pytest.raises(BayplanError, match=said):
        list(downloaded(SMALL, "v9.9.9", mirror))


def test_no_server_says_how_files_are_taken_from_a_folder() -> None:
    with pytest.raises(BayplanError, match=r"cannot be reached: .*; --from takes files"):
        list(downloaded(SMALL, "v1", "http://127.0.0.1:1"))


def test_an_address_of_a_file_is_refused() -> None:
    with pytest.raises(BayplanError, match="expected an address that starts with https://"):
        list(downloaded(SMALL, "v1", "file:///etc"))


def test_a_checkout_and_a_folder_of_files_are_read_alike(tmp_path: Path) -> None:
    project = checkout(tmp_path / "project", SMALL, definition())
    flat = tmp_path / "flat"
    flat.mkdir()
    ((_, path),) = SMALL.paths()
    shutil.copy(project / path, flat)
    (one,), (other,) = read_from(SMALL, project), read_from(SMALL, flat)
    assert one.content == other.content
    assert one.versions == ("v1alpha1",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "line 2: "),
        ("a: 1", "expected the CustomResourceDefinition podgroups.scheduling.x-k8s.io"),
        ("", "expected the CustomResourceDefinition"),
        (definition("queues.scheduling.volcano.sh"), "expected the CustomResourceDefinition"),
        (f"{definition()}---\n{definition()}", "expected the CustomResourceDefinition"),
        (definition().replace("versions:", "version:"), "expected the CustomResourceDefinition"),
        ("x" * (9 * 2**20), "is larger than 8 MiB"),
    ],
    ids=["no YAML", "no definition", "empty", "another", "two", "no versions", "large"],
)
def test_a_file_that_is_no_definition_is_refused_by_name(
    text: str, said: str, tmp_path: Path
) -> None:
    folder = checkout(tmp_path, SMALL, text)
    with pytest.raises(BayplanError, match=said) as refused:
        list(read_from(SMALL, folder))
    assert "scheduling.x-k8s.io_podgroups.yaml" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["volcono"], 'there is no system "volcono"; did you mean "volcano"?'),
        (["volcano", "kai", "--version", "v1"], "--version: projects count their versions apart"),
        (["volcano", "--version", "v1", "--from", "."], "the files are those of --from"),
        (["volcano", "--from", "."], "there is no scheduling.volcano.sh_podgroups.yaml"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    with CliRunner().isolation(), pytest.raises(BayplanError) as refused:
        command.main(["fetch", *arguments, "-o", str(tmp_path / "out")], standalone_mode=False)
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()
