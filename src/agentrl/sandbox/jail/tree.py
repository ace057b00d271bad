"""The root file system of the namespaces: a read-only tmpfs with the libraries bound into it, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from . import linux
from .linux import ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, MS_BIND, MS_NODEV, MS_NOSUID, MS_REC

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
OLD = "/old"


def build(readable: Iterable[Sequence[str]], hidden: Iterable[str]) -> None:
    """Make the tree the root of this mount namespace and detach the old root. Raises OSError.

    :param readable: (path inside, real path outside) of what the interpreter needs, besides SYSTEM and DEVICES
    :param hidden: folders inside it to cover with an empty one
    """
    linux.mount(None, "/", None, MS_REC | linux.MS_PRIVATE)
    base = "/tmp" if os.path.isdir("/tmp") else "/usr"
    linux.mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir(base + OLD, 0o755)
    linux.pivot_root(base, base + OLD)
    os.chdir("/")
    for folder in ("/tmp", "/proc", "/dev"):
        os.mkdir(folder, 0o755)
    bound: list[str] = []
    pairs = [(p, p) for p in SYSTEM] + [(inside, outside) for inside, outside in readable]
    for inside, outside in sorted(pairs):
        if not any(inside == b or inside.startswith(b + "/") for b in bound) and _bind(inside, outside):
            bound.append(inside)
    for device in DEVICES:
        _touch(device)
        linux.mount(OLD + device, device, None, MS_BIND)
        linux.set_mount_attributes(device, ATTR_NOSUID | ATTR_NOEXEC)
    for folder in hidden:
        if os.path.isdir(folder):
            linux.mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV | linux.MS_RDONLY, "size=4k,mode=755")
    linux.detach(OLD)
    os.rmdir(OLD)
    linux.mount(None, "/", None, linux.MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | linux.MS_RDONLY)


def _bind(inside: str, outside: str) -> bool:
    """Bind one path read-only; a link in the system folders (/lib on merged systems) stays a link."""
    if inside == outside and os.path.islink(OLD + outside):
        link = os.readlink(OLD + outside)
        os.makedirs(os.path.dirname(inside), 0o755, exist_ok=True)
        if outside in ("/lib", "/lib64", "/usr/lib64"):
            os.symlink(link, inside)
            return False
        outside = os.path.normpath(os.path.join(os.path.dirname(outside), link))
    source = OLD + outside
    if os.path.isdir(source):
        os.makedirs(inside, 0o755, exist_ok=True)
    elif os.path.isfile(source):
        _touch(inside)
    else:
        return False
    linux.mount(source, inside, None, MS_BIND | MS_REC)
    linux.set_mount_attributes(inside, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)
    return True


def _touch(path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
