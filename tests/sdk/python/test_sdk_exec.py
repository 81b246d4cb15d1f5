# SPDX-License-Identifier: Apache-2.0
"""Commands and processes, for both twins."""
import asyncio
import concurrent.futures
import hashlib
import itertools
import signal

import pytest

import cay as sdk


# -- exec

def test_a_shell_and_a_program(twin, sandbox):
    """A text is run by a shell, a sequence is a program with its arguments, as they are."""
    done = twin(sandbox.exec("echo $((6 * 7)); echo oops >&2; exit 3"))
    assert (done.exit_code, done.stdout, done.stderr, done.ok) == (3, "42\n", "oops\n", False)
    done = twin(sandbox.exec(["printf", "%s|", "$HOME", "a b", "*"]))
    assert (done.exit_code, done.stdout, done.stderr, done.ok) == (0, "$HOME|a b|*|", "", True)
    assert done.pid > 0 and done.duration_ms >= 0 and done.peak_memory > 0
    assert not (done.signal or done.timed_out or done.truncated or done.oom)
    assert twin(sandbox.exec(("echo", "tuple"))).stdout == "tuple\n"


def test_environment_directory_user(twin, sandbox):
    done = twin(sandbox.exec("echo $GREETING; pwd; id -un", env={"GREETING": "hällo"}, cwd="/tmp", user="user"))
    assert done.stdout == "hällo\n/tmp\nuser\n"


def test_input(twin, sandbox):
    """Text, bytes, bytes that are no text, NUL; none at all is the end of it at once."""
    for given in ("hällo\n", b"bytes", "a\0b", ""):
        data = given.encode() if isinstance(given, str) else given
        assert twin(sandbox.exec_bytes("cat", input=given)).stdout == data
    assert twin(sandbox.exec("cat")).stdout == ""


def test_output_that_is_not_text(twin, sandbox):
    """U+FFFD in a text; byte for byte in bytes."""
    every = bytes(range(256)) * 300
    assert twin(sandbox.exec_bytes("cat; cat >&2", input=every)).stdout == every
    done = twin(sandbox.exec_bytes(r"printf '\377\0x'; printf '\376' >&2; exit 4"))
    assert (done.stdout, done.stderr, done.exit_code) == (b"\xff\0x", b"\xfe", 4)
    assert twin(sandbox.exec(r"printf 'a\377b'")).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_timeout_of_exec(twin, sandbox):
    """124 and `timed_out`, with what had been written; an exit and not an error."""
    done = twin(sandbox.exec("echo begun; sleep 1000", timeout=0.2))
    assert (done.exit_code, done.timed_out, done.stdout) == (124, True, "begun\n")


def test_a_signal_and_a_missing_program(twin, sandbox):
    done = twin(sandbox.exec("kill -9 $$"))
    assert (done.exit_code, done.signal) == (137, 9)
    assert twin(sandbox.exec("/no/such")).exit_code == 127  # so says the shell
    with pytest.raises(sdk.NotFound):
        twin(sandbox.exec(["/no/such"]))


@pytest.mark.parametrize("wrong", [dict(command=""), dict(command=[]), dict(command="true", cwd="relative"),
                                   dict(command="true", timeout=-1), dict(command="true", env={"A=B": ""}),
                                   dict(command="true", user="nobody-of-that-name")])
def test_wrong_arguments(twin, sandbox, wrong):
    with pytest.raises((sdk.Invalid, sdk.NotFound)):
        twin(sandbox.exec(**wrong))


def test_many_at_once_async(acay):
    """One client, one sandbox, 40 commands at the same time."""
    async def body(client):
        async with client.sandbox() as box:
            done = await asyncio.gather(*(box.exec(f"echo {n}") for n in range(40)))
            assert [one.stdout for one in done] == [f"{n}\n" for n in range(40)]

    acay(body)


def test_many_at_once_threads(cay, box):
    """One client for 8 threads."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: box.exec(f"echo {n}").stdout, range(40))) == [f"{n}\n" for n in range(40)]


def test_one_client_in_many_event_loops(host, box):
    """Connections belong to a loop; a client does not."""
    client = sdk.AsyncCay(host)
    attached = client.attach(box.id)

    async def use(n):
        return (await attached.exec(f"echo {n}")).stdout

    assert [asyncio.run(use(n)) for n in range(3)] == ["0\n", "1\n", "2\n"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: asyncio.run(use(n)), range(12))) == [f"{n}\n" for n in range(12)]
    assert len(client._http._clients._by_loop) <= 5, "clients of loops that are closed are kept"
    asyncio.run(client.aclose())


# -- processes

def test_output_as_it_comes(twin, sandbox):
    """Pieces with their stream and offset, while the process runs."""
    process = twin(sandbox.start("echo one; read line; echo $line >&2; read line; echo three", stdin=True))
    output = process.output()
    assert twin.next(output) == sdk.Output("stdout", b"one\n", 0)
    twin(process.write("two\n"))
    two = twin.next(output)
    assert (two, two.end) == (sdk.Output("stderr", b"two\n", 4), 8)
    assert twin(process.poll()) is None
    twin(process.write(b"\n"))
    assert twin(output) == [sdk.Output("stdout", b"three\n", 8)]
    assert twin(process.wait()).exit_code == 0
    assert twin(process.output(since=6)) == [sdk.Output("stderr", b"o\n", 6), sdk.Output("stdout", b"three\n", 8)]


def test_output_so_far(twin, sandbox):
    """Without `follow`: what is there, without waiting for more."""
    process = twin(sandbox.start("echo begun; sleep 1000"))
    twin.next(output := process.output())
    twin.close(output)
    assert twin(process.output(follow=False)) == [sdk.Output("stdout", b"begun\n", 0)]
    assert twin(process.output(since=6, follow=False)) == []
    twin(process.kill())


def test_output_of_bytes_and_of_much(twin, sandbox):
    """2 MiB that are not text, with nothing lost and every offset right."""
    every = bytes(range(256))
    twin(sandbox.files.write("/tmp/much", every * 8192))
    process = twin(sandbox.start(["cat", "/tmp/much"]))
    pieces = twin(process.output())
    assert b"".join(piece.data for piece in pieces) == every * 8192
    assert [piece.offset for piece in pieces] == [0, *itertools.accumulate(len(p.data) for p in pieces)][:-1]


def test_output_that_was_dropped(twin, client):
    """Nobody followed, and the sandbox no longer keeps all of it: OutputLost, and how to read what is left."""
    with twin.within(client.sandbox(output=4096)) as sandbox:
        process = twin(sandbox.start("seq 10000", hold=False))
        assert twin(process.wait()).truncated
        with pytest.raises(sdk.OutputLost) as caught:
            twin(process.output())
        whole = b"".join(b"%d\n" % n for n in range(1, 10001))
        for since in (None, caught.value.detail["to"]):
            pieces = twin(process.output(since=since))
            assert pieces[0].offset > 0 and pieces[-1].end == len(whole)
            assert whole.endswith(b"".join(piece.data for piece in pieces))


def test_several_readers(twin, sandbox):
    """Each gets all of it."""
    process = twin(sandbox.start("seq 100"))
    first, second = process.output(), process.output()
    one = [twin.next(first), *twin(first)]
    assert b"".join(p.data for p in one) == b"".join(p.data for p in twin(second))


def test_the_sandbox_ends_before_its_process(twin, client):
    """A reader sees the end of the process; who comes later is told that the sandbox is Gone."""
    with twin.within(client.sandbox()) as sandbox:
        process = twin(sandbox.start("echo begun; sleep 1000"))
        output = process.output()
        assert twin.next(output).data == b"begun\n"
        twin(sandbox.kill())
        assert twin(output) == []
        assert twin(process.wait()).signal == 9
        later = sandbox.process(process.pid)
        for late in (later.output, later.wait, later.info, lambda: sandbox.exec("true")):
            with pytest.raises(sdk.Gone):
                twin(late())
        twin(process.kill())  # what is dead already
    twin(process.kill())  # what was removed


def test_wait_and_poll(twin, sandbox):
    """Timeout, which is Python's TimeoutError too, while it runs; 0 only asks."""
    process = twin(sandbox.start("read line; exit 7", stdin=True))
    for seconds in (0, 0.05):
        with pytest.raises(TimeoutError) as caught:
            twin(process.wait(seconds))
        assert isinstance(caught.value, sdk.Timeout)
    assert twin(process.poll()) is None
    assert twin(process.info()).running
    twin(process.close_stdin())
    ended = twin(process.wait(10))
    assert (ended.pid, ended.exit_code, ended.ok, ended.timed_out) == (process.pid, 7, False, False)
    assert twin(process.poll()) == ended == twin(process.wait(0)) == twin(process.info()).exit


def test_timeout_of_a_process(twin, sandbox):
    process = twin(sandbox.start("sleep 1000", timeout=0.1))
    ended = twin(process.wait())
    assert (ended.exit_code, ended.timed_out) == (124, True)


def test_streaming_to_standard_input(twin, sandbox):
    """Text, bytes, and pieces of bytes, in order; then the end."""
    process = twin(sandbox.start(["sha256sum"], stdin=True))
    piece = bytes(range(256)) * 256
    twin(process.write("text"))
    twin(process.write(iter([piece] * 64)))  # 4 MiB
    twin(process.write(b"end", eof=True))
    assert twin(process.wait(20)).ok
    digest = hashlib.sha256(b"text" + piece * 64 + b"end").hexdigest()
    assert twin(process.output())[0].data.decode().split()[0] == digest


def test_standard_input_that_is_not_there(twin, sandbox):
    process = twin(sandbox.start("sleep 1000"))
    with pytest.raises(sdk.CayError):
        twin(process.write(b"x"))
    twin(process.kill())


def test_signals(twin, sandbox):
    """By name, by number, by Python's enum; to the process alone, or to all that it started."""
    script = "trap 'echo usr1' USR1; trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    process = twin(sandbox.start(script))
    output = process.output()
    assert twin.next(output).data == b"ready\n"
    for one in ("USR1", "SIGUSR1", 10, signal.SIGUSR1):
        twin(process.signal(one))
        assert twin.next(output).data == b"usr1\n"
    twin(process.signal("TERM"))
    assert twin(process.wait(10)).exit_code == 5
    twin(process.signal("TERM"))  # what has ended
    with pytest.raises(sdk.Invalid):
        twin(process.signal("NOSUCH"))
    twin.close(output)
    tree = twin(sandbox.start("sleep 1000 & echo $!; wait"))
    child = int(twin.next(out := tree.output()).data)
    twin.close(out)
    twin(tree.signal("KILL", tree=True))
    assert twin(tree.wait(10)).signal == 9
    assert twin(sandbox.exec(f"while kill -0 {child}; do sleep 0.01; done", timeout=20)).ok


def test_kill_is_of_the_tree_and_may_be_repeated(twin, sandbox):
    process = twin(sandbox.start("setsid sleep 1234 & sleep 1234"))
    twin(process.kill())
    twin(process.kill())
    assert twin(process.wait(10)).signal == 9
    assert twin(sandbox.exec("while pgrep -f 'sleep 123[4]'; do sleep 0.01; done", timeout=20)).ok


def test_a_terminal(twin, sandbox):
    """A process with a terminal of a size that can be changed."""
    process = twin(sandbox.start("stty size; read line; stty size", pty=True, rows=30, cols=100))
    output = process.output()
    assert twin.next(output).data.split() == [b"30", b"100"]
    twin(process.resize(50, 132))
    twin(process.write("\n"))
    assert b"50 132" in b"".join(piece.data for piece in twin(output))
    assert twin(process.info()).pty


def test_reattaching_to_a_process(twin, client, sandbox):
    """Another client, by the ids alone, sees the same output and the same end."""
    process = twin(sandbox.start("echo hi; sleep 0.05; exit 9"))
    with twin.within(twin.new(client.host)) as other:
        again = twin(other.get(sandbox.id)).process(process.pid)
        assert [one.data for one in twin(again.output())] == [b"hi\n"]
        assert twin(again.wait()).exit_code == 9


def test_list_of_processes(twin, client):
    with twin.within(client.sandbox()) as sandbox:
        assert twin(sandbox.processes()) == []
        runs = twin(sandbox.start("sleep 1000"))
        twin(sandbox.exec("exit 3"))
        first, second = twin(sandbox.processes())
        assert (first.pid, first.running, first.exit, "sleep 1000" in first.command) == (runs.pid, True, None, True)
        assert (second.running, second.exit.exit_code) == (False, 3)
