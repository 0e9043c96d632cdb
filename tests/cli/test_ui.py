"""bayplan ui and cluster up --page: what they refuse, and that they serve the page."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan.cli import cli

PENDING = str(ROOT / "configs" / "examples" / "pending")


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """Run a command that serves a page; yield the page's URL."""
    command = [sys.executable, "-u", "-m", "bayplan.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                found = re.search(r"(?:serving|the page:) (http://127\S+:\d+/)", line)
                if found:
                    yield found[1]
                    break
            else:
                pytest.fail("no page is served")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def ask(method: str, url: str, text: str = "", **headers: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=60)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection.request(method, path, text.encode() or None, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def get(url: str, **headers: str) -> tuple[int, str]:
    return ask("GET", url, **headers)


def post(url: str, text: str, kind: str = "application/json") -> tuple[int, str]:
    return ask("POST", url, text, **{"Content-Type": kind})


def test_a_simulation_is_served_with_explanations_and_what_ifs() -> None:
    with served("ui", "-f", PENDING) as url:
        code, page = get(url)
        assert (code, page[:15]) == (200, "<!doctype html>")
        rows = json.loads(get(f"{url}page/data")[1])
        assert rows["pods"]["default/training-0"]["gpus"] == 8
        about = json.loads(get(f"{url}page/explain?unit=default/training")[1])
        remedy = about["suggestions"][0]
        asked = json.dumps({"unit": "default/training", "text": remedy["text"]})
        assert json.loads(post(f"{url}page/what-if", asked)[1]) == remedy
        after = json.loads(get(f"{url}page/data")[1])
        assert after["pods"] == rows["pods"], "a what-if changes nothing"

        assert get(f"{url}page/explain?unit=default/none")[0] == 404
        assert get(f"{url}page/explain")[0] == 400
        assert get(f"{url}page/events?since=x")[0] == 400
        assert post(f"{url}page/what-if", "{")[0] == 400
        assert post(f"{url}page/what-if", asked, "text/plain")[0] == 415
        assert get(url, Host="evil.example")[0] == 403
        codes = {get(f"{url}page/explain?unit=default/training")[0] for _ in range(40)}
        assert 429 in codes


def test_an_embedded_cluster_has_a_page(tmp_path: Path) -> None:
    kubeconfig = str(tmp_path / "kubeconfig")
    with served("cluster", "up", "-f", PENDING, "--page", "--kubeconfig", kubeconfig) as url:
        rows = json.loads(get(f"{url}page/data")[1])
        assert len(rows["nodes"]) == 5
        assert rows["units"]["default/training"]["members"] == 3


def test_a_cluster_with_a_page_takes_objects_that_the_page_does_not_show(tmp_path: Path) -> None:
    """Schedulers write leases: a page that stumbled over one would keep them from leading."""
    path = tmp_path / "kubeconfig"
    with served("cluster", "up", "-f", PENDING, "--page", "--kubeconfig", str(path)) as url:
        config = yaml.safe_load(path.read_text())
        server = config["clusters"][0]["cluster"]["server"]
        token = config["users"][0]["user"]["token"]
        leases = f"{server}/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
        lease = {"metadata": {"name": "bayplan"}, "spec": {"holderIdentity": "one"}}
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        code, text = ask("POST", leases, json.dumps(lease), **headers)
        assert code == 201, text
        assert get(f"{url}page/data")[0] == 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-f", PENDING, "--kubeconfig", "x"], "-f and --kubeconfig exclude each other"),
        (["-f", "nowhere"], "nowhere"),
        (["-f", PENDING, "--port", "99999"], "--port"),
    ],
)
def test_what_cannot_be_shown_is_told(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(cli, ["ui", *arguments])
    assert result.exit_code != 0
    assert told in result.output + str(result.exception)
