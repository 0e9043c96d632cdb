"""What a person can get wrong: one clear message, exit status 2, nothing on standard output."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bayplan.cli import main

NODE = """\
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "8", memory: 32Gi, pods: "110"}}
"""
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
POD_GROUP = "scheduling.sigs.k8s.io/v1alpha1"
TOPOLOGY = "scheduling.koordinator.sh/v1alpha1"


@dataclass
class Answer:
    """What the command line said."""

    status: int
    out: str
    err: str


Bayplan = Callable[..., Answer]


@pytest.fixture
def bayplan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bayplan:
    """Run the command in an empty folder that holds ``good.yaml``: one node and two pods."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text("---\n".join([NODE, pod("one"), pod("two")]))

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["bayplan", *arguments])
        status: object = 0
        try:
            main()
        except SystemExit as exc:
            status = exc.code
        captured = capsys.readouterr()
        assert isinstance(status, int)
        return Answer(status, captured.out, captured.err)

    return run


def pod(name: str = "p", spec: str = "", meta: str = "", requests: str = "cpu: 1") -> str:
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{meta}}}\nspec:\n"
        f"  containers: [{{name: c, resources: {{requests: {{{requests}}}}}}}]\n"
        f"{f'  {spec}' if spec else ''}\n"
    )


def made(api_version: str, kind: str, rest: str = "{}", name: str = "x") -> str:
    return f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {rest}\n"


def topology(*layers: tuple[str, str]) -> str:
    spec = ", ".join(
        f"{{topologyLayer: {name}, parentTopologyLayer: {parent or repr('')}, labelKey: [{name}]}}"
        for name, parent in layers
    )
    return made(TOPOLOGY, "ClusterNetworkTopology", f"{{networkTopologySpec: [{spec}]}}", "default")


def refused(answer: Answer, *parts: str) -> str:
    """Assert that input was refused as the rule says; return the message."""
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert answer.status == 2, answer.err
    for part in parts:
        assert part in answer.err
    return answer.err


def simulate(bayplan: Bayplan, manifests: str | bytes) -> Answer:
    content = manifests if isinstance(manifests, bytes) else manifests.encode()
    Path("bad.yaml").write_bytes(content)
    return bayplan("simulate", "-f", "bad.yaml")


def with_profile(bayplan: Bayplan, text: str) -> Answer:
    Path("profile.yaml").write_text(text)
    return bayplan("simulate", "-f", "good.yaml", "--config", "profile.yaml")


def with_plugin(bayplan: Bayplan, body: str, command: str = "simulate") -> Answer:
    """Run with a plugin ``Mine`` of this class body, added to the default profile."""
    source = "import numpy as np\nfrom bayplan import *\n\n\nclass Mine(Plugin[Args]):\n"
    return with_plugin_file(
        bayplan, source + textwrap.indent(textwrap.dedent(body), "    "), command
    )


def with_plugin_file(bayplan: Bayplan, source: str, command: str = "simulate") -> Answer:
    Path("plugins").mkdir(exist_ok=True)
    Path("plugins/mine.py").write_text(source)
    Path("profile.yaml").write_text(
        f"{HEAD}profiles:\n- plugins: {{multiPoint: {{enabled: [{{name: Mine}}]}}}}\n"
    )
    target = ["default/one"] if command == "explain" else []
    return bayplan(
        command, *target, "-f", "good.yaml", "--config", "profile.yaml", "--plugins-dir", "plugins"
    )


def test_good_input_is_not_refused(bayplan: Bayplan) -> None:
    answer = bayplan("simulate", "-f", "good.yaml")
    assert (answer.status, answer.err) == (0, "")
    assert "2 of 2 pods have a node" in answer.out


# Files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("a: [b\n", ("bad.yaml:2:1", "not YAML")),
        ("a:\n\t- b\n", ("bad.yaml:2:1", "not YAML")),
        (f"{NODE}---\na: b: c\n", ("bad.yaml:6:5", "not YAML")),
        ("kind: !!python/object:os.system x", ("bad.yaml:1:7", "not YAML")),
        (b"\x00\xff\xfe\x01", ("bad.yaml", "not UTF-8")),
        (b"kind: \x07", ("bad.yaml", "not YAML")),
        ("hello", ("bad.yaml:1:1", "expected a Kubernetes object, got a string")),
        ("- 1", ("bad.yaml:1:1", "expected a Kubernetes object, got a list")),
        ("true", ("bad.yaml:1:1", "expected a Kubernetes object")),
        ("{}", ("bad.yaml:1:1", '"apiVersion" is missing')),
        ("apiVersion: v1\n", ("bad.yaml:1:1", '"kind" is missing')),
        ("kind: Pod\n", ("bad.yaml:1:1", '"apiVersion" is missing')),
        ("apiVersion: v1\nkind: List\nitems: [3]\n", ("bad.yaml:3:9", "got a number")),
        ("kind: Node\nkind: Pod\n", ("bad.yaml:2:1", 'the key "kind" appears twice')),
    ],
)
def test_a_file_that_holds_no_objects_is_refused(
    bayplan: Bayplan, content: str | bytes, parts: tuple[str, ...]
) -> None:
    refused(simulate(bayplan, content), *parts)


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n---\n", "null\n"])
def test_an_empty_file_is_refused(bayplan: Bayplan, content: str) -> None:
    refused(simulate(bayplan, content), "bad.yaml")


@pytest.mark.parametrize(
    "content",
    [
        "? [a, b]\n: c\n",
        "? {a: b}\n: c\n",
        "apiVersion: !!int hello\n",
        "apiVersion: !!float hello\n",
        "apiVersion: !!bool hello\n",
        "apiVersion: !!timestamp hello\n",
    ],
)
def test_values_that_yaml_cannot_make_are_refused_with_their_line(
    bayplan: Bayplan, content: str
) -> None:
    refused(simulate(bayplan, content), "bad.yaml:1:", "not YAML")


def test_the_broken_one_of_two_documents_is_named(bayplan: Bayplan) -> None:
    broken = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: {}}\n"
    refused(
        simulate(bayplan, f"{NODE}---\n{broken}"),
        "bad.yaml:9:20 (document 2)",
        "Pod p: $.spec.containers: expected a list, got a mapping",
    )


def test_a_broken_item_of_a_list_is_named(bayplan: Bayplan) -> None:
    items = (
        "items:\n- {kind: Node, apiVersion: v1, metadata: {name: n}}\n- {kind: Pod, metadata: 3}\n"
    )
    refused(
        simulate(bayplan, f"apiVersion: v1\nkind: List\n{items}"), "bad.yaml:5:3", '"apiVersion"'
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [("nowhere.yaml", "no such file or folder"), ("folder", "no .yaml, .yml or .json file")],
)
def test_a_path_without_manifests_is_refused(bayplan: Bayplan, path: str, expected: str) -> None:
    Path("folder").mkdir()
    Path("folder/readme.txt").write_text("nothing here")
    refused(bayplan("simulate", "-f", path), path, expected)


def test_a_name_too_long_for_the_file_system_is_refused(bayplan: Bayplan) -> None:
    refused(bayplan("simulate", "-f", "a" * 5000), "aaa")


def test_an_alias_bomb_is_refused_quickly(tmp_path: Path) -> None:
    lines = ["  a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"  {name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    (tmp_path / "bad.yaml").write_text(pod() + "\n".join(lines))
    # In a process of its own, so that a failure ends.
    command = [sys.executable, "-c", "from bayplan.cli import main; main()"]
    done = subprocess.run(
        [*command, "simulate", "-f", "bad.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    refused(Answer(done.returncode, done.stdout, done.stderr), "bad.yaml")


@pytest.mark.parametrize(
    "manifest",
    [
        pod(spec="x: &x [*x]"),
        pod(meta=", labels: &l {a: *l}"),
        pod(spec="affinity: &a {nodeAffinity: *a}"),
    ],
)
def test_yaml_that_contains_itself_is_refused(bayplan: Bayplan, manifest: str) -> None:
    refused(simulate(bayplan, manifest), "bad.yaml")


@pytest.mark.parametrize("depth", [900, 5000])
def test_yaml_that_is_nested_too_deeply_is_refused(bayplan: Bayplan, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    refused(simulate(bayplan, pod(spec=f"x: {nested}")), "bad.yaml")


# Objects ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manifest", "parts"),
    [
        (
            pod(requests="cpu: 8 cores"),
            ('$.spec.containers[0].resources.requests["cpu"]', 'such as "8"', 'got "8 cores"'),
        ),
        (pod(requests="cpu: '-1'"), ('requests["cpu"]', "expected an amount of 0 or more, got -1")),
        (pod(requests="cpu: [1]"), ('requests["cpu"]', "expected a quantity, got a list")),
        (pod(requests="cpu: 1e999"), ('requests["cpu"]', "beyond what Kubernetes can count")),
        (
            made("v1", "Pod", "{containers: []}", "p"),
            ("$.spec.containers", "at least one container"),
        ),
        (made("v1", "Pod", "", "p"), ("$.spec.containers", "at least one container")),
        (pod(meta=", labels: {app: 1}"), ('$.metadata.labels["app"]', "string, got an integer")),
        (pod(meta=", labels: [a]"), ("$.metadata.labels", "expected a mapping, got a list")),
        (pod(name="Upper"), ("$.metadata.name", '"Upper" is not a name', "lower-case")),
        (made(POD_GROUP, "PodGroup", "{minMember: '4'}"), ("$.spec.minMember", "got a string")),
        (
            made("batch/v1", "Job", "{parallelism: 99999999999999}"),
            ("$.spec.parallelism", "expected 0 to 1000000, got 99999999999999"),
        ),
        (made("batch/v1", "Job", "{completionMode: Indexed}"), ("$.spec.completions", "required")),
        (made("apps/v1", "Deployment", "{}"), ("$.spec.selector", "is required")),
        (
            made("scheduling.koordinator.sh/v1alpha1", "Reservation", "{ttl: soon}"),
            ("$.spec.ttl", '"soon"'),
        ),
    ],
)
def test_a_wrong_object_names_its_path_and_what_was_expected(
    bayplan: Bayplan, manifest: str, parts: tuple[str, ...]
) -> None:
    message = refused(simulate(bayplan, f"{NODE}---\n{manifest}"), *parts)
    assert re.match(r"bayplan: bad\.yaml:\d+:\d+ \(document 2\): \w+ \w+: \$", message)
    assert message.count("\n") == 1


def test_the_line_of_a_wrong_value_is_reported(bayplan: Bayplan) -> None:
    text = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  containers:
  - name: c
    resources:
      requests:
        cpu: "1"
        memory: 8 gigs
"""
    refused(simulate(bayplan, text), "bad.yaml:11:17 (document 1)", 'requests["memory"]')


def test_a_misspelt_field_ends_the_command_and_a_strange_one_is_noted(bayplan: Bayplan) -> None:
    Path("typo.yaml").write_text(pod("typo").replace("spec:", "spec:\n  nodename: node-1", 1))
    answer = bayplan("simulate", "-f", "good.yaml", "-f", "typo.yaml")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("bayplan: typo.yaml:")
    assert '$.spec.nodename: unknown field; did you mean "nodeName"?' in answer.err
    Path("typo.yaml").write_text(pod("typo").replace("spec:", "spec:\n  powerBudget: 3", 1))
    for command in (("simulate",), ("explain", "default/typo")):
        answer = bayplan(*command, "-f", "good.yaml", "-f", "typo.yaml")
        assert answer.status == 0
        assert "note: typo.yaml:" in answer.err
        assert "$.spec.powerBudget: unknown field, ignored; a newer Kubernetes" in answer.err


def test_an_object_that_is_defined_twice_names_both_places(bayplan: Bayplan) -> None:
    Path("other.yaml").write_text(pod("two"))
    refused(
        bayplan("simulate", "-f", "good.yaml", "-f", "other.yaml"),
        "other.yaml:1:1 (document 1)",
        "Pod default/two is defined twice; first in good.yaml",
    )


def test_a_node_that_is_defined_twice_tells_how_it_changes_at_a_time(bayplan: Bayplan) -> None:
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n"
    Path("nodes.yaml").write_text(node)
    Path("fails.yaml").write_text(f"{node}status: {{conditions: [{{type: Ready, status: x}}]}}\n")
    refused(
        bayplan("simulate", "-f", "nodes.yaml", "-f", "fails.yaml"),
        "Node n is defined twice; first in nodes.yaml",
        "a change at a time needs bayplan.dev/at",
    )


@pytest.mark.parametrize(
    ("kind", "api_version", "near"),
    [("Pdo", "v1", "Pod"), ("pod", "v1", "Pod"), ("Deploymnt", "apps/v1", "Deployment")],
)
def test_a_misspelt_kind_is_refused_with_the_nearest(
    bayplan: Bayplan, kind: str, api_version: str, near: str
) -> None:
    answer = simulate(bayplan, made(api_version, kind))
    refused(answer, f'there is no kind "{kind}" in {api_version}', f'did you mean "{near}"?')


@pytest.mark.parametrize(
    ("kind", "api_version", "right"),
    [
        ("Pod", "v2", "v1"),
        ("Job", "batch/v1beta1", "batch/v1"),
        ("PodGroup", "scheduling.sigs.k8s.io/v1", POD_GROUP),
        ("Deployment", "v1", "apps/v1"),
        ("Job", "v1", "batch/v1"),
        ("Pod", "apps/v1", "v1"),
        ("Deployment", "extensions/v1beta1", "apps/v1"),
    ],
)
def test_a_wrong_api_version_is_refused_with_the_right_one(
    bayplan: Bayplan, kind: str, api_version: str, right: str
) -> None:
    answer = simulate(bayplan, made(api_version, kind))
    refused(answer, "$.apiVersion", f"{kind} {api_version}", f"use {right}")


def test_kinds_that_mean_nothing_to_scheduling_are_ignored(bayplan: Bayplan) -> None:
    answer = simulate(bayplan, f"{NODE}---\n{made('v1', 'ServiceAccount')}---\n{pod()}")
    assert answer.status == 0
    assert answer.err == "note: 1 object of kind ServiceAccount (v1) ignored\n"


@pytest.mark.parametrize(
    ("layers", "parts"),
    [
        ((("A", "B"), ("B", "A"), ("NodeTopologyLayer", "A")), ("cycle: A -> B -> A",)),
        ((("A", "A"), ("NodeTopologyLayer", "A")), ("cycle: A -> A",)),
        ((("A", "Z"), ("NodeTopologyLayer", "A")), ('"A" has the parent "Z"', "not defined")),
        (
            (("A", ""), ("B", "A"), ("C", "A"), ("NodeTopologyLayer", "B")),
            ('"C" is not on the way from "NodeTopologyLayer" to "A"', "one chain"),
        ),
        ((("A", ""), ("A", ""), ("NodeTopologyLayer", "A")), ('"A" is defined twice',)),
        ((("A", ""),), ('"NodeTopologyLayer" is not defined',)),
        ((), ('"NodeTopologyLayer" is not defined',)),
    ],
)
def test_a_topology_that_is_not_a_chain_is_refused(
    bayplan: Bayplan, layers: tuple[tuple[str, str], ...], parts: tuple[str, ...]
) -> None:
    answer = simulate(bayplan, topology(*layers))
    refused(answer, "bad.yaml:4:", "ClusterNetworkTopology default: $.spec", *parts)


@pytest.mark.parametrize("duration", ["banana", "5", "-3s", "1h 30m", ""])
def test_a_bad_duration_annotation_is_refused(bayplan: Bayplan, duration: str) -> None:
    annotation = f", annotations: {{bayplan.dev/duration: '{duration}'}}"
    answer = simulate(bayplan, f"{NODE}---\n{pod(meta=annotation)}")
    refused(
        answer, "bad.yaml:8", "Pod p", "bayplan.dev/duration", 'such as "90s"', f'got "{duration}"'
    )


@pytest.mark.parametrize("resource", ["cpu", "memory", "nvidia.com/gpu"])
def test_amounts_near_the_limit_are_blamed_on_no_plugin(bayplan: Bayplan, resource: str) -> None:
    # In thousandths, or as a sum of two containers, these pass 2^63.
    node = f"{made('v1', 'Node', name='big')}status: {{allocatable: {{{resource}: 9E, pods: 9}}}}\n"
    container = f"{{resources: {{requests: {{{resource}: 9E}}}}}}"
    two = made("v1", "Pod", f"{{containers: [{container}, {container}]}}", "p")
    for manifests in (node, f"{NODE}---\n{two}", f"{node}---\n{two}"):
        answer = simulate(bayplan, manifests)
        assert "failed in" not in answer.out
        assert "Warning" not in answer.err
        if answer.status:
            refused(answer, resource)


def test_an_amount_on_a_node_never_turns_negative(bayplan: Bayplan) -> None:
    node = f"{made('v1', 'Node', name='big')}status: {{allocatable: {{memory: 7Ei, pods: 9}}}}\n"
    bound = [pod(name, spec="nodeName: big", requests="memory: 7Ei") for name in ("a", "b")]
    answer = simulate(bayplan, "---\n".join([node, *bound, pod("c", requests="memory: 1Gi")]))
    assert "Warning" not in answer.err
    assert "2 of 3 pods have a node" in answer.out or answer.status == 2


def test_a_gather_rule_of_the_wrong_type_keeps_its_gang_pending(bayplan: Bayplan) -> None:
    rule = '{"gatherStrategy": [{"layer": "A", "strategy": ["MustGather"]}]}'
    group = (
        f"apiVersion: {POD_GROUP}\nkind: PodGroup\nmetadata:\n  name: g\n  annotations:\n"
        f"    gang.scheduling.koordinator.sh/network-topology-spec: '{rule}'\n"
    )
    member = pod(meta=", labels: {pod-group.scheduling.sigs.k8s.io: g}")
    answer = simulate(bayplan, "---\n".join([NODE, group, member]))
    assert answer.status == 0
    assert "expected MustGather or PreferGather" in answer.out


@pytest.mark.parametrize(
    "annotation",
    [
        "gang.scheduling.koordinator.sh/network-topology-index",
        "batch.kubernetes.io/job-completion-index",
    ],
)
def test_an_index_of_thousands_of_digits_does_no_harm(bayplan: Bayplan, annotation: str) -> None:
    meta = f", annotations: {{{annotation}: '{'9' * 5000}'}}"
    answer = simulate(bayplan, f"{NODE}---\n{pod(meta=meta)}")
    assert answer.status in (0, 2)


@pytest.mark.parametrize(
    "workload",
    [
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s, uid: u}\n"
        "spec: {selector: {}, template: {spec: {containers: [{name: c}]}}}\n",
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: s, uid: u}\nspec: {completions: 1, "
        "completionMode: Indexed, template: {spec: {containers: [{name: c}]}}}\n",
    ],
)
def test_a_pod_that_claims_a_controller_it_does_not_fit_does_no_harm(
    bayplan: Bayplan, workload: str
) -> None:
    kind = "Job" if "Job" in workload else "StatefulSet"
    meta = (
        f", ownerReferences: [{{kind: {kind}, name: s, uid: u, controller: true}}]"
        ", annotations: {batch.kubernetes.io/job-completion-index: x}"
    )
    answer = simulate(bayplan, "---\n".join([NODE, workload, pod(meta=meta)]))
    assert answer.status == 0


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_generated_names_do_not_collide_in_large_workloads(bayplan: Bayplan, kind: str) -> None:
    spec = {
        "Job": "{parallelism: 5000, completions: 5000, ",
        "Deployment": "{replicas: 5000, selector: {}, ",
    }[kind]
    version = {"Job": "batch/v1", "Deployment": "apps/v1"}[kind]
    manifest = made(version, kind, spec + "template: {spec: {containers: [{name: c}]}}}")
    Path("large.yaml").write_text(manifest)
    answer = bayplan("simulate", "-f", "large.yaml", "--until", "0s")
    assert answer.status == 0, answer.err
    assert "0 of 5000 pods" in answer.out


# Profiles --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("is empty", "KubeSchedulerConfiguration")),
        ("hello", ("profile.yaml:1:1", "expected a mapping")),
        ("- a", ("profile.yaml:1:1", "expected a mapping")),
        ("a: [", ("profile.yaml:2:1", "not YAML")),
        (f"{HEAD}---\n{HEAD}", ("profile.yaml:4:1", "several documents; expected one")),
        ("apiVersion: v1\n", ("profile.yaml:1:1", "kind")),
        ("kind: KubeScheduler\n", ("profile.yaml:1:7", "kind", "KubeSchedulerConfiguration")),
        ("kind: ConfigMap\n", ("ConfigMap holds no KubeSchedulerConfiguration",)),
        ("kind: ConfigMap\ndata: {a: b}\n", ("holds no KubeSchedulerConfiguration",)),
        (f"{HEAD}profile: []\n", ("profile.yaml:3:", '"profile"', 'did you mean "profiles"?')),
        (f"{HEAD}extenders: [{{}}]\n", ("profile.yaml:3:", "extenders are not supported")),
        (f"{HEAD}? [a]\n: b\n", ("profile.yaml:3:", "not YAML")),
        (f"{HEAD}profiles: []\nprofiles: []\n", ("profile.yaml:4:1", "appears twice")),
        (f"{HEAD}podInitialBackoffSeconds: 0\n", ("podInitialBackoffSeconds", "greater than 0")),
        (f"{HEAD}podInitialBackoffSeconds: 20\n", ("podMaxBackoffSeconds is less than",)),
    ],
)
def test_a_file_that_is_not_a_profile_is_refused(
    bayplan: Bayplan, text: str, parts: tuple[str, ...]
) -> None:
    refused(with_profile(bayplan, text), "profile.yaml", *parts)


@pytest.mark.parametrize(
    ("profile", "parts"),
    [
        (
            "plugins: {multiPoint: {enabled: [{name: NodeResourceFit}]}}",
            ("4:43", 'no plugin "NodeResourceFit"', 'did you mean "NodeResourcesFit"?'),
        ),
        (
            "plugins: {multiPoint: {disabled: [{name: ImageLocalty}]}}",
            ('no plugin "ImageLocalty"', 'did you mean "ImageLocality"?'),
        ),
        (
            "pluginConfig: [{name: NodeResourceFit}]",
            ("4:25", 'no plugin "NodeResourceFit"', 'did you mean "NodeResourcesFit"?'),
        ),
        (
            "pluginConfig: [{name: NetworkGather, args: {topolgy: a}}]",
            ("4:56", "args.topolgy", 'did you mean "topology"?'),
        ),
        (
            "pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {typ: x}}}]",
            ("args.scoringStrategy.typ", 'did you mean "type"?'),
        ),
        (
            "pluginConfig: [{name: Coscheduling, args: {awareNetworkTopolgy: true}}]",
            ('did you mean "awareNetworkTopology"?',),
        ),
        ("pluginConfig: [{name: NetworkGather, args: {topology: 3}}]", ("topology", "string")),
        ("pluginConfig: [{name: Gang}, {name: Gang}]", ('"Gang" is configured twice',)),
        (
            "plugins: {scor: {enabled: [{name: ImageLocality}]}}",
            ('"scor" is not an extension point', 'did you mean "score"?'),
        ),
        (
            "plugins: {score: {enabled: [{name: ImageLocality, weight: -1}]}}",
            ("4:61", "score.enabled.0.weight", "greater than or equal to 0"),
        ),
        (
            "plugins: {score: {enabled: [{name: ImageLocality, weight: 99999999999}]}}",
            ("4:61", "score.enabled.0.weight", "less than or equal to"),
        ),
        (
            "plugins: {score: {enabled: [{name: NodeName}]}}",
            ("4:31", 'plugin "NodeName" does not implement score'),
        ),
        ("plugins: {queueSort: {disabled: [{name: '*'}]}}", ("exactly one queueSort", "has 0")),
        ("plugins: {score: {enabled: [{name: 'os:path'}]}}", ('"os:path" is not a subclass',)),
        ("plugins: {score: {enabled: [{name: 'nope:X'}]}}", ('"nope:X" cannot be imported',)),
        ("{schedulerName: a}\n- {schedulerName: a}", ("5:3", 'two profiles are named "a"')),
        ("schedulerName: 3", ("4:18", "schedulerName", "string")),
        ("percentageOfNodesToScore: 200", ("percentageOfNodesToScore", "100")),
        (
            "pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {requiredDuringScheduling"
            "IgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: "
            "Gt, values: [b]}]}]}}}}]",
            ("addedAffinity", "takes one integer"),
        ),
    ],
)
def test_a_mistake_in_a_profile_is_refused(
    bayplan: Bayplan, profile: str, parts: tuple[str, ...]
) -> None:
    refused(with_profile(bayplan, f"{HEAD}profiles:\n- {profile}\n"), "profile.yaml:", *parts)


@pytest.mark.parametrize(
    "profile",
    ["plugins: [a]", "plugins: {score: {enabled: [a]}}", "plugins: {score: {enabled: {}}}"],
)
def test_a_wrong_type_in_a_profile_is_reported_without_python_words(
    bayplan: Bayplan, profile: str
) -> None:
    message = refused(with_profile(bayplan, f"{HEAD}profiles:\n- {profile}\n"), "plugins")
    assert not re.search(r"tuple|dictionary|instance of", message), message


def test_a_folder_or_nothing_as_profile_is_refused(bayplan: Bayplan) -> None:
    Path("folder").mkdir()
    for path, expected in (("folder", "directory"), ("nowhere.yaml", "o such file")):
        refused(bayplan("simulate", "-f", "good.yaml", "--config", path), path, expected)


# Options and names -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("simulate",), ("-f",)),
        (("simulate", "-f", "good.yaml", "--until", "banana"), ("--until", '"90s"', '"banana"')),
        (("simulate", "-f", "good.yaml", "--until", "-5s"), ("--until", '"90s"')),
        (("simulate", "-f", "good.yaml", "--seed", "x"), ("--seed", "integer")),
        (("simulate", "-f", "good.yaml", "-o", "yaml"), ("--output", "table", "json")),
        (("simulate", "-f", "good.yaml", "--plugins-dir", "no"), ("no", "not a folder")),
        (("simulate", "-f", "good.yaml", "--trace", "default/onee"), ('did you mean "',)),
        (("simulat",), ('did you mean "simulate"?',)),
        (("explain", "default/onee", "-f", "good.yaml"), ('"default/onee"', 'did you mean "')),
        (("explain", "onee", "-f", "good.yaml"), ('"default/onee"', 'did you mean "')),
        (("explain", "other/one", "-f", "good.yaml"), ('"other/one"', 'did you mean "')),
        (("bench", "bsic"), ('no benchmark "bsic"', 'did you mean "basic"?')),
        (("bench", "basic", "--nodes", "0"), ("--nodes", "range")),
        (("plugin", "new", "lower"), ('"lower"', "SpreadByRack")),
        (("plugin", "check", "nowhere.py"), ("nowhere.py", "no such file")),
        (("plugin", "check", "good.yaml"), ("good.yaml", "not a Python file")),
        (("plugin", "list", "--plugins-dir", "no"), ("no", "not a folder")),
    ],
)
def test_a_wrong_argument_is_refused(
    bayplan: Bayplan, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    refused(bayplan(*arguments), *parts)


# Plugins ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        ("raise ValueError('boo')", "ValueError: boo"),
        ("import sys\nsys.exit(0)", "SystemExit"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "plugin"])
def test_a_plugin_file_that_cannot_be_imported_is_refused(
    bayplan: Bayplan, source: str, problem: str, command: str
) -> None:
    answer = with_plugin_file(bayplan, source)
    if command == "plugin":
        answer = bayplan("plugin", "check", "plugins/mine.py")
    refused(answer, "mine.py", "cannot be imported", problem)


def test_a_plugin_file_without_plugins_is_refused(bayplan: Bayplan) -> None:
    refused(with_plugin_file(bayplan, "x = 1"), "profile.yaml:4", 'there is no plugin "Mine"')
    refused(bayplan("plugin", "check", "plugins/mine.py"), "mine.py", "no subclass of")


VALID = "@hookimpl\ndef filter_node(self, pod, node): return None\n"


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (
            "@hookimpl\ndef fillter(self, pod, nodes): return ()",
            ("fillter", 'did you mean "filter"?'),
        ),
        (
            f"{VALID}@hookimpl\ndef fillter(self, pod, nodes): return ()",
            ("fillter", 'did you mean "filter"?'),
        ),
        ("@hookimpl\ndef filter_node(self, pods, node): return None", ("filter_node", "pods")),
        ("@hookimpl(tryfirst=True)\ndef filter_node(self, pod, node): return None", ("tryfirst",)),
        ("@hookimpl(trylast=True)\ndef filter_node(self, pod, node): return None", ("trylast",)),
        ("@hookimpl(wrapper=True)\ndef filter_node(self, pod, node): yield", ("wrapper",)),
        ("@hookimpl(hookwrapper=True)\ndef filter_node(self, pod, node): yield", ("wrapper",)),
        ("def filter_node(self, pod, node): return None", ("no hook", "@hookimpl")),
        (f"Args = 3\n{VALID}", ("Args",)),
        (f"reads = 'NODE'\n{VALID}", ("reads",)),
        (f"requeue_on = 5.5\n{VALID}", ("requeue_on",)),
        (f"by_spec = 1\n{VALID}", ("by_spec", "bool")),
        (f"by_spec = True\n{VALID}@hookimpl\ndef sign(self, pod): return 1", ("by_spec", "sign")),
        (
            "normalize_scores = Normalize.HOOK\n"
            "@hookimpl\ndef score_node(self, pod, node): return 1",
            ("normalize",),
        ),
        (f"def __init__(self, args, handle): raise ValueError('boo')\n{VALID}", ("boo",)),
        (f"def __init__(self): pass\n{VALID}", ("__init__",)),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "check"])
def test_a_plugin_that_breaks_the_contract_is_refused(
    bayplan: Bayplan, body: str, parts: tuple[str, ...], command: str
) -> None:
    answer = with_plugin(bayplan, body)
    if command == "check":
        answer = bayplan("plugin", "check", "plugins/mine.py")
    message = refused(answer, "Mine", *parts)
    assert " object at 0x" not in message


def test_a_required_argument_that_is_missing_is_refused(bayplan: Bayplan) -> None:
    body = f"class Args(Args):\n    limit: int\n{VALID}"
    refused(with_plugin(bayplan, body), "profile.yaml", "Mine", "limit")


def test_plugin_check_says_which_arguments_it_lacks(bayplan: Bayplan) -> None:
    with_plugin(bayplan, f"class Args(Args):\n    limit: int\n{VALID}")
    refused(bayplan("plugin", "check", "plugins/mine.py"), "mine.py", "limit")


@pytest.mark.parametrize("arguments", [(), ("-o", "json")])
def test_plugin_list_shows_a_plugin_whose_args_are_broken(
    bayplan: Bayplan, arguments: tuple[str, ...]
) -> None:
    with_plugin(bayplan, f"Args = 3\n{VALID}")
    answer = bayplan("plugin", "list", "--plugins-dir", "plugins", *arguments)
    assert answer.status == 0
    assert "Mine" in answer.out
    assert "Gang" in answer.out


# Answers, not errors ---------------------------------------------------------------------


def test_a_resource_that_no_node_has_leaves_the_pod_pending(bayplan: Bayplan) -> None:
    answer = simulate(bayplan, f"{NODE}---\n{pod(requests='example.com/unicorn: 1')}")
    assert answer.status == 0
    assert "0/1 nodes are available: 1 Insufficient example.com/unicorn." in answer.out
    told = bayplan("explain", "default/p", "-f", "bad.yaml")
    assert told.status == 0
    assert "no node offers example.com/unicorn" in told.out


def test_a_gang_that_can_never_be_complete_stays_pending(bayplan: Bayplan) -> None:
    group = made(POD_GROUP, "PodGroup", "{minMember: 1000}", "g")
    member = pod(meta=", labels: {pod-group.scheduling.sigs.k8s.io: g}")
    answer = simulate(bayplan, "---\n".join([NODE, group, member]))
    assert answer.status == 0
    assert 'gang "default/g" is waiting for members: 1 of 1000 exist' in answer.out
    told = bayplan("explain", "default/p", "-f", "bad.yaml")
    assert told.status == 0
    assert "999 more members" in told.out


def test_a_gated_pod_is_not_said_to_be_about_to_run(bayplan: Bayplan) -> None:
    Path("gated.yaml").write_text(f"{NODE}---\n{pod(spec='schedulingGates: [{name: quota}]')}")
    told = bayplan("explain", "default/p", "-f", "gated.yaml")
    assert told.status == 0
    assert "waiting for scheduling gates: [quota]" in told.out
    assert "about to be tried" not in told.out


def test_a_pod_that_is_over_is_not_said_to_be_pending(bayplan: Bayplan) -> None:
    Path("over.yaml").write_text(f"{NODE}---\n{pod()}status: {{phase: Succeeded}}\n")
    told = bayplan("explain", "default/p", "-f", "over.yaml")
    assert told.status == 0
    assert "Succeeded" in told.out
    assert "pending" not in told.out


RAISES = """\
@hookimpl
def filter_node(self, pod, node):
    if pod.name == "one":
        raise ValueError("boo")
"""


def test_a_plugin_that_raises_holds_back_only_its_pod(bayplan: Bayplan) -> None:
    answer = with_plugin(bayplan, RAISES)
    assert answer.status == 0
    assert "Traceback" not in answer.err
    assert "1 of 2 pods have a node" in answer.out
    assert 'default/one\n    plugin "Mine" failed in filter_node: ValueError: boo' in answer.out
    told = with_plugin(bayplan, RAISES, "explain")
    assert told.status == 0
    assert 'plugin "Mine" failed in filter_node: ValueError: boo' in told.out


REFUSES = "@hookimpl\ndef filter_node(self, pod, node): return 'no'\n"


@pytest.mark.parametrize("command", ["simulate", "explain"])
@pytest.mark.parametrize(
    ("body", "hook"),
    [
        ("@hookimpl\ndef pre_filter(self, pod): return 3", "pre_filter"),
        ("@hookimpl\ndef filter(self, pod, nodes): return [3]", "filter"),
        ("@hookimpl\ndef filter_node(self, pod, node): return True", "filter_node"),
        ("@hookimpl\ndef score(self, pod, nodes): return ['a'] * len(nodes)", "score"),
        ("@hookimpl\ndef score(self, pod, nodes): return np.full(len(nodes), np.nan)", "score"),
        ("@hookimpl\ndef score_node(self, pod, node): return 'a'", "score_node"),
        ("@hookimpl\ndef score_node(self, pod, node): return None", "score_node"),
        (
            "normalize_scores = Normalize.HOOK\n"
            "@hookimpl\ndef score_node(self, pod, node): return 1\n"
            "@hookimpl\ndef normalize(self, scores): return scores[:0]",
            "normalize",
        ),
        (f"reads = Reads.NODE\n{VALID}@hookimpl\ndef sign(self, pod): return [1]", "sign"),
        ("@hookimpl\ndef pre_enqueue(self, pod): return 3", "pre_enqueue"),
        ("@hookimpl\ndef placement_score(self, unit): return None", "placement_score"),
        ("@hookimpl\ndef reserve(self, pod): return 3", "reserve"),
        ("@hookimpl\ndef permit(self, pod): return True", "permit"),
        ("@hookimpl\ndef permit(self, pod): return Wait('3s')", "permit"),
        ("@hookimpl\ndef pre_bind(self, pod): return 3", "pre_bind"),
        ("@hookimpl\ndef bind(self, pod): return 'x'", "bind"),
    ],
)
def test_a_hook_that_returns_nonsense_is_named(
    bayplan: Bayplan, body: str, hook: str, command: str
) -> None:
    answer = with_plugin(bayplan, body, command)
    assert answer.status == 0
    assert f'plugin "Mine" failed in {hook}' in answer.out


@pytest.mark.parametrize(
    ("body", "hook"),
    [
        (f"{REFUSES}@hookimpl\ndef remedies(self, pod): raise ValueError('boo')", "remedies"),
        (f"{REFUSES}@hookimpl\ndef remedies(self, pod): return [3]", "remedies"),
        (f"{REFUSES}@hookimpl\ndef remedies(self, pod): return [Remedy('x', 99, 1.0)]", "remedies"),
        (f"{REFUSES}@hookimpl\ndef relax(self, unit): raise ValueError('boo')", "relax"),
        (f"{REFUSES}@hookimpl\ndef relax(self, unit): return [3]", "relax"),
    ],
)
def test_advice_of_a_broken_plugin_is_an_answer_too(bayplan: Bayplan, body: str, hook: str) -> None:
    answer = with_plugin(bayplan, body, "explain")
    assert answer.status == 0
    assert f'plugin "Mine" failed in {hook}' in answer.out


def test_what_a_plugin_cannot_follow_is_noted_beside_the_result(
    bayplan: Bayplan, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        f"{HEAD}profiles:\n- plugins: {{multiPoint: {{enabled: [{{name: Recovery}}]}}}}\n"
        "  pluginConfig: [{name: Recovery, args: {spares: [{nodes: 1, layer: rak}]}}]\n"
    )
    objects = tmp_path / "objects.yaml"
    node = NODE.replace('cpu: "8"', 'cpu: "8", nvidia.com/gpu: "8"')
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"
    objects.write_text(f"{node}---\n{pod}")
    done = bayplan("simulate", "-f", str(objects), "--config", str(profile))
    assert done.status == 0
    notes = [line for line in done.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert notes[0].startswith('note: Recovery keeps no spares in layer "rak": ')
