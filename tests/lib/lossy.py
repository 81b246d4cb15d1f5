# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of cayd that loses one answer, as a daemon does that is killed between doing and answering."""
import contextlib
import socket
import threading


class Lossy:
    """Listens on `path` and passes all on to the socket `target`.

    The first request that has `pattern` reaches the daemon; when its answer comes, the connection is closed instead.
    lost     set when that has happened
    """

    def __init__(self, path, target, pattern):
        self.path, self.target, self.pattern = path, target, pattern
        self.lost = threading.Event()
        self._chosen = threading.Lock()  # taken once, by the connection with the answer to lose
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self.target))
                mine = threading.Event()
                threading.Thread(target=self._up, args=(client, server, mine), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server, mine), daemon=True).start()

    def _up(self, client, server, mine):
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                if self.pattern in data and self._chosen.acquire(blocking=False):
                    mine.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _down(self, client, server, mine):
        with contextlib.suppress(OSError), client, server:
            while data := server.recv(1 << 16):
                if mine.is_set():
                    self.lost.set()
                    break
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink()
