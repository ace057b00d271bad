"""The levels of isolation: their names, what each needs, and what the fork server must be told to build one."""

from __future__ import annotations

import os
import secrets
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = {3: "isolated+cgroup", 2: "isolated", 1: "confined", 0: "none"}

MECHANISMS = {
    3: [
        "user, mount, pid, net, ipc, uts namespaces",
        "own root file system",
        "seccomp",
        "landlock",
        "rlimits",
        "cgroup",
    ],
    2: [
        "user, mount, pid, net, ipc, uts namespaces",
        "own root file system",
        "seccomp",
        "landlock",
        "rlimits",
        "no fork",
    ],
    1: ["seccomp", "landlock", "rlimits", "no fork", "no writable files"],
    0: ["rlimits"],
}

# How to get a level that did not work.
ADVICE = {
    3: "a writable control group with memory and pids: root, or `systemd-run --user --scope -p Delegate=yes`",
    2: "user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0 and user.max_user_namespaces>0; in a "
    "container a seccomp profile that allows unshare, mount and pivot_root",
    1: "Linux 5.13 or later with Landlock enabled (CONFIG_SECURITY_LANDLOCK, `lsm=landlock,...`) and seccomp filters",
}

IDS = 256  # user ids for the slots of one fork server


def fork_server_config(level: int, preload: Sequence[str]) -> dict[str, Any]:
    """What the fork server is told at its start."""
    readable, hidden = _libraries()
    return {
        "level": level,
        "preload": list(preload),
        "path": _import_path(),
        "readable": readable,
        "hidden": hidden,
        "uid_map": [_unused_ids(), IDS],
        "cgroups": [],
    }


def _import_path() -> list[str]:
    """The standard library and the installed packages; never the harness's own folder, which is not on this list."""
    paths = sysconfig.get_paths()
    zipped = os.path.join(os.path.dirname(paths["stdlib"]), f"python{sys.version_info[0]}{sys.version_info[1]}.zip")
    dynload = os.path.join(paths["platstdlib"], "lib-dynload")
    base = os.path.join(sys.base_exec_prefix, sys.platlibdir, os.path.basename(paths["stdlib"]), "lib-dynload")
    wanted = [zipped, paths["stdlib"], paths["platstdlib"], dynload, base, paths["purelib"], paths["platlib"]]
    return list(dict.fromkeys(p for p in wanted if os.path.exists(p)))


def _libraries() -> tuple[list[list[str]], list[str]]:
    """(path inside, real path) of what programs may read, and the folders in it that they may not: this package."""
    folders = {*_import_path(), os.path.join(sys.base_prefix, "lib")}
    readable = sorted([folder, os.path.realpath(folder)] for folder in folders if os.path.isdir(folder))
    outer = [pair for pair in readable if not any(pair[0].startswith(other[0] + "/") for other in readable)]
    package = Path(__file__).resolve().parents[1].name
    site_packages = {path for path in (*folders, *_nested_site_packages(folders)) if os.path.isdir(path)}
    hidden = sorted(os.path.join(path, package) for path in site_packages if os.path.isdir(os.path.join(path, package)))
    return outer, hidden


def _nested_site_packages(folders: set[str]) -> list[str]:
    return [os.path.join(folder, name) for folder in folders for name in ("site-packages", "dist-packages")]


def _unused_ids() -> int:
    """The first of IDS user ids that nobody has: high in the largest range of this user namespace, at random."""
    try:
        extents = [[int(n) for n in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        extents = [[0, 0, 1 << 16]]
    inside, _, count = max(extents, key=lambda extent: extent[2])
    top = min(inside + count, 1 << 31)
    blocks = min((top - inside) // (2 * IDS), 1 << 16)
    return max(inside, top - IDS * (2 + secrets.randbelow(max(1, blocks))))
