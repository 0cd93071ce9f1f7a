"""What a result depends on: versions and hardware, without names of hosts, users or folders."""

from __future__ import annotations

import platform
from importlib import metadata

import torch

_DISTRIBUTIONS = ("tt-core", "transformers")


def environment(device: torch.device) -> dict[str, str]:
    """Versions, system and device of this run, as plain text."""
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "torch": str(torch.__version__),  # its distribution's does not always tell one build from another
        "threads": str(torch.get_num_threads()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    facts |= {name: version for name in _distributions() if (version := _version(name))}
    if device.type != "cpu":
        module = torch.get_device_module(device)
        facts["accelerator"] = (
            str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type
        )
    return facts


def _distributions() -> list[str]:
    """Our own, that of the models used most, and those of all plugins."""
    plugins = {point.dist.name for point in metadata.entry_points(group="tt_core") if point.dist is not None}
    return [*_DISTRIBUTIONS, *sorted(plugins)]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
