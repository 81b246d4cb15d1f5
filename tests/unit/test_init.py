# SPDX-License-Identifier: Apache-2.0
"""cay-init, driven over its socket as the keeper would, inside a plain user and pid namespace.

The program is taken from $CAY_INIT, or found below build/. Tests that change users need root.
"""
import io
import itertools
import os
import pathlib
import random
import select
import socket
import stat
import struct
import subprocess
import tarfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

OK, ERROR = 1, 2
SPAWN, SIGNAL, FS = 64, 65, 66
READY, SPAWNED, EXITED = 80, 81, 82
(READ, WRITE, STAT, LIST, MKDIR, MOVE, REMOVE, FIND, GREP, WATCH, TAR_OUT, TAR_IN, DATA, END) = range(96, 110)
ENTRY, MATCH, CHANGE = 128, 129, 130
PTY, FOLLOW, TREE, GROUP = 1, 1 << 3, 1 << 5, 1 << 6
RECURSIVE, LITERAL, IGNORE_CASE, ABORT, SUBREAPER = 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18
CODES = ("ok invalid denied not_found timeout conflict gone too_large limit internal unsupported "
         "unavailable no_space unauthorized").split()

NUMBERS = dict(flags=1, pid=2, signal=3, number=4, stream=5, offset=6, end=7, code=8, sys_errno=9, rows=17,
               cols=18, cpu_us=25, peak_memory=26, mode=32, uid=33, gid=34, size=35, mtime_ns=36, inode=37,
               links=38)
STRINGS = dict(text=10, shell=13, cwd=14, user=15, name=16, path=28, target=29, glob=30, pattern=31)
LISTS = dict(argv=11, env=12)
KEYS = {key: name for table in (NUMBERS, STRINGS, LISTS, dict(data=22)) for name, key in table.items()}


def wait_for(what, seconds=20.0):
    deadline = time.time() + seconds
    while not what():
        assert time.time() < deadline
        time.sleep(0.01)


class Failure(Exception):
    def __init__(self, msg):
        super().__init__(msg.get("text"))
        self.code, self.errno, self.text = CODES[msg["code"]], msg.get("sys_errno", 0), msg.get("text")


def encode(kind, tag=0, fds=0, **fields):
    def put(key, value):
        return struct.pack("<HI", key, len(value)) + value
    out = b""
    for name, value in fields.items():
        if name in NUMBERS:
            out += put(NUMBERS[name], struct.pack("<Q", value)) if value else b""
        elif name in STRINGS:
            out += put(STRINGS[name], os.fsencode(value) + b"\0") if value is not None else b""
        elif name == "data":
            out += put(22, value) if value else b""
        else:
            out += b"".join(put(LISTS[name], os.fsencode(item) + b"\0") for item in value or [])
    return struct.pack("<IBxBBI", len(out), kind, fds, 1, tag) + out


def decode(payload):
    out, at = {}, 0
    while at < len(payload):
        key, size = struct.unpack_from("<HI", payload, at)
        value = payload[at + 6:at + 6 + size]
        at += 6 + size
        name = KEYS[key]
        if name in NUMBERS:
            out[name] = struct.unpack("<Q", value)[0]
        elif name in STRINGS:
            out[name] = os.fsdecode(value[:-1])
        else:
            out[name] = value
    return out


class Chan:
    def __init__(self, sock):
        self.sock, self.buffer, self.fds = sock, b"", []

    def send(self, kind, fds=(), **fields):
        frame = encode(kind, fds=len(fds), **fields)
        sent = socket.send_fds(self.sock, [frame], fds) if fds else 0
        self.sock.sendall(frame[sent:])

    def recv(self, timeout=10):
        while True:
            if len(self.buffer) >= 12:
                size, kind, fds, _, tag = struct.unpack_from("<IBxBBI", self.buffer)
                if len(self.buffer) >= 12 + size:
                    msg = decode(self.buffer[12:12 + size])
                    self.buffer = self.buffer[12 + size:]
                    msg.update(kind=kind, tag=tag)
                    if fds:
                        msg["fd"] = self.fds.pop(0)
                    return msg
            if not select.select([self.sock], [], [], timeout)[0]:
                raise TimeoutError
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 20, 8)
            if not data:
                raise EOFError
            self.fds += fds
            self.buffer += data


class Worker(Chan):
    def request(self, kind, **fields):
        self.send(kind, **fields)
        return self.answers()

    def answers(self):
        out = []
        while True:
            msg = self.recv()
            if msg["kind"] == ERROR:
                raise Failure(msg)
            if msg["kind"] == OK:
                return out
            out.append(msg)

    def upload(self, kind, path, content, piece=65536, **fields):
        self.send(kind, path=str(path), **fields)
        for at in range(0, len(content), piece):
            self.send(DATA, data=content[at:at + piece])
        self.send(END)
        return self.answers()

    def read(self, path, **fields):
        return b"".join(m["data"] for m in self.request(READ, path=str(path), **fields))

    def names(self, kind, path, **fields):
        return [m["path"] for m in self.request(kind, path=str(path), **fields)]

    def tar_out(self, path):
        return b"".join(m["data"] for m in self.request(TAR_OUT, path=str(path)))


def program():
    if os.environ.get("CAY_INIT"):
        return os.environ["CAY_INIT"]
    found = sorted(ROOT.glob("build*/**/cay-init"))
    if not found:
        pytest.skip("cay-init is not built")
    return str(found[0])


class Init(Chan):
    def __init__(self, userns=True, cgroup=None):
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        namespaces = ["--user", "--map-root-user"] if userns else []
        theirs_fd = theirs.fileno()
        four = f"4<{cgroup}" if cgroup else ""
        script = f'exec 3<&{theirs_fd} {theirs_fd}<&- </dev/null >/dev/null {four}; exec "$0" "$@"'
        self.process = subprocess.Popen(
            ["unshare", *namespaces, "--pid", "--fork", "--mount-proc", "bash", "-c", script, program(),
             "cgroup" if cgroup else ""], pass_fds=[theirs_fd],
            env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})
        theirs.close()
        self.tags = itertools.count(1)
        self.waiting = []
        assert self.recv()["kind"] == READY

    def close(self):
        self.sock.close()
        assert self.process.wait(10) == 0

    def answer(self, tag):
        while True:
            msg = self.recv()
            if msg["kind"] == EXITED:
                self.waiting.append(msg)
                continue
            assert msg["tag"] == tag
            if msg["kind"] == ERROR:
                raise Failure(msg)
            return msg

    def request(self, kind, fds=(), **fields):
        tag = next(self.tags)
        self.send(kind, fds, tag=tag, **fields)
        return self.answer(tag)

    def exited(self, pid):
        for msg in self.waiting:
            if msg["pid"] == pid:
                self.waiting.remove(msg)
                return msg
        while True:
            msg = self.recv()
            assert msg["kind"] == EXITED
            if msg["pid"] == pid:
                return msg
            self.waiting.append(msg)

    def start(self, *argv, stdin=None, **fields):
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        null = os.open("/dev/null", os.O_RDONLY) if stdin is None else stdin
        try:
            msg = self.request(SPAWN, [null, out_w, err_w], argv=argv, **fields)
        except Failure:
            os.close(out_r)
            os.close(err_r)
            raise
        finally:
            for fd in (null, out_w, err_w):
                os.close(fd)
        return msg["pid"], os.fdopen(out_r, "rb"), os.fdopen(err_r, "rb")

    def run(self, *argv, **fields):
        pid, out, err = self.start(*argv, **fields)
        with out, err:
            text = out.read(), err.read()
        end = self.exited(pid)
        return os.waitstatus_to_exitcode(end.get("number", 0)), *text

    def worker(self, **fields):
        ours, theirs = socket.socketpair()
        try:
            self.request(FS, [theirs.fileno()], **fields)
        finally:
            theirs.close()
        return Worker(ours)


@pytest.fixture(scope="module")
def init():
    it = Init()
    yield it
    it.close()


@pytest.fixture(scope="module")
def root_init():
    if os.geteuid() != 0:
        pytest.skip("needs root")
    it = Init(userns=False)
    yield it
    it.close()


@pytest.fixture
def fs(init, tmp_path):
    worker = init.worker(cwd=str(tmp_path))
    yield worker
    worker.sock.close()


# ---- commands ------------------------------------------------------------------------------------------

def test_runs_and_reports(init):
    assert init.run("/bin/echo", "hi") == (0, b"hi\n", b"")
    assert init.run("sh", "-c", "echo x >&2; exit 3") == (3, b"", b"x\n")
    assert init.run(shell="echo $0 $((1+1))")[1].split()[1] == b"2"
    assert init.run("sh", "-c", "kill -9 $$")[0] == -9


def test_usage_is_reported(init):
    pid, out, err = init.start("python3", "-c", "b'x'*50000000; sum(range(3000000))",
                               env=["PATH=" + os.environ["PATH"]])
    out.close(), err.close()
    end = init.exited(pid)
    assert end["cpu_us"] > 10000 and end["peak_memory"] > 5 << 20


def test_environment_and_cwd(init, tmp_path):
    env = dict(line.split("=", 1) for line in init.run("env", env=["A=1", "HOME=/tmp"])[1].decode().split())
    assert env["A"] == "1" and env["HOME"] == "/tmp" and env["USER"] == env["LOGNAME"] == "root"
    assert env["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" and "TERM" not in env
    assert init.run("pwd", cwd=str(tmp_path))[1].decode().strip() == str(tmp_path)
    assert init.run("pwd")[1] == b"/root\n"
    assert init.run("sh", "-c", "umask; ulimit -n", number=77)[1] == b"0022\n77\n"
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "tool").chmod(0o755)
    assert init.run("tool", env=[f"PATH=/nope:{tmp_path}"])[1] == b"tool\n"
    (tmp_path / "bare").write_text("echo bare $1\n")
    (tmp_path / "bare").chmod(0o755)
    assert init.run(f"{tmp_path}/bare", "arg")[1] == b"bare arg\n"


@pytest.mark.parametrize("argv,fields,code,errno,text", [
    (["nope"], {}, "not_found", 2, "cannot run 'nope': command not found in the sandbox"),
    (["/nope/x"], {}, "not_found", 2, "cannot run '/nope/x': command not found in the sandbox"),
    (["/etc/passwd"], {}, "denied", 13, "not executable"),
    (["/etc"], {}, "denied", 13, "it is a directory"),
    (["true"], {"cwd": "/nope"}, "not_found", 0, "no directory '/nope'"),
    (["true"], {"cwd": "/proc/self/fd/4"}, "not_found", 0, "no directory"),
    (["true"], {"user": "nobody-here"}, "invalid", 0, "no user 'nobody-here' in the sandbox's /etc/passwd"),
    (["true"], {"user": "root:nogroup-here"}, "invalid", 0, "no group"),
    (["true"], {"user": "12345"}, None, None, ""),
    ([], {}, "invalid", 0, "no command"),
    (["true"], {"name": "x"}, None, None, "cgroup"),
])
def test_failures_are_told(init, argv, fields, code, errno, text):
    with pytest.raises(Failure) as failure:
        init.run(*argv, **fields)
    assert text in failure.value.text
    assert code is None or (failure.value.code, failure.value.errno) == (code, errno)


def test_missing_interpreter(init, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/thing\n")
    script.chmod(0o755)
    with pytest.raises(Failure, match="its interpreter is missing"):
        init.run(str(script))


def test_nothing_is_inherited(init):
    assert init.run("ls", "/proc/self/fd")[1].split() == [b"0", b"1", b"2", b"3"]  # 3: of ls itself
    text = init.run("cat", "/proc/self/status")[1].decode()
    status = dict(line.split(":", 1) for line in text.splitlines())
    assert int(status["SigBlk"], 16) == 0 and int(status["SigIgn"], 16) == 0


def test_init_cannot_be_read(init):
    # As in a sandbox: its bounding set has no CAP_SYS_PTRACE.
    code, out, err = init.run("setpriv", "--bounding-set", "-sys_ptrace", "sh", "-c",
                              "readlink /proc/1/exe; cat /proc/1/environ; readlink /proc/1/fd/3")
    assert code and out == b"" and b"ermission" in err


def test_signals(init):
    pid, out, err = init.start("sleep", "100")
    out.close(), err.close()
    init.request(SIGNAL, pid=pid, signal=15)
    assert init.exited(pid)["number"] == 15
    for bad in (pid, 1, 0, 99999):
        with pytest.raises(Failure) as failure:
            init.request(SIGNAL, pid=bad, signal=9)
        assert failure.value.code == "not_found"
    pid, out, err = init.start("sh", "-c", "sleep 100 & wait")
    err.close()
    time.sleep(0.1)
    init.request(SIGNAL, pid=pid, signal=9, flags=GROUP)
    assert out.read() == b""  # both are gone
    init.exited(pid)


def test_orphans_are_reaped(init):
    init.run("sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done")
    time.sleep(0.3)
    out = init.run("sh", "-c", "cat /proc/[0-9]*/stat")[1].decode()
    assert ") Z " not in out


def test_many_at_once(init):
    pids = [init.start("sh", "-c", f"exit {i}") for i in range(30)]
    for i, (pid, out, err) in enumerate(pids):
        out.close(), err.close()
        assert os.waitstatus_to_exitcode(init.exited(pid).get("number", 0)) == i


def test_terminal(init):
    tag = next(init.tags)
    init.send(SPAWN, tag=tag, flags=PTY, rows=33, cols=99,
              argv=["sh", "-c", "stty size; tty; echo $TERM; cat"])
    msg = init.answer(tag)
    master = msg["fd"]
    os.set_blocking(master, True)
    text = b""
    while text.count(b"\n") < 3:
        text += os.read(master, 1000)
    lines = text.split()
    assert lines[:2] == [b"33", b"99"] and lines[2].startswith(b"/dev/pts/") and lines[3] == b"xterm-256color"
    os.write(master, b"\x04")
    assert init.exited(msg["pid"]).get("number", 0) == 0
    os.close(master)


def test_warden_keeps_the_tree(init):
    script = "(setsid sh -c 'trap \"\" TERM; sleep 300' &); echo $$; exec sleep 300"
    pid, out, err = init.start("sh", "-c", script, flags=SUBREAPER)
    assert int(out.readline()) == pid
    time.sleep(0.1)
    init.request(SIGNAL, pid=pid, signal=9, flags=TREE)
    assert init.exited(pid)["number"] == 9
    assert out.read() == b""  # the one that had left the session is gone too
    err.close()
    # The command ends, what it left behind can still be reached, and then nothing is left.
    pid, out, err = init.start("sh", "-c", "sleep 300 & exit 4", flags=SUBREAPER)
    assert init.exited(pid)["number"] == 4 << 8
    init.request(SIGNAL, pid=pid, signal=9, flags=TREE)
    assert out.read() == b""
    err.close()
    time.sleep(0.1)
    with pytest.raises(Failure):
        init.request(SIGNAL, pid=pid, signal=9, flags=TREE)
    assert init.run("true", flags=SUBREAPER)[0] == 0
    with pytest.raises(Failure, match="command not found"):
        init.run("nope", flags=SUBREAPER)


def test_killed_warden(init):
    pid, out, err = init.start("sh", "-c", "kill -9 $PPID; sleep 0.1; echo on; exit 5", flags=SUBREAPER)
    with out, err:
        assert out.read() == b""  # what has killed its warden ends with it
    assert init.exited(pid)["number"] == 9


def test_users(root_init, tmp_path):
    assert root_init.run("id", "-u", user="nobody")[1] == b"65534\n"
    assert root_init.run("id", "-u", user="12345")[1] == b"12345\n"
    assert root_init.run("id", "-g", user="12345")[1] == b"0\n"
    assert root_init.run("id", "-g", user="12345:54321")[1] == b"54321\n"
    assert root_init.run("id", "-g", user="daemon:sys")[1] == b"3\n"
    assert root_init.run("id", "-G", user="nobody")[1] == b"65534\n"
    # A pipe of a keeper is root's: it must open by name for the user all the same.
    assert root_init.run("sh", "-c", "echo x > /dev/stdout", user="nobody", cwd="/") == (0, b"x\n", b"")
    worker = root_init.worker(user="nobody")
    with pytest.raises(Failure) as failure:
        worker.read("/etc/shadow")
    assert failure.value.code == "denied"
    with pytest.raises(Failure, match="no user"):
        root_init.worker(user="nobody-here")


def test_cgroup(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    mounts = [line.split() for line in open("/proc/self/mounts")]
    top = [m[1] for m in mounts if m[2] == "cgroup2"]
    if not top:
        pytest.skip("no cgroup v2")
    group = pathlib.Path(top[0]) / f"cay-test-{os.getpid()}"
    (group / "one").mkdir(parents=True)
    it = None
    try:
        it = Init(userns=False, cgroup=group)
        code, out, _ = it.run("cat", "/proc/self/cgroup", name="one")
        assert code == 0 and f"/{group.name}/one\n".encode() in out
        assert f"/{group.name}/".encode() not in it.run("cat", "/proc/self/cgroup")[1]
        with pytest.raises(Failure, match="cgroup 'two'"):
            it.run("true", name="two")
        with pytest.raises(Failure, match="no directory"):
            it.run("pwd", name="one", cwd="/proc/self/fd/4")
    finally:
        if it:
            it.close()
        for path in (group / "one", group):
            path.rmdir()


# ---- files ---------------------------------------------------------------------------------------------

def test_read_and_write(fs, tmp_path):
    content = random.Random(1).randbytes(300001)
    fs.upload(WRITE, "deep/er/file", content)
    path = tmp_path / "deep/er/file"
    assert path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == 0o644
    assert fs.read("deep/er/file") == content
    assert fs.read(path, offset=1000, number=70000) == content[1000:71000]
    assert fs.read(path, offset=10 ** 9) == b""
    fs.upload(WRITE, path, b"", mode=0o4711)
    assert path.read_bytes() == b"" and stat.S_IMODE(path.stat().st_mode) == 0o4711
    path.chmod(0o600)
    fs.upload(WRITE, path, b"kept")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["file"]
    assert b"MemTotal" in fs.read("/proc/meminfo")


def test_write_follows_links(fs, tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to("link2")
    (tmp_path / "link2").symlink_to("to/new")
    fs.upload(WRITE, "link", b"x")
    assert (tmp_path / "to/new").read_bytes() == b"x" and (tmp_path / "link").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Failure, match="cannot write 'loop'"):
        fs.upload(WRITE, "loop", b"x")


def test_odd_files_do_not_block(fs, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, what in (("fifo", "a fifo"), (".", "a directory"), ("/dev/zero", "a device")):
        with pytest.raises(Failure, match=what) as failure:
            fs.read(path)
        assert failure.value.code == "invalid"
    for path in ("fifo", "/dev/null"):
        with pytest.raises(Failure) as failure:
            fs.upload(WRITE, path, b"x" * 200000)
        assert failure.value.code == "invalid"
    with pytest.raises(Failure) as failure:
        fs.read("nope")
    assert (failure.value.code, failure.value.errno) == ("not_found", 2)
    assert fs.request(GREP, pattern="x") == []


def test_abort_and_loss_leave_the_old_file(init, tmp_path):
    (tmp_path / "f").write_text("old")
    fs = init.worker(cwd=str(tmp_path))
    fs.send(WRITE, path="f")
    fs.send(DATA, data=b"new")
    fs.send(END, flags=ABORT)
    with pytest.raises(Failure):
        fs.answers()
    fs.send(WRITE, path="f")
    fs.send(DATA, data=b"new")
    wait_for(lambda: len(os.listdir(tmp_path)) == 2)
    fs.sock.close()
    wait_for(lambda: os.listdir(tmp_path) == ["f"])
    assert (tmp_path / "f").read_text() == "old"


def test_full_disk(init, tmp_path):
    script = f"mount -t tmpfs -o size=1m none {tmp_path}"
    it = Init()  # its own mount namespace
    try:
        if it.run("sh", "-c", script)[0] != 0:
            pytest.skip("cannot mount a tmpfs here")
        fs = it.worker(cwd=str(tmp_path))
        fs.upload(WRITE, "f", b"old")
        with pytest.raises(Failure) as failure:
            fs.upload(WRITE, "f", b"x" * (3 << 20))
        assert failure.value.code == "no_space"
        assert fs.read("f") == b"old" and fs.names(LIST, ".") == ["f"]
    finally:
        it.close()


def make_tree(top):
    (top / "b/c").mkdir(parents=True)
    (top / "a.txt").write_text("one\ntwo\nThree\n")
    (top / "b/x.py").write_text("import os\nprint('two')\n")
    (top / "b/c/y.py").write_text("x = 'two'\r\n")
    (top / "b/bin").write_bytes(b"two\0two")
    (top / "z").symlink_to("/etc/passwd")


def test_look(fs, tmp_path):
    make_tree(tmp_path)
    entries = fs.request(LIST)
    assert [m["path"] for m in entries] == ["a.txt", "b", "z"]
    assert entries[2]["target"] == "/etc/passwd" and stat.S_ISLNK(entries[2]["mode"])
    assert entries[0]["size"] == 14 and entries[0]["mtime_ns"] == (tmp_path / "a.txt").stat().st_mtime_ns
    assert fs.names(LIST, "", number=2) == ["a.txt", "b", "b/bin", "b/c", "b/x.py", "z"]
    assert fs.names(LIST, "", number=99)[3:5] == ["b/c", "b/c/y.py"]
    assert fs.names(FIND, ".", glob="*.py") == ["b/c/y.py", "b/x.py"]
    assert fs.names(FIND, ".", glob="b/*.py") == ["b/x.py"]
    assert fs.names(FIND, ".", glob="**/*.py") == ["b/c/y.py", "b/x.py"]
    assert fs.names(FIND, ".", glob="[!a]", number=1) == ["b"]
    assert fs.request(STAT, path="z")[0]["target"] == "/etc/passwd"
    assert stat.S_ISREG(fs.request(STAT, path="z", flags=FOLLOW)[0]["mode"])
    with pytest.raises(Failure, match="not a directory"):
        fs.request(LIST, path="a.txt")


def test_grep(fs, tmp_path):
    make_tree(tmp_path)

    def grep(pattern, **fields):
        return [(m["path"], m["number"], m["text"]) for m in fs.request(GREP, pattern=pattern, **fields)]
    assert grep("^t") == [("a.txt", 2, "two")]
    assert grep("^t", flags=IGNORE_CASE) == [("a.txt", 2, "two"), ("a.txt", 3, "Three")]
    assert grep("tw(o|x)", glob="*.py") == [("b/c/y.py", 1, "x = 'two'"), ("b/x.py", 2, "print('two')")]
    assert grep("('TWO')", flags=LITERAL | IGNORE_CASE) == [("b/x.py", 2, "print('two')")]
    assert grep("two", number=1) == [("a.txt", 2, "two")]
    assert grep("two", path="a.txt") == [("a.txt", 2, "two")]
    with pytest.raises(Failure, match="bad pattern"):
        grep("(")
    (tmp_path / "long").write_text("\n" + "x" * 700000 + "needle" + "y" * 9 + "\nneedle$\n")
    found = grep("needle", path="long")
    assert [m[1] for m in found] == [2, 3] and len(found[0][2]) == 4096
    assert [m[1] for m in grep("needley*$", path="long")] == [2]
    assert grep("^y", path="long") == []


def test_move_and_remove(fs, tmp_path):
    make_tree(tmp_path)
    fs.request(MOVE, path="b", target="new/place/b")
    assert (tmp_path / "new/place/b/x.py").exists()
    fs.request(MKDIR, path="m/n/o/", mode=0o700)
    fs.request(MKDIR, path="m/n/o")
    assert stat.S_IMODE((tmp_path / "m/n/o").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "m/n").stat().st_mode) == 0o755
    with pytest.raises(Failure) as failure:
        fs.request(MKDIR, path="a.txt")
    assert failure.value.code == "conflict"
    with pytest.raises(Failure) as failure:
        fs.request(REMOVE, path="m")
    assert failure.value.code == "conflict"
    fs.request(REMOVE, path="m", flags=RECURSIVE)
    fs.request(REMOVE, path="z")
    assert os.path.exists("/etc/passwd") and not (tmp_path / "z").is_symlink()
    (tmp_path / "out").symlink_to(tmp_path / "new")
    fs.request(REMOVE, path="out", flags=RECURSIVE)
    assert (tmp_path / "new/place/b/x.py").exists()
    with pytest.raises(Failure) as failure:
        fs.request(REMOVE, path="nope", flags=RECURSIVE)
    assert failure.value.code == "not_found"
    for path in ("//", ".", "new/..", "new/place/."):
        with pytest.raises(Failure, match="does not name"):
            fs.request(REMOVE, path=path, flags=RECURSIVE)
    assert (tmp_path / "new/place/b/x.py").exists()


def test_move_between_filesystems(fs, tmp_path):
    other = pathlib.Path("/dev/shm") / f"cay-test-{os.getpid()}"
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("one filesystem only")
    make_tree(tmp_path)
    (tmp_path / "b").chmod(0o750)
    try:
        fs.request(MOVE, path="b", target=str(other))
        assert (other / "c/y.py").read_text() == "x = 'two'\n" and not (tmp_path / "b").exists()
        assert stat.S_IMODE(other.stat().st_mode) == 0o750
        fs.request(MOVE, path=str(other), target="back")
        assert (tmp_path / "back/bin").read_bytes() == b"two\0two" and not other.exists()
    finally:
        subprocess.run(["rm", "-rf", str(other)])


def test_deep_tree(fs, tmp_path):
    here = os.getcwd()
    os.chdir(tmp_path)
    for _ in range(1500):
        os.mkdir("d" * 60)
        os.chdir("d" * 60)
    os.chdir(here)
    with pytest.raises(Failure) as failure:
        fs.request(FIND, path=".")
    assert failure.value.code == "limit"
    fs.request(REMOVE, path="d" * 60, flags=RECURSIVE)
    assert os.listdir(tmp_path) == []


def test_watch(init, tmp_path):
    fs = init.worker(cwd=str(tmp_path))
    fs.request(WATCH, path=".", flags=RECURSIVE)

    def change():
        msg = fs.recv()
        return chr(msg["number"]), msg["path"]

    def until(*want):
        want, seen = set(want), []
        while want:
            seen.append(change())
            want.discard(seen[-1])
        return seen
    (tmp_path / "f").write_text("x")
    until(("c", "f"), ("m", "f"))
    (tmp_path / "d").mkdir()
    until(("c", "d"))
    (tmp_path / "d/e").mkdir()
    until(("c", "d/e"))
    time.sleep(0.05)
    (tmp_path / "d/e/g").write_text("x")
    until(("c", "d/e/g"))
    (tmp_path / "d").rename(tmp_path / "r")
    until(("d", "d"), ("r", "r"))
    time.sleep(0.05)
    (tmp_path / "r/e/h").write_text("x")
    until(("c", "r/e/h"))
    (tmp_path / "r/e/h").unlink()
    until(("d", "r/e/h"))
    other = init.worker(cwd=str(tmp_path))
    other.upload(WRITE, "f", b"new")
    assert not any(".cay-" in path for _, path in until(("r", "f")))
    fs.send(END)
    fs.answers()
    fs.request(WATCH, path="f")
    (tmp_path / "unseen").write_text("x")
    other.upload(WRITE, "f", b"newer")
    assert change() == ("r", "f")
    fs.sock.close()


def test_tar_out(fs, tmp_path):
    make_tree(tmp_path)
    long = "l" * 90 + "/" + "m" * 120 + "/" + "n" * 200
    (tmp_path / long).parent.mkdir(parents=True)
    (tmp_path / long).write_bytes(b"long")
    (tmp_path / "longlink").symlink_to("t" * 150)
    os.mkfifo(tmp_path / "fifo")
    big = random.Random(2).randbytes(200003)
    (tmp_path / "big").write_bytes(big)
    with tarfile.open(fileobj=io.BytesIO(fs.tar_out("."))) as tar:
        assert tar.getnames() == sorted(tar.getnames())
        assert {"a.txt", "b", "b/c/y.py", "fifo", long} <= set(tar.getnames())
        assert tar.extractfile("big").read() == big and tar.extractfile(long).read() == b"long"
        assert tar.getmember("z").linkname == "/etc/passwd"
        assert tar.getmember("longlink").linkname == "t" * 150
        assert abs(tar.getmember("a.txt").mtime - (tmp_path / "a.txt").stat().st_mtime) < 1e-6
        assert tar.getmember("fifo").isfifo() and tar.getmember("b").isdir()
    with tarfile.open(fileobj=io.BytesIO(fs.tar_out(tmp_path / "big"))) as tar:
        assert tar.getnames() == ["big"]


def archive(*entries, format=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, kind, content, *rest in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = kind, rest[0] if rest else 0o755, 1234567890
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname, content = content, b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("piece", [7, 512, 65536])
def test_tar_in(fs, tmp_path, format, piece):
    long = "l" * 90 + "/" + "m" * (60 if format == tarfile.USTAR_FORMAT else 180)
    content = random.Random(3).randbytes(5000)
    fs.upload(TAR_IN, "dest", archive(
        ("d", tarfile.DIRTYPE, b"", 0o500), ("d/f", tarfile.REGTYPE, content, 0o640),
        (long, tarfile.REGTYPE, b"long"), ("/abs/x", tarfile.REGTYPE, b"abs"),
        ("d/hard", tarfile.LNKTYPE, "d/f"), ("d/link", tarfile.SYMTYPE, "../abs"),
        ("d/link/y", tarfile.REGTYPE, b"y"), ("d/fifo", tarfile.FIFOTYPE, b""), format=format), piece=piece)
    dest = tmp_path / "dest"
    assert (dest / "d/f").read_bytes() == content and (dest / long).read_bytes() == b"long"
    assert (dest / "abs/x").read_bytes() == b"abs" and (dest / "abs/y").read_bytes() == b"y"
    assert (dest / "d/f").stat().st_mtime == 1234567890 and (dest / "d/f").stat().st_nlink == 2
    assert stat.S_IMODE((dest / "d").stat().st_mode) == 0o500
    assert stat.S_IMODE((dest / "d/f").stat().st_mode) == 0o640
    assert not [p for p in dest.rglob(".cay-*")]


@pytest.mark.parametrize("entries,code", [
    ([("../x", tarfile.REGTYPE, b"x")], "invalid"),
    ([("a/../../x", tarfile.REGTYPE, b"x")], "invalid"),
    ([("l", tarfile.SYMTYPE, "/tmp"), ("l/cay-escaped", tarfile.REGTYPE, b"x")], "denied"),
    ([("l", tarfile.SYMTYPE, ".."), ("l/x", tarfile.REGTYPE, b"x")], "denied"),
    ([("l", tarfile.SYMTYPE, ".."), ("l", tarfile.DIRTYPE, b"")], "denied"),
    ([("l", tarfile.SYMTYPE, "/"), ("h", tarfile.LNKTYPE, "l/etc/passwd")], "denied"),
    ([("h", tarfile.LNKTYPE, "../secret")], "invalid"),
    ([("dev", tarfile.CHRTYPE, b"")], "unsupported"),
    ([("f", tarfile.REGTYPE, b"x"), ("f/g", tarfile.REGTYPE, b"x")], "invalid"),
    ([("d", tarfile.DIRTYPE, b""), ("d", tarfile.REGTYPE, b"x")], "invalid"),
])
def test_tar_in_stays_inside(fs, tmp_path, entries, code):
    (tmp_path / "secret").write_text("s")
    with pytest.raises(Failure) as failure:
        fs.upload(TAR_IN, "dest", archive(*entries))
    assert failure.value.code == code
    assert set(os.listdir(tmp_path)) == {"secret", "dest"} and not os.path.exists("/tmp/cay-escaped")
    assert not list((tmp_path / "dest").rglob(".cay-*"))
    assert fs.names(LIST, "")  # and the worker goes on


def test_tar_in_damage(fs, tmp_path):
    good = archive(("f", tarfile.REGTYPE, b"x" * 2000))
    with pytest.raises(Failure, match="cut short"):
        fs.upload(TAR_IN, "dest", good[:1500])
    with pytest.raises(Failure, match="not a tar"):
        fs.upload(TAR_IN, "dest", b"\x1f\x8b" + b"x" * 1000)
    rng = random.Random(4)
    for _ in range(100):
        bad = bytearray(good)
        for _ in range(3):
            bad[rng.randrange(1024)] = rng.randrange(256)
        try:
            fs.upload(TAR_IN, "dest", bytes(bad))
        except Failure:
            pass
    assert fs.names(LIST, "") is not None


def test_upload_beyond_memory_is_streamed(fs, tmp_path):
    piece = b"x" * 65536
    fs.send(WRITE, path="big")
    for _ in range(1024):
        fs.send(DATA, data=piece)
    fs.send(END)
    fs.answers()
    assert (tmp_path / "big").stat().st_size == 64 << 20
    done = []
    fs.send(READ, path="big")
    while True:
        msg = fs.recv()
        if msg["kind"] == OK:
            break
        done.append(len(msg["data"]))
    assert sum(done) == 64 << 20 and max(done) <= 65536


def test_channels_are_bounded(init):
    workers = []
    with pytest.raises(Failure) as failure:
        for _ in range(70):
            workers.append(init.worker())
    assert failure.value.code == "limit"
    for worker in workers:
        worker.sock.close()
    time.sleep(0.3)
    init.worker().sock.close()


def test_worker_ends_with_its_caller(init):
    worker = init.worker()
    worker.send(FIND, path="/", glob="no-such-name-anywhere")
    worker.sock.close()
    wait_for(lambda: b"cay-init" not in init.run("sh", "-c", "cat /proc/[2-9]*/comm")[1])


def test_end_of_the_keeper_ends_all(tmp_path):
    it = Init()
    pid, out, err = it.start("sleep", "300")
    it.close()
    assert out.read() == b""
    err.close()
