# SPDX-License-Identifier: Apache-2.0
"""Running commands to their end: codes, timeouts, environment, users, streams, caps, crowds."""
import base64
import hashlib
import json
import os
import signal
import subprocess
import time

import pytest

from integration.support import background, end, host_pids, info, procs, refused, state, until


# ---- exit codes

@pytest.mark.parametrize("code", [0, 1, 2, 42, 124, 125, 126, 127, 128, 255])
def test_exit_code_is_the_command_s(cay, box, code):
    assert cay.run("exec", box, "--", "/bin/sh", "-c", f"exit {code}").returncode == code


def test_missing_command_is_127(cay, box):
    refused(cay.run("exec", box, "--", "no-such-command"), "no-such-command", code=127)
    refused(cay.run("exec", box, "--", "/no/such/command"), "/no/such/command", code=127)


def test_command_that_cannot_run_is_126(cay, box):
    refused(cay.run("exec", box, "--", "/etc/passwd"), "/etc/passwd", code=126)
    refused(cay.run("exec", box, "--", "/tmp"), "/tmp", code=126)


def test_script_without_an_interpreter_line(cay, make):
    box = make()
    cay.run("fs", "put", "--mode", "755", box, "/tmp/s", input="echo hi\n", check=True)
    done = cay.run("exec", box, "--", "/tmp/s")
    assert (done.returncode, done.stdout) in ((0, "hi\n"), (126, ""))


def test_shell_codes_pass_through(cay, box):
    assert cay.run("exec", box, "-c", "no-such-command").returncode == 127
    assert cay.run("exec", box, "-c", "/etc/passwd").returncode == 126


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_a_signal_is_128_and_its_number(cay, box, number):
    done = cay.run("exec", "--json", box, "--", "/bin/sh", "-c", f"kill -{int(number)} $$")
    result = json.loads(done.stdout)
    assert done.returncode == result["exit_code"] == 128 + number
    assert result["signal"] == number


def test_json_result(cay, box):
    done = cay.run("exec", "--json", box, "-c", "printf out; printf err >&2; exit 3")
    result = json.loads(done.stdout)
    assert done.returncode == 3 and done.stderr == ""
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out", "err")
    assert (result["signal"], result["timed_out"], result["truncated"], result["oom"]) == (0, False, False, False)
    assert result["duration_ms"] >= 0 and result["peak_memory"] > 0 and result["pid"] > 1


def test_json_result_of_bytes(cay, box):
    """Every byte arrives: what is not UTF-8 makes the result base64, and it says so."""
    done = cay.json("exec", "--json", box, "-c", "printf 'caf\\303\\251 \\000'; printf 'e' >&2")
    assert (done["encoding"], done["stdout"], done["stderr"]) == ("utf8", "caf\u00e9 \0", "e")
    done = cay.json("exec", "--json", box, "-c", "printf 'caf\\303'; printf e >&2")
    assert done["encoding"] == "base64"
    assert (base64.b64decode(done["stdout"]), base64.b64decode(done["stderr"])) == (b"caf\303", b"e")
    every = "import os; os.write(2, bytes(range(256)))"
    done = cay.json("run", "--json", "--", "python3", "-c", every)
    assert (done["encoding"], done["stdout"], base64.b64decode(done["stderr"])) == ("base64", "", bytes(range(256)))


def test_duration_and_cpu_are_measured(cay, box):
    slept = json.loads(cay.run("exec", "--json", box, "--", "sleep", "0.4").stdout)
    assert 390 <= slept["duration_ms"] < 5000 and slept["cpu_ms"] < 200
    spin = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.4: pass"
    spun = json.loads(cay.run("exec", "--json", box, "--", "python3", "-c", spin).stdout)
    assert 350 <= spun["cpu_ms"] < 3000


# ---- timeouts

def test_timeout_is_124_with_the_output_so_far(cay, box):
    start = time.monotonic()
    done = cay.run("exec", "--timeout", "500ms", box, "-c", "echo partial; echo e >&2; sleep 1000; echo never")
    assert 0.4 < time.monotonic() - start < 5
    assert (done.returncode, done.stdout) == (124, "partial\n")
    assert done.stderr.splitlines()[0] == "e" and "timed out" in done.stderr
    result = json.loads(cay.run("exec", "--json", "--timeout", "200ms", box, "-c", "echo p; sleep 1000").stdout)
    assert (result["exit_code"], result["timed_out"], result["stdout"]) == (124, True, "p\n")


DAEMONS = """
import os, sys, time
for i in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", sys.argv[1]])
        os._exit(0)
os.execvp("sleep", ["sleep", sys.argv[1]])
"""


def test_timeout_kills_the_whole_tree_and_nothing_else(cay, box):
    bystander = background(cay, box, "exec sleep 77001")
    done = cay.run("exec", "--timeout", "1s", box, "--", "python3", "-c", DAEMONS, "77002")
    assert done.returncode == 124
    until(lambda: host_pids("77002") == [], 3)
    assert procs(cay, box)[bystander]["running"]
    cay.run("signal", box, bystander, "KILL", check=True)


def test_timeout_beats_a_fork_storm(cay, make):
    box = make("--pids", "200")
    done = cay.run("exec", "--timeout", "1s", box, "-c", "f() { f | f & }; f; sleep 100", timeout=60)
    assert done.returncode in (124, 254, 2, 1), done
    until(lambda: cay.json("stats", "--json", box)["pids"] <= 2 or cay.run("kill", box), 20)


def test_timeout_of_a_stopped_process(cay, box):
    done = cay.run("exec", "--timeout", "500ms", box, "-c", "kill -STOP $$", timeout=20)
    assert done.returncode == 124


def test_no_timeout_when_it_is_in_time(cay, box):
    assert cay.run("exec", "--timeout", "30s", box, "--", "true").returncode == 0


# ---- environment, directory, user

def test_environment(cay, make):
    box = make("-e", "ONE=sandbox", "-e", "TWO=sandbox", "-e", "EMPTY=")
    done = cay.run("exec", "-e", "TWO=exec", "-e", "MINE", "-e", "NOT_SET", box, "--", "env", env={"MINE": "caller's"})
    env = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (env["ONE"], env["TWO"], env["EMPTY"], env["MINE"]) == ("sandbox", "exec", "", "caller's")
    assert "NOT_SET" not in env
    assert "/usr/bin" in env["PATH"].split(":") and env["HOME"] == "/root"
    assert not [k for k in env if k.startswith("CAY_")]
    # the change was the exec's alone
    assert cay.sh(box, "echo $TWO").stdout == "sandbox\n"


def test_environment_values_are_exact(cay, box):
    value = "a=b\n'\"$(x) \t\\ ü \U0001f3dd"
    done = cay.run("exec", "-e", "V=" + value, box, "--", "printenv", "V")
    assert done.stdout == value + "\n"


def test_environment_file(cay, box, tmp_path):
    file = tmp_path / "env"
    file.write_text("# comment\nA=1\n\nB=two words\nC=from file\n")
    done = cay.run("exec", "--env-file", file, "-e", "C=given", box, "-c", 'echo "$A|$B|$C"')
    assert done.stdout == "1|two words|given\n"
    refused(cay.run("exec", "--env-file", tmp_path / "no", box, "--", "true"), str(tmp_path / "no"))


def test_path_of_the_exec_finds_the_command(cay, box):
    cay.run("fs", "put", "--mode", "755", box, "/opt/x/tool", input="#!/bin/sh\necho found\n", check=True)
    assert cay.run("exec", "-e", "PATH=/opt/x:/usr/bin:/bin", box, "--", "tool").stdout == "found\n"


def test_working_directory(cay, make):
    box = make("-w", "/var/tmp")
    assert cay.run("exec", box, "--", "pwd").stdout == "/var/tmp\n"
    assert cay.run("exec", "-w", "/usr/share", box, "--", "pwd").stdout == "/usr/share\n"
    refused(cay.run("exec", "-w", "/no/such", box, "--", "pwd"), "/no/such")
    refused(cay.run("exec", "-w", "/etc/passwd", box, "--", "pwd"), "/etc/passwd")
    assert cay.run("exec", "-w", "relative", box, "--", "pwd").returncode == 125


@pytest.mark.parametrize("user,ids", [
    ("user", "1000:1000"), ("1000", "1000:1000"), ("1000:100", "1000:100"), ("4321", "4321:0"),
    ("4321:1234", "4321:1234"), ("nobody", "65534:65534"), ("0", "0:0"), ("root", "0:0"), ("user:users", "1000:100"),
])
def test_users(cay, box, user, ids):
    done = cay.run("exec", "-u", user, box, "-c", 'echo "$(id -u):$(id -g)"')
    assert done.stdout.strip() == ids, done.stderr


def test_user_gets_its_home_and_no_rights(cay, box):
    done = cay.run("exec", "-u", "user", box, "-c", "echo $HOME $USER; pwd; cat /etc/shadow; touch /usr/x; id -G")
    assert done.stdout == "/home/user user\n/home/user\n1000\n"
    assert done.stderr.count("Permission denied") == 2


def test_user_of_the_sandbox(cay, make):
    box = make("-u", "user")
    assert cay.run("exec", box, "--", "id", "-un").stdout == "user\n"
    assert cay.run("exec", "-u", "root", box, "--", "id", "-un").stdout == "root\n"


def test_unknown_user(cay, box):
    refused(cay.run("exec", "-u", "nosuch", box, "--", "true"), "nosuch")
    refused(cay.run("exec", "-u", "99999999", box, "--", "true"))


# ---- streams

def test_stdout_and_stderr_are_apart(cay, box):
    done = cay.run("exec", box, "-c", "for i in 1 2 3; do echo o$i; echo e$i >&2; done")
    assert (done.stdout, done.stderr) == ("o1\no2\no3\n", "e1\ne2\ne3\n")


def test_without_i_stdin_is_empty(cay, box):
    assert cay.run("exec", box, "--", "cat", input="not for it").stdout == ""


def test_large_stdin(cay, make):
    box = make()
    data = os.urandom(1 << 20) * 50
    done = cay.run("exec", "-i", box, "-c", "cat | sha256sum", input=data, text=False, timeout=120)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_stdin_of_a_process_that_does_not_read(cay, box):
    data = b"x" * (8 << 20)
    done = cay.run("exec", "-i", box, "-c", "echo early; exit 9", input=data, text=False)
    assert (done.stdout, done.returncode) == (b"early\n", 9)


def test_stdin_both_ways(cay, box):
    caller = cay.popen("exec", "-i", box, "--", "cat")
    try:
        for i in range(20):
            caller.stdin.write(b"line %d\n" % i)
            caller.stdin.flush()
            assert caller.stdout.readline() == b"line %d\n" % i
        caller.stdin.close()
        assert caller.wait(10) == 0
    finally:
        end(caller)


def test_all_byte_values(cay, box):
    done = cay.run("exec", box, "--", "python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 3)",
                   text=False)
    assert done.stdout == bytes(range(256)) * 3


def test_large_binary_output_is_exact(cay, make):
    box = make()
    script = ("import hashlib,os,sys\nh=hashlib.sha256()\nfor i in range(320):\n b=os.urandom(65536); h.update(b)\n"
              " sys.stdout.buffer.write(b)\nsys.stderr.write(h.hexdigest())")
    done = cay.run("exec", box, "--", "python3", "-c", script, text=False, timeout=120)
    assert len(done.stdout) == 20 << 20
    assert hashlib.sha256(done.stdout).hexdigest() == done.stderr.decode()


def test_last_bytes_of_a_fast_process(cay, box):
    for _ in range(20):
        assert cay.run("exec", box, "-c", "seq 20000").stdout.endswith("\n20000\n")


def test_output_cap_keeps_the_newest(cay, make):
    box = make("--output", "64K")
    number = background(cay, box, "seq 100000; echo the-end")
    result = json.loads(cay.run("wait", "--json", box, number).stdout)
    assert result["truncated"] and result["exit_code"] == 0
    entry = procs(cay, box)[number]
    assert 0 < entry["output_end"] - entry["output_start"] <= 80 << 10
    done = cay.run("attach", box, number)
    assert done.stdout.endswith("\n100000\nthe-end\n") and len(done.stdout) <= 80 << 10
    small = background(cay, box, "seq 100")
    assert not json.loads(cay.run("wait", "--json", box, small).stdout)["truncated"]


def test_a_caller_that_dies_leaves_the_process(cay, make):
    box = make()
    caller = cay.popen("exec", box, "-c", "echo up; sleep 0.5; echo after; exit 6")
    assert caller.stdout.readline() == b"up\n"
    number = next(n for n, p in procs(cay, box).items() if p["running"])
    end(caller)
    assert cay.run("wait", box, number).returncode == 6
    assert cay.run("attach", box, number).stdout == "up\nafter\n"


def test_closed_pipe_ends_the_command_as_in_a_shell(cay, make):
    box = make()
    done = subprocess.run(["/bin/sh", "-c", f'"$0" exec {box} -- yes | head -n 1', cay.program], env=cay.env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    assert done.stdout == b"y\n"
    until(lambda: not any(p["running"] for p in procs(cay, box).values()), 5)


# ---- shell strings, operands

def test_shell_string(cay, box):
    done = cay.run("exec", box, "-c", "set -o pipefail; echo a b | tr ' ' '\\n' | sort -r; [[ x = x ]] && echo bash")
    assert done.stdout == "b\na\nbash\n"
    refused(cay.run("exec", box, "-c", "true", "--", "false"))
    refused(cay.run("exec", box))


def test_arguments_are_passed_as_they_are(cay, box):
    words = ["", " ", "-v", "--json", "a b", "ü", "$HOME", "*", "line\nbreak", "--"]
    done = cay.run("exec", box, "--", "python3", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(done.stdout) == words


def test_options_after_the_command_are_its_own(cay, box):
    assert cay.run("exec", box, "echo", "-u", "nobody").stdout == "-u nobody\n"


def test_large_arguments(cay, box):
    word = "x" * 100_000
    assert cay.run("exec", box, "--", "python3", "-c", "import sys; print(len(sys.argv[1]))", word).stdout == "100000\n"
    words = ["y" * 1000] * 500
    assert cay.run("exec", box, "--", "python3", "-c", "import sys; print(len(sys.argv))", *words).stdout == "501\n"


# ---- an exec is over when its main process is

def test_a_background_child_does_not_hold_the_exec(cay, box):
    start = time.monotonic()
    done = cay.run("exec", box, "-c", "sleep 76001 & echo started", timeout=30)
    assert (done.stdout, done.returncode) == ("started\n", 0)
    assert time.monotonic() - start < 5
    until(lambda: len(host_pids("76001")) == 1, 5)  # the child lives on
    cay.sh(box, "pkill -f 'sleep 76001'")
    until(lambda: host_pids("76001") == [], 5)


def test_a_background_child_keeps_the_sandbox_in_use(cay, make):
    box = make("--idle", "300ms")
    cay.run("exec", box, "-c", "sleep 1.2 & :", check=True)
    time.sleep(0.7)
    assert state(cay, box) == "running"
    until(lambda: state(cay, box) == "idle", 10)


def test_no_zombies_stay(cay, box):
    cay.run("exec", box, "-c", "for i in $(seq 20); do (sleep 0.01 &) ; done; sleep 0.2", check=True)

    def zombies():
        return cay.sh(box, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true").stdout.strip()

    until(lambda: zombies() == "0", 5)


# ---- crowds

def test_two_hundred_execs_at_once(cay, make):
    box = make("--pids", "2000")
    callers = [cay.popen("exec", box, "-c", f"echo {i}; exit {i % 100}", stdin=subprocess.DEVNULL) for i in range(200)]
    results = [(p.communicate(timeout=120), p.returncode) for p in callers]
    wrong = [(i, r) for i, r in enumerate(results) if r != ((f"{i}\n".encode(), b""), i % 100)]
    assert wrong == []
    until(lambda: info(cay, box)["processes"] == 0, 5)


def test_many_execs_one_after_the_other_do_not_grow_the_keeper(cay, make):
    box = make()
    keeper = info(cay, box)["keeper_pid"]

    def size():
        text = open(f"/proc/{keeper}/smaps_rollup").read()
        return int(text.split("Pss:")[1].split()[0])

    for _ in range(20):
        cay.run("exec", box, "-c", "seq 1000", check=True)
    before = size()
    for _ in range(300):
        cay.run("exec", box, "-c", "seq 1000", check=True)
    assert size() - before < 1500
    assert len(procs(cay, box)) <= 256
    fds = len(os.listdir(f"/proc/{keeper}/fd"))
    assert fds < 300, fds  # ended processes whose output is in a file keep it open


def test_more_commands_than_the_usual_limit_of_open_files(cay):
    """The usual soft limit is 1024 files: a keeper must not run into it before its own limits."""
    script = 'ulimit -Sn 256; exec "$0" create --pids 4000'
    box = subprocess.run(["/bin/bash", "-c", script, cay.program], env=cay.env, text=True, stdout=subprocess.PIPE,
                         check=True).stdout.strip()
    try:
        for _ in range(150):
            background(cay, box, "exec sleep 1000")
        assert sum(p["running"] for p in procs(cay, box).values()) == 150
    finally:
        cay.run("rm", "-f", box, check=True)
