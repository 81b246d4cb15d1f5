# SPDX-License-Identifier: Apache-2.0
"""Bad input: one clear line each, exit code 125, nothing left behind."""
import json
import os
import subprocess

import pytest

from integration.support import CGROUP, refused, until
from lib.oracle import groups_of


def leftovers(engine):
    left = [p.name for p in engine.run_dir.iterdir() if p.name not in ("ids", ".cay")] if engine.run_dir.exists() else []
    left += [f"ids/{p.name}" for p in (engine.run_dir / "ids").iterdir()] if (engine.run_dir / "ids").exists() else []
    if (engine.state / "sandboxes").exists():
        left += [p.name for p in (engine.state / "sandboxes").iterdir()]
    return left


def nothing_left(engine):
    """Not even in listings; what is being removed goes at once, but nobody waits for it."""
    assert engine.json("ps", "-a", "--json") == []
    until(lambda: leftovers(engine) == [], 5)


def groups():
    return {path for path, _ in groups_of(CGROUP)}


BAD = [
    ((), "command"),
    (("nosuch",), "nosuch"),
    (("creat",), "did you mean 'create'"),
    (("--json", "ps"), "--json"),
    (("fs",), "fs"),
    (("fs", "nosuch", "x", "/y"), "nosuch"),
    (("create", "--nosuch"), "--nosuch"),
    (("create", "--memroy", "1G"), "--memory"),
    (("create", "-Z"), "-Z"),
    (("create", "operand"), "operand"),
    (("create", "--memory"), "memory"),
    (("create", "--memory", "lots"), "lots"),
    (("create", "--memory", "-1"), "-1"),
    (("create", "--memory", "1Q"), "1Q"),
    (("create", "--memory", "99999999999999999999"), "99999999999999999999"),
    (("create", "--memory", "0"), "0"),
    (("create", "--disk", "1.2.3G"), "1.2.3G"),
    (("create", "--cpus", "many"), "many"),
    (("create", "--cpus", "-1"), "-1"),
    (("create", "--pids", "1.5"), "1.5"),
    (("create", "--ttl", "soon"), "soon"),
    (("create", "--ttl", "10x"), "10x"),
    (("create", "--ttl", "-5s"), "-5s"),
    (("create", "--profile", "loose"), "loose"),
    (("create", "--name", "UPPER"), "UPPER"),
    (("create", "--name", "../x"), "../x"),
    (("create", "--name", "a/b"), "a/b"),
    (("create", "--name", "."), "."),
    (("create", "--name", ""), "id"),
    (("create", "--name", "x" * 64), "xxx"),
    (("create", "--name", "ids"), "ids"),
    (("create", "--label", "no-value"), "no-value"),
    (("create", "--label", "=x"), "=x"),
    (("create", "-e", "=x"), "=x"),
    (("create", "-e", "BAD NAME=x"), "BAD NAME"),
    (("create", "--env-file", "/no/such/file"), "/no/such/file"),
    (("create", "-w", "relative"), "relative"),
    (("create", "--image", "nosuch:1"), "nosuch:1"),
    (("create", "--image", "dir:/no/such"), "/no/such"),
    (("create", "-v", "/no/such:/x"), "/no/such"),
    (("create", "--net", "allow-all"), "allow-all"),
    (("run",), "command"),
    (("run", "--timeout", "never", "--", "true"), "never"),
    (("run", "--memory", "1", "--", "true"), "memory"),
    (("run", "-c", "true", "--", "false"), "false"),
    (("run", "-u", "nosuch", "--", "true"), "nosuch"),
    (("run", "-w", "/no/such", "--", "true"), "/no/such"),
    (("exec",), "ID"),
    (("exec", "nosuch"), ""),
    (("exec", "nosuch", "--", "true"), "nosuch"),
    (("exec", "BAD ID", "--", "true"), "BAD ID"),
    (("exec", "../../etc", "--", "true"), "../../etc"),
    (("shell", "nosuch"), "nosuch"),
    (("inspect", "nosuch"), "nosuch"),
    (("stats", "nosuch"), "nosuch"),
    (("logs", "nosuch"), "nosuch"),
    (("logs", "--tail", "x", "nosuch"), "x"),
    (("procs", "nosuch"), "nosuch"),
    (("wait", "nosuch", "1"), "nosuch"),
    (("attach", "nosuch", "1"), "nosuch"),
    (("signal", "nosuch", "1", "TERM"), "nosuch"),
    (("stop",), "ID"),
    (("stop", "nosuch"), "nosuch"),
    (("stop", "--grace", "x", "nosuch"), "x"),
    (("kill", "nosuch"), "nosuch"),
    (("pause", "nosuch"), "nosuch"),
    (("resume", "nosuch"), "nosuch"),
    (("rm", "nosuch"), "nosuch"),
    (("rm",), "ID"),
    (("update", "nosuch"), ""),
    (("update", "--ttl", "1h", "nosuch"), "nosuch"),
    (("cp", "a", "b"), ""),
    (("cp", "nosuch:/x", "/tmp/x"), "nosuch"),
    (("fs", "cat", "nosuch", "/x"), "nosuch"),
    (("fs", "put", "--mode", "9", "nosuch", "/x"), "9"),
    (("ps", "extra"), "extra"),
    (("completion", "tcsh"), "tcsh"),
    (("help", "nosuch"), "nosuch"),
]


@pytest.fixture(scope="module")
def engine(_session):
    from integration.conftest import _finish, _start
    made = _start("caye-")
    yield made
    assert _finish(made) == []


@pytest.mark.parametrize("args,word", BAD, ids=[" ".join(a)[:40] or "nothing" for a, _ in BAD])
def test_one_line_exit_125_nothing_left(engine, args, word):
    before = groups()
    done = engine.run(*args)
    assert done.stdout == ""
    refused(done, word)
    nothing_left(engine)
    assert groups() == before


@pytest.mark.parametrize("args,code", [
    (("run", "--json", "--memory", "lots", "--", "true"), "invalid"),
    (("exec", "--json", "nosuch", "--", "true"), "not_found"),
    (("create", "--json", "--net", "allow-all"), "unsupported"),
    (("create", "--json", "--image", "nosuch"), "unsupported"),
    (("inspect", "--json", "nosuch"), "not_found"),
])
def test_errors_as_json(engine, args, code):
    done = engine.run(*args)
    error = json.loads(done.stderr)["error"]
    assert done.returncode == 125 and done.stdout == ""
    assert error["code"] == code and error["message"]


def test_conflict_as_json(engine):
    engine.create("--name", "c")
    done = engine.run("create", "--json", "--name", "c", "--memory", "64M")
    assert done.returncode == 125 and json.loads(done.stderr)["error"]["code"] == "conflict"
    engine.run("rm", "-f", "c", check=True)
    nothing_left(engine)


def test_a_command_that_cannot_run_leaves_no_sandbox(engine):
    refused(engine.run("run", "--", "/no/such"), "/no/such", code=127)
    refused(engine.run("run", "-d", "--", "/no/such"), "/no/such", code=127)
    refused(engine.run("run", "--", "/etc/passwd"), "/etc/passwd", code=126)
    nothing_left(engine)


def test_unwritable_directories(engine):
    for name in ("CAY_STATE_DIR", "CAY_RUN_DIR"):
        refused(engine.run("create", env={name: "/proc/cay"}), "/proc/cay")
        refused(engine.run("create", env={name: "/etc/passwd/x"}), "/etc/passwd")
        refused(engine.run("create", env={name: "relative/dir"}), "relative/dir")
    nothing_left(engine)


def test_run_directory_longer_than_a_socket_s_name(engine, tmp_path):
    """It works, or it is refused; a socket's name ends at 108 bytes."""
    env = {"CAY_RUN_DIR": str(tmp_path / ("x" * 100)), "CAY_STATE_DIR": str(tmp_path / "s")}
    done = engine.run("create", env=env)
    if done.returncode:
        refused(done)
    else:
        assert engine.run("exec", done.stdout.strip(), "--", "echo", "up", env=env).stdout == "up\n"
        engine.run("rm", "-f", done.stdout.strip(), env=env, check=True)
    assert [p for p in (tmp_path / ("x" * 100)).glob("*") if p.name not in ("ids", ".cay")] == []


def test_directory_that_others_may_write(engine, tmp_path):
    open_dir = tmp_path / "open"
    open_dir.mkdir()
    open_dir.chmod(0o777)
    refused(engine.run("create", env={"CAY_RUN_DIR": str(open_dir)}), str(open_dir))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_directory_of_another_user(engine, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 12345, 12345)
    refused(engine.run("create", env={"CAY_RUN_DIR": str(other)}), str(other))


def test_missing_keeper(engine):
    refused(engine.run("create", env={"CAY_LIBEXEC_DIR": "/no/such"}), "/no/such")
    nothing_left(engine)


def test_broken_keeper(engine, tmp_path):
    keeper = tmp_path / "cay-keeper"
    keeper.write_text("#!/bin/sh\nexit 3\n")
    keeper.chmod(0o755)
    refused(engine.run("create", env={"CAY_LIBEXEC_DIR": str(tmp_path)}), "keeper")
    nothing_left(engine)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
@pytest.mark.parametrize("which", ["s", "r"])
def test_full_disk(fresh, which):
    """The state or the run directory on a file system with no room left."""
    top = fresh.top / which
    top.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "caytest", top], check=True)
    try:
        with open(top / "fill", "wb") as f, pytest.raises(OSError):
            while True:
                os.write(f.fileno(), b"x" * 4096)
        refused(fresh.run("create", "--name", "full"))
        done = fresh.run("run", "--", "true")
        assert done.returncode in (0, 125)
        os.unlink(top / "fill")
        assert fresh.json("ps", "-a", "--json") == []
        assert [p for p in (fresh.run_dir.iterdir() if fresh.run_dir.exists() else []) if p.name not in ("ids", ".cay", "fill")] == []
    finally:
        fresh.clean()
        subprocess.run(["umount", "-l", top], check=True)


def test_closed_standard_output(engine):
    for args in (("ps",), ("help",), ("create",), ("run", "--", "echo", "x")):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([engine.program, *args], env=engine.env, stdout=full, stderr=subprocess.PIPE,
                                  stdin=subprocess.DEVNULL, timeout=30)
        assert done.returncode in (125, 0) and done.stderr.count(b"\n") <= 1, (args, done)
        if args[0] != "create":
            assert done.returncode == 125 and b"No space left" in done.stderr, (args, done)
    engine.clean()
    nothing_left(engine)


def test_no_standard_descriptors(engine):
    done = subprocess.run(["/bin/sh", "-c", 'exec <&- >&- 2>&-; exec "$0" run -- true', engine.program], env=engine.env,
                          timeout=30)
    assert done.returncode == 0
    nothing_left(engine)


def test_no_environment_at_all(engine):
    done = subprocess.run([engine.program, "version"], env={}, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.startswith("cay ")


def test_long_garbage_is_cut_in_messages(engine):
    done = engine.run("create", "--name", "x" * 100_000)
    assert done.returncode == 125 and len(done.stderr) < 1000


def test_control_bytes_of_arguments_do_not_reach_the_terminal(engine):
    done = engine.run("exec", "\x1b[31mred", "--", "true")
    assert done.returncode == 125 and "\x1b" not in done.stderr


@pytest.mark.parametrize("command", ["create", "run", "exec", "ps", "inspect", "cp", "fs", "wait", "doctor", "rm"])
def test_help_everywhere(engine, command):
    done = engine.run(command, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"Usage: cay {command}") and done.stderr == ""
    assert engine.run("help", command).stdout == done.stdout


def test_help_version_completion_doctor(engine):
    assert "run a command" in engine.run("help").stdout and engine.run("--help").returncode == 0
    assert engine.run("--version").stdout == engine.run("version").stdout
    for shell in ("bash", "zsh", "fish"):
        assert "cay" in engine.run("completion", shell, check=True).stdout
    done = engine.run("doctor")
    assert done.returncode == 0 and "user namespaces" in done.stdout
    assert all(c["level"] in ("ok", "loss", "no") for c in engine.json("doctor", "--json"))
    nothing_left(engine)
