"""Where a model runs, in which dtype by default, and what that machine is."""

import platform
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from kingpost.errors import UsageError, first_line

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def default_device() -> torch.device:
    """An accelerator if there is one, else the CPU."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return torch.device("cpu")


def device_named(device: str) -> torch.device:
    """The device of a name, `auto` for the default one.

    Raises:
        UsageError: There is no such device here.
    """
    if device == "auto":
        return default_device()
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"Device {device!r} cannot be used here: {first_line(error)}") from error


def dtype_named(dtype: str, device: torch.device) -> torch.dtype:
    """The dtype of a name; `auto` is bfloat16 where the device multiplies it natively.

    Raises:
        UsageError: The name is none that Kingpost works in.
    """
    if dtype == "auto":
        return torch.bfloat16 if _multiplies_bfloat16(device) else torch.float32
    if dtype not in _DTYPES:
        raise UsageError(f"Unknown dtype {dtype!r}: give auto, {' or '.join(_DTYPES)}.")
    return _DTYPES[dtype]


def machine(device: torch.device) -> dict[str, Any]:
    """What is worth knowing about where, and with which versions, something was computed."""
    return {
        "device": device.type,
        "processor": _processor(device),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "kingpost": version("kingpost"),
    }


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.machine())


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        found = torch.cpu.get_capabilities()
        return bool(found.get("avx512_bf16") or found.get("amx_bf16") or found.get("bf16"))
    return False
