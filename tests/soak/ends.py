#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ends of the daemon under running commands: none is killed, none runs twice, every result is delivered.

    tests/soak/ends.py --rounds 300 [--seed S] [--clients N] [--sdk]

In each round cayd gets SIGTERM, SIGUSR2 or SIGKILL, in turn and at a random instant, and the next one is started. All
the while clients run commands of a few hundred milliseconds, each with a key, and repeat what was cut off; besides, one
client in a process of its own is killed in each round, and its command has to follow it. Prints a line for each ten
rounds and ends with 0, or tells what was wrong and ends with 1.

With --sdk, three more clients do it by the SDKs (ends_sdk.py, ends_sdk.mjs): each is one program that lives for all rounds.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from lib.daemon import Daemon  # noqa: E402
from lib.patient import followed, whole  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = ("stop", "upgrade", "kill9")
LEASE = 10.0  # as cayd has it
# $1 names it. It leaves a line where it ran, and says in a hundred and one lines what it read.
COMMAND = ('echo "$1" >> /tmp/runs; for i in $(seq 100); do echo "$1 $i"; sleep 0.00$((RANDOM % 9)); done;'
           ' echo "$1" >&2; cksum')
VICTIM = ("import socket, sys\n"
          "s = socket.socket(socket.AF_UNIX)\n"
          "s.connect(sys.argv[1])\n"
          "body = b'{\"shell\":\"sleep 1000\",\"kill_on_disconnect\":true}'\n"
          "s.sendall(b'POST /api/v1/sandboxes/%s/processes?follow=true HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: %d"
          "\\r\\n\\r\\n' % (sys.argv[2].encode(), len(body)) + body)\n"
          "s.recv(1)\n"
          "print('up', flush=True)\n"
          "sys.stdin.read()\n")


class Violation(Exception):
    pass


def wanted(name, text):
    """What COMMAND prints on either stream."""
    check = subprocess.run(["cksum"], input=text.encode(), capture_output=True, check=True).stdout.decode()
    return "".join(f"{name} {i}\n" for i in range(1, 101)) + check, f"{name}\n"


class Client(threading.Thread):
    """One command after the other, each asked for until its result is there. `ask` is the way to do so:
    ask(daemon, box, argv, input) -> (stdout, stderr, exit code)."""

    def __init__(self, soak, index, ask):
        super().__init__(daemon=True)
        self.soak, self.index, self.ask = soak, index, ask
        self.names, self.error = [], None

    def run(self):
        try:
            while not self.soak.over.is_set():
                self.one()
        except BaseException as error:  # told by the main thread
            self.error = error
            traceback.print_exc()

    def one(self):
        name = f"{self.index}.{len(self.names)}"
        self.names.append(name)
        text = name * random.choice((0, 1, 20000))
        got = self.ask(self.soak.daemon, self.soak.box, ["bash", "-c", COMMAND, "bash", name], text)
        if got != (*wanted(name, text), 0):
            raise Violation(f"{self.ask.__name__}: {name} with {len(text)} bytes of input gave {str(got)[:2000]}")


def by_exec(daemon, box, argv, text):
    got = whole(daemon, box, {"argv": argv, "input": text, "kill_on_disconnect": True}, seconds=120)
    return got["stdout"], got["stderr"], got["exit_code"]


def by_exec_that_stays(daemon, box, argv, text):
    got = whole(daemon, box, {"argv": argv, "input": text}, seconds=120)
    return got["stdout"], got["stderr"], got["exit_code"]


def by_stream(daemon, box, argv, text):
    got = followed(daemon, box, {"argv": argv, "stdin": True, "kill_on_disconnect": True}, seconds=120,
                   input=text.encode())
    return got.stdout.decode(), got.stderr.decode(), got.exit["exit_code"]


class BySdk:
    """A program that is given one command on each line, and answers with its result."""

    def __init__(self, *argv):
        self.__name__, self.argv, self.process = " ".join(map(str, argv)), argv, None

    def open(self, daemon):
        """Ready when it has had an answer: a client waits for a daemon that it has seen."""
        self.process = subprocess.Popen([*self.argv, f"unix:{daemon.sock}"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.process.stdout.readline()

    def __call__(self, daemon, box, argv, text):
        self.process.stdin.write(json.dumps({"box": box, "argv": argv, "input": text}) + "\n")
        self.process.stdin.flush()
        return tuple(json.loads(self.process.stdout.readline()))

    def close(self):
        if self.process:
            self.process.communicate()


def sdks():
    """The programs, with what tests/tools makes for them."""
    def made(tool):
        return subprocess.run([ROOT / "tests/tools" / tool], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    python = made("sdk-venv")
    made("sdk-node")
    return (BySdk(python, "tests/soak/ends_sdk.py", "sync"), BySdk(python, "tests/soak/ends_sdk.py", "async"),
            BySdk("node", "tests/soak/ends_sdk.mjs"))


class Soak:
    def __init__(self, rounds, clients, more=()):
        self.rounds, self.over = rounds, threading.Event()
        self.daemon = Daemon(drain="50ms")
        self.box = self.daemon.create(pids=2048, output="64M")
        ways = (by_exec, by_stream, by_exec_that_stays)
        for one in more:
            one.open(self.daemon)
        asks = [ways[i % len(ways)] for i in range(clients)] + list(more)
        self.clients = [Client(self, i, ask) for i, ask in enumerate(asks)]
        self.victims = []

    def running(self):
        return [p for p in self.daemon.get(f"/sandboxes/{self.box}/processes").body["processes"] if p["running"]]

    def victim(self):
        process = subprocess.Popen([sys.executable, "-c", VICTIM, str(self.daemon.sock), self.box],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.victims.append(process)
        process.stdout.readline()
        return process

    def round(self, number):
        victim = self.victim()
        time.sleep(random.random() * 0.4)
        if random.random() < 0.5:
            victim.kill()
        how = WAYS[number % len(WAYS)]
        if how == "upgrade":
            self.daemon.upgrade()
        else:
            self.daemon.restart(how)
        victim.kill()
        victim.communicate()
        for client in self.clients:
            if client.error:
                raise Violation(f"client {client.index}: {client.error!r}")

    def finish(self):
        self.over.set()
        for client in self.clients:
            client.join(130)
            if client.is_alive() or client.error:
                raise Violation(f"client {client.index}: {client.error!r}")
        deadline = time.monotonic() + 2 * LEASE
        while self.running():
            if time.monotonic() > deadline:
                raise Violation(f"these have outlived their clients: {self.running()}")
            time.sleep(0.1)
        names = [name for client in self.clients for name in client.names]
        ran = self.daemon.request("GET", f"/sandboxes/{self.box}/files?path=/tmp/runs").body.decode().split()
        if sorted(ran) != sorted(names):
            twice = sorted(n for n in set(ran) if ran.count(n) > 1)
            raise Violation(f"run twice: {twice}; never: {sorted(set(names) - set(ran))}")
        return len(names)

    def run(self):
        began = time.monotonic()
        for client in self.clients:
            client.start()
        for number in range(self.rounds):
            self.round(number)
            if (number + 1) % 10 == 0:
                print(f"{number + 1} rounds, {sum(len(c.names) for c in self.clients)} commands,"
                      f" {time.monotonic() - began:.0f} s", flush=True)
        return self.finish()

    def close(self):
        self.over.set()
        for victim in self.victims:
            if victim.poll() is None:
                victim.kill()
                victim.communicate()
        return self.daemon.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--sdk", action="store_true")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    random.seed(seed)
    more = sdks() if options.sdk else ()
    soak = Soak(options.rounds, options.clients, more)
    try:
        commands = soak.run()
        for one in more:
            one.close()
        left = soak.close()
        if left:
            raise Violation(f"left behind: {left}")
    except BaseException as error:
        print(f"ENDS failed (seed {seed}): {error!r}", flush=True)
        soak.close()
        return 1
    print(f"ENDS {options.rounds} rounds, {commands} commands: none killed, none run twice, none lost (seed {seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
