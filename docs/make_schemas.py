"""Write framework/bayplan/schemas/kubernetes.json from an API server's OpenAPI documents.

    python docs/make_schemas.py --kubeconfig FILE

The server has to serve every version in GROUPS (``--runtime-config`` turns on those that are off),
and kubectl has to be installed. What the Kubernetes client of this environment knows beyond the
server (it may be of a later version) is added, so that manifests of that version are known, too.
Only names and types are taken.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from kubernetes.client import models

TARGET = Path(__file__).parent.parent / "framework" / "bayplan" / "schemas" / "kubernetes.json"
GROUPS = (
    "api/v1",
    "apis/apiextensions.k8s.io/v1",
    "apis/apps/v1",
    "apis/autoscaling/v1",
    "apis/autoscaling/v2",
    "apis/batch/v1",
    "apis/coordination.k8s.io/v1",
    "apis/discovery.k8s.io/v1",
    "apis/events.k8s.io/v1",
    "apis/networking.k8s.io/v1",
    "apis/node.k8s.io/v1",
    "apis/policy/v1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/resource.k8s.io/v1",
    "apis/resource.k8s.io/v1beta1",
    "apis/resource.k8s.io/v1beta2",
    "apis/scheduling.k8s.io/v1",
    "apis/scheduling.k8s.io/v1alpha2",
    "apis/storage.k8s.io/v1",
)
LATER = {
    # What only a later Kubernetes serves: its kinds, by apiVersion, and the client's classes.
    "scheduling.k8s.io/v1alpha3": {"PodGroup": "V1alpha3PodGroup", "Workload": "V1alpha3Workload"},
    "scheduling.k8s.io/v1beta1": {"PodGroup": "V1beta1PodGroup", "Workload": "V1beta1Workload"},
}
EARLIER = {
    # The shape that these versions had before their release, which is what bayplan reads.
    "PodGroupSpec": {"disruptionMode": "any", "podGroupTemplateRef": "any"},
    "PodGroupTemplate": {"disruptionMode": "any"},
}
MACHINERY = ("DeleteOptions", "Status", "WatchEvent", "APIGroup", "APIResourceList")
SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
}
CLIENT_SCALARS = {
    "bool": "boolean",
    "bytes": "bytes",
    "datetime": "time",
    "float": "number",
    "int": "integer",
    "object": "any",
    "str": "string",
}

Types = dict[str, dict[str, str]]


class Server:
    """The types of an API server, under short names."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self.schemas: dict[str, Any] = {}
        for document in documents.values():
            self.schemas |= document["components"]["schemas"]
        self.types: Types = {}
        self.kinds: dict[str, dict[str, str]] = {}
        for path in documents:
            self._add_kinds(path)

    def _add_kinds(self, path: str) -> None:
        api_version = path.removeprefix("apis/").removeprefix("api/")
        for name, schema in self.schemas.items():
            for gvk in schema.get("x-kubernetes-group-version-kind", ()):
                kind = gvk["kind"]
                if kind.endswith("List") or kind in MACHINERY:
                    continue
                if f"{gvk['group']}/{gvk['version']}".lstrip("/") == api_version:
                    self.kinds.setdefault(api_version, {})[kind] = self.add(name)

    def add(self, name: str) -> str:
        """Add a type, and all types inside it; return its short name."""
        short = short_name(name)
        if short in self.types:
            return short
        self.types[short] = {}
        schema = self.schemas[name]
        required = schema.get("required", ())
        for field, property_ in schema.get("properties", {}).items():
            marks = [self.type_of(property_)]
            if field in required:
                marks.append("required")
            strategy = property_.get("x-kubernetes-patch-strategy", "")
            if strategy:
                key = property_.get("x-kubernetes-patch-merge-key", "")
                marks.append(f"{strategy}={key}" if key else strategy)
            self.types[short][field] = " ".join(marks)
        return short

    def type_of(self, schema: Any) -> str:
        """Return a property's type in the notation of the file."""
        for part in schema.get("allOf", ()):
            schema = {**schema, **part}
        reference = schema.get("$ref", "").rpartition("/")[2]
        if reference:
            if reference in SCALARS:
                return SCALARS[reference]
            target = self.schemas[reference]
            return self.add(reference) if target.get("type") == "object" else self.plain(target)
        return self.plain(schema)

    def plain(self, schema: Any) -> str:
        """Return the type of a property that is not a reference."""
        if schema.get("type") == "array":
            return f"[]{self.type_of(schema['items'])}"
        if schema.get("type") == "object":
            if "additionalProperties" in schema:
                return f"{{}}{self.type_of(schema['additionalProperties'])}"
            return "any"
        if schema.get("format") == "byte":
            return "bytes"
        if schema.get("format") in ("int32", "int64"):
            return str(schema["format"])
        return str(schema.get("type", "any"))


class Client:
    """What the client's classes know beyond the server's types."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.classes: dict[str, str] = {}

    def extend(self, type_: str, class_: str) -> None:
        """Add the fields of a class, and of all that it holds, that a type does not have."""
        if class_ in self.classes:
            return
        self.classes[class_] = type_
        known = self.server.types[type_]
        model = getattr(models, class_)
        for attribute, field in model.attribute_map.items():
            found = model.openapi_types[attribute]
            if field not in known:
                # The client has no type of its own for quantities.
                quantity = found == "str" and "Multiplier" in field
                package = type_.rpartition(".")[0]
                known[field] = "quantity" if quantity else self.type_of(found, package)
                continue
            inner = innermost(known[field])
            if inner in self.server.types and hasattr(models, client_class(found)):
                self.extend(inner, client_class(found))

    def type_of(self, text: str, package: str) -> str:
        """Return a type of the client in the notation of the file."""
        if text.startswith("List["):
            return "[]" + self.type_of(text[len("List[") : -1], package)
        if text.startswith("Dict[str, "):
            return "{}" + self.type_of(text[len("Dict[str, ") : -1], package)
        return CLIENT_SCALARS.get(text) or self.add(text, package)

    def add(self, class_: str, package: str) -> str:
        """Add a class for which the server has no type."""
        if class_ in self.classes:
            return self.classes[class_]
        name = re.sub(r"^.*?V\d+((alpha|beta)\d+)?(?=[A-Z])", "", class_)
        short = f"{package}.{name}"
        self.server.types[short] = {}
        self.extend(short, class_)
        return short


def client_class(text: str) -> str:
    """Return the class in a type of the client."""
    return text.replace("List[", "").replace("Dict[str, ", "").rstrip("]")


def innermost(text: str) -> str:
    """Return the type of the items in a type of the file."""
    return text.split()[0].replace("[]", "").replace("{}", "")


def short_name(name: str) -> str:
    """Return ``core.v1.Pod`` for ``io.k8s.api.core.v1.Pod``."""
    return ".".join(name.split(".")[-3:])


def read_server(kubeconfig: str) -> Server:
    """Ask an API server for what it serves."""

    def ask(path: str) -> Any:
        command = ["kubectl", "--kubeconfig", kubeconfig, "get", "--raw", path]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)  # noqa: S603 - no argument comes from outside

    return Server({path: ask(f"/openapi/v3/{path}") for path in GROUPS})


def add_later(server: Server) -> None:
    """Add what the client knows."""
    client = Client(server)
    for api_version, kinds in server.kinds.items():
        group, _, version = api_version.rpartition("/")
        first = group.split(".")[0].capitalize() or "Core"
        for kind, type_ in kinds.items():
            plain = f"{version.capitalize()}{kind}"
            for class_ in (f"{first}{plain}", plain):
                if hasattr(models, class_):
                    client.extend(type_, class_)
                    break
    for api_version, classes in LATER.items():
        group, _, version = api_version.partition("/")
        package = f"{group.split('.')[0]}.{version}"
        found = {kind: client.add(class_, package) for kind, class_ in classes.items()}
        server.kinds[api_version] = found
        for name, fields in EARLIER.items():
            server.types[f"{package}.{name}"] |= fields


def text_of(server: Server) -> str:
    """Return the file: a line per type, the types of one package together."""
    packages: dict[str, Types] = {}
    for short, fields in server.types.items():
        package, _, name = short.rpartition(".")
        own = {
            field: re.sub(rf"^((\[\]|{{}})*){re.escape(package)}\.", r"\1", text)
            for field, text in sorted(fields.items())
        }
        packages.setdefault(package, {})[name] = own
    lines = []
    for package, types in sorted(packages.items()):
        found = sorted(types.items())
        inner = ",\n".join(f"    {json.dumps(name)}: {json.dumps(own)}" for name, own in found)
        lines.append(f"  {json.dumps(package)}: {{\n{inner}\n  }}")
    kinds = ",\n".join(
        f"  {json.dumps(version)}: {json.dumps(dict(sorted(found.items())))}"
        for version, found in sorted(server.kinds.items())
    )
    types = ",\n".join(lines)
    return f'{{\n"kinds": {{\n{kinds}\n}},\n"types": {{\n{types}\n}}\n}}\n'


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    server = read_server(parser.parse_args().kubeconfig)
    add_later(server)
    TARGET.write_text(text_of(server))


if __name__ == "__main__":
    main()
