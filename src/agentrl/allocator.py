"""How this process gets memory from the system, which on CPUs decides a third of a training step's time.

glibc hands large freed blocks back to the system, and every tensor then starts on fresh 4 KiB pages. Keeping the
memory, in huge pages, can only be chosen before a process starts, so the command replaces itself once. Memory that is
kept comes in pieces, which do not always fit what is asked for next: between steps it is given back.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Sequence

TUNABLES = {
    "glibc.malloc.hugetlb": "1",  # madvise(MADV_HUGEPAGE) on what malloc takes
    "glibc.malloc.mmap_max": "0",  # large blocks come from the heap too
    "glibc.malloc.trim_threshold": str(1 << 34),
    "glibc.malloc.top_pad": str(1 << 28),
}


def tunables() -> str:
    """The value of GLIBC_TUNABLES."""
    return ":".join(f"{name}={value}" for name, value in TUNABLES.items())


def restart_with_huge_pages(args: Sequence[str]) -> None:
    """Replace this process by ``python -m agentrl ARGS`` with glibc's settings made. Does nothing elsewhere.

    oneDNN keeps the code of up to 1024 shapes of matrix products, 0.7 MB each; with rows of all lengths that is no
    help, so it keeps fewer.

    Settings that the user made in GLIBC_TUNABLES stay as they are, and nothing is restarted.
    """
    if not sys.platform.startswith("linux") or "GLIBC_TUNABLES" in os.environ or platform.libc_ver()[0] != "glibc":
        return
    environment = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", **os.environ, "GLIBC_TUNABLES": tunables()}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "agentrl", *args], environment)


def give_back() -> None:
    """Return freed memory to the system, wherever it lies in the heap. Takes some 20 ms; does nothing without glibc."""
    if sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
