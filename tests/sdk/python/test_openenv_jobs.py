# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.openenv against a real cayd: background jobs, files, and the end of a sandbox."""
import hashlib
import threading
import time

import pytest
from openenv_kit import backend, box, fresh, name, until  # noqa: F401 (fixtures)

import cay as sdk
from cay.adapters.openenv import CayBgJob, CaySandboxHandle, ExecResult


# -- start_bg and BgJob


def test_start_bg_is_bash_and_returns_at_once(box):
    """start_bg: a bash string with &&, pipes and redirections; returns while it runs."""
    path = name()
    job = box.start_bg(f"mkdir -p {path} && cd {path} && while [ ! -e go ]; do sleep 0.02; done | cat && "
                       f"echo $X | tee out.log > copy 2>&1", envs={"X": "value"})
    with pytest.raises(TimeoutError):
        job.wait(timeout=0)
    until(lambda: box.exists(path))
    box.write_text(f"{path}/go", "")
    assert job.wait(timeout=30) == 0
    assert box.read_text(f"{path}/copy") == "value\n" == box.read_text(f"{path}/out.log")


def test_start_bg_cwd(box):
    """start_bg takes a cwd."""
    path = name()
    assert box.start_bg(f"pwd > {path}", cwd="/tmp").wait() == 0
    assert box.read_text(path) == "/tmp\n"


def test_unread_output_does_not_block_a_job(box):
    """Unread stdout is drained: a job that prints more than any pipe holds ends."""
    assert box.start_bg("head -c 80000000 /dev/zero; head -c 1000000 /dev/zero >&2").wait(timeout=60) == 0


def test_start_bg_that_cannot_start_is_a_runtime_error(box):
    """raises RuntimeError if it cannot start."""
    with pytest.raises(RuntimeError, match="env"):
        box.start_bg("true", envs={"NOT=A=NAME": "x"})


def test_pid_is_the_one_in_the_sandbox(box):
    """pid: a real int, the process's number inside of the sandbox."""
    job = box.start_bg("echo $$ > /tmp/pid.new && mv /tmp/pid.new /tmp/pid && exec sleep 1000")
    assert type(job.pid) is int
    until(lambda: box.exists("/tmp/pid"))
    assert int(box.read_text("/tmp/pid")) == job.pid
    assert box.exec(f"kill -0 {job.pid}").exit_code == 0
    job.kill()


def test_wait_times_out_and_can_be_repeated(box):
    """wait(timeout): builtin TimeoutError; the process keeps running; wait may be called again."""
    path = name()
    job = box.start_bg(f"while [ ! -e {path} ]; do sleep 0.02; done; exit 7")
    for timeout in (0, 0.1, 0.1):
        with pytest.raises(TimeoutError):
            job.wait(timeout=timeout)
    assert box.exec(f"kill -0 {job.pid}").exit_code == 0
    box.write_text(path, "")
    assert job.wait() == 7


def test_wait_zero_of_a_finished_job_is_its_code(box):
    """wait(timeout=0): one probe, the code if finished; repeated calls return the same."""
    job = box.start_bg("exit 5")
    code = None
    while code is None:
        try:
            code = job.wait(timeout=0)
        except TimeoutError:
            time.sleep(0.01)
    assert code == 5 == job.wait(timeout=0) == job.wait()


def test_the_code_outlives_the_sandbox(fresh):
    """Repeat calls after exit return the same code, whatever became of the sandbox."""
    handle = fresh()
    job = handle.start_bg("exit 6")
    assert job.wait() == 6
    handle.kill()
    assert job.wait() == 6
    job.kill()
    assert job.wait(timeout=0) == 6


def test_the_code_of_a_pipeline_is_that_of_bash(box):
    """No pipefail: a pipeline ends with the code of its last part."""
    assert box.start_bg("false | cat").wait() == 0
    assert box.start_bg("true | false").wait() == 1


def test_kill_ends_the_whole_tree_and_wait_is_137(box):
    """kill(): idempotent, never raises, children included; wait then returns an int."""
    job = box.start_bg("(setsid sleep 4343 &); bash -c 'sleep 4344' | cat")
    until(lambda: len(box.exec("pgrep -f 'sleep 434[34]'").stdout.split()) >= 2)
    job.kill()
    job.kill()
    assert job.wait() == 137 == job.wait(timeout=0)
    assert box.exec("pgrep -f 'sleep 434[34]'").stdout == ""
    job.kill()


def test_wait_is_released_by_kill(box):
    """After kill() a wait in another thread does not hang."""
    job = box.start_bg("sleep 1000")
    found = []
    waiter = threading.Thread(target=lambda: found.append(job.wait()))
    waiter.start()
    job.kill()
    waiter.join(30)
    assert found == [137]


def test_kill_of_a_job_then_of_the_sandbox(fresh):
    """What session.close() does: jobs, then the sandbox; wait still returns an int."""
    handle = fresh()
    job = handle.start_bg("sleep 1000")
    job.kill()
    handle.kill()
    assert isinstance(job.wait(timeout=5), int)


def test_wait_after_the_sandbox_is_gone_is_a_runtime_error(fresh):
    """Vanished because the sandbox was torn down: RuntimeError; kill() is still silent."""
    handle = fresh()
    job = handle.start_bg("sleep 1000")
    handle.kill()
    with pytest.raises(RuntimeError, match=handle.sandbox_id):
        job.wait(timeout=5)
    job.kill()


def test_kill_without_a_daemon_does_not_raise(tmp_path, caplog):
    """kill() of job and sandbox never raise, not even without a daemon; the log tells."""
    handle = CaySandboxHandle(sdk.Cay(f"unix:{tmp_path}/none.sock").attach("0123456789ab"), "/home/user")
    job = CayBgJob(handle.raw.process(7))
    job.kill()
    handle.kill()
    assert "process 7 may still run" in caplog.text and "sandbox 0123456789ab is left to its ttl" in caplog.text
    with pytest.raises(RuntimeError, match="cannot reach cayd"):
        job.wait()


# -- files


def test_write_text_makes_parents_and_overwrites(box):
    """write_text: parents auto-created, overwrite."""
    path = f"{name()}/a/b/c.txt"
    box.write_text(path, "first, longer")
    box.write_text(path, "second")
    assert box.read_text(path) == "second"


@pytest.mark.parametrize("text", ["", "a\nb\n", "a\r\nb\r\n", "'q' \"d\" $HOME $(id) `id` \\ %s",
                                  "\u00e9\u4e16\U0001f600", "no newline", "\0nul"])
def test_text_comes_back_as_it_was(box, text):
    """UTF-8, no newline translation; quotes, $ and many lines are safe."""
    path = name()
    box.write_text(path, text)
    assert box.read_text(path) == text
    assert box.exec(f"sha256sum < {path}").stdout.split()[0] == hashlib.sha256(text.encode()).hexdigest()


def test_large_files(box):
    """Large files: no argv in between."""
    text = "".join(f"line {i} \u00e9\n" for i in range(300_000))
    box.write_text("/tmp/large", text)
    assert box.read_text("/tmp/large") == text


def test_relative_paths_are_below_home(box):
    """A relative path without a parent must not fail."""
    box.write_text("bare.txt", "bare")
    assert box.read_text("/home/user/bare.txt") == "bare" == box.read_text("bare.txt")
    assert box.exists("bare.txt") and box.exec("cat bare.txt").stdout == "bare"


def test_written_files_belong_to_the_user_of_exec(box):
    """Files are readable and writable by the user that exec runs as, and so are the directories."""
    path = name()
    box.write_text(f"{path}/d/f", "one\n")
    done = box.exec(f"stat -c %U {path} {path}/d {path}/d/f; echo two >> {path}/d/f; touch {path}/d/g; rm {path}/d/g")
    assert done == ExecResult(0, "user\nuser\nuser\n", "")
    assert box.read_text(f"{path}/d/f") == "one\ntwo\n"


def test_write_text_fails_with_a_runtime_error(box):
    """RuntimeError on failure: no permission, a directory in the way."""
    for path in ("/etc/passwd", "/home/user", "/proc/none"):
        with pytest.raises(RuntimeError, match=path):
            box.write_text(path, "x")


def test_read_text_of_a_missing_file_is_file_not_found(box):
    """read_text: missing => FileNotFoundError."""
    box.write_text("/tmp/plain", "x")
    for path in ("/no/such/file", "/tmp/plain/below"):
        with pytest.raises(FileNotFoundError) as caught:
            box.read_text(path)
        assert caught.value.filename == path


def test_read_text_of_a_directory_is_a_runtime_error(box):
    """What is there but cannot be read is another error."""
    with pytest.raises(RuntimeError, match="directory"):
        box.read_text("/home/user")


def test_read_text_of_what_is_not_utf8_raises(box):
    """Non-UTF-8: UnicodeDecodeError, so that the harness lists the file apart."""
    box.exec(r"printf 'a\xff' > /tmp/binary")
    with pytest.raises(UnicodeDecodeError):
        box.read_text("/tmp/binary")


def test_read_text_while_it_is_appended_to(box):
    """Must read while the file is being appended."""
    path = name()
    job = box.start_bg(f"i=0; while :; do echo line $((i++)) >> {path}; done")
    until(lambda: box.exists(path))
    sizes = []
    for _ in range(5):
        text = box.read_text(path)
        lines = text.splitlines()
        assert lines[:-1] == [f"line {i}" for i in range(len(lines) - 1)]
        sizes.append(len(text))
    job.kill()
    assert sizes == sorted(sizes)


def test_exists(box):
    """exists: as test -e. True for files and directories, false for what is missing; no exception."""
    box.exec("touch /tmp/here; ln -sfn /tmp/here /tmp/good; ln -sfn /no/such /tmp/dangling; mkdir -p /tmp/dir")
    found = {path: box.exists(path) for path in
             ("/tmp/here", "/tmp/dir", "/", "/tmp/good", "/tmp/dangling", "/no/such", "/tmp/here/below")}
    assert found == {"/tmp/here": True, "/tmp/dir": True, "/": True, "/tmp/good": True, "/tmp/dangling": False,
                     "/no/such": False, "/tmp/here/below": False}
    assert box.exists("/root/.bashrc") == (box.exec("test -e /root/.bashrc").exit_code == 0)


def test_exists_never_raises(fresh, caplog):
    """exists: no exception, also when the sandbox is gone; the log tells."""
    handle = fresh()
    handle.kill()
    assert handle.exists("/tmp") is False
    assert "cannot tell" in caplog.text


# -- kill


def test_kill_is_idempotent_and_takes_everything_along(backend, cay):
    """kill(): idempotent, must not raise; destroys the sandbox and all background jobs."""
    handle = backend.create()
    handle.start_bg("sleep 1000")
    handle.kill()
    handle.kill()
    with pytest.raises(sdk.NotFound):
        cay.get(handle.sandbox_id)


def test_kill_after_the_ttl_does_not_raise(backend, cay):
    """A sandbox whose lifetime is over is removed just so."""
    handle = backend.create(timeout_s=0.3)
    until(lambda: not handle.raw.refresh().live)
    handle.kill()
    assert handle.sandbox_id not in {info.id for info in cay.list()}
