"""Enters an unpacked image by namespaces and chroot, then becomes the image's user and program.

Run as a program of its own (``python -I launcher.py JSON``) so that only this process changes; it
uses nothing but the standard library. Needs root, or unprivileged user namespaces. Linux only.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND = 0x1, 0x2, 0x4, 0x20, 0x1000
RECURSIVE, PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
LOCKED = 0x2 | 0x4 | 0x8 | 0x400 | 0x800  # nosuid, nodev, noexec, noatime, nodiratime
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        sys.stderr.write(f"launcher: {what}: {os.strerror(code)}\n")
        os._exit(125)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {kind or source} on {target}")


def _map_user(uid: int, gid: int) -> None:
    """Make this process ``uid``:``gid`` of its new user namespace."""
    outer_uid, outer_gid = os.getuid(), os.getgid()
    _check(libc.unshare(NEWUSER), "unshare the user namespace")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1", encoding="ascii")


def _enter(root: str, workdir: str) -> None:
    """Mount the read-only root, /proc, a small /dev and a tmpfs on /tmp, and go in."""
    _mount("none", "/", "", RECURSIVE | PRIVATE)
    _mount(root, root, "", BIND | RECURSIVE)
    for folder in ("proc", "dev", "tmp"):
        if not Path(root, folder).is_dir():
            sys.stderr.write(f"launcher: the image has no folder /{folder}\n")
            os._exit(125)
    _mount("proc", f"{root}/proc", "proc", NOSUID | NODEV)
    _mount("tmpfs", f"{root}/tmp", "tmpfs", NOSUID | NODEV, "mode=1777")  # noqa: S108
    _mount("tmpfs", f"{root}/dev", "tmpfs", NOSUID, "mode=0755")
    for device in DEVICES:
        place = Path(root, "dev", device)
        place.touch()
        _mount(f"/dev/{device}", str(place), "", BIND)
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        Path(root, "dev", stream).symlink_to(f"/proc/self/fd/{number}")
    Path(root, "dev", "fd").symlink_to("/proc/self/fd")
    Path(root, "dev", "shm").mkdir(mode=0o1777)
    _mount("tmpfs", f"{root}/dev/shm", "tmpfs", NOSUID | NODEV, "mode=1777")  # noqa: S108
    # Flags of the file system beneath are locked in a user namespace and have to be given again.
    kept = os.statvfs(root).f_flag & LOCKED
    _mount("none", root, "", REMOUNT | BIND | RDONLY | NOSUID | kept)
    os.chroot(root)
    os.chdir(workdir)


def main(order: dict) -> None:  # type: ignore[type-arg]
    """Do what ``order`` says: root, argv, env, uid, gid, workdir."""
    uid, gid = order["uid"], order["gid"]
    was_root = os.geteuid() == 0
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not was_root:
        _map_user(uid, gid)
    _check(libc.unshare(NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET), "unshare namespaces")
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _enter(order["root"], order["workdir"])
    if was_root:
        os.setgroups([])
        for capability in range(64):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        # Changing the user clears the signal that ends this process with its parent.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs")
    try:
        os.execve(order["argv"][0], order["argv"], order["env"])  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"launcher: {order['argv'][0]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
