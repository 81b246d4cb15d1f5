# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.strands: the abstract class strands.sandbox.Sandbox on a real cayd. Agents are in
test_strands_agent.py."""
import asyncio
import itertools
import time

import pytest
from strands.sandbox import ExecutionResult, FileInfo, Sandbox, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError

from cay import AsyncCay, CayError, Gone, Invalid, Limit, Unavailable, Unsupported
from cay.adapters.strands import CaySandbox, HttpResult, SandboxHttpError

marks = itertools.count(5000)


@pytest.fixture(scope="module")
def sandbox(host):
    with CaySandbox(host=host) as made:
        yield made


def do(coroutine):
    """In an event loop of its own, as Strands does for each call of an agent."""
    return asyncio.run(coroutine)


async def collect(stream):
    """All that an execution yields: its chunks, and its result."""
    items = [item async for item in stream]
    assert all(isinstance(item, StreamChunk) for item in items[:-1])
    return items[:-1], items[-1]


def stubborn():
    """A command of three processes: one in a session of its own, one that ignores SIGTERM; and a mark to find them."""
    mark = f"sleep {next(marks)}"
    return mark, f"echo partial; echo warned >&2; setsid {mark} & (trap '' TERM; exec {mark}) & {mark}"


async def alive(sandbox, mark):
    """Lines of ps with this mark in their arguments: what is alive of a command."""
    done = await (await sandbox.box()).exec(["ps", "ax", "-o", "args"])
    return [line for line in done.stdout.splitlines() if mark in line]


async def left(sandbox, mark):
    """What is left of a command when the kernel has had time to bury what was killed."""
    for _ in range(200):
        lines = await alive(sandbox, mark)
        if not lines:
            break
        await asyncio.sleep(0.02)
    return lines


# -- execute


def test_is_a_sandbox_of_the_sdk(sandbox):
    """CaySandbox is a strands.sandbox.Sandbox."""
    assert isinstance(sandbox, Sandbox)


def test_streams_chunks_then_the_result(sandbox):
    """execute_streaming yields StreamChunks of stdout and stderr as they come, then one ExecutionResult."""
    async def main():
        items = []
        command = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second >&2; exit 3"
        async for item in sandbox.execute_streaming(command):
            items.append(item)
            if len(items) == 1:
                await sandbox.write_text("go", "")  # the command is waiting for it
        return items

    assert do(main()) == [StreamChunk("first\n", "stdout"), StreamChunk("second\n", "stderr"),
                          ExecutionResult(3, "first\n", "second\n", [])]


def test_execute_returns_the_result(sandbox):
    """execute: exit code, complete output, output_files a list."""
    assert do(sandbox.execute("echo out; echo err >&2; exit 42")) == ExecutionResult(42, "out\n", "err\n", [])
    assert do(collect(sandbox.execute_streaming("true"))) == ([], ExecutionResult(0, "", "", []))


def test_sh_in_the_working_directory(sandbox):
    """Commands are run by sh in the working directory; cwd is absolute or relative to it."""
    assert do(sandbox.execute("echo $0; pwd")).stdout == "sh\n/workspace\n"
    assert do(sandbox.execute("pwd", cwd="/tmp")).stdout == "/tmp\n"
    do(sandbox.execute("mkdir -p sub"))
    assert do(sandbox.execute("pwd", cwd="sub")).stdout == "/workspace/sub\n"
    with pytest.raises(CayError, match="/no/such"):
        do(sandbox.execute("pwd", cwd="/no/such"))


def test_env(sandbox):
    """env is set for the command, and its values are not evaluated."""
    assert do(sandbox.execute('echo "$A" "$B_1"', env={"A": "$(whoami)", "B_1": "it's"})).stdout == "$(whoami) it's\n"


@pytest.mark.parametrize("name", ["BAD-KEY", "1A", "", "A\n", "A=B"])
def test_env_names(sandbox, name):
    """An invalid name in env: 'Invalid environment variable name: ...'."""
    for run in (sandbox.execute("true", env={name: "x"}), sandbox.execute_code("", "sh", env={name: "x"})):
        with pytest.raises(ValueError) as caught:
            do(run)
        assert str(caught.value) == f"Invalid environment variable name: {name}"


def test_missing_command(sandbox):
    """A command that is missing exits with 127."""
    done = do(sandbox.execute("no-such-command"))
    assert done.exit_code == 127 and "no-such-command" in done.stderr


def test_death_by_signal(sandbox):
    """Death by a signal is 128+n."""
    assert do(sandbox.execute("kill -KILL $$")).exit_code == 137
    assert do(sandbox.execute("kill -TERM $$")).exit_code == 143


def test_input_is_empty_and_commands_of_any_length(sandbox):
    """Standard input is empty; a command of 300 KB runs."""
    assert do(sandbox.execute("wc -c")).stdout == "0\n"
    text = "x" * 300_000
    done = do(sandbox.execute(f"cat\ncat << 'EOF'\n{text}\nEOF\nexit 5"))
    assert (done.exit_code, done.stdout) == (5, text + "\n")


def test_unknown_keywords_are_accepted(sandbox):
    """**kwargs are accepted everywhere, for later versions of the SDK."""
    assert do(sandbox.execute("echo hi", later=1)).stdout == "hi\n"
    assert do(sandbox.execute_code("echo hi", "sh", later=1)).stdout == "hi\n"
    do(sandbox.write_file("kw", b"x", later=1))
    assert do(sandbox.read_file("kw", later=1)) == b"x"
    assert "kw" in [info.name for info in do(sandbox.list_files(".", later=1))]
    do(sandbox.remove_file("kw", later=1))


# -- output


def test_multibyte_is_not_split(sandbox):
    """Multibyte UTF-8 is not split across chunks."""
    code = """
import os, sys, time
for name in ("stdout", "stderr"):
    stream = getattr(sys, name).buffer
    stream.write(b"caf\\xc3"); stream.flush()
    while not os.path.exists(name): time.sleep(0.01)
    stream.write("é ☕".encode()[1:]); stream.flush()
"""
    async def main():
        items = []
        async for item in sandbox.execute_code_streaming(code, "python3"):
            items.append(item)
            if isinstance(item, StreamChunk) and item.data == "caf":
                await sandbox.write_text(item.stream_type, "")  # now the other half of it may come
        return items

    assert do(main()) == [StreamChunk("caf", "stdout"), StreamChunk("é ☕", "stdout"), StreamChunk("caf", "stderr"),
                          StreamChunk("é ☕", "stderr"), ExecutionResult(0, "café ☕", "café ☕", [])]
    assert do(sandbox.execute_code('print("☕" * 100000)', "python3")).stdout == "☕" * 100000 + "\n"


def test_not_utf8(sandbox):
    """Bytes that are no UTF-8 become U+FFFD, also at the end."""
    assert do(sandbox.execute(r"printf 'a\377b\342\230'")).stdout == "a\ufffdb\ufffd"


def test_complete_output(sandbox):
    """The output is complete: 20 MB, to a consumer that is slow."""
    async def main():
        length = 0
        async for item in sandbox.execute_streaming("head -c 20000000 /dev/zero | tr '\\0' x"):
            if isinstance(item, ExecutionResult):
                return length, len(item.stdout), item.stderr
            if not length:
                time.sleep(0.3)  # all of the loop, and with it the reader
            length += len(item.data)

    assert do(main()) == (20_000_000, 20_000_000, "")


def test_output_of_more_than_is_kept(host):
    """A command that writes more than its sandbox keeps waits for its reader: nothing is missing."""
    with CaySandbox(host=host, output=4096) as small:
        done = do(small.execute("head -c 3000000 /dev/zero | tr '\\0' x; echo end"))
    assert (done.stdout, done.stderr) == ("x" * 3_000_000 + "end\n", "")


def test_a_command_that_is_ended_from_outside(cay, host):
    """The result says why."""
    with cay.sandbox() as box:
        async def body():
            running = asyncio.ensure_future(CaySandbox(AsyncCay(host).attach(box.id), working_dir="/tmp").execute("sleep 4998"))
            while not any(one.running for one in await asyncio.to_thread(box.processes)):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(box.process(box.processes()[-1].pid).kill)
            return await running

        done = asyncio.run(body())
    assert done.exit_code == 137 and "[cay: the command was ended: " in done.stderr


def test_background(sandbox):
    """A process in the background outlives its command, which does not wait for it."""
    assert do(sandbox.execute("sleep 4999 & echo started")).stdout == "started\n"
    assert do(sandbox.execute("until pkill -f 'sleep 499[9]'; do sleep 0.01; done", timeout=10)).exit_code == 0


# -- the end of commands


def test_timeout(sandbox):
    """SandboxTimeoutError, a TimeoutError: 'Execution timed out after N seconds', with the partial output."""
    with pytest.raises(TimeoutError) as caught:
        do(sandbox.execute("echo partial; echo warned >&2; sleep 60", timeout=0.5))
    error = caught.value
    assert isinstance(error, SandboxTimeoutError)
    assert (str(error), error.stdout, error.stderr) == ("Execution timed out after 0.5 seconds", "partial\n",
                                                        "warned\n")


def test_nothing_is_alive_after_a_timeout(sandbox):
    """After a timeout nothing of the command is alive."""
    async def main():
        mark, command = stubborn()
        with pytest.raises(SandboxTimeoutError):
            await sandbox.execute(command, timeout=0.3)
        return await left(sandbox, mark)

    assert do(main()) == []


def test_sigterm_then_sigkill(sandbox):
    """SIGTERM comes first, so that a command can clean up; SIGKILL a second later."""
    with pytest.raises(SandboxTimeoutError) as caught:
        do(sandbox.execute("trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.01; done", timeout=0.5))
    assert caught.value.stdout == "ready\ncleaned\n"
    with pytest.raises(SandboxTimeoutError) as caught:
        do(sandbox.execute("trap 'termed=after' TERM; while :; do echo $termed; sleep 0.05; done", timeout=0.5))
    assert "after\nafter\n" in caught.value.stdout
    assert do(left(sandbox, "echo $termed")) == []


def test_timeout_is_of_the_wall_clock(sandbox):
    """The timeout counts from the start, whatever is written, also for a consumer that does not come back."""
    async def main():
        stream = sandbox.execute_streaming("while :; do echo 4998; sleep 0.02; done", timeout=0.3)
        await anext(stream)
        assert await left(sandbox, "echo 4998") == []
        with pytest.raises(SandboxTimeoutError):
            await collect(stream)

    do(main())


def test_timeout_of_code_and_one_not_reached(sandbox):
    """Code has a timeout, too; one that is not reached changes nothing."""
    with pytest.raises(SandboxTimeoutError) as caught:
        do(sandbox.execute_code("import time; print('before', flush=True); time.sleep(60)", "python3", timeout=1))
    assert caught.value.stdout == "before\n"
    for seconds in (30, float("inf")):
        assert do(sandbox.execute("echo fast", timeout=seconds)).stdout == "fast\n"


@pytest.mark.parametrize("how", ["cancel", "close", "close code"])
def test_cancelled_or_closed_kills_all(sandbox, how):
    """Cancelling the task, or closing the generator, kills the command and all it started."""
    async def main():
        mark, command = stubborn()
        if how == "cancel":
            task = asyncio.create_task(sandbox.execute(command))
            while len(await alive(sandbox, mark)) < 3:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            stream = sandbox.execute_streaming(command) if how == "close" else sandbox.execute_code_streaming(
                command, "sh")
            await anext(stream)
            await stream.aclose()
        return await left(sandbox, mark)

    assert do(main()) == []


def test_a_loop_that_ends_kills_what_it_runs(sandbox):
    """asyncio.run that ends with a command under way leaves nothing of it."""
    mark, command = stubborn()

    async def main():
        task = asyncio.create_task(sandbox.execute(command))
        while len(await alive(sandbox, mark)) < 3:
            await asyncio.sleep(0.01)
        return task

    do(main())
    assert do(left(sandbox, mark)) == []


def test_never_asked(sandbox):
    """A generator that is never asked starts nothing."""
    do(sandbox.execute_streaming("touch asked").aclose())
    with pytest.raises(FileNotFoundError):
        do(sandbox.read_file("asked"))


# -- code


def test_code(sandbox):
    """execute_code runs code by the interpreter that is named."""
    assert do(sandbox.execute_code("print(2 + 2)", "python3")).stdout == "4\n"
    assert do(sandbox.execute_code("console.log(2 + 2)", "node")).stdout == "4\n"
    assert do(sandbox.execute_code("echo $((2 + 2)); exit 9", "bash")).exit_code == 9
    assert do(sandbox.execute_code("import os; os.kill(os.getpid(), 9)", "python3")).exit_code == 137


def test_code_is_not_evaluated_by_a_shell(sandbox):
    """Quotes and what is special to a shell reach the interpreter as they are."""
    text = "$(rm -rf /) `id` \"it's\" && $HOME"
    assert do(sandbox.execute_code(f"print({text!r})", "python3")).stdout == text + "\n"


@pytest.mark.parametrize("language", ["../bin/sh", "python3 -c", "sh;id", "", "python3\n", "a/b"])
def test_language(sandbox, language):
    """A language of other characters: 'language parameter contains invalid characters: ...'."""
    with pytest.raises(ValueError) as caught:
        do(sandbox.execute_code("x", language))
    assert str(caught.value) == f"language parameter contains invalid characters: {language}"


def test_missing_interpreter(sandbox):
    """An interpreter that is missing exits with 127."""
    done = do(sandbox.execute_code("x", "no-such_lang.99"))
    assert done.exit_code == 127 and "no-such_lang.99" in done.stderr


def test_code_env_cwd(sandbox):
    """env and cwd reach the interpreter."""
    code = "import os; print(os.environ['GREETING'], os.getcwd())"
    assert do(sandbox.execute_code(code, "python3", env={"GREETING": "$HI"}, cwd="/tmp")).stdout == "$HI /tmp\n"


@pytest.mark.parametrize("size", [250_000, 5_000_000])
def test_large_code(sandbox, size):
    """Code of 250 KB and of 5 MB runs."""
    done = do(sandbox.execute_code(f'x = "{"é" * (size // 2)}"\nprint(len(x))', "python3"))
    assert (done.exit_code, done.stdout) == (0, f"{size // 2}\n")


def test_code_that_is_not_read(sandbox):
    """An interpreter that does not read all of its code is no error."""
    assert do(sandbox.execute_code("exit 6\n" + "#" * 5_000_000, "sh")).exit_code == 6
    assert do(sandbox.execute_code("x" * 5_000_000, "true")).exit_code == 0


# -- files


@pytest.mark.parametrize("content", [bytes(range(256)), b"", bytes(range(250)) * 20_000], ids=["all", "none", "5 MB"])
def test_file_roundtrip(sandbox, content):
    """read_file gives the bytes that write_file wrote, all values of them, none and 5 MB."""
    do(sandbox.write_file("data.bin", content))
    assert do(sandbox.read_file("data.bin")) == content


def test_write_makes_parents(sandbox):
    """write_file makes the directories above, and replaces what was there."""
    do(sandbox.write_text("/tmp/deep/er/file.txt", "one"))
    do(sandbox.write_text("/tmp/deep/er/file.txt", "two"))
    assert do(sandbox.execute("cat /tmp/deep/er/file.txt")).stdout == "two"


def test_relative_paths(sandbox):
    """Relative paths start at the working directory."""
    do(sandbox.write_text("rel/a b.txt", "x"))
    assert do(sandbox.read_text("/workspace/rel/a b.txt")) == "x"
    assert do(sandbox.list_files("./rel")) == [FileInfo("a b.txt", False, 1)]
    do(sandbox.remove_file("rel/a b.txt"))
    assert do(sandbox.list_files("/workspace/rel")) == []


def test_text(sandbox):
    """read_text and write_text: UTF-8 or the encoding that is named; the SDK's own, strict in Python."""
    do(sandbox.write_text("text.txt", "日本語 🚀 $(id)"))
    assert do(sandbox.read_text("text.txt")) == "日本語 🚀 $(id)"
    do(sandbox.write_text("text.txt", "é", encoding="latin-1"))
    assert do(sandbox.read_text("text.txt", encoding="latin-1")) == "é"
    with pytest.raises(UnicodeDecodeError):
        do(sandbox.read_text("text.txt"))


def test_read_errors(sandbox):
    """read_file raises FileNotFoundError for what is missing, and another OSError for what cannot be read."""
    for path in ("/no/such/file", "missing.txt"):
        with pytest.raises(FileNotFoundError):
            do(sandbox.read_file(path))
    with pytest.raises(NotADirectoryError):
        do(sandbox.read_file("/etc/passwd/x"))
    with pytest.raises(PermissionError):
        do(sandbox.read_file("/proc/1/root/x"))
    with pytest.raises(OSError, match="directory") as caught:
        do(sandbox.read_file("/etc"))
    assert not isinstance(caught.value, FileNotFoundError)


def test_write_errors(sandbox):
    """write_file raises OSError where it cannot write."""
    for path in ("/tmp", "/etc/passwd/x", "/proc/x"):
        with pytest.raises(OSError):
            do(sandbox.write_file(path, b"x"))


def test_remove(sandbox):
    """remove_file removes a file or a link, raises FileNotFoundError for what is missing, and keeps directories."""
    do(sandbox.execute("mkdir -p rm/dir && touch rm/file && ln -s file rm/link"))
    do(sandbox.remove_file("rm/link"))
    do(sandbox.remove_file("rm/file"))
    with pytest.raises(FileNotFoundError):
        do(sandbox.remove_file("rm/file"))
    with pytest.raises(IsADirectoryError):
        do(sandbox.remove_file("rm/dir"))
    assert [info.name for info in do(sandbox.list_files("rm"))] == ["dir"]


def test_list(sandbox):
    """list_files is sorted by name, with is_dir and size, hidden files, and without . and .."""
    do(sandbox.execute("mkdir -p ls/sub && cd ls && printf aa > b.txt && printf a > .hidden && touch 'a b' Z"))
    found = [(info.name, info.is_dir, None if info.is_dir else info.size) for info in do(sandbox.list_files("ls"))]
    assert found == [(".hidden", False, 1), ("Z", False, 0), ("a b", False, 0), ("b.txt", False, 2),
                     ("sub", True, None)]


def test_list_links(sandbox):
    """list_files tells a link as what it leads to, and nothing of one that leads nowhere."""
    do(sandbox.execute("mkdir -p ln/d && cd ln && printf abc > f && ln -s d to-d && ln -s f to-f && ln -s x to-x"))
    found = {info.name: info for info in do(sandbox.list_files("ln"))}
    assert found["to-d"].is_dir is True
    assert found["to-f"] == FileInfo("to-f", False, 3)
    assert found["to-x"] == FileInfo("to-x")


@pytest.mark.parametrize("path", ["/no/such", "missing", "/etc/passwd", "/etc/passwd/x"])
def test_list_missing(sandbox, path):
    """list_files raises SandboxPathNotFoundError, a FileNotFoundError, for what is missing and for no directory."""
    with pytest.raises(FileNotFoundError) as caught:
        do(sandbox.list_files(path))
    assert isinstance(caught.value, SandboxPathNotFoundError)
    assert str(caught.value) == f"Path not found: {path}"


@pytest.mark.parametrize("path", ["/proc/1/root", "/" + "a" * 300, "/a\0b"])
def test_list_other_errors(sandbox, path):
    """list_files raises another OSError where it has no permission, or where the path is none."""
    with pytest.raises(OSError) as caught:
        do(sandbox.list_files(path))
    assert not isinstance(caught.value, FileNotFoundError)


def test_lost_sandbox(cay, host):
    """A sandbox that is lost is no missing file: another OSError, with cay's own as its cause."""
    box = cay.create()
    lost = CaySandbox(AsyncCay(host).attach(box.id))
    box.remove()
    for call in (lost.list_files("/tmp"), lost.read_file("/tmp/x"), lost.remove_file("/tmp/x"),
                 lost.write_file("/tmp/x", b"")):
        with pytest.raises(OSError, match=box.id) as caught:
            do(call)
        assert not isinstance(caught.value, FileNotFoundError)
        assert isinstance(caught.value.__cause__, CayError)


# -- life


def test_made_at_first_use_and_removed(cay, host):
    """CaySandbox(...) makes its sandbox at its first use, once, also for several loops; close removes it."""
    labels = {"test": "strands-lazy"}
    lazy = CaySandbox(host=host, labels=labels, memory="256M", working_dir="/srv/app")
    assert cay.list(labels=labels) == []

    async def main():
        return await asyncio.gather(lazy.execute("pwd"), lazy.execute("pwd"), lazy.list_files("."))

    assert do(main())[0].stdout == "/srv/app\n"
    assert do(lazy.execute("pwd")).stdout == "/srv/app\n"
    [info] = cay.list(labels=labels)
    spec = cay.attach(info.id).spec()
    assert (spec["memory"], spec["idle_ms"], spec["ttl_ms"]) == (256 << 20, 3_600_000, 86_400_000)
    lazy.close()
    lazy.close()
    assert cay.list(labels=labels) == []
    with pytest.raises(Gone):
        do(lazy.execute("true"))


def test_async_with(cay, host):
    """async with await CaySandbox.create(...) removes it; a ttl that is given is the only one."""
    async def main():
        async with await CaySandbox.create(host=host, ttl="5m") as made:
            box = await made.box()
            assert (await made.execute("echo hi")).stdout == "hi\n"
            return box.id, await box.spec()

    id, spec = do(main())
    assert (spec["idle_ms"], spec["ttl_ms"]) == (0, 300_000)
    assert id not in [info.id for info in cay.list(state="all")]


def test_create_that_is_cancelled(cay, host):
    """create that is cancelled leaves no sandbox behind."""
    labels = {"test": "strands-cancelled"}

    async def main():
        task = asyncio.create_task(CaySandbox.create(host=host, labels=labels))
        await asyncio.sleep(0)  # it has begun
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    do(main())
    assert cay.list(labels=labels, state="all") == []


def test_given_box_stays(box, host):
    """CaySandbox(box) takes one that exists, and leaves it there."""
    with CaySandbox(AsyncCay(host).attach(box.id), working_dir="/tmp") as given:
        assert do(given.execute("pwd")).stdout == "/tmp\n"
    assert box.refresh().state == "running"
    with pytest.raises(TypeError):
        CaySandbox(AsyncCay(host).attach(box.id), memory="1G")


def test_not_made(host):
    """A sandbox that could not be made is an error; options that are none are refused."""
    with pytest.raises(Unavailable):
        do(CaySandbox(host="unix:/no/such/socket").execute("true"))
    with pytest.raises(Invalid):
        CaySandbox(working_dir="work")
    with pytest.raises(TypeError):
        do(CaySandbox(host=host, memroy="1G").execute("true"))
    with pytest.raises(Unsupported):
        do(CaySandbox.create(host=host, secrets={"KEY": "x"}))


async def spec_of(sandbox):
    box = await sandbox.box()
    return await box.spec()


def test_operator_who_allows_less(daemons):
    """Where the operator allows less than the adapter's defaults, these give way; what the caller asks for does not."""
    daemon = daemons(tcp=True, policy="[policy]\noutput_max = 1M\nttl_max = 30m\nidle_max = 5m\n")
    access = {"host": daemon.url, "token": daemon.token("acme", tenant="acme")}
    with CaySandbox(**access) as limited:
        assert do(limited.execute("echo hi")).stdout == "hi\n"
    daemon.write_policy("[policy]\noutput_max = 1M\n")
    daemon.reload()
    with CaySandbox(**access) as limited:
        spec = do(spec_of(limited))
        assert (spec["output"], spec["ttl_ms"], spec["idle_ms"]) == (1 << 20, 86_400_000, 3_600_000)
    daemon.write_policy("[policy]\noutput_max = 1M\nttl_max = 30m\n")
    daemon.reload()
    for more in ({"output": "2M"}, {"ttl": "1h"}):
        with CaySandbox(**access, **more) as refused, pytest.raises(Limit):
            do(refused.execute("true"))


def test_vended_tools(sandbox):
    """get_tools vends sandbox_file_editor and sandbox_shell."""
    tools = sandbox.get_tools()
    assert [tool.tool_name for tool in tools] == ["sandbox_file_editor", "sandbox_shell"]
    assert tools[0].tool_spec["description"].endswith("Files are in a cay sandbox.")
    assert tools[1].tool_spec["description"].endswith("Working directory: /workspace.")


# -- HTTP

SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/away":
            self.send_response(302); self.send_header("Location", "/ok"); self.send_header("Content-Length", "0")
            return self.end_headers()
        if self.path == "/slow":
            import time; time.sleep(60)
        text = f"{self.command} {self.headers.get('x-test')} ".encode() + body + bytes([0, 255])
        self.send_response(404 if self.path == "/none" else 200)
        self.send_header("Set-Cookie", "a=1"); self.send_header("Set-Cookie", "b=2")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else text)
    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_GET
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Handler)
if os.fork() == 0:
    server.serve_forever()
"""


@pytest.fixture(scope="module")
def server(sandbox):
    assert do(sandbox.execute_code(SERVER, "python3")).exit_code == 0
    return "http://127.0.0.1:8123"


def test_request(sandbox, server):
    """request(method, url, headers, body) -> HttpResult{status, status_text, resolved_url, headers, body}."""
    result = do(sandbox.request("post", f"{server}/ok", headers={"X-Test": "it's"}, body="é"))
    assert isinstance(result, HttpResult)
    assert (result.status, result.status_text, result.resolved_url) == (200, "OK", f"{server}/ok")
    assert result.body == "POST it's é".encode() + b"\0\xff"
    assert result.headers["set-cookie"] == "a=1\nb=2"
    assert do(sandbox.request("GET", f"{server}/away", body=None)).resolved_url == f"{server}/ok"
    assert do(sandbox.request("PUT", f"{server}/ok", body=b"\xfe")).body == b"PUT None \xfe\0\xff"
    assert do(sandbox.request("HEAD", f"{server}/ok")).body == b""


def test_request_error_statuses_are_results(sandbox, server):
    """4xx and 5xx are returned."""
    result = do(sandbox.request("GET", f"{server}/none"))
    assert (result.status, result.status_text, result.body) == (404, "Not Found", b"GET None \0\xff")


def test_request_max_bytes(sandbox, server):
    """SandboxHttpError for an answer of more than max_bytes; one of just so many is returned."""
    assert len(do(sandbox.request("GET", f"{server}/ok", max_bytes=11)).body) == 11
    with pytest.raises(SandboxHttpError, match="max_bytes"):
        do(sandbox.request("GET", f"{server}/ok", max_bytes=10))


def test_request_transport_failures(sandbox, server):
    """SandboxHttpError where there is no answer: nobody listens, there is no network, the time is up."""
    with pytest.raises(SandboxHttpError, match="refused"):
        do(sandbox.request("GET", "http://127.0.0.1:9/"))
    with pytest.raises(SandboxHttpError, match="unreachable"):
        do(sandbox.request("GET", "http://192.0.2.1/"))
    with pytest.raises(SandboxHttpError, match="timed out"):
        do(sandbox.request("GET", f"{server}/slow", timeout=0.5))


@pytest.mark.parametrize("method, url, headers", [
    ("BREW", "http://127.0.0.1/", {}), ("GET", "ftp://127.0.0.1/", {}), ("GET", "http:///x", {}),
    ("GET", "http://a b/", {}), ("GET", "http://127.0.0.1/", {"A b": "c"}),
    ("GET", "http://127.0.0.1/", {"A": "b\r\nC: d"}),
])
def test_request_arguments(sandbox, method, url, headers):
    """Arguments are checked before anything is sent."""
    with pytest.raises(SandboxHttpError):
        do(sandbox.request(method, url, headers=headers))
