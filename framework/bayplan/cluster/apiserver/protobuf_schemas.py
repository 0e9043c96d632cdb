"""Protobuf schemas of the kinds that kubectl creates itself, with the fields that it sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["AMOUNT", "META", "QUANTITY", "ROOT", "Schema"]

Schema = Mapping[int, tuple[str, Any]]

# A field is (name, type). Types: text, int, bool, data; a schema; [type] for a repeated field;
# {"map": type} for a map; {"inline": schema} for a message whose fields JSON has one level higher.
# Field numbers are those of k8s.io/api's generated.proto files.
_MAP = {"map": "text"}
_OWNER: Schema = {
    1: ("kind", "text"),
    3: ("name", "text"),
    4: ("uid", "text"),
    5: ("apiVersion", "text"),
    6: ("controller", "bool"),
    7: ("blockOwnerDeletion", "bool"),
}
META: Schema = {
    1: ("name", "text"),
    2: ("generateName", "text"),
    3: ("namespace", "text"),
    5: ("uid", "text"),
    6: ("resourceVersion", "text"),
    11: ("labels", _MAP),
    12: ("annotations", _MAP),
    13: ("ownerReferences", [_OWNER]),
    14: ("finalizers", ["text"]),
}
_REQUIREMENT: Schema = {1: ("key", "text"), 2: ("operator", "text"), 3: ("values", ["text"])}
_SELECTOR: Schema = {1: ("matchLabels", _MAP), 2: ("matchExpressions", [_REQUIREMENT])}
_PORT: Schema = {
    1: ("name", "text"),
    2: ("hostPort", "int"),
    3: ("containerPort", "int"),
    4: ("protocol", "text"),
}
QUANTITY: Schema = {1: ("text", "text")}
_AMOUNTS = {"map": QUANTITY}
_RESOURCES: Schema = {1: ("limits", _AMOUNTS), 2: ("requests", _AMOUNTS)}
_VARIABLE: Schema = {1: ("name", "text"), 2: ("value", "text")}
_MOUNT: Schema = {1: ("name", "text"), 2: ("readOnly", "bool"), 3: ("mountPath", "text")}
_CONTAINER: Schema = {
    1: ("name", "text"),
    2: ("image", "text"),
    3: ("command", ["text"]),
    4: ("args", ["text"]),
    5: ("workingDir", "text"),
    6: ("ports", [_PORT]),
    7: ("env", [_VARIABLE]),
    8: ("resources", _RESOURCES),
    9: ("volumeMounts", [_MOUNT]),
    13: ("terminationMessagePath", "text"),
    14: ("imagePullPolicy", "text"),
    16: ("stdin", "bool"),
    17: ("stdinOnce", "bool"),
    18: ("tty", "bool"),
    20: ("terminationMessagePolicy", "text"),
}
_HOST_PATH: Schema = {1: ("path", "text"), 2: ("type", "text")}
_VOLUME: Schema = {1: ("name", "text"), 2: ("source", {"inline": {1: ("hostPath", _HOST_PATH)}})}
_TOLERATION: Schema = {
    1: ("key", "text"),
    2: ("operator", "text"),
    3: ("value", "text"),
    4: ("effect", "text"),
    5: ("tolerationSeconds", "int"),
}
_POD_SPEC: Schema = {
    1: ("volumes", [_VOLUME]),
    2: ("containers", [_CONTAINER]),
    3: ("restartPolicy", "text"),
    4: ("terminationGracePeriodSeconds", "int"),
    5: ("activeDeadlineSeconds", "int"),
    6: ("dnsPolicy", "text"),
    7: ("nodeSelector", _MAP),
    8: ("serviceAccountName", "text"),
    10: ("nodeName", "text"),
    11: ("hostNetwork", "bool"),
    12: ("hostPID", "bool"),
    13: ("hostIPC", "bool"),
    19: ("schedulerName", "text"),
    22: ("tolerations", [_TOLERATION]),
    24: ("priorityClassName", "text"),
}
_TEMPLATE: Schema = {1: ("metadata", META), 2: ("spec", _POD_SPEC)}
_DEPLOYMENT: Schema = {
    1: ("replicas", "int"),
    2: ("selector", _SELECTOR),
    3: ("template", _TEMPLATE),
}
_JOB: Schema = {
    1: ("parallelism", "int"),
    2: ("completions", "int"),
    3: ("activeDeadlineSeconds", "int"),
    6: ("template", _TEMPLATE),
    7: ("backoffLimit", "int"),
    10: ("suspend", "bool"),
}
_CRON_JOB: Schema = {
    1: ("schedule", "text"),
    2: ("startingDeadlineSeconds", "int"),
    3: ("concurrencyPolicy", "text"),
    4: ("suspend", "bool"),
    5: ("jobTemplate", {1: ("metadata", META), 2: ("spec", _JOB)}),
    8: ("timeZone", "text"),
}
AMOUNT: Schema = {1: ("type", "int"), 2: ("intVal", "int"), 3: ("strVal", "text")}
_BUDGET: Schema = {
    1: ("minAvailable", AMOUNT),
    2: ("selector", _SELECTOR),
    3: ("maxUnavailable", AMOUNT),
}
_PRECONDITIONS: Schema = {1: ("uid", "text"), 2: ("resourceVersion", "text")}
_DELETE: Schema = {
    1: ("gracePeriodSeconds", "int"),
    2: ("preconditions", _PRECONDITIONS),
    4: ("propagationPolicy", "text"),
    5: ("dryRun", ["text"]),
}
_RESOURCE: Schema = {
    1: ("namespace", "text"),
    2: ("verb", "text"),
    3: ("group", "text"),
    4: ("version", "text"),
    5: ("resource", "text"),
    6: ("subresource", "text"),
    7: ("name", "text"),
}
_PATH: Schema = {1: ("path", "text"), 2: ("verb", "text")}
_ACCESS: Schema = {1: ("resourceAttributes", _RESOURCE), 2: ("nonResourceAttributes", _PATH)}
_RULE: Schema = {
    1: ("verbs", ["text"]),
    2: ("apiGroups", ["text"]),
    3: ("resources", ["text"]),
    4: ("resourceNames", ["text"]),
    5: ("nonResourceURLs", ["text"]),
}
_SUBJECT: Schema = {
    1: ("kind", "text"),
    2: ("apiGroup", "text"),
    3: ("name", "text"),
    4: ("namespace", "text"),
}
_BINDING: Schema = {
    2: ("subjects", [_SUBJECT]),
    3: ("roleRef", {1: ("apiGroup", "text"), 2: ("kind", "text"), 3: ("name", "text")}),
}
_TARGET: Schema = {
    1: ("type", "text"),
    2: ("value", QUANTITY),
    3: ("averageValue", QUANTITY),
    4: ("averageUtilization", "int"),
}
_METRIC: Schema = {
    1: ("type", "text"),
    4: ("resource", {1: ("name", "text"), 2: ("target", _TARGET)}),
}
_SCALER: Schema = {
    1: ("scaleTargetRef", {1: ("kind", "text"), 2: ("name", "text"), 3: ("apiVersion", "text")}),
    2: ("minReplicas", "int"),
    3: ("maxReplicas", "int"),
}
_BACKEND_PORT: Schema = {1: ("name", "text"), 2: ("number", "int")}
_BACKEND: Schema = {4: ("service", {1: ("name", "text"), 2: ("port", _BACKEND_PORT)})}
_INGRESS_PATH: Schema = {1: ("path", "text"), 2: ("backend", _BACKEND), 3: ("pathType", "text")}
_HTTP: Schema = {1: ("paths", [_INGRESS_PATH])}
_INGRESS: Schema = {
    1: ("defaultBackend", _BACKEND),
    2: ("tls", [{1: ("hosts", ["text"]), 2: ("secretName", "text")}]),
    3: ("rules", [{1: ("host", "text"), 2: ("value", {"inline": {1: ("http", _HTTP)}})}]),
    4: ("ingressClassName", "text"),
}
_SERVICE_PORT: Schema = {
    1: ("name", "text"),
    2: ("protocol", "text"),
    3: ("port", "int"),
    4: ("targetPort", AMOUNT),
    5: ("nodePort", "int"),
}
_SERVICE: Schema = {
    1: ("ports", [_SERVICE_PORT]),
    2: ("selector", _MAP),
    3: ("clusterIP", "text"),
    4: ("type", "text"),
    10: ("externalName", "text"),
}
_SCOPE: Schema = {1: ("scopeName", "text"), 2: ("operator", "text"), 3: ("values", ["text"])}
_QUOTA: Schema = {
    1: ("hard", _AMOUNTS),
    2: ("scopes", ["text"]),
    3: ("scopeSelector", {1: ("matchExpressions", [_SCOPE])}),
}
ROOT: Mapping[str, Schema] = {
    "ClusterRole": {2: ("rules", [_RULE])},
    "ClusterRoleBinding": _BINDING,
    "ConfigMap": {2: ("data", _MAP), 3: ("binaryData", {"map": "data"})},
    "CronJob": {2: ("spec", _CRON_JOB)},
    "DeleteOptions": _DELETE,
    "Deployment": {2: ("spec", _DEPLOYMENT)},
    "Eviction": {2: ("deleteOptions", _DELETE)},
    "autoscaling/v1 HorizontalPodAutoscaler": {
        2: ("spec", {**_SCALER, 4: ("targetCPUUtilizationPercentage", "int")}),
    },
    "autoscaling/v2 HorizontalPodAutoscaler": {
        2: ("spec", {**_SCALER, 4: ("metrics", [_METRIC])}),
    },
    "Ingress": {2: ("spec", _INGRESS)},
    "Job": {2: ("spec", _JOB)},
    "Namespace": {},
    "Pod": {2: ("spec", _POD_SPEC)},
    "PodDisruptionBudget": {2: ("spec", _BUDGET)},
    "PriorityClass": {
        2: ("value", "int"),
        3: ("globalDefault", "bool"),
        4: ("description", "text"),
        5: ("preemptionPolicy", "text"),
    },
    "ResourceQuota": {2: ("spec", _QUOTA)},
    "Role": {2: ("rules", [_RULE])},
    "RoleBinding": _BINDING,
    "Secret": {2: ("data", {"map": "data"}), 3: ("type", "text"), 4: ("stringData", _MAP)},
    "SelfSubjectAccessReview": {2: ("spec", _ACCESS)},
    "SelfSubjectReview": {},
    "SelfSubjectRulesReview": {2: ("spec", {1: ("namespace", "text")})},
    "Service": {2: ("spec", _SERVICE)},
    "ServiceAccount": {},
    "TokenRequest": {},
}
"""The schemas by kind, or by apiVersion and kind where versions differ."""
