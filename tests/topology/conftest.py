from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from tests.topology.machine.readers import nvml_machine


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-in for NVIDIA's library."""
    return nvml_machine.compile_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(stub_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """Let pynvml call the stub, by its own ctypes path."""
    library = ctypes.CDLL(str(stub_library))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("NVML_STUB_MACHINE", raising=False)
    yield library
    assert ctypes.c_int.in_dll(library, "stub_sessions").value == 0, "NVML is left initialised"


@pytest.fixture
def lay_out(
    nvml: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., object]:
    """Write a machine's files and point the stub at them."""
    numbers = iter(range(100))

    def put(machine: object) -> object:
        written = nvml_machine.write(machine, tmp_path / str(next(numbers)))
        monkeypatch.setenv("NVML_STUB_MACHINE", str(written.stub))
        return written

    return put
