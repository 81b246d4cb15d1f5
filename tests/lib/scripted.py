# SPDX-License-Identifier: Apache-2.0
"""A server on a unix socket that says what a test wants, byte for byte, in the place of a cayd.

    with Scripted(path, lambda line: b"HTTP/1.1 204 No Content\r\n\r\n") as server: ...
    server.seen      the first line of each request: "GET /api/v1/version HTTP/1.1"

The function gets such a line and gives the bytes of the answer, or an iterable of pieces of it; then the connection is
closed.
"""
import contextlib
import os
import re
import socket
import threading


def answer(body=b"", status="200 OK", kind="application/json"):
    """One with a length."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunked(body, kind="application/octet-stream", size=4096):
    """One without: its end is that of the last chunk, which is empty."""
    pieces = [body[at:at + size] for at in range(0, len(body), size)] + [b""]
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


def frame(kind, payload=b"", offset=0):
    """Of an output stream."""
    return bytes([kind, 0, 0, 0]) + len(payload).to_bytes(4, "big") + offset.to_bytes(8, "big") + payload


class Scripted:
    def __init__(self, path, script):
        self.path, self.script, self.seen = path, script, []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError), client:
            line = self._request(client)
            if line is None:
                return
            self.seen.append(line)
            said = self.script(line)
            for piece in [said] if isinstance(said, bytes) else said:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):  # what it still sends is no reason to reset the connection
                pass

    @staticmethod
    def _request(client):
        """Its first line, when all of it has come."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = client.recv(65536)
            if not piece:
                return None
            data += piece
        head, rest = data.split(b"\r\n\r\n", 1)
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        left = int(length[1]) - len(rest) if length else 0
        while left > 0 and (piece := client.recv(65536)):
            left -= len(piece)
        return head.split(b"\r\n")[0].decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        os.unlink(self.path)
