# SPDX-License-Identifier: Apache-2.0
"""A unix socket in front of cayd that loses or holds answers, where a test needs that to happen at a certain point.

    relay.rules.append((b"POST /api/v1/sandboxes ", lose))    # for the next request that begins so, once
    relay.seen                                                # the first lines of all requests

    relay.swallowed.append(b"POST ")                          # requests that begin so do not reach the daemon

A rule is called with the connection when the answer begins to come, and returns how many bytes of it are passed on
before the connection is closed; None: all of it.
"""
import pathlib
import socket
import threading

METHODS = (b"GET ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ")


def lose(_):
    """The daemon has done it, the client does not hear of it."""
    return 0


def cut_after(size):
    return lambda _: size


class _Connection:
    def __init__(self, relay, client):
        self.relay, self.client, self.rule = relay, client, None
        self.server = socket.socket(socket.AF_UNIX)
        self.server.connect(relay.target)
        for work in (self.requests, self.answers):
            threading.Thread(target=work, daemon=True).start()

    def requests(self):
        while data := self.receive(self.client):
            if data.startswith(METHODS):
                line = data.split(b"\r\n", 1)[0]
                self.relay.seen.append(line.decode())
                if line.startswith(tuple(self.relay.swallowed)):
                    continue
                self.rule = self.relay.take_rule(line)
            self.pass_on(self.server, data)
        self.end()

    def answers(self):
        left = None
        while data := self.receive(self.server):
            if self.rule is not None:
                rule, self.rule = self.rule, None
                left = rule(self)
            if left is not None:
                data, left = data[:left], left - len(data)
            self.pass_on(self.client, data)
            if left is not None and left <= 0:
                break
        self.end()

    def receive(self, sock):
        try:
            return sock.recv(65536)
        except OSError:
            return b""

    def pass_on(self, sock, data):
        try:
            sock.sendall(data)
        except OSError:
            self.end()

    def end(self):
        for sock in (self.client, self.server):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Relay:
    def __init__(self, target, path):
        self.target, self.path = str(target), pathlib.Path(path)
        self.rules, self.seen, self.swallowed = [], [], []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def host(self):
        return f"unix:{self.path}"

    def accept(self):
        while True:
            try:
                _Connection(self, self.listener.accept()[0])
            except OSError:
                return

    def take_rule(self, line):
        for rule in self.rules:
            if line.startswith(rule[0]):
                self.rules.remove(rule)
                return rule[1]
        return None

    def count(self, start):
        """How many requests began so."""
        return sum(line.startswith(start) for line in self.seen)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
