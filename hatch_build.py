"""Builds the messages of gRPC services from their .proto files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO = (Path("dra/bayplan_dra/driver/proto"), Path("remote/bayplan_remote/proto"))


class ProtoBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compile every .proto file beside itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run protoc, which comes with grpcio-tools."""
        from grpc_tools import protoc

        for proto in PROTO:
            folder = Path(self.root) / proto
            out = f"{folder}"
            files = [str(path) for path in sorted(folder.glob("*.proto"))]
            options = [f"-I{out}", f"--python_out={out}", f"--pyi_out={out}"]
            if protoc.main(["protoc", *options, *files]):
                raise RuntimeError(f"protoc could not compile {', '.join(files)}")
            build_data["artifacts"] += [f"{proto}/*_pb2.py", f"{proto}/*_pb2.pyi"]
