# SPDX-License-Identifier: Apache-2.0
"""POST .../exec: a command's whole result in one answer."""
import base64
import hashlib
import threading
import time

import pytest

from integration.support import until
from integration.test_api import refused

EXIT = {"pid", "exit_code", "signal", "timed_out", "truncated", "oom", "duration_ms", "cpu_ms", "peak_memory"}


def test_result(cayd, cayd_box):
    done = cayd.exec(cayd_box, argv=["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert set(done) == EXIT | {"stdout", "stderr", "encoding"}
    assert done["stdout"] == "out\n" and done["stderr"] == "err\n" and done["encoding"] == "utf8"
    assert done["exit_code"] == 3 and done["signal"] == 0 and done["pid"] > 1
    assert not done["timed_out"] and not done["truncated"] and not done["oom"]
    assert 0 < done["duration_ms"] < 5000 and done["cpu_ms"] >= 0


def test_argv_is_not_a_shell(cayd, cayd_box):
    done = cayd.exec(cayd_box, argv=["echo", "$HOME", "a b", "", "*"])
    assert done["stdout"] == "$HOME a b  *\n"
    assert cayd.exec(cayd_box, "echo $((40 + 2)) | tr 4 5")["stdout"] == "52\n"


@pytest.mark.parametrize("script,code,signal", [
    ("exit 0", 0, 0), ("exit 255", 255, 0), ("kill -9 $$", 137, 9), ("kill -TERM $$", 143, 15)])
def test_exit_codes(cayd, cayd_box, script, code, signal):
    done = cayd.exec(cayd_box, script)
    assert (done["exit_code"], done["signal"]) == (code, signal)


def test_a_command_that_is_not_there(cayd, cayd_box):
    """As a shell says it, and as `cay exec` does: 127, or 126 if it cannot be executed."""
    for argv, code in ((["nosuch-command"], 127), (["/etc/passwd"], 126)):
        answer = cayd.post(f"/sandboxes/{cayd_box}/exec", {"argv": argv})
        if answer.status == 200:
            assert answer.body["exit_code"] == code, answer
        else:
            refused(answer, 404 if code == 127 else 403, "not_found" if code == 127 else "denied")


def test_timeout_is_124(cayd, cayd_box):
    start = time.monotonic()
    done = cayd.exec(cayd_box, "echo before; sleep 60", timeout=0.3)
    assert done["exit_code"] == 124 and done["timed_out"] and done["stdout"] == "before\n"
    assert time.monotonic() - start < 10


def test_environment_user_and_directory(cayd, cayd_make):
    box = cayd_make(env={"A": "1", "B": "2"})
    done = cayd.exec(box, "echo $A $B $C; pwd; id -u", env={"B": "3", "C": "x y"}, cwd="/tmp", user="nobody")
    assert done["stdout"] == "1 3 x y\n/tmp\n65534\n"
    answer = cayd.post(f"/sandboxes/{box}/exec", {"argv": ["true"], "user": "nosuch"})
    assert answer.status in (400, 404) and "nosuch" in answer.error["message"]
    answer = cayd.post(f"/sandboxes/{box}/exec", {"argv": ["true"], "cwd": "/nosuch"})
    assert answer.status in (200, 400, 404), answer
    assert answer.status != 200 or answer.body["exit_code"] in (126, 127), answer


def test_input(cayd, cayd_box):
    assert cayd.exec(cayd_box, argv=["cat"], input="grüße\n")["stdout"] == "grüße\n"
    assert cayd.exec(cayd_box, argv=["wc", "-c"])["stdout"].strip() == "0", "without input there is none"
    blob = bytes(range(256)) * 1000
    done = cayd.exec(cayd_box, argv=["sha256sum"], input_base64=base64.b64encode(blob).decode())
    assert done["stdout"].split()[0] == hashlib.sha256(blob).hexdigest()


def test_input_that_nobody_reads(cayd, cayd_box):
    done = cayd.exec(cayd_box, argv=["true"], input="x" * 900_000)
    assert done["exit_code"] == 0


def test_binary_output(cayd, cayd_box):
    blob = bytes(range(256)) * 20
    done = cayd.exec(cayd_box, argv=["cat"], input_base64=base64.b64encode(blob).decode(), encoding="base64")
    assert done["encoding"] == "base64" and base64.b64decode(done["stdout"]) == blob and done["stderr"] == ""
    text = cayd.exec(cayd_box, "printf 'a\\377b\\303'; printf '\\303\\244' >&2")
    assert text["stdout"] == "a\ufffdb\ufffd" and text["stderr"] == "ä"
    assert cayd.exec(cayd_box, "printf 'a\\000b\\033\"\\\\'")["stdout"] == 'a\0b\x1b"\\'


def test_eight_mebibytes_are_exact_and_memory_is_bounded(cayd, cayd_make):
    box = cayd_make(output="16M")
    before = cayd.rss()
    script = "head -c 8388608 /dev/urandom | tee /tmp/f; sha256sum /tmp/f >&2"
    done = cayd.exec(box, script, encoding="base64", patience=60)
    data = base64.b64decode(done["stdout"])
    assert len(data) == 8 << 20 and not done["truncated"]
    assert hashlib.sha256(data).hexdigest() in base64.b64decode(done["stderr"]).decode()
    assert cayd.rss("VmHWM") - before < 64 << 20, "one answer is held a few times over at most"
    until(lambda: cayd.rss() - before < 24 << 20, 5)


def test_two_streams_at_once(cayd, cayd_box):
    done = cayd.exec(cayd_box, "i=0; while [ $i -lt 2000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done")
    assert done["stdout"] == "".join(f"o{i}\n" for i in range(2000))
    assert done["stderr"] == "".join(f"e{i}\n" for i in range(2000))


@pytest.mark.parametrize("body,field", [
    ({}, "argv"), ({"argv": []}, "argv"), ({"argv": "ls"}, "argv"), ({"argv": [1]}, "argv"),
    ({"shell": ["ls"]}, "shell"),
    ({"argv": ["true"], "shell": "true"}, ""), ({"argv": ["true"], "stdin": True}, "stdin"),
    ({"argv": ["true"], "timeout": "soon"}, "timeout"), ({"argv": ["true"], "timeout": -1}, "timeout"),
    ({"argv": ["true"], "encoding": "latin1"}, "encoding"), ({"argv": ["true"], "input_base64": "!!"}, "input_base64"),
    ({"argv": ["true"], "input": "a", "input_base64": "YQ=="}, ""), ({"argv": ["a\0b"]}, "must not contain NUL"),
    ({"argv": ["true"], "kill_on_disconnect": "yes"}, "kill_on_disconnect"),
    ({"argv": ["true"], "env": {"": "x"}}, "env"),
    ({"argv": ["true"], "cwd": "relative"}, ""), ({"comand": "ls"}, "comand")])
def test_wrong_requests(cayd, cayd_box, body, field):
    answer = cayd.post(f"/sandboxes/{cayd_box}/exec", body)
    if body.get("cwd") and answer.status == 200:
        assert answer.body["exit_code"] in (126, 127)
        return
    refused(answer, 400, "invalid")
    assert field in answer.error["message"] + str(answer.error.get("detail")), answer.error


def test_execs_at_once_do_not_mix(cayd, cayd_box):
    found, failed = {}, []

    def one(number):
        try:
            with cayd.client() as client:
                for turn in range(4):
                    body = {"shell": f"echo {number}.{turn}; sleep 0.01; echo {number}.{turn} >&2"}
                    done = client.post(f"/sandboxes/{cayd_box}/exec", body).body
                    found[number, turn] = (done["stdout"], done["stderr"])
        except Exception as error:  # told below
            failed.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert found == {(n, t): (f"{n}.{t}\n",) * 2 for n in range(24) for t in range(4)}


def test_a_client_that_goes_leaves_the_process_unless_told_otherwise(cayd, cayd_make):
    box = cayd_make()
    for kill in (False, True):
        client = cayd.client()
        client.connection.request("POST", f"/api/v1/sandboxes/{box}/exec",
                                  body=('{"shell":"echo up; exec sleep 61","kill_on_disconnect":%s}' %
                                        str(kill).lower()).encode(), headers={"Content-Type": "application/json"})

        def running():
            listed = cayd.get(f"/sandboxes/{box}/processes").body["processes"]
            return [p for p in listed if p["running"]]

        process = until(running)[0]
        client.close()
        if kill:
            until(lambda: not running(), 5)
        else:
            time.sleep(0.3)
            assert [p["pid"] for p in running()] == [process["pid"]]
            assert cayd.delete(f"/sandboxes/{box}/processes/{process['pid']}").status == 204
            until(lambda: not running(), 5)


def test_the_command_line_and_the_api_say_the_same(cayd, cayd_make):
    box = cayd_make()
    cli = cayd.cay.run("exec", box, "--", "sh", "-c", "echo a; echo b >&2; exit 9")
    api = cayd.exec(box, "echo a; echo b >&2; exit 9")
    assert (cli.stdout, cli.stderr, cli.returncode) == (api["stdout"], api["stderr"], api["exit_code"])
