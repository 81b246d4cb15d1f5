# SPDX-License-Identifier: Apache-2.0
"""A file worker that was taken over by the sandbox, as the caller on the host would meet it.

The worker runs inside and is not trusted. HostileWorker puts a socket of its own in the place of a sandbox's
control socket, hands every request on to the real keeper except the one for a file channel, and answers on
that channel whatever a test wants. Message numbers are read from the protocol's header, so that they stay
the protocol's.
"""

import array
import os
import re
import socket
import struct
import tarfile
import threading

from lib.engine import ROOT

HEADER = struct.Struct("<IBBBBI")  # size, type, minor version, descriptors, version, tag
KEYS = {
    "flags": 1,
    "number": 4,
    "text": 10,
    "data": 22,
    "path": 28,
    "target": 29,
    "mode": 32,
    "size": 35,
    "links": 38,
}


def message_types():
    """{name: number} of enum msg_type in src/wire/msg.h."""
    text = (ROOT / "src/wire/msg.h").read_text()
    body = re.search(r"enum msg_type \{(.*?)\n\};", text, re.S).group(1)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    found, number = {}, 0
    for name, value in re.findall(r"(\w+)\s*(?:=\s*(\d+))?\s*,", body):
        number = int(value) if value else number
        found[name] = number
        number += 1
    return found


TYPES = message_types()


def frame(kind, tag=0, fds=0, minor=0, **fields):
    payload = b""
    for name, value in fields.items():
        if isinstance(value, int):
            value = struct.pack("<Q", value)
        elif isinstance(value, str):
            value = value.encode() + b"\0"  # strings travel with their end
        payload += struct.pack("<HI", KEYS[name], len(value)) + value
    return HEADER.pack(len(payload), TYPES[kind] if isinstance(kind, str) else kind, minor, fds, 1, tag) + payload


def read_exactly(sock, size):
    data = b""
    while len(data) < size:
        block = sock.recv(size - len(data))
        if not block:
            raise EOFError
        data += block
    return data


def read_frame(sock):
    size, kind, _, _, _, tag = head = HEADER.unpack(read_exactly(sock, HEADER.size))
    return kind, tag, HEADER.pack(*head) + read_exactly(sock, size)


class HostileWorker:
    """with HostileWorker(cay, id, answer): answer(name, tag) gives the bytes for a request, or None.
    minor: of the version that the keeper says it is of, and so the worker."""

    def __init__(self, cay, identifier, answer, minor=0):
        self.path = cay.run_dir / identifier / "ctl"
        self.real = self.path.with_name("ctl.real")
        self.answer, self.minor = answer, minor
        self.asked = []

    def __enter__(self):
        os.rename(self.path, self.real)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.path))
        self.server.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown(socket.SHUT_RDWR)  # else the thread in accept() would keep it
        self.server.close()
        os.unlink(self.path)
        os.rename(self.real, self.path)

    def _accept(self):
        while True:
            try:
                peer, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer):
        try:
            kind, tag, whole = read_frame(peer)
            if kind == TYPES["OP_FS"]:
                ours, theirs = socket.socketpair()
                threading.Thread(target=self._work, args=(ours,), daemon=True).start()
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
                peer.sendmsg([frame("MSG_OK", tag, fds=1, minor=self.minor)], rights)
                theirs.close()
                peer.recv(1)
            else:
                self._forward(peer, whole)
        except (OSError, EOFError):
            pass
        finally:
            peer.close()

    def _forward(self, peer, whole):
        with socket.socket(socket.AF_UNIX) as keeper:
            keeper.connect(str(self.real))
            keeper.sendall(whole)
            keeper.settimeout(5)
            while block := keeper.recv(65536):
                peer.sendall(block)

    def _work(self, sock):
        names = {number: name for name, number in TYPES.items()}
        try:
            while True:
                kind, tag, _ = read_frame(sock)
                name = names.get(kind, str(kind))
                self.asked.append(name)
                answer = self.answer(name, tag)
                for piece in [answer] if isinstance(answer, bytes) else answer or ():
                    sock.sendall(piece)
        except (OSError, EOFError):
            pass
        finally:
            sock.close()


KINDS = {
    "f": tarfile.REGTYPE,
    "d": tarfile.DIRTYPE,
    "l": tarfile.SYMTYPE,
    "h": tarfile.LNKTYPE,
    "c": tarfile.CHRTYPE,
    "b": tarfile.BLKTYPE,
    "p": tarfile.FIFOTYPE,
}


def archive(entries):
    """Names as they are given: tarfile's own writer would clean some of them."""
    blocks = []
    for name, kind, value, mode in entries:
        member = tarfile.TarInfo(name)
        member.type, member.mode = KINDS[kind], mode
        member.linkname = value if kind in "lh" else ""
        content = value.encode() if kind == "f" else b""
        member.size = len(content)
        blocks.append(member.tobuf(tarfile.PAX_FORMAT))
        blocks.append(content + bytes(-len(content) % tarfile.BLOCKSIZE))
    return b"".join(blocks) + bytes(2 * tarfile.BLOCKSIZE)


def serve_tree(entries):
    """Answers as a worker whose directory /tree holds these (name, type letter, link or content, mode)."""
    packed = archive(entries)

    def answer(name, tag):
        if name == "FS_STAT":
            return frame("FS_ENTRY", tag, path="tree", mode=0o040755, links=2) + frame("MSG_OK", tag)
        if name == "FS_TAR_OUT":
            return frame("FS_DATA", tag, data=packed) + frame("MSG_OK", tag)
        return frame("MSG_OK", tag)

    return answer
