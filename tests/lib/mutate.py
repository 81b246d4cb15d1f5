# SPDX-License-Identifier: Apache-2.0
"""Damage to one file: bits flip, bytes are missing, it is gone, or something else stands in its place.

    for damage in mutate.all_of(path, foreign, rng): damage.apply(path)

Everything is drawn from `rng`: the same seed does the same damage. What writes does so in place, as a failing disk or
a careless editor would, so that locks on the file stay; what replaces puts another file under the name.
"""
import os
import shutil
import socket
import stat
import typing

HEADER = 16  # of a record: magic, version, checksum, size
LENGTHS = (1, 3, 4, 8, 12, 14, HEADER - 1, HEADER, HEADER + 1)
GROWTH = {"one": b"x", "zeros": bytes(4096), "large": b"x" * (3 << 20)}


class Damage(typing.NamedTuple):
    """kind is the family, name says which one of it."""

    kind: str
    name: str
    apply: typing.Callable


def remove(path):
    """Whatever it is."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


def _in_place(change):
    def apply(path):
        with open(path, "r+b") as f:
            data = change(f.read())
            f.seek(0)
            f.write(data)
            f.truncate(len(data))
    return apply


def _instead(make):
    def apply(path):
        remove(path)
        make(path)
    return apply


def _flipped(bit):
    def change(data):
        at = bit // 8 % len(data)
        return data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1:]
    return change


def _socket(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def _bytes(data):
    def make(path):
        with open(path, "wb") as f:
            f.write(data)
        os.chmod(path, 0o600)
    return make


def flips(size, rng, count):
    """Each bit of the header, and `count` of those behind it; all bits if there are no more than that."""
    bits = list(range(min(size, HEADER) * 8))
    behind = range(HEADER * 8, size * 8)
    bits += behind if len(behind) <= count else sorted(rng.sample(behind, count))
    return [Damage("flip", f"bit {bit % 8} of byte {bit // 8}", _in_place(_flipped(bit))) for bit in bits]


def cuts(size):
    lengths = sorted({n for n in (*LENGTHS, size // 2, size - 8, size - 1) if 0 < n < size})
    return [Damage("cut", f"to {n} bytes", _in_place(lambda data, n=n: data[:n])) for n in lengths]


def replacements(foreign):
    """`foreign` is the bytes of the same file of another one, or None."""
    found = [
        Damage("empty", "in place", _in_place(lambda data: b"")),
        Damage("empty", "a new file", _instead(_bytes(b""))),
        Damage("zeros", "in place", _in_place(lambda data: bytes(len(data)))),
        Damage("removed", "", remove),
        Damage("directory", "empty", _instead(os.mkdir)),
        Damage("directory", "full", _instead(lambda path: os.makedirs(os.path.join(path, "a", "b")))),
        Damage("fifo", "", _instead(os.mkfifo)),
        Damage("socket", "", _instead(_socket)),
        Damage("link", "to nothing", _instead(lambda path: os.symlink("nothing-here", path))),
        Damage("link", "to itself", _instead(lambda path: os.symlink(os.path.basename(path), path))),
        Damage("link", "to /dev/zero", _instead(lambda path: os.symlink("/dev/zero", path))),
        Damage("link", "to /", _instead(lambda path: os.symlink("/", path))),
    ]
    if foreign is not None:
        found += [Damage("foreign", "in place", _in_place(lambda data: foreign)),
                  Damage("foreign", "a new file", _instead(_bytes(foreign)))]
    return found


def growths():
    return [Damage("grown", name, _in_place(lambda data, more=more: data + more)) for name, more in GROWTH.items()]


def all_of(path, foreign, rng, bits=64):
    """Every damage to a regular file that has content now; `bits`: how many flips behind the header."""
    size = os.path.getsize(path)
    return (flips(size, rng, bits) + cuts(size) if size else []) + replacements(foreign) + growths()


def all_of_special(foreign=None):
    """To a socket, a link or a directory: only what stands in its place."""
    found = [d for d in replacements(None) if d.kind not in ("zeros", "empty")]
    found.append(Damage("file", "with text", _instead(_bytes(b"something\n"))))
    if foreign is not None:
        found.append(Damage("foreign", "a link", _instead(lambda path: os.symlink(foreign, path))))
    return found
