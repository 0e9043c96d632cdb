"""What KAI's cases may say: scenarios, and tables by operation.

What the harness of KAI's tests takes for granted where a field is absent is said in
``kai_scenarios``, which reads some of the absent ones as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType
from tests.conformance.case_format import Common, Number, Part, UnknownFieldError, complete

__all__ = ["completed"]

Texts = dict[str, str]


# Scenarios ---------------------------------------------------------------------------------


class _Queue(Part, kw_only=True):
    name: str
    parent: str = ""
    priority: int = 100
    deserved_gpus: Number = 0
    deserved_cpus: Number = -1
    deserved_memory: Number = -1
    max_allowed_gpus: Number = 0
    max_allowed_cpus: Number | UnsetType = UNSET
    max_allowed_memory: Number | UnsetType = UNSET
    gpu_over_quota_weight: Number = 0
    reclaim_min_runtime_s: Number | UnsetType = UNSET
    preempt_min_runtime_s: Number | UnsetType = UNSET
    v1: bool = False


class _Department(Part, kw_only=True):
    name: str
    deserved_gpus: Number = 0
    max_allowed_gpus: Number = 0
    max_allowed_cpus: Number | UnsetType = UNSET
    max_allowed_memory: Number | UnsetType = UNSET


class _Zone(Part, kw_only=True):
    """A NUMA node, whose place in the list is its number; ``id`` is for KAI's messages."""

    id: str = ""
    allocatable: Texts = {}
    available: Texts = {}


class _Numa(Part, kw_only=True):
    policy: str = ""
    scope: str = ""
    zones: list[_Zone] = []


class _Node(Part, kw_only=True):
    name: str
    gpus: int = 0
    gpu_name: str = ""
    gpu_memory: Number = 0
    gpu_memory_synced: bool = True
    cpu_millis: Number = 0
    cpu_memory: Number = 0
    max_task_num: int | UnsetType = UNSET
    labels: Texts = {}
    mig_strategy: str = ""
    mig_instances: dict[str, int] = {}
    numa_topology: _Numa | UnsetType = UNSET


class _Topology(Part, kw_only=True):
    topology: str = ""
    required_level: str = ""
    preferred_level: str = ""


class _PodSet(Part, kw_only=True):
    name: str = "default"
    min_available: int = 0
    topology_constraint: _Topology | UnsetType = UNSET


class _SubGroups(Part, kw_only=True):
    name: str = ""
    min_sub_group: int = 0
    pod_sets: list[_PodSet] = []
    groups: list[_SubGroups] = []
    topology_constraint: _Topology | UnsetType = UNSET


class _Derived(Part, kw_only=True):
    min_available: int | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    age_minutes: Number = 0


class _Task(Part, kw_only=True):
    id: str
    state: str = "Pending"
    name: str | UnsetType = UNSET
    node_name: str = ""
    priority: int | UnsetType = UNSET
    sub_group_name: str = ""
    required_gpus: Number | UnsetType = UNSET
    required_mig_instances: dict[str, int] = {}
    is_legacy_mig_task: bool = False
    gpu_groups: list[str] = []
    node_affinity_names: list[str] = []
    pod_affinity_labels: Texts = {}
    pod_affinity_topology_key: str = ""
    pod_anti_affinity_topology_key: str = ""
    resource_claim_names: list[str] = []
    resource_claim_templates: Texts = {}
    persistent_volume_claim_names: list[str] = []
    annotations: Texts = {}


class _Job(Part, kw_only=True):
    name: str
    queue: str = ""
    namespace: str = ""
    priority: int = 0
    preemptibility: str = ""
    preemption_delay_s: Number = 0
    required_gpus_per_task: Number = 0
    required_gpu_memory: Number = 0
    required_multi_fraction_devices_per_task: int = 0
    required_cpus_per_task: Number = 0
    required_memory_per_task: Number = 0
    is_best_effort: bool = False
    qos_class: str = ""
    root_sub_group_set: _SubGroups | UnsetType = UNSET
    tasks: list[_Task] = []
    derived: _Derived = _Derived()
    job_age_in_minutes: Number = 0
    delete_job_in_test: bool = False
    stale_duration_s: Number | UnsetType = UNSET
    staleness_grace_period_s: Number | UnsetType = UNSET


class _Wanted(Part, kw_only=True):
    """What a job's tasks, or one task, have to be.

    Not compared: KAI's texts of errors, times of starts, which no object says, and the names of
    groups that share GPUs, which KAI compares only where they are equal by chance.
    """

    status: str | UnsetType = UNSET
    node_name: str = ""
    gpus_required: Number = 0
    gpus_accepted: Number = 0
    milli_cpu_required: Number = 0
    memory_required: Number = 0
    gpu_groups: list[str] = []
    dont_validate_gpu_group: bool = False
    numa_zones: list[int] | UnsetType = UNSET
    last_start_timestamp_older_than_s: Number | UnsetType = UNSET
    expected_error_message: str = ""


class _WantedNode(Part, kw_only=True):
    idle_gpus: Number = 0
    releasing_gpus: Number = 0
    numa_zones_available: dict[str, dict[str, str | Number]] = {}


class _Calls(Part, kw_only=True):
    max_binds: int = 0
    max_evictions: int = 0
    max_pipelines: int = 0


class _Expected(Part, kw_only=True):
    jobs: dict[str, _Wanted] = {}
    tasks: dict[str, _Wanted] = {}
    nodes: dict[str, _WantedNode] = {}
    calls_per_cycle: _Calls | UnsetType = UNSET
    tasks_never_compared: dict[str, Any] | list[str] = []


class _Check(Part, kw_only=True):
    """An assertion of a test's code; ``message`` is KAI's text of a refusal: not compared."""

    type: str
    job: str = ""
    job_prefix: str = ""
    task: str = ""
    tasks: int | UnsetType = UNSET
    status: str | UnsetType = UNSET
    node_name: str = ""
    ok: bool = False
    message: str = ""
    sub_group: str = ""
    sub_groups: list[str] = []
    label: str | UnsetType = UNSET
    value: str = ""
    values: list[str] = []
    nodes: list[str] | UnsetType = UNSET
    distinct: bool = False


class _Slice(Part, kw_only=True):
    name: str
    node_name: str = ""
    device_class_name: str = ""
    count: int = 0


class _ClaimStatus(Part, kw_only=True):
    allocation: dict[str, Any] = {}
    reserved_for: list[dict[str, Any]] = []


class _Claim(Part, kw_only=True):
    name: str
    namespace: str = ""
    device_class_name: str = ""
    count: int = 1
    labels: Texts = {}
    claim_status: _ClaimStatus | UnsetType = UNSET


class _Dra(Part, kw_only=True):
    device_classes: list[str] = []
    resource_slices: list[_Slice] = []
    resource_claims: list[_Claim] = []


class _Level(Part, kw_only=True):
    node_label: str


class _LevelList(Part, kw_only=True):
    name: str
    levels: list[_Level] = []


class _Rounds(Part, kw_only=True):
    """Cycles until the state has to match, and after; ``delay_s`` is what a real clock needs."""

    until_match: int = 0
    after_match: int = 0
    delay_s: Number = 0


class _Plugin(Part, kw_only=True):
    name: str
    arguments: Texts = {}


class _Tier(Part, kw_only=True):
    plugins: list[_Plugin] = []


class _Config(Part, kw_only=True):
    """The scheduler's configuration; its ``actions`` are not used, the case's are."""

    actions: str = ""
    tiers: list[_Tier] = []


class _Overrides(Part, kw_only=True):
    global_default_staleness_grace_period_s: Number = 0


class _Gates(Part, kw_only=True):
    DynamicResources: bool = True


class Scenario(Common, kw_only=True):
    """A scenario; ``predicates_plugin`` says what ``jobs`` show, too: no affinity is asked for."""

    test_func: str = ""
    runner: str = "single_session"
    actions: list[str] = []
    predicates_plugin: bool = True
    queues: list[_Queue] = []
    departments: list[_Department] = []
    disable_default_department: bool = False
    nodes: list[_Node] = []
    jobs: list[_Job] = []
    topologies: list[_LevelList] = []
    dra: _Dra = _Dra()
    config: _Config = _Config()
    session_overrides: _Overrides = _Overrides()
    feature_gates: _Gates = _Gates()
    rounds: _Rounds = _Rounds()
    expected: _Expected = _Expected()
    checks: list[_Check] = []


# Tables ------------------------------------------------------------------------------------


class _Numbers(Part, kw_only=True):
    deserved: Number = 0
    limit: Number = 0
    over_quota_weight: Number = 0
    request: Number = 0
    allocated: Number = 0
    allocated_non_preemptible: Number = 0
    usage: Number = 0
    fair_share: Number = 0


class _Share(Part, kw_only=True):
    key: str = ""
    uid: str = ""
    name: str = ""
    parent: str = ""
    priority: int = 0
    creation_order: Number = 0
    cpu: _Numbers = _Numbers()
    memory: _Numbers = _Numbers()
    gpu: _Numbers = _Numbers()


class _Amounts(Part, kw_only=True):
    cpu: Number = 0
    memory: Number = 0
    gpu: Number = 0


class _GpuRequest(Part, kw_only=True):
    gpus: Number = 0
    gpu_memory: Number = 0
    devices: int = 1
    portion: Number = 0


class _TablePod(Part, kw_only=True):
    resources: _Amounts = _Amounts()
    gpu_request: _GpuRequest = _GpuRequest()
    status: str = ""


class _TableJob(Part, kw_only=True):
    name: str = ""
    queue: str = ""
    preemptibility: str = ""
    preemptible: bool = False
    pods: dict[str, _TablePod] = {}
    resources: _Amounts = _Amounts()
    gpu_memory: Number = 0
    num_devices: int = 1


class _Input(Part, kw_only=True):
    queues: list[_Share] | UnsetType = UNSET
    queue: _Share = _Share()
    requested: _Amounts = _Amounts()
    job: _TableJob = _TableJob()
    max_node_gpu_memory_mib: Number = 0
    min_node_gpu_memory: Number = 0
    resource: str = ""
    total: Number | _Amounts = 0
    k_value: Number = 0
    utilization_multiplier: Number = 1
    reclaimer: _TableJob = _TableJob()
    reclaimer_queue: _Share = _Share()
    reclaimer_resources: _Amounts = _Amounts()
    victims: dict[str, list[_Amounts]] = {}
    victim_queue: str | _Share = ""
    victim_remaining: _Amounts = _Amounts()
    left_queue: _Share = _Share()
    left_job: _TableJob = _TableJob()
    right_queue: _Share = _Share()
    right_job: _TableJob = _TableJob()


class Table(Common, kw_only=True):
    """A row of a table; what is expected has the form of the operation's answer."""

    op: str
    input: _Input = _Input()
    expected: dict[str, Any] = {}


def completed(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case with all fields of its kind.

    :raises UnknownFieldError: for a field that the kind does not have.
    """
    found = complete(Table if "op" in case else Scenario, case)
    for name in _plugins(found):
        if name not in _PLUGINS:
            raise UnknownFieldError(f"{case['name']}: nobody reads the plugin {name}")
    return found


_PLUGINS = frozenset(
    (
        *("gpupack", "gpuspread", "nodeplacement"),
        # What these do belongs to every session here.
        *("dynamicresources", "elastic", "gpusharingorder", "kubeflow", "minruntime", "numa"),
        *("nodeavailability", "nominatednode", "podaffinity", "predicates", "priority"),
        *(
            "multinodegang",
            "nodelocalgreedy",
            "reflectjoborder",
            "proportion",
            "ray",
            "resourcetype",
            "snapshot",
            "subgrouporder",
            "taskorder",
        ),
        "topology",
    )
)


def _plugins(case: Mapping[str, Any]) -> list[str]:
    tiers = case.get("config", {}).get("tiers", ())
    return [plugin["name"] for tier in tiers for plugin in tier["plugins"]]
