# SPDX-License-Identifier: Apache-2.0
"""The AIO front: commands and sessions over /aio/KEY/v1, as DeerFlow's AioSandbox calls them. Files: test_aio_files.py.

What each test is about is said in the words of the contract (docs/contracts/aio.md)."""
import json
import re
import threading

import pytest

from integration.support import until
from lib.aio import Aio

SYSTEM = {"os", "os_version", "arch", "user", "home_dir", "timezone", "occupied_ports"}


@pytest.fixture(scope="module")
def aio(cayd, cayd_box):
    return Aio(cayd, cayd_box)


# -- the URL and the key

def test_the_native_route_tells_path_and_url(cayd, cayd_box):
    """A path prefix works as sandbox URL: one daemon port serves http://127.0.0.1:P/aio/KEY/v1/..."""
    answer = cayd.get(f"/sandboxes/{cayd_box}/aio")
    assert answer.status == 200 and set(answer.body) == {"path", "url"}
    assert re.fullmatch(rf"/aio/{cayd_box}\.[A-Za-z0-9_-]{{32}}", answer.body["path"])
    assert answer.body["url"] == f"http://127.0.0.1:{cayd.port}{answer.body['path']}"
    assert cayd.get(f"/sandboxes/{cayd_box}/aio").body == answer.body
    assert cayd.get("/sandboxes/nowhere/aio").status == 404
    assert cayd.get(f"/sandboxes/{cayd_box}/aio?x=1").status == 400


def test_without_tcp_there_is_no_url(daemons):
    """The key works over the unix socket, too."""
    d = daemons()
    aio = Aio(d, d.create(), tcp=False)
    assert aio.url is None and aio.shell("echo hi")["output"] == "hi\n"


def test_both_scopes_are_needed(cayd, cayd_box):
    """Who gets a key can run commands and change files: exec and files are both needed for it."""
    for scopes, status in (("exec", 403), ("files", 403), ("read,create", 403), ("exec,files", 200)):
        token = cayd.token(f"aio-{scopes.replace(',', '-')}", scopes=scopes)
        assert cayd.get(f"/sandboxes/{cayd_box}/aio", token=token).status == status, scopes


def test_a_key_survives_the_daemon(daemons):
    """Keys need no memory: a restarted or killed daemon knows them, and the sessions as well."""
    d = daemons(tcp=True, pool=1)
    aio = Aio(d, d.create())
    aio.data("shell/sessions/create", id="mine")
    aio.shell("cd /usr && export A=b", id="mine")
    for how in ("stop", "kill9"):
        d.restart(how)
        assert aio.shell("pwd; echo $A", id="mine")["output"] == "/usr\nb\n"
    assert Aio(d, aio.path[5:].partition(".")[0]).path == aio.path


# -- GET /v1/sandbox

def test_context(aio):
    """GET /v1/sandbox: 200 = ready; home_dir, version, detail{system,runtime,utils} are there."""
    body = aio.get("sandbox").body
    assert body["success"] is True and body["home_dir"] == "/root" and body["version"]
    assert SYSTEM <= set(body["detail"]["system"]) and body["detail"]["system"]["user"] == "root"
    assert isinstance(body["detail"]["system"]["occupied_ports"], list)
    assert body["detail"]["runtime"]["python"][0]["bin"] == "/usr/bin/python3"
    assert isinstance(body["detail"]["runtime"]["nodejs"], list) and body["detail"]["utils"] == []


def test_context_of_another_user(cayd, cayd_make):
    """home_dir is that of the user whom commands run as."""
    aio = Aio(cayd, cayd_make(user="user", cwd="/workspace"))
    body = aio.get("sandbox").body
    assert body["home_dir"] == "/home/user" and body["detail"]["system"]["user"] == "user"
    assert body["workspace"] == "/workspace" and aio.shell("pwd; id -un")["output"] == "/workspace\nuser\n"


def test_ready_at_once(cayd, cayd_make):
    """The first probe comes at once: a sandbox that was created answers 200."""
    assert Aio(cayd, cayd_make()).get("sandbox").status == 200


def test_not_ready_while_paused(cayd, cayd_make):
    """A sandbox that cannot serve is not ready: no 200."""
    box = cayd_make()
    aio = Aio(cayd, box)
    cayd.post(f"/sandboxes/{box}/pause")
    assert aio.get("sandbox").status == 409
    cayd.post(f"/sandboxes/{box}/resume")
    assert aio.get("sandbox").status == 200


# -- POST /v1/shell/exec

def test_exec(aio):
    """shell/exec {command, no_change_timeout:600}: data{session_id, command, status, output, exit_code, console}."""
    data = aio.shell("echo hi", no_change_timeout=600)
    assert set(data) == {"session_id", "command", "status", "output", "exit_code", "console"}
    assert (data["command"], data["status"], data["output"], data["exit_code"]) == ("echo hi", "completed", "hi\n", 0)
    assert data["session_id"]


def test_both_streams_in_their_order(aio):
    """output is stdout and stderr combined, in order."""
    script = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done"
    assert aio.shell(script)["output"] == "".join(f"out{i}\nerr{i}\n" for i in range(1, 6))


def test_output_is_clean(aio):
    """Clean output: no prompt, echo or ANSI; a middleware compares it with "OK" after strip()."""
    probe = "test -s /etc/passwd && echo OK || echo MISSING"
    assert aio.shell(probe)["output"].strip() == "OK"
    assert aio.shell("tty; ls --color=auto -d /usr; printf 'no newline'")["output"] == "not a tty\n/usr\nno newline"
    assert aio.shell("true")["output"] == ""
    assert aio.shell("cat; read x; echo $?")["output"] == "1\n"


def test_exit_code(aio):
    """exit_code is the command's; a non-zero one is a result, not an error."""
    for command, code in (("exit 3", 3), ("false", 1), ("(exit 7)", 7), ("nosuchcommand", 127), ("", 0), ("# x", 0)):
        data = aio.shell(command)
        assert data["status"] == "completed" and data["exit_code"] == code, command


def test_shell_features(aio):
    """The user's own exit, set -e, set -u and trap work as in bash."""
    assert aio.shell("set -e; false; echo no")["exit_code"] == 1
    data = aio.shell("trap 'echo bye' EXIT; echo hi; exit 4")
    assert (data["output"], data["exit_code"]) == ("hi\nbye\n", 4)
    assert aio.shell("trap 'echo bye' EXIT; echo hi")["output"] == "hi\nbye\n"
    data = aio.shell("set -u; echo $nope; echo no")
    assert data["exit_code"] != 0 and "no\n" not in data["output"].splitlines(True)
    data = aio.shell("set -x; cd /usr")
    assert "_cay" not in data["output"] and "cd /usr" in data["output"]
    assert "syntax error" in aio.shell("if")["output"]
    assert aio.shell("f() { return 5; }; f; echo $? $# \"$0\"")["output"] == "5 0 bash\n"
    assert aio.shell("[[ ab == a* ]] && a=(1 2) && echo ${a[1]}")["output"] == "2\n"


def test_the_command_is_an_argument(aio):
    """The command's text is never pasted into a script."""
    for text in ("echo \"a'b\"", "echo '$x' \\$y `echo z`", "cat <<'E'\n\"; exit 9; '\nE", "echo ä€🏝"):
        want = {0: "a'b\n", 1: "$x $y z\n", 2: "\"; exit 9; '\n", 3: "ä€🏝\n"}
        index = ["echo \"", "echo '", "cat <<", "echo ä"].index(text[:6])
        assert aio.shell(text)["output"] == want[index]


def test_environment_is_the_sandboxs(cayd, cayd_make):
    """Nothing of the front is left in the command's environment."""
    aio = Aio(cayd, cayd_make(env={"GIVEN": "yes"}))
    lines = aio.shell("env")["output"].splitlines()
    assert "GIVEN=yes" in lines and not [line for line in lines if "cay" in line.lower()], lines


def test_background_processes_live_on(aio):
    """`cmd > log 2>&1 &` returns at once and survives."""
    data = aio.shell("(sleep 0.2; echo late; sleep 600) > /tmp/bg.log 2>&1 & echo started; echo $! > /tmp/bg.pid")
    assert data["output"] == "started\n" and data["status"] == "completed"
    until(lambda: aio.shell("cat /tmp/bg.log")["output"] == "late\n")
    assert aio.shell("kill -0 $(cat /tmp/bg.pid) && kill $(cat /tmp/bg.pid)")["exit_code"] == 0
    assert aio.shell("sleep 600 & echo at once")["output"] == "at once\n"


def test_a_session_is_made(aio):
    """No id => the server makes a session, whose id is good for the next command."""
    first = aio.shell("cd /usr; export A=1 B='x y'; C=3; exit 2")
    data = aio.shell("pwd; echo \"$A|$B|$C\"", id=first["session_id"])
    assert data["output"] == "/usr\n1|x y|\n" and data["session_id"] == first["session_id"]
    other = aio.shell("pwd; echo \"$A\"")
    assert other["output"] == "/root\n\n" and other["session_id"] != first["session_id"]


def test_implicit_sessions_do_not_pile_up(aio):
    """Sessions that nobody asked for make room: the oldest go."""
    for _ in range(70):
        last = aio.shell("true")["session_id"]
    assert int(aio.shell("ls -d /tmp/.cay/shell/auto-* | wc -l")["output"]) < 70
    assert aio.shell("echo here", id=last)["output"] == "here\n"


def test_unknown_session(aio):
    """Unknown id => HTTP 404 "Session not found"."""
    for name in ("nope", "auto-0000000000000000", "not/possible", "x" * 65, ".."):
        body = aio.refused("shell/exec", 404, command="touch /tmp/ran", id=name)
        assert body["detail"] == body["message"] == "Session not found"
    assert aio.shell("ls /tmp/ran")["exit_code"] != 0


def test_sessions_create(aio):
    """shell/sessions/create {id}: data{session_id, working_dir}; an existing id returns it."""
    assert aio.data("shell/sessions/create", id="sub-1") == {"session_id": "sub-1", "working_dir": "/root"}
    aio.shell("cd /usr/lib; export KEPT=1", id="sub-1")
    assert aio.data("shell/sessions/create", id="sub-1") == {"session_id": "sub-1", "working_dir": "/usr/lib"}
    assert aio.shell("echo $KEPT", id="sub-1")["output"] == "1\n"
    made = aio.data("shell/sessions/create", exec_dir="/usr/share", no_change_timeout=60)
    assert made["working_dir"] == "/usr/share" and aio.shell("pwd", id=made["session_id"])["output"] == "/usr/share\n"
    assert aio.data("shell/sessions/create", id="550e8400-e29b-41d4-a716-446655440000")["working_dir"] == "/root"
    for name in ("a/b", "../x", "-x", ".x", "x" * 65, "a b", "a\nb"):
        assert aio.refused("shell/sessions/create", 422, id=name)["detail"][0]["loc"] == ["body", "id"]


def test_sessions_list_and_delete(aio):
    """GET shell/sessions lists them; DELETE shell/sessions/{id} -> {success}, and then 404."""
    aio.data("shell/sessions/create", id="gone-soon", exec_dir="/usr")
    sessions = aio.get("shell/sessions").body["data"]["sessions"]
    assert sessions["gone-soon"]["working_dir"] == "/usr"
    assert {"created_at", "last_used_at", "age_seconds", "status"} <= set(sessions["gone-soon"])
    answer = aio.delete("shell/sessions/gone-soon")
    assert answer.status == 200 and answer.body["success"] is True
    assert aio.delete("shell/sessions/gone-soon").body["detail"] == "Session not found"
    assert aio.delete("shell/sessions/gone-soon").status == 404
    aio.refused("shell/exec", 404, command="true", id="gone-soon")
    assert "gone-soon" not in aio.get("shell/sessions").body["data"]["sessions"]


def test_no_sessions_yet(cayd, cayd_make):
    """A sandbox without sessions has an empty list."""
    aio = Aio(cayd, cayd_make())
    assert aio.get("shell/sessions").body["data"] == {"sessions": {}}
    assert aio.get("bash/sessions").body["data"] == []


def test_deleting_a_session_ends_its_command(aio):
    """A session that is removed takes its running command along."""
    aio.data("shell/sessions/create", id="busy")
    aio.shell("sleep 987", id="busy", async_mode=True)
    assert aio.delete("shell/sessions/busy").status == 200
    until(lambda: aio.shell("pgrep -f '^sleep 987'")["exit_code"] == 1)


def test_concurrent_commands_of_one_session(aio):
    """Concurrent commands must not corrupt a session: they run side by side, each with its own output (#1433)."""
    aio.data("shell/sessions/create", id="shared")
    aio.shell("export BASE=1; cd /usr", id="shared")
    results = {}

    def run(i):
        results[i] = aio.shell(f"echo start{i} $BASE; sleep 0.3; export V{i}=x; echo end{i}", id="shared")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {i: r["output"] for i, r in results.items()} == {i: f"start{i} 1\nend{i}\n" for i in range(8)}
    assert aio.shell("pwd; echo $BASE", id="shared")["output"] == "/usr\n1\n"


def test_no_change_timeout(aio):
    """no_change_timeout: so long without output => status no_change_timeout, and the process goes on."""
    aio.data("shell/sessions/create", id="slow")
    command = "echo first; until [ -e /tmp/go ]; do sleep 0.05; done; echo second"
    data = aio.shell(command, id="slow", no_change_timeout=1)
    assert (data["status"], data["output"], data["exit_code"]) == ("no_change_timeout", "first\n", None)
    view = aio.data("shell/view", id="slow")
    assert view["status"] == "running" and view["command"] == command
    aio.shell("touch /tmp/go")
    assert aio.data("shell/wait", id="slow", seconds=20) == {"status": "completed"}
    view = aio.data("shell/view", id="slow")
    assert (view["status"], view["output"], view["exit_code"]) == ("completed", "first\nsecond\n", 0)


def test_output_resets_the_silence(aio):
    """Only silence counts for no_change_timeout, not how long it takes."""
    data = aio.shell("for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done", no_change_timeout=2)
    assert data["status"] == "completed" and data["output"] == "1\n2\n3\n4\n5\n6\n"


def test_timeout_answers_and_leaves_it_running(aio):
    """timeout: how long to wait before the answer is "running"."""
    data = aio.shell("echo a; sleep 600", timeout=1.5)
    assert (data["status"], data["output"], data["exit_code"]) == ("running", "a\n", None)
    assert aio.data("shell/kill", id=data["session_id"])["status"] == "terminated"


def test_hard_timeout(aio):
    """hard_timeout kills the command's whole tree: status hard_timeout, with what it printed."""
    data = aio.shell("echo a; setsid sleep 876 & sleep 876", hard_timeout=1.5)
    assert (data["status"], data["output"], data["exit_code"]) == ("hard_timeout", "a\n", 124)
    assert aio.shell("pgrep -f '^sleep 876'")["exit_code"] == 1


def test_async_mode_and_kill(aio):
    """async_mode answers at once with running; kill ends the tree: terminated."""
    data = aio.shell("echo a; sleep 765", async_mode=True)
    assert (data["status"], data["exit_code"]) == ("running", None)
    session = data["session_id"]
    until(lambda: aio.data("shell/view", id=session)["output"] == "a\n")
    assert aio.data("shell/wait", id=session, max_wait_seconds=0.1) == {"status": "running"}
    killed = aio.data("shell/kill", id=session)
    assert killed == {"status": "terminated", "exit_code": 137, "returncode": 137}
    assert aio.data("shell/view", id=session)["status"] == "terminated"
    assert aio.shell("pgrep -f '^sleep 765'")["exit_code"] == 1


def test_view_wait_kill_of_a_session_without_commands(aio):
    """A session that has done nothing is completed; one that is not there is 404."""
    aio.data("shell/sessions/create", id="idle")
    assert aio.data("shell/view", id="idle")["output"] == ""
    assert aio.data("shell/wait", id="idle") == {"status": "completed"}
    assert aio.data("shell/kill", id="idle")["exit_code"] is None
    for call in ("shell/view", "shell/wait", "shell/kill"):
        assert aio.refused(call, 404, id="nope")["detail"] == "Session not found"


def test_truncation(aio):
    """30000 characters at most, the middle left out, unless truncate=false."""
    whole = "".join(f"{i}\n" for i in range(1, 20001))
    cut = aio.shell("seq 20000")["output"]
    head, _, rest = cut.partition("\n[... ")
    missing, _, tail = rest.partition(" bytes left out ...]\n")
    assert len(head) == len(tail) == 15000 and whole.startswith(head) and whole.endswith(tail)
    assert int(missing) == len(whole) - 30000
    assert aio.shell("seq 20000", truncate=False)["output"] == whole
    short = "x" * 29999 + "\n"
    assert aio.shell("head -c 29999 /dev/zero | tr '\\0' x; echo")["output"] == short
    assert len(aio.shell("yes € | head -c 400000")["output"]) < 30100


def test_more_output_than_is_kept(aio):
    """Whatever is printed, the answer is bounded."""
    data = aio.shell("head -c 30000000 /dev/zero | tr '\\0' x; echo end", truncate=False)
    assert 8 << 20 <= len(data["output"]) < (8 << 20) + 100
    assert "bytes left out" in data["output"] and data["output"].endswith("xend\n")


def test_bytes_that_are_no_text(aio):
    """What is no UTF-8 becomes U+FFFD; the answer is JSON."""
    assert aio.shell("printf 'a\\377b\\0c\\033[1m'")["output"] == "a\ufffdb\0c\x1b[1m"


def test_exec_dir(aio):
    """exec_dir is where it runs; one that is not there is passed over, unless strict."""
    assert aio.shell("pwd", exec_dir="/usr/bin")["output"] == "/usr/bin\n"
    assert aio.shell("pwd", exec_dir="/nope")["output"] == "/root\n"
    data = aio.shell("touch /tmp/ran", exec_dir="/nope", strict=True)
    assert data["exit_code"] == 1 and "/nope" in data["output"] and aio.shell("ls /tmp/ran")["exit_code"] != 0
    aio.shell("ln -sfn /usr/bin /tmp/link")
    assert aio.shell("pwd", exec_dir="/tmp/link")["output"] == "/usr/bin\n"
    assert aio.shell("pwd", exec_dir="/tmp/link", preserve_symlinks=True)["output"] == "/tmp/link\n"
    aio.refused("shell/exec", 422, command="pwd", exec_dir="relative")


def test_bodies(aio):
    """Extra keys are allowed; what is missing or of a wrong type is 422 with the member's name."""
    assert aio.shell("echo hi", future_option={"a": 1}, id=None, timeout=None)["output"] == "hi\n"
    for body, field in (({}, "command"), ({"command": 1}, "command"), ({"command": "x", "id": 5}, "id"),
                        ({"command": "x", "hard_timeout": "soon"}, "hard_timeout"),
                        ({"command": "x", "no_change_timeout": -1}, "no_change_timeout"),
                        ({"command": "x" * 200000}, "command")):
        detail = aio.refused("shell/exec", 422, **body)["detail"]
        assert detail[0]["loc"] == ["body", field] and detail[0]["msg"] and detail[0]["type"], detail
    for text in (b"{", b"[]", b"\xff", b'{"command":"a","command":"b"}'):
        answer = aio.request("POST", "shell/exec", body=text, headers={"Content-Type": "application/json"})
        assert answer.status == 422 and isinstance(answer.body["detail"], list), text
    answer = aio.request("POST", "shell/exec", body=b'{"command":"x"}', headers={"Content-Type": "text/plain"})
    assert answer.status == 422


def test_a_long_command(aio):
    """A command may be as long as an argument of a program."""
    text = "x" * 100000
    assert aio.shell(f"printf %s {text} | wc -c")["output"] == "100000\n"


def test_without_bash(cayd, cayd_make):
    """Where there is no bash, sh runs the commands, sessions included."""
    aio = Aio(cayd, cayd_make())
    aio.shell("rm /usr/bin/bash")
    data = aio.shell("echo \"${BASH_VERSION:-none}\"; cd /usr; export A=1; exit 5")
    assert (data["output"], data["exit_code"]) == ("none\n", 5)
    assert aio.shell("pwd; echo $A", id=data["session_id"])["output"] == "/usr\n1\n"
    assert aio.bash("echo $T", env={"T": "x"})["stdout"] == "x\n"
    aio.shell("sleep 600", id=data["session_id"], async_mode=True)
    assert aio.data("shell/kill", id=data["session_id"])["status"] == "terminated"


def test_other_paths_and_methods(aio):
    """What is not there is 404, what cannot be done 405."""
    assert aio.get("nope").status == 404 and aio.get("shell/exec").status == 405
    assert aio.get("shell/exec").headers["Allow"] == "POST"
    assert aio.request("POST", "file/upload", body=b"x").status == 404


# -- POST /v1/bash/exec

def test_bash_exec(aio):
    """bash/exec: data{session_id, command_id, command, status, stdout, stderr, exit_code, offset, stderr_offset}."""
    data = aio.bash("echo out; echo error >&2; exit 3", env={}, hard_timeout=600.0)
    assert set(data) == {"session_id", "command_id", "command", "status", "stdout", "stderr", "exit_code", "offset",
                         "stderr_offset"}
    assert (data["status"], data["stdout"], data["stderr"], data["exit_code"]) == ("completed", "out\n", "error\n", 3)
    assert (data["offset"], data["stderr_offset"]) == (4, 6)
    assert data["session_id"] and data["command_id"]


def test_bash_env(aio):
    """env: only for this command; keys are ^[A-Za-z_][A-Za-z0-9_]*$ or it is refused."""
    data = aio.bash("echo \"$TOKEN\"; env | grep -c TOKEN; export OTHER=1", env={"TOKEN": "s3 'c\n\"$r", "_x9": ""})
    assert data["stdout"] == "s3 'c\n\"$r\n1\n"
    again = aio.bash("echo \"[$TOKEN]\" $OTHER", session_id=data["session_id"])
    assert again["stdout"] == "[] 1\n"
    assert aio.shell("grep -rl 's3 ' /tmp/.cay; echo done")["output"] == "done\n"
    for key in ("a-b", "1a", "", "a b", "a=b", "ä", "a;id", "$(id)"):
        body = aio.refused("bash/exec", 422, command="touch /tmp/ran", env={key: "x"})
        assert body["detail"][0]["loc"] == ["body", "env"], key
    assert aio.shell("ls /tmp/ran")["exit_code"] != 0


def test_bash_env_over_a_sessions_own(aio):
    """A variable of the session is back after a command that had another value for it."""
    session = aio.bash("export A=old; IFS=,")["session_id"]
    assert aio.bash("echo $A; IFS=,", session_id=session, env={"A": "new", "B": "x"})["stdout"] == "new\n"
    assert aio.bash("echo $A $B", session_id=session)["stdout"] == "old\n"


def test_bash_without_stdin(aio):
    """The command may be prefixed with `exec < /dev/null`."""
    assert aio.bash("exec < /dev/null\necho ok", env={"A": "b"})["stdout"] == "ok\n"


def test_bash_hard_timeout(aio):
    """hard_timeout: status timed_out, with what was printed; the tree is killed."""
    data = aio.bash("echo a; echo b >&2; sleep 654", hard_timeout=1.5)
    assert (data["status"], data["stdout"], data["stderr"], data["exit_code"]) == ("timed_out", "a\n", "b\n", 124)
    assert aio.shell("pgrep -f '^sleep 654'")["exit_code"] == 1


def test_bash_sessions(aio):
    """bash/sessions/create and /v1/bash/sessions/{id}/close; unknown ones are 404."""
    made = aio.data("bash/sessions/create", session_id="b1", exec_dir="/usr")
    assert made["session_id"] == "b1" and made["working_dir"] == "/usr" and made["status"] == "ready"
    assert aio.bash("pwd; cd /var", session_id="b1")["stdout"] == "/usr\n"
    assert aio.bash("pwd", session_id="b1")["stdout"] == "/var\n"
    assert "b1" in [s["session_id"] for s in aio.get("bash/sessions").body["data"]]
    aio.bash("sleep 543", session_id="b1", async_mode=True)
    assert aio.post("bash/sessions/b1/close").body["success"] is True
    assert aio.post("bash/sessions/b1/close").status == 404
    assert aio.refused("bash/exec", 404, command="true", session_id="b1")["detail"] == "Session not found"
    until(lambda: aio.shell("pgrep -f '^sleep 543'")["exit_code"] == 1)
    assert aio.data("bash/sessions/create")["session_id"]


def test_bash_output(aio):
    """bash/output: what is new since the offsets, at once or when it comes."""
    data = aio.bash("echo a; echo b >&2; sleep 0.5; echo c; exit 2", async_mode=True)
    assert data["status"] == "running"
    seen = aio.data("bash/output", session_id=data["session_id"], wait=True, wait_timeout=20)
    assert "a\n" in seen["stdout"]
    first = aio.data("bash/output", session_id=data["session_id"], command_id=data["command_id"])
    assert first["command"]["status"] in ("running", "completed") and first["stdout"].startswith("a\n")
    rest = aio.data("bash/output", session_id=data["session_id"], offset=2, stderr_offset=2, wait=True, wait_timeout=20)
    assert (rest["stdout"], rest["stderr"], rest["offset"], rest["stderr_offset"]) == ("c\n", "", 4, 2)
    until(lambda: aio.data("bash/output", session_id=data["session_id"])["command"]["status"] == "completed")
    assert aio.data("bash/output", session_id=data["session_id"])["command"]["exit_code"] == 2
    aio.refused("bash/output", 404, session_id="nope")


LINES = "seq -f 'line %010.0f' "  # 16 bytes each, with the newline


def lines(first, last):
    return "".join(f"line {i:010d}\n" for i in range(first, last + 1))


def left_out(text):
    """How many bytes are missing before a text, and the text."""
    found = re.match(r"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n", text)
    assert found, text[:100]
    return int(found[1]), text[found.end():]


def test_bash_output_of_more_than_is_kept(cayd, cayd_make):
    """A client that keeps up gets every byte, however much is printed all in all."""
    aio = Aio(cayd, cayd_make(output=65536))
    data = aio.bash(f"for i in 0 1 2 3 4 5; do {LINES} $((i * 2500 + 1)) $((i * 2500 + 2500)); echo step$i >&2; "
                    "until [ -e /tmp/go$i ]; do sleep 0.02; done; done", async_mode=True)
    at, got, errors = {"offset": 0, "stderr_offset": 0}, "", ""

    def poll():
        nonlocal got, errors
        new = aio.data("bash/output", session_id=data["session_id"], command_id=data["command_id"], **at)
        at.update(offset=new["offset"], stderr_offset=new["stderr_offset"])
        got, errors = got + new["stdout"], errors + new["stderr"]
        return new["command"]["status"]

    for i in range(6):
        until(lambda: poll() and errors.endswith(f"step{i}\n") and len(got) >= (i + 1) * 40000)
        aio.shell(f"touch /tmp/go{i}")
    until(lambda: poll() == "completed")
    assert got == lines(1, 15000) and errors == "".join(f"step{i}\n" for i in range(6))
    assert at == {"offset": len(got), "stderr_offset": len(errors)}


def test_bash_output_that_is_not_kept(cayd, cayd_make):
    """A client that does not keep up is told how many bytes of which stream it missed."""
    aio = Aio(cayd, cayd_make(output=65536))
    data = aio.bash(f"echo early >&2; {LINES} 20000; touch /tmp/printed; until [ -e /tmp/go ]; do sleep 0.02; done; "
                    f"{LINES} 20001 20003; echo late >&2", async_mode=True)
    until(lambda: aio.shell("ls /tmp/printed")["exit_code"] == 0)
    until(lambda: aio.data("bash/output", **{k: data[k] for k in ("session_id", "command_id")})["offset"] == 320000)
    first = aio.data("bash/output", session_id=data["session_id"], wait=False)
    missing, text = left_out(first["stdout"])
    assert missing >= 320000 - 65536 and lines(1, 20000)[missing:] == text
    assert (left_out(first["stderr"]), first["stderr_offset"]) == ((6, ""), 6)
    aio.shell("touch /tmp/go")
    at = {"offset": first["offset"], "stderr_offset": first["stderr_offset"]}
    until(lambda: aio.data("bash/output", session_id=data["session_id"], **at)["command"]["status"] == "completed")
    rest = aio.data("bash/output", session_id=data["session_id"], **at)
    assert (rest["stdout"], rest["stderr"], rest["offset"]) == (lines(20001, 20003), "late\n", 320048)


def test_shell_view_of_output_that_is_not_kept(cayd, cayd_make):
    """shell/view tells how much is missing at its beginning."""
    aio = Aio(cayd, cayd_make(output=65536))
    data = aio.shell(f"{LINES} 20000; touch /tmp/printed; sleep 600", async_mode=True)
    until(lambda: aio.shell("ls /tmp/printed")["exit_code"] == 0)
    until(lambda: aio.data("shell/view", id=data["session_id"])["output"].endswith(lines(20000, 20000)))
    missing, text = left_out(aio.data("shell/view", id=data["session_id"])["output"])
    assert lines(1, 20000)[missing:] == text


def test_bash_output_of_a_command_that_is_not_known(aio):
    """What is not kept at all is an error, and not an empty output."""
    session = aio.bash("true")["session_id"]
    aio.refused("bash/output", 404, session_id=session, command_id="999999")


def test_a_character_across_two_answers(aio):
    """A character whose end has not come is in the next answer, whole; at the end of the command it is given out."""
    cut = "printf 'caf\\303' | tee /dev/stderr; until [ -e {} ]; do sleep 0.02; done; printf '\\251 ok\\n\\303'"
    data = aio.bash(cut.format("/tmp/half"), timeout=1)
    assert data["status"] == "running"
    if data["offset"] == 0:  # a slow machine
        until(lambda: aio.data("bash/output", session_id=data["session_id"], wait=False)["offset"] == 3)
    else:
        assert (data["stdout"], data["offset"], data["stderr"], data["stderr_offset"]) == ("caf", 3, "caf", 3)
    half = aio.data("bash/output", session_id=data["session_id"], offset=1, stderr_offset=3, wait=False)
    assert (half["stdout"], half["offset"], half["stderr"], half["stderr_offset"]) == ("af", 3, "", 3)
    aio.shell("touch /tmp/half")
    at = {"session_id": data["session_id"], "offset": 3, "stderr_offset": 3}
    until(lambda: aio.data("bash/output", **at)["command"]["status"] == "completed")
    rest = aio.data("bash/output", **at)
    assert (rest["stdout"], rest["offset"]) == ("\u00e9 ok\n\ufffd", 10)
    assert (rest["stderr"], rest["stderr_offset"]) == ("\ufffd", 4)


def test_bash_timeout_and_kill(aio):
    """timeout answers "running"; kill sends a signal to the command's tree: killed."""
    data = aio.bash("sleep 432", timeout=0.2)
    assert data["status"] == "running" and data["exit_code"] is None
    aio.data("bash/kill", session_id=data["session_id"], signal="SIGTERM")
    until(lambda: aio.data("bash/output", session_id=data["session_id"])["command"]["status"] == "killed")


def test_bash_max_output_length(aio):
    """max_output_length leaves out the middle of either stream."""
    data = aio.bash("seq 1000; seq 1000 >&2", max_output_length=100)
    for text in (data["stdout"], data["stderr"]):
        assert text.startswith("1\n2\n") and text.endswith("1000\n") and len(text) < 150
    assert len(aio.bash("seq 100000", max_output_length=0)["stdout"]) == 588895


# -- what is written down

def test_audit(cayd, cayd_make):
    """Requests by key are in the audit log, as front:aio, with the command; and count as commands."""
    box = cayd_make()
    aio = Aio(cayd, box)
    aio.bash("echo $T", env={"T": "secret-value"})
    aio.write("/tmp/a", "x")
    entries = cayd.get(f"/audit?sandbox={box}").body["entries"]
    found = {e["action"]: e for e in entries if e["who"] == "front:aio"}
    assert found["exec"]["detail"]["argv"] == ["sh", "-c", "echo $T"] and found["exec"]["detail"]["env"] == ["T"]
    assert found["write"]["detail"]["path"] == "/tmp/a"
    assert "secret-value" not in json.dumps(entries) and aio.path not in json.dumps(entries)


def test_metrics(cayd, aio):
    """Requests by key are counted as a route of their own."""
    text = cayd.get("/metrics").body.decode()
    assert re.search(r'cay_requests_total\{method="",route="/aio/\{key\}",result="2xx"\} [1-9]', text)


def test_quota_of_commands(daemons):
    """A tenant's limit on running commands holds for requests by key."""
    d = daemons(tcp=True, policy="[tenant acme]\nexecs_max = 1\n")
    token = d.token("acme", tenant="acme")
    aio = Aio(d, d.create(token=token), token=token)
    session = aio.shell("sleep 600", async_mode=True)["session_id"]
    assert aio.refused("shell/exec", 429, command="true")["code"] == "limit"
    aio.data("shell/kill", id=session)
    until(lambda: aio.post("shell/exec", command="true").status == 200)


def test_a_daemon_that_is_killed_loses_no_command(daemons):
    """Killing the daemon in the middle of a command loses neither the process nor its output."""
    d = daemons(tcp=True)
    aio = Aio(d, d.create())
    session = aio.shell("sleep 0.5; echo done", async_mode=True)["session_id"]
    d.restart("kill9")
    assert aio.data("shell/wait", id=session, seconds=20) == {"status": "completed"}
    assert aio.data("shell/view", id=session)["output"] == "done\n"


def test_a_client_that_goes_away(aio):
    """Its command has some seconds: time for a client to come back, and wait."""
    with pytest.raises(TimeoutError):
        aio.post("shell/exec", patience=1, command="sleep 2; echo x > /tmp/went-on")
    until(lambda: aio.shell("cat /tmp/went-on")["output"] == "x\n")


