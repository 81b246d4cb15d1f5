# SPDX-License-Identifier: Apache-2.0
"""The network of this version: loopback inside, and nothing else."""
import json
import socket

import pytest

from integration.support import refused


def inside(cay, box, script):
    return cay.run("exec", box, "--", "python3", "-c", script, timeout=30)


def test_only_loopback_is_there_and_it_is_up(cay, box):
    assert cay.run("exec", box, "-c", "ls /sys/class/net").stdout.split() == ["lo"]
    done = cay.run("exec", box, "-c", "cat /proc/net/dev | grep -c :; cat /proc/net/route | wc -l")
    assert done.stdout.split() == ["1", "1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_works(cay, box, host):
    done = inside(cay, box, f"""
import socket, threading
family = socket.AF_INET6 if ":" in "{host}" else socket.AF_INET
s = socket.socket(family); s.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0)); s.listen()
def serve():
    c, _ = s.accept(); c.sendall(c.recv(100).upper()); c.close()
threading.Thread(target=serve, daemon=True).start()
c = socket.create_connection(("{host}", s.getsockname()[1])); c.sendall(b"hello"); print(c.recv(100).decode())
""")
    assert done.stdout == "HELLO\n", done.stderr


def test_two_execs_of_a_sandbox_share_it_and_two_sandboxes_do_not(cay, make):
    a, b = make(), make()
    serve = "import socket; s = socket.create_server(('127.0.0.1', 4321)); print('up', flush=True)\nwhile 1: s.accept()[0].close()"
    server = cay.popen("exec", a, "--", "python3", "-c", serve)
    assert server.stdout.readline() == b"up\n"
    connect = "import socket; socket.create_connection(('127.0.0.1', 4321), 5); print('connected')"
    assert inside(cay, a, connect).stdout == "connected\n"
    assert "refused" in inside(cay, b, connect).stderr
    cay.run("rm", "-f", a, check=True)
    server.communicate(timeout=10)


def test_the_host_s_loopback_is_not_ours(cay, box):
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.2)
    done = inside(cay, box, f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 3)")
    assert "Connection refused" in done.stderr
    with server, pytest.raises(TimeoutError):
        server.accept()


@pytest.mark.parametrize("address", ["1.1.1.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "2606:4700::1111", "fe80::1",
                                     "224.0.0.1"])
def test_nothing_else_is_reachable(cay, box, address):
    done = inside(cay, box, f"""
import socket, json, time
family = socket.AF_INET6 if ":" in "{address}" else socket.AF_INET
out, start = [], time.time()
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    s = socket.socket(family, kind); s.settimeout(3)
    try: s.connect(("{address}", 53)); s.send(b"x"); out.append("sent")
    except OSError as e: out.append(e.strerror)
print(json.dumps([out, time.time() - start]))
""")
    out, seconds = json.loads(done.stdout)
    assert "sent" not in out and seconds < 2, "refused at once, not after a timeout"


def test_names_do_not_resolve(cay, box):
    done = inside(cay, box, """
import socket, time
start = time.time()
try: print(socket.getaddrinfo("example.com", 80))
except socket.gaierror as e: print("refused", time.time() - start < 6)
print(socket.gethostbyname("localhost"))
""")
    assert done.stdout == "refused True\n127.0.0.1\n", done


@pytest.mark.parametrize("policy", ["allow-all", "example.com", "example.com,example.org", "@/etc/passwd", "host", "none"])
def test_every_other_policy_is_unsupported(cay, fresh, policy):
    refused(fresh.run("run", "--net", policy, "--", "true"), "network")
    done = fresh.run("run", "--json", "--net", policy, "--", "true")
    assert done.returncode == 125 and json.loads(done.stderr)["error"]["code"] == "unsupported"
    assert fresh.ids() == []


def test_deny_all_may_be_said(cay):
    assert cay.run("run", "--net", "deny-all", "--", "true").returncode == 0
