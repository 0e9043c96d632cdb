"""The documents say what the program does."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan import NodeRow, NodeView, PodInfo, Unit
from bayplan.api import Pod
from bayplan.cli import cli
from bayplan.cluster.manifests import load_manifests
from bayplan.plugin.contract import hook_names, hooks_of
from bayplan.profiles.loading import POINTS, load_profiles
from bayplan.testing import Cluster, make_gang, make_node, make_pod
from bayplan.topology.machine.readers.machinefile import load_machine

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
COMMAND = re.compile(r"```console\n\$ bayplan ([^\n]*)\n(?!```)(.+?)\n```", re.DOTALL)
SHOWN = [
    pytest.param(path, arguments, output, id=f"{path.name}: {arguments}")
    for path in DOCUMENTS
    if path.name != "tutorial.md"
    for arguments, output in COMMAND.findall(path.read_text())
]


def without_wall_clock(text: str) -> str:
    """Blank the one figure that differs from run to run."""
    return re.sub(r"in \d+\.\d+ ?s", "in _ s", text)


@pytest.mark.parametrize(("path", "arguments", "output"), SHOWN)
def test_shown_output_is_real(
    path: Path, arguments: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path if "plugin new" in arguments else ROOT)
    result = CliRunner().invoke(cli, arguments.split())
    assert result.exit_code == 0, result.output
    shown = [line.rstrip() for line in without_wall_clock(output).splitlines()]
    real = [line.rstrip() for line in without_wall_clock(result.stdout).rstrip().splitlines()]
    assert real == shown


STEP = re.compile(
    r'^```(console|yaml title="([^"]+)"|python title="([^"]+)")\n(.*?)\n```$', re.M | re.S
)


def test_who_follows_the_tutorial_sees_what_it_shows(tmp_path: Path) -> None:
    """Files and commands, one after the other, in a folder of their own."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])
    environment = {**os.environ, "PATH": os.pathsep.join(folders), "COLUMNS": "120"}
    steps = STEP.findall((ROOT / "docs" / "tutorial.md").read_text())
    assert len(steps) >= 12
    for _, manifest, code, content in steps:
        if name := manifest or code:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(f"{content}\n")
            continue
        first, _, shown = content.partition("\n")
        command = ["/bin/sh", "-c", first.removeprefix("$ ")]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        real, said = (without_wall_clock(text).splitlines() for text in (done.stdout, shown))
        assert [line.rstrip() for line in real] == [line.rstrip() for line in said], first


def site(root: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(into)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def test_the_site_has_every_page_and_finds_words(tmp_path: Path) -> None:
    done = site(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Thirty minutes" in (tmp_path / "index.html").read_text()
    found = (tmp_path / "search" / "search_index.json").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert f'"location":"{page.stem}.html' in found
    text = (tmp_path / "files" / "configs" / "chart" / "bayplan" / "values.yaml.txt").read_text()
    assert text.startswith("# What `helm install")


def test_a_broken_link_ends_the_site(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "mkdocs.yml", "docs/site_hooks.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "docs" / "jobs.md").write_text("[nowhere](nowhere.md)\n")
    done = site(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert "'jobs.md' contains a link 'nowhere.md'" in done.stderr


def test_the_readme_shows_the_main_job() -> None:
    assert len([p for p in SHOWN if p.values[0].name == "README.md"]) >= 4  # type: ignore[union-attr]


def generator(name: str) -> Any:
    """Return a module of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_hook_reference_is_up_to_date() -> None:
    page = (ROOT / "docs" / "hooks.md").read_text()
    assert page == generator("make_hooks").render(), "run make docs"


_WITHOUT_QUEUES = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {disabled: [{name: Queues}]}}
"""


def test_every_hook_has_an_example_and_the_examples_schedule(tmp_path: Path) -> None:
    docs = generator("make_hooks")
    assert set(docs.examples()) == set(hook_names())
    plugins = [cls for cls in docs.example_classes() if "queue_sort" not in hooks_of(cls)]
    profile = tmp_path / "profile.yaml"
    profile.write_text(_WITHOUT_QUEUES)
    team = {"example.com/team": "blue"}
    nodes = [make_node("a", labels=team), make_node("b")]
    cluster = Cluster(nodes, load_profiles(profile), plugins)
    members = [make_pod(name, gang="g") for name in ("g-0", "g-1")]
    cluster.add(make_pod("blue", labels=team), make_pod("plain"), make_gang("g", 2), *members)
    queues = [cluster.scheduler.queues.of(Unit(pod.key, [pod])) for pod in _infos(cluster)]
    placed = cluster.schedule()
    assert placed["blue"] == "a"
    assert sorted(placed) == ["blue", "g-0", "g-1", "plain"]
    assert set(queues) == {"example/small"}


def _infos(cluster: Cluster) -> list[PodInfo]:
    return [PodInfo(pod) for pod in cluster.api.list(Pod)]


@pytest.mark.parametrize("cls", [NodeRow, NodeView, PodInfo, Unit], ids=lambda cls: cls.__name__)
def test_the_reference_of_what_hooks_are_given_is_up_to_date(cls: type) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    assert page == generator("make_reference").filled(page), "run make docs"
    _, _, section = page.partition(f"### {cls.__name__}\n")
    rows = re.findall(r"^\| `(\w+)", section.split("\n#")[0], re.MULTILINE)
    slots = getattr(cls, "__slots__", getattr(cls, "__dataclass_fields__", ()))
    assert sorted(rows) == sorted({n for n in (*dir(cls), *slots) if not n.startswith("_")})


def test_every_hook_has_a_description() -> None:
    from bayplan.plugin import hookspecs

    for name in hook_names():
        assert getattr(hookspecs, name).__doc__, name


def test_the_operator_page_names_every_point() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    assert [point for point in POINTS if f"`{point}`" not in page] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_yaml_in_documents_parses(path: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL):
        assert list(yaml.safe_load_all(block))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_documents_compiles(path: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        compile(block, str(path), "exec")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/profiles").iterdir()), ids=lambda p: p.name
)
def test_every_profile_loads(path: Path) -> None:
    assert load_profiles(path).profiles


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/examples").iterdir()), ids=lambda p: p.name
)
def test_every_example_loads(path: Path) -> None:
    manifests = load_manifests([str(path)])
    # The profile in a ConfigMap is for --config.
    assert manifests.objects or manifests.ignored == {"ConfigMap (v1)": 1}


def test_every_config_is_covered_by_a_test() -> None:
    folders = {path.name for path in (ROOT / "configs").iterdir()}
    # Those of deploy and crds are tested beside what they deploy, prices with the stories,
    # node groups and faults beside what reads them, the chart in a folder of its own.
    known = {"profiles", "examples", "machines", "deploy", "crds", "prices", "usage-journal"}
    assert folders == known | {
        "node-groups",
        "faults",
        "chart",
        "admission",
        "visibility",
        "tenants",
        "multikueue",
    }


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/machines").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_machine_loads_under_its_own_name(path: Path) -> None:
    assert load_machine(path).name == path.stem


def test_the_image_runs_unprivileged() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert any(re.fullmatch(r"USER [1-9]\d*:[1-9]\d*", line) for line in lines)
    assert "COPY configs /etc/bayplan" in lines


def test_the_placement_policy_of_the_tutorial_decides(tmp_path: Path) -> None:
    from bayplan.profiles.finder import load_file, plugins_in
    from bayplan.testing import Cluster, make_gang, make_network, make_node, make_pod

    page = (ROOT / "docs" / "plugins.md").read_text()
    (block,) = re.findall(r"```python\n([^`]*class QuietDomain.*?)```", page, re.DOTALL)
    path = tmp_path / "quiet_domain.py"
    path.write_text(block)
    nodes = [make_node(f"n{i}", labels={"rack": "ab"[i // 2]}) for i in range(4)]
    spec = '{"gatherStrategy": [{"layer": "rack", "strategy": "MustGather"}]}'
    gang = make_gang("job", 2, {"gang.scheduling.koordinator.sh/network-topology-spec": spec})
    members = [make_pod(f"job-{i}", gang="job") for i in range(2)]
    for plugins, rack in (([], "a"), (list(plugins_in(load_file(path)).values()), "b")):
        cluster = Cluster([*nodes, make_network(rack="rack")], plugins=plugins)
        cluster.add(make_pod("other", node="n0"), gang, *members)
        found = {cluster.schedule()[f"job-{i}"] for i in range(2)}
        assert found <= {n.metadata.name for n in nodes if n.metadata.labels["rack"] == rack}


def test_the_device_policy_of_the_tutorial_decides(tmp_path: Path) -> None:
    from bayplan.api import ResourceClaim, ResourceSlice
    from bayplan.api.objects import decode_part
    from bayplan.cluster.embedded.claims import ClaimController
    from bayplan.profiles.finder import load_file, plugins_in
    from bayplan.testing import Cluster

    page = (ROOT / "docs" / "plugins.md").read_text()
    (block,) = re.findall(r"```python\n([^`]*class CoolestFirst.*?)```", page, re.DOTALL)
    path = tmp_path / "coolest_first.py"
    path.write_text(block)
    example = load_manifests([str(ROOT / "configs/examples/gpus-on-one-numa-node")]).objects
    kinds = ("DeviceClass", "Node", "ResourceClaimTemplate")
    objects = [obj for obj in example if type(obj).__name__ in kinds]
    pod = next(obj for obj in example if obj.metadata.name == "small-a")
    devices = [
        {"name": f"gpu-{i}", "attributes": {"temperature": {"int": degrees}}}
        for i, degrees in enumerate([70, 40, 55])
    ]
    spec = {"driver": "gpu.example.com", "pool": {"name": "p"}, "nodeName": "node-1"}
    content = {"metadata": {"name": "s"}, "spec": {**spec, "devices": devices}}
    for plugins, expected in (([], "gpu-0"), (list(plugins_in(load_file(path)).values()), "gpu-1")):
        cluster = Cluster(plugins=plugins)
        ClaimController(cluster.api)
        cluster.add(*objects, decode_part(ResourceSlice, content), pod)
        cluster.schedule()
        (claim,) = cluster.api.list(ResourceClaim)
        assert claim.status.allocation is not None
        assert [r.device for r in claim.status.allocation.devices.results] == [expected]


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_the_approval_of_the_tutorial_ends_a_wait(tmp_path: Path, answer: str) -> None:
    from bayplan.profiles.finder import load_file, plugins_in
    from bayplan.testing import Cluster, make_node, make_object, make_pod

    page = (ROOT / "docs" / "plugins.md").read_text()
    (block,) = re.findall(r"```python\n([^`]*class Approval.*?)```", page, re.DOTALL)
    path = tmp_path / "approval.py"
    path.write_text(block)
    cluster = Cluster([make_node("n")], plugins=list(plugins_in(load_file(path)).values()))
    cluster.add(make_pod("p"))
    assert cluster.schedule() == {}
    # The page shows this sentence, in two lines.
    assert cluster.message("p") in page.replace("\n", " ")
    notes = {"example.com/approved": answer}
    space = {"apiVersion": "v1", "kind": "Namespace"}
    cluster.add(make_object({**space, "metadata": {"name": "default", "annotations": notes}}))
    cluster.schedule()
    assert cluster.placements() == ({"p": "n"} if answer == "yes" else {})
    assert (cluster.message("p") == "namespace default is not approved") is (answer == "no")


def test_plugin_snippets_in_the_tutorial_keep_the_contract(tmp_path: Path) -> None:
    from bayplan.profiles.finder import load_file, plugins_in
    from bayplan.testing import check_plugin

    page = (ROOT / "docs" / "plugins.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    checked = 0
    for index, block in enumerate(blocks):
        if "class KeepGpusFree(Plugin" in block:
            path = tmp_path / f"snippet_{index}.py"
            path.write_text(block)
            for plugin in plugins_in(load_file(path)).values():
                check_plugin(plugin, rounds=3)
                checked += 1
    assert checked == 2


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_tutorial_mounts_a_folder_of_plugins_into_the_scheduler(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    (block,) = re.findall(r"```yaml\n([^`]*kind: Kustomization.*?)```", page, re.DOTALL)
    shutil.copytree(ROOT / "configs" / "deploy", tmp_path / "deploy")
    folder = tmp_path / "with-plugins"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(block)
    (folder / "keep_gpus_free.py").write_text("# a plugin\n")
    command = [shutil.which("kubectl") or "", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    maps = [one for one in built if "keep_gpus_free.py" in one.get("data", {})]
    (deployment,) = [one for one in built if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "plugins"]
    assert f"--plugins-dir={mount['mountPath']}" in pod["containers"][0]["args"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "plugins"]
    assert [volume["configMap"]["name"]] == [one["metadata"]["name"] for one in maps]


def test_the_image_with_plugins_is_based_on_that_of_the_deployment_and_runs_as_it_does() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    (block,) = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)
    (image,) = yaml.safe_load((ROOT / "configs/deploy/kustomization.yaml").read_text())["images"]
    users = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if "USER" in line]
    lines = block.splitlines()
    assert lines[0] == f"FROM {image['name']}:{image['newTag']}"
    assert lines[-1:] == users[-1:]
