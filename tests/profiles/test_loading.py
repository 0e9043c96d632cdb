"""The profile file: defaults, merging, errors."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tests.paths import ROOT

from bayplan import Args, Plugin, hookimpl
from bayplan.errors import InputError
from bayplan.profiles.loading import Profile, default_profiles, load_profiles
from bayplan_plugins.node_numa import NodeNUMAArgs


class LastComeFirst(Plugin[Args]):
    """Another order of the queue."""

    @hookimpl
    def queue_sort(self, added: float) -> tuple[float, ...]:
        return (-added,)


HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(HEAD + textwrap.dedent(text))
    return path


def load(tmp_path: Path, text: str) -> Profile:
    return load_profiles(write(tmp_path, text)).profiles[0]


def order(profile: Profile, hook: str) -> list[str]:
    return [name for name, _ in profile.points[hook]]


def weights(profile: Profile) -> dict[str, int]:
    return {**dict(profile.points["score"]), **dict(profile.points["normalize"])}


def test_the_default_weights_are_those_of_kube_scheduler() -> None:
    found = weights(default_profiles().profiles[0])
    assert found == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "DynamicResources": 2,
        "NodeResourcesFit": 1,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
        # Bayplan's own; they score pods that ask for it, pods with GPUs, shares of GPUs or GPUs
        # elsewhere, and elastic jobs.
        "Resizer": 20,
        "DeviceShare": 1,
        "GPUFragmentation": 10,
        "NetworkNear": 1,
        "RemoteGPUs": 5,
        "GPUSharing": 1,
        "GPUTopology": 2,
        # Pods with CPUs of their own.
        "NodeNUMA": 1,
    }


def test_koordinators_names_of_plugins_mean_bayplans(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        HEAD
        + """profiles:
- plugins:
    permit: {enabled: [{name: Coscheduling}]}
    score: {disabled: [{name: NodeNUMAResource}]}
  pluginConfig:
  - name: NodeNUMAResource
    args:
      kind: NodeNUMAResourceArgs
      defaultCPUBindPolicy: SpreadByPCPUs
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}
"""
    )
    (profile,) = load_profiles(path).profiles
    assert "NodeNUMA" in dict(profile.points["filter"])
    assert "NodeNUMA" not in dict(profile.points["score"])
    args = profile.args["NodeNUMA"]
    assert isinstance(args, NodeNUMAArgs)
    assert args.default_cpu_bind_policy == "SpreadByPCPUs"
    assert args.scoring_strategy.type == "MostAllocated"


def test_without_a_file_the_profile_is_the_one_that_people_start_with() -> None:
    (shipped,) = load_profiles(ROOT / "configs" / "profiles" / "default.yaml").profiles
    (without,) = default_profiles().profiles
    assert (shipped.points, shipped.args) == (without.points, without.args)


def test_an_empty_configuration_means_the_defaults(tmp_path: Path) -> None:
    profiles = load_profiles(write(tmp_path, ""))
    assert profiles.profiles[0].points == default_profiles().profiles[0].points
    assert profiles.profiles[0].scheduler_name == "default-scheduler"
    assert not profiles.any_scheduler


def test_multi_point_changes_a_weight_in_place(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        """
        profiles:
        - plugins:
            multiPoint:
              enabled: [{name: NodeResourcesFit, weight: 7}]
        """,
    )
    assert weights(profile)["NodeResourcesFit"] == 7
    assert order(profile, "filter") == order(default_profiles().profiles[0], "filter")


def test_multi_point_disables_at_every_point(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        """
        profiles:
        - plugins:
            multiPoint: {disabled: [{name: PodTopologySpread}]}
        """,
    )
    assert "PodTopologySpread" not in profile.plugins


def test_a_point_disables_only_itself(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        """
        profiles:
        - plugins:
            score: {disabled: [{name: NodeResourcesFit}]}
        """,
    )
    assert "NodeResourcesFit" not in order(profile, "score")
    assert "NodeResourcesFit" not in order(profile, "score_node")
    assert "NodeResourcesFit" in order(profile, "filter")


def test_a_star_empties_a_point_and_enabled_fills_it_again(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        """
        profiles:
        - plugins:
            score:
              disabled: [{name: "*"}]
              enabled: [{name: NodeAffinity, weight: 4}]
        """,
    )
    assert profile.points["score"] == (("NodeAffinity", 4),)


def test_what_a_point_names_comes_first_there(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        """
        profiles:
        - plugins:
            filter: {enabled: [{name: NodePorts}]}
        """,
    )
    assert order(profile, "filter")[0] == "NodePorts"
    assert order(profile, "filter").count("NodePorts") == 1


def test_a_star_at_multi_point_leaves_what_is_enabled(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        """
        profiles:
        - plugins:
            multiPoint:
              disabled: [{name: "*"}]
              enabled: [{name: PrioritySort}, {name: NodeResourcesFit}]
        """,
    )
    assert sorted(profile.plugins) == ["NodeResourcesFit", "PrioritySort"]


def test_plugins_by_module_and_class(tmp_path: Path) -> None:
    name = "bayplan_plugins.node_name:NodeName"
    profile = load(
        tmp_path,
        f"""
        profiles:
        - plugins:
            multiPoint:
              disabled: [{{name: NodeName}}]
              enabled: [{{name: "{name}"}}]
        """,
    )
    assert name in order(profile, "filter")


def test_arguments_reach_the_plugin(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        """
        profiles:
        - pluginConfig:
          - name: InterPodAffinity
            args:
              apiVersion: kubescheduler.config.k8s.io/v1
              kind: InterPodAffinityArgs
              hardPodAffinityWeight: 50
        """,
    )
    assert profile.args["InterPodAffinity"].hard_pod_affinity_weight == 50  # type: ignore[attr-defined]


def test_backoff_is_read(tmp_path: Path) -> None:
    profiles = load_profiles(
        write(tmp_path, "podInitialBackoffSeconds: 2\npodMaxBackoffSeconds: 30\n")
    )
    assert (profiles.initial_backoff, profiles.max_backoff) == (2, 30)


def test_koordinators_config_map_loads(tmp_path: Path) -> None:
    inner = HEAD + textwrap.dedent(
        """
        profiles:
        - pluginConfig:
          - name: Coscheduling
            args: {awareNetworkTopology: %s, enablePreemption: true}
        """
    )

    def text(aware: str) -> str:
        body = textwrap.indent(inner % aware, "    ")
        head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: koord-scheduler-config}\n"
        return f"{head}data:\n  koord-scheduler-config: |\n{body}"

    path = tmp_path / "configmap.yaml"
    path.write_text(text("true"))
    profile = load_profiles(path).profiles[0]
    assert profile.scheduler_name == "koord-scheduler"
    assert {"Gang", "NetworkGather"} <= set(profile.plugins)
    assert profile.notes == ()
    assert profile.args["DefaultPreemption"].model_dump()["gangs"] is True
    path.write_text(text("false"))
    assert "NetworkGather" not in load_profiles(path).profiles[0].plugins


def test_trimarans_profile_loads(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(
        HEAD
        + textwrap.dedent(
            """
            leaderElection: {leaderElect: false}
            profiles:
            - schedulerName: trimaran
              plugins:
                score:
                  disabled:
                  - name: NodeResourcesBalancedAllocation
                  enabled:
                  - name: TargetLoadPacking
              pluginConfig:
              - name: TargetLoadPacking
                args:
                  apiVersion: kubescheduler.config.k8s.io/v1
                  kind: TargetLoadPackingArgs
                  defaultRequests: {cpu: "2000m"}
                  defaultRequestsMultiplier: "1"
                  targetUtilization: 70
                  metricProvider: {type: Prometheus, address: "http://prometheus:9090"}
            """
        )
    )
    (profile,) = load_profiles(path).profiles
    assert profile.scheduler_name == "trimaran"
    assert "TargetLoadPacking" in dict(profile.points["score"])
    source = profile.args["TargetLoadPacking"].load_source
    assert source is not None
    assert (source.kind, source.url) == ("Prometheus", "http://prometheus:9090")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            "profiles:\n- plugins: {filter: {enabled: [{name: NodeResorcesFit}]}}\n",
            4,
            'there is no plugin "NodeResorcesFit"; did you mean "NodeResourcesFit"?',
        ),
        (
            "profiles:\n- plugins: {filtre: {}}\n",
            4,
            '"filtre" is not an extension point; did you mean "filter"?',
        ),
        (
            "profiles:\n- plugins:\n    score:\n      enabled:\n      - name: NodeAffinity\n"
            "        weight: -1\n",
            8,
            "profiles.0.plugins.score.enabled.0.weight: Input should be greater than or equal to 0",
        ),
        (
            "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n"
            "      hardPodAffinityWeigth: 1\n",
            7,
            '"hardPodAffinityWeigth" is not known here; did you mean "hardPodAffinityWeight"?',
        ),
        (
            "profiles:\n- pluginConfig:\n  - {name: NodeResourceFit, args: {}}\n",
            5,
            'there is no plugin "NodeResourceFit"; did you mean "NodeResourcesFit"?',
        ),
        (
            "profiles:\n- schedulerNam: x\n",
            4,
            '"schedulerNam" is not known here; did you mean "schedulerName"?',
        ),
        (
            "profiles:\n- schedulerName: a\n- schedulerName: a\n",
            5,
            'two profiles are named "a"',
        ),
        (
            "profiles:\n- schedulerName: a\n- schedulerName: b\n"
            "  pluginConfig: [{name: Queues, args: {kueue: null}}]\n",
            5,
            'Queues: the argument "kueue" is about the whole cluster: it has to be as in the '
            'profile "a"',
        ),
        (
            "profiles:\n- plugins: {queueSort: {disabled: [{name: '*'}]}}\n",
            4,
            "exactly one queueSort plugin, this one has 0",
        ),
        (
            "profiles:\n- plugins: {filter: {enabled: [{name: PrioritySort}]}}\n",
            4,
            'plugin "PrioritySort" does not implement filter',
        ),
        (
            "profiles:\n- plugins: {permit: {enabled: [{name: Gang}, {name: Coscheduling}]}}\n",
            4,
            '"Coscheduling" is enabled twice at permit',
        ),
        ("extenders:\n- urlPrefix: http://x\n", 4, "extenders are not supported"),
        (
            "profiles:\n- schedulerName: a\n- schedulerName: b\n  plugins: {queueSort: "
            "{enabled: [{name: 'tests.profiles.test_loading:LastComeFirst'}],"
            " disabled: [{name: '*'}]}}\n",
            5,
            "all profiles share one queue",
        ),
    ],
)
def test_errors_name_file_line_and_path(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(HEAD + text)
    with pytest.raises(InputError) as caught:
        load_profiles(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}:")


@pytest.mark.parametrize(
    ("point", "plugins"),
    [
        ("multiPoint", "{name: NodeResourcesFit}, {name: NodeResourcesFit, weight: 3}"),
        ("score", "{name: ImageLocality}, {name: TaintToleration}, {name: ImageLocality}"),
        ("multiPoint", "{name: Gang}, {name: Gang}"),
    ],
)
def test_a_plugin_that_is_enabled_twice_is_an_error(
    tmp_path: Path, point: str, plugins: str
) -> None:
    text = f"profiles:\n- plugins: {{{point}: {{enabled: [{plugins}]}}}}\n"
    with pytest.raises(InputError, match=f"is enabled twice at {point}") as caught:
        load(tmp_path, text)
    line = (HEAD + text).splitlines()[3]
    assert caught.value.where.startswith(f"{tmp_path / 'profile.yaml'}:4:")
    at = int(caught.value.where.rpartition(":")[2]) - 1
    assert line[at:].startswith(plugins.rpartition("name: ")[2].partition(",")[0].rstrip("}"))
    assert at > line.index(plugins.partition("}")[0])


def test_a_plugin_may_be_enabled_at_several_points(tmp_path: Path) -> None:
    text = """\
    profiles:
    - plugins:
        multiPoint: {enabled: [{name: ImageLocality}]}
        score: {enabled: [{name: ImageLocality, weight: 7}]}
    """
    assert weights(load(tmp_path, text))["ImageLocality"] == 7


def test_arguments_of_another_plugins_kind_are_an_error(tmp_path: Path) -> None:
    args = "args: {kind: InterPodAffinityArgs}"
    text = f"profiles:\n- pluginConfig: [{{name: NodeResourcesFit, {args}}}]\n"
    with pytest.raises(InputError, match="expected arguments of kind NodeResourcesFitArgs") as told:
        load(tmp_path, text)
    assert told.value.where.startswith(f"{tmp_path / 'profile.yaml'}:4:")


def test_a_backoff_has_to_be_a_number(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="podInitialBackoffSeconds: expected a finite number"):
        load(tmp_path, "podInitialBackoffSeconds: .nan\n")


def test_koordinators_arguments_of_deviceshare_load_as_they_are(tmp_path: Path) -> None:
    text = """
    profiles:
    - schedulerName: koord-scheduler
      pluginConfig:
      - name: DeviceShare
        args:
          apiVersion: kubescheduler.config.k8s.io/v1
          kind: DeviceShareArgs
          allocator: default
          disableDeviceNUMATopologyAlignment: true
          scoringStrategy:
            type: MostAllocated
            resources:
            - name: koordinator.sh/gpu-memory-ratio
              weight: 1
          gpuSharedResourceTemplatesConfig:
            configMapNamespace: koordinator-system
            configMapName: gpu-shared-resource-templates
            matchedResources: [huawei.com/npu-core]
    """
    profile = load(tmp_path, text)
    assert profile.args["DeviceShare"].model_dump()["scoring_strategy"]["type"] == "MostAllocated"
    assert profile.notes == (
        "DeviceShare: allocator has no effect",
        "DeviceShare: disableDeviceNUMATopologyAlignment has no effect",
    )
