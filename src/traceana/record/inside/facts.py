"""On what this process ran: versions and devices, of the modules that it has imported."""

from __future__ import annotations

import platform
import sys
from typing import Any

_PACKAGES = (
    *("torch", "torchvision", "lightning", "pytorch-lightning", "triton"),
    *("tensorflow", "tensorflow-cpu", "keras", "jax", "jaxlib", "flax", "optax"),
    *("numpy", "nvtx", "traceana"),
)


def facts() -> dict[str, Any]:
    """Return what is known, without importing anything of the frameworks."""
    found: dict[str, Any] = {"python": platform.python_version(), "packages": _packages()}
    if "torch" in sys.modules:
        try:
            found.update(_of_torch(sys.modules["torch"]))
        except Exception:  # noqa: BLE001  # a half-imported framework tells nothing
            return found
    return found


def _packages() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _of_torch(torch: Any) -> dict[str, Any]:
    libraries = {"oneDNN": "on"} if torch.backends.mkldnn.is_available() else {}
    if torch.version.cuda:
        libraries["CUDA"] = torch.version.cuda
    if torch.version.hip:
        libraries["HIP"] = torch.version.hip
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "libraries": libraries}
    # What has not been used stays as it is: to look at it takes a second and GPU memory.
    if torch.version.cuda and torch.cuda.is_initialized():
        libraries["cuDNN"] = str(torch.backends.cudnn.version())
        if torch.cuda.nccl.is_available([torch.zeros(0, device="cuda")]):
            libraries["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["gpus"] = [_gpu(torch.cuda.get_device_properties(n)) for n in _devices(torch)]
    return found


def _devices(torch: Any) -> range:
    return range(torch.cuda.device_count())


def _gpu(properties: Any) -> dict[str, Any]:
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
    }
