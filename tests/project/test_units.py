# SPDX-License-Identifier: Apache-2.0
"""The systemd units: well-formed, as the engine needs them, and what they ask of cayd works without systemd, too."""
import os
import shutil
import signal
import socket
import subprocess

import pytest

from lib.daemon import PROGRAM, Daemon
from lib.engine import ROOT

UNITS = ROOT / "dist/systemd"
# Each of these breaks sandboxes, or makes them others than those of `cay`; cayd.service says why.
NEVER = """PrivateTmp PrivateDevices PrivateMounts PrivateUsers PrivateNetwork ProtectSystem ProtectHome ReadOnlyPaths
InaccessiblePaths ProtectKernelModules ProtectKernelTunables ProtectKernelLogs ProtectProc ProcSubset ProtectControlGroups
ProtectHostname ProtectClock RestrictNamespaces LockPersonality MemoryDenyWriteExecute RestrictSUIDSGID SystemCallFilter
RuntimeDirectory DynamicUser User RootDirectory RootImage MountFlags OOMScoreAdjust""".split()


def unit(name):
    """{section: {key: [values]}}"""
    found, section = {}, None
    for line in (UNITS / name).read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals and key == key.strip() and section is not None, line
            section.setdefault(key, []).append(value)
    return found


@pytest.fixture(scope="module")
def service():
    return unit("cayd.service")["Service"]


def dropped(service):
    """The capabilities that the unit takes away, as setpriv names them."""
    words = []
    for value in service["CapabilityBoundingSet"]:
        assert value.startswith("~")
        words += value[1:].split()
    return [word.removeprefix("CAP_").lower() for word in words]


def test_service(service):
    one = {key: values[0] for key, values in service.items() if len(values) == 1}
    assert one["Type"] == "notify" and one["KillMode"] == "process" and one["Restart"] == "on-failure"
    assert one["ExecReload"] == "/bin/kill -HUP $MAINPID" and one["Delegate"] == "yes"
    assert one["ExecStart"] == "/usr/local/bin/cayd" and one["OOMPolicy"] == "continue"
    assert int(one["LimitNOFILE"]) >= 65536 and one["TasksMax"] == "infinity" and one["UMask"] == "0077"
    assert one["NoNewPrivileges"] == "yes"
    assert {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"} == set(one["RestrictAddressFamilies"].split())
    assert "/dev/loop-control rw" in service["DeviceAllow"] and "block-loop rw" in service["DeviceAllow"]
    assert {"sys_module", "sys_rawio", "sys_boot", "sys_time"} <= set(dropped(service))
    assert [key for key in NEVER if key in service] == []


def test_socket_is_for_its_owner_alone():
    listen = unit("cayd.socket")["Socket"]
    assert listen["ListenStream"] == ["/run/cay/cayd.sock"]
    assert listen["SocketMode"] == ["0600"] and listen["DirectoryMode"] == ["0700"]


def test_systemd_takes_them(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed (package systemd)")
    for name in ("cayd.service", "cayd.socket"):
        (tmp_path / name).write_text((UNITS / name).read_text().replace("/usr/local/bin/cayd", str(PROGRAM)))

    def verify():
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / "cayd.service",
                               tmp_path / "cayd.socket"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "SYSTEMD_LOG_TARGET": "console"})
        return [line for line in done.stdout.splitlines() if "cayd" in line]

    assert verify() == []
    with open(tmp_path / "cayd.service", "a", encoding="utf-8") as out:
        out.write("[Service]\nNoNewPrivilege=yes\n")
    assert any("NoNewPrivilege" in line for line in verify()), "the check notices nothing"


class Manager:
    """What systemd does for the unit: listens, starts it with the socket, and hears that it is ready."""

    def __init__(self, daemon):
        self.d = daemon
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(daemon.sock))
        daemon.sock.chmod(0o666)  # cayd puts that right
        self.listener.listen(64)
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(str(daemon.top / "notify"))
        self.notified.settimeout(20)

    def start(self):
        self.d.write_config()
        line = 'exec 3<&"$1"; shift; export LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_FDNAMES=cayd.socket; exec "$@"'
        fd = self.listener.fileno()
        env = dict(self.d.env, NOTIFY_SOCKET=str(self.d.top / "notify"))
        with open(self.d.log, "ab") as log:
            self.d.process = subprocess.Popen(["bash", "-c", line, "bash", str(fd), *self.d.argv()], env=env,
                                              pass_fds=(fd,), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                              start_new_session=True)
        assert self.hear() == "READY=1"

    def hear(self):
        return self.notified.recv(256).decode()

    def close(self):
        self.listener.close()
        self.notified.close()


def test_socket_activation_readiness_and_a_stop_that_leaves_sandboxes(tmp_path):
    with Daemon(start=False) as d:
        manager = Manager(d)
        try:
            manager.start()
            assert d.sock.stat().st_mode & 0o777 == 0o600
            box = d.create()
            keeper = d.get(f"/sandboxes/{box}").body["keeper_pid"]
            assert d.stop() == 0
            assert manager.hear() == "STOPPING=1"
            # The socket stays, with systemd: who connects now is served by the next one.
            assert d.sock.exists()
            os.kill(keeper, 0)
            with d.client() as waiting:
                waiting.connection.connect()
                manager.start()
                assert waiting.get(f"/sandboxes/{box}").body["keeper_pid"] == keeper
            d.signal(signal.SIGHUP)
            assert d.exec(box, shell="echo alive")["stdout"] == "alive\n"
            d.remove(box)
        finally:
            d.stop()
            manager.close()


def test_engine_works_with_what_the_unit_leaves(service, tmp_path):
    """The bounding set, no_new_privs and the umask of the unit, and all that needs rights: a disk of its own,
    a writable mount, limits, a sandbox within, a prepared one."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    drop = ",".join("-" + name for name in dropped(service))
    less = ["sh", "-c", 'umask 0077; exec "$@"', "sh", "setpriv", "--bounding-set", drop, "--no-new-privs"]
    with Daemon(wrap=less, pool=2) as d:
        status = dict(line.split(":\t", 1) for line in open(f"/proc/{d.pid}/status", encoding="ascii").read().splitlines()
                      if ":\t" in line)
        assert status["NoNewPrivs"] == "1" and not int(status["CapBnd"], 16) >> 16 & 1  # CAP_SYS_MODULE
        (tmp_path / "data").mkdir()
        box = d.create(memory="128M", disk="256M", cpus=1, pids=64,
                       mounts=[{"source": str(tmp_path / "data"), "target": "/data"}])
        out = d.exec(box, shell="hostname x 2>/dev/null; echo hi > /data/f && touch /tmp/s && chmod 4755 /tmp/s && id -u")
        assert (out["exit_code"], out["stdout"]) == (0, "0\n"), out
        assert (tmp_path / "data/f").read_text() == "hi\n"
        nested = d.create(profile="nested")
        assert d.exec(nested, shell="unshare -Urm id -u")["stdout"] == "0\n"
        for name in (box, nested, d.create(), d.create()):
            assert d.exec(name, shell="umask")["stdout"] == "0022\n"
            d.remove(name)
