# SPDX-License-Identifier: Apache-2.0
"""The protocol of callers and keeper, as src/wire has it: for what neither the command line nor the API would ever send.

with Keeper(engine, box) as keeper:
    keeper.ask("WAIT", pid=7, timeout_ms=0)   -> (type, {field: value}); MSG_ERROR: ("ERROR", {"code": 4, "text": ...})
"""
import socket
import struct

HEADER = struct.Struct("<IBBBBI")
MAJOR, MINOR = 1, 1
TYPES = dict(OK=1, ERROR=2, EXEC=16, ATTACH=17, STDIN=18, RESIZE=19, WAIT=20, SIGNAL=21, PROCS=22, INFO=23,
             STATS=25, PAUSE=26, RESUME=27, STOP=28, LIFETIME=29, STARTED=49, OUTPUT=50, EXIT=51, PROC=52, FIGURES=53)
NAMES = {number: name for name, number in TYPES.items()}
FIELDS = dict(flags=1, pid=2, signal=3, number=4, stream=5, offset=6, end=7, code=8, sys_errno=9, text=10, argv=11,
              env=12, shell=13, cwd=14, user=15, name=16, rows=17, cols=18, timeout_ms=19, ttl_ms=20, idle_ms=21,
              data=22, exit_code=23)
KEYS = {number: name for name, number in FIELDS.items()}
F_STDIN, F_DETACH, F_FOLLOW, F_EOF, F_TREE, F_AT = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 23
# Of CAY_ERROR_TABLE, by number.
INVALID, NOT_FOUND, TIMEOUT, CONFLICT, STALLED = 1, 3, 4, 5, 15


def frame(kind, tag=1, **fields):
    payload = b""
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            one = struct.pack("<Q", one) if isinstance(one, int) else one.encode() + b"\0" if isinstance(one, str) else one
            payload += struct.pack("<HI", FIELDS[name], len(one)) + one
    return HEADER.pack(len(payload), TYPES[kind], MINOR, 0, MAJOR, tag) + payload


class Keeper:
    """A connection to the keeper of a sandbox."""

    def __init__(self, engine, box, seconds=20):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(seconds)
        self.sock.connect(str(engine.run_dir / box / "ctl"))

    def send(self, kind, **fields):
        self.sock.sendall(frame(kind, **fields))

    def _read(self, size):
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def receive(self):
        size, kind, _, _, _, _ = HEADER.unpack(self._read(HEADER.size))
        payload, fields = self._read(size), {}
        while payload:
            key, n = struct.unpack("<HI", payload[:6])
            value, payload = payload[6:6 + n], payload[6 + n:]
            name = KEYS.get(key, key)
            text = name in ("text", "name", "shell")
            fields[name] = value.rstrip(b"\0").decode() if text else value if name == "data" else int.from_bytes(value, "little")
        return NAMES.get(kind, kind), fields

    def ask(self, kind, **fields):
        self.send(kind, **fields)
        return self.receive()

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
