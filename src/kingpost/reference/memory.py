"""Keeping memory that tensors have freed, instead of giving it back and asking again."""

import ctypes
import sys

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let the C library keep what this process has freed; does nothing where it has no such call.

    Each step frees and takes the same large buffers again. By default glibc gives those back to the
    system at once, which then clears every page anew: a third of the time of a training step on a
    CPU (docs/benchmarks.md).
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 2**28)
