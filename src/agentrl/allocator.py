"""How this process gets memory from the system, which on CPUs decides a third of a training step's time.

glibc hands large freed blocks back to the system, and every tensor then starts on fresh 4 KiB pages. Keeping the
memory, in huge pages, can only be chosen before a process starts, so the command replaces itself once.
"""

from __future__ import annotations

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

    Settings that the user made in GLIBC_TUNABLES stay as they are, and nothing is restarted.
    """
    if not sys.platform.startswith("linux") or "GLIBC_TUNABLES" in os.environ or platform.libc_ver()[0] != "glibc":
        return
    environment = {**os.environ, "GLIBC_TUNABLES": tunables()}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "agentrl", *args], environment)
