"""Debian packages of a few hundred bytes, and pins for them in a store."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence

from image_packages import Item

from assembler.sources.pins import Pin
from assembler.sources.store import Store

TIMESTAMP = 1_740_000_000


def _tar(items: Sequence[Item]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz", format=tarfile.GNU_FORMAT) as tar:
        for item in items:
            info = tarfile.TarInfo(f"./{item.path}")
            info.mtime, info.mode = TIMESTAMP, item.mode
            if item.kind == "symlink":
                info.type, info.linkname = tarfile.SYMTYPE, item.target
            elif item.kind == "hardlink":
                info.type, info.linkname = tarfile.LNKTYPE, f"./{item.target}"
            elif item.kind == "directory":
                info.type = tarfile.DIRTYPE
            elif item.kind == "device":
                info.type = tarfile.CHRTYPE
            else:
                info.size = len(item.data)
            tar.addfile(info, io.BytesIO(item.data) if info.isreg() else None)
    return out.getvalue()


def make_deb(store: Store, name: str, items: Sequence[Item], version: str = "1.0-1") -> Pin:
    """Put a package into the store and return its pin."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nDescription: test\n"
    sums = "".join(
        f"{hashlib.md5(item.data).hexdigest()}  {item.path}\n"
        for item in items
        if item.kind == "file"
    )
    description = [Item("control", control.encode()), Item("md5sums", sums.encode())]
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", _tar(description)),
        ("data.tar.xz", _tar(items)),
    ]  # fmt: skip
    data = b"!<arch>\n"
    for member, content in members:
        head = f"{member:<16}{TIMESTAMP:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        data += head.encode() + content + (b"\n" if len(content) % 2 else b"")
    digest = hashlib.sha256(data).hexdigest()
    file = store.root.with_name(f"{digest}.deb")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    store.add(file, digest, name=name, move=True)
    return Pin(
        kind="debian", name=name, version=version, file=f"{name}_{version}_amd64.deb",
        sha256=digest, size=len(data), suite="trixie", architecture="amd64",
    )  # fmt: skip


def make_base(store: Store) -> tuple[Pin, ...]:
    """Put a base with every kind of entry into the store."""
    library = "usr/lib/x86_64-linux-gnu"
    return (
        make_deb(store, "base-files", [
            Item("bin", kind="symlink", target="usr/bin"),
            Item("etc", kind="directory", mode=0o755),
            Item("etc/os-release", kind="symlink", target="../usr/lib/os-release"),
            Item("usr/lib/os-release", b"ID=debian\n"),
            Item("tmp", kind="directory", mode=0o1777),
            Item("root", kind="directory", mode=0o700),
            Item("usr/share/doc/base-files/copyright", b"copyright"),
            Item("usr/share/doc/base-files/README", b"read me"),
            Item("usr/share/base-files/motd", b"welcome"),
        ]),
        make_deb(store, "libc6", [
            Item("lib/x86_64-linux-gnu/libold.so", b"before the merge", 0o755),
            Item(f"{library}/libc.so.6", b"libc", 0o755),
            Item(f"{library}/libtwin.so", kind="hardlink", target=f"{library}/libc.so.6"),
            Item("lib64", kind="directory"),
            Item("lib64/ld-linux-x86-64.so.2", kind="symlink", target=f"../{library}/libc.so.6"),
            Item(f"{library}/gconv/UTF-16.so", b"kept"),
            Item(f"{library}/gconv/EBCDIC-US.so", b"cut"),
            Item("usr/share/man/man1/x.1.gz", b"cut"),
            Item("usr/share/doc/libc6", kind="symlink", target="not-installed"),
        ]),
        make_deb(store, "ca-certificates", [
            Item("usr/share/ca-certificates/mozilla/B.crt", b"-B-"),
            Item("usr/share/ca-certificates/mozilla/A.crt", b"-A-\n"),
            Item("usr/sbin/update-ca-certificates", b"#!/bin/sh\n", 0o755),
        ]),
        make_deb(store, "libc-bin", [
            Item("usr/share/libc-bin/nsswitch.conf", b"hosts: files dns\npasswd: files\n"),
            Item("usr/bin/getent", b"cut", 0o755),
            Item("usr/sbin/ldconfig", b"kept", 0o4755),
            Item("usr/lib/locale/C.utf8/LC_CTYPE", b"kept"),
        ]),
    )  # fmt: skip
