# SPDX-License-Identifier: Apache-2.0
"""Files in and out: exact bytes, streams, names, trees, errors."""
import hashlib
import io
import json
import os
import pathlib
import re
import socket
import subprocess
import tarfile
import threading
import time

import pytest

from integration.support import background, end, info, refused, until

NAMES = [b"plain", b"with space", b"new\nline", "ümläut \U0001f3dd".encode(), b"not-utf8-\xff\xfe", b"-dash", b"quo'te\"s",
         b"back\\slash", b"*glob?[x]", b"tab\there", b"trailing ", b"a" * 255]


def stat(cay, box, path, *options):
    return cay.json("fs", "stat", "--json", *options, box, path)


def raw(cay, *args, **more):
    """A call whose arguments are bytes."""
    return subprocess.run([os.fsencode(cay.program), *args], env=cay.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=more.pop("stdin", subprocess.DEVNULL) if "input" not in more else None, timeout=60, **more)


# ---- put and cat

@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5, os.urandom(65536), os.urandom(3 << 20)],
                         ids=["empty", "one", "all-values", "64K", "3M"])
def test_put_and_cat_are_exact(cay, box, data):
    cay.run("fs", "put", box, "/tmp/x", input=data, text=False, check=True)
    assert cay.run("fs", "cat", box, "/tmp/x", text=False).stdout == data
    assert stat(cay, box, "/tmp/x")["size"] == len(data)


def test_put_makes_parents_and_sets_the_mode(cay, box):
    cay.run("fs", "put", "--mode", "750", box, "/tmp/a/b/c/file", input="x", check=True)
    entry = stat(cay, box, "/tmp/a/b/c/file")
    assert (entry["mode"], entry["uid"], entry["gid"], entry["type"]) == (0o750, 0, 0, "file")
    assert stat(cay, box, "/tmp/a/b")["type"] == "directory"
    cay.run("fs", "put", box, "/tmp/plain", input="x", check=True)
    assert stat(cay, box, "/tmp/plain")["mode"] == 0o644


def test_put_from_a_file_takes_its_mode(cay, box, tmp_path):
    script = tmp_path / "s.sh"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    cay.run("fs", "put", box, "/tmp/s.sh", script, check=True)
    assert cay.run("exec", box, "--", "/tmp/s.sh").stdout == "ran\n"
    refused(cay.run("fs", "put", box, "/tmp/y", tmp_path / "missing"), "missing")
    refused(cay.run("fs", "put", box, "/tmp/y", tmp_path), str(tmp_path))


def test_a_mode_without_bits_is_kept(cay, box, tmp_path):
    """Nothing becomes readable by a copy."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0)
    cay.run("cp", secret, f"{box}:/tmp/zero-cp", check=True)
    cay.run("fs", "put", box, "/tmp/zero-put", secret, check=True)
    cay.run("fs", "put", "--mode", "0", box, "/tmp/zero-said", input="x", check=True)
    for name in ("zero-cp", "zero-put", "zero-said"):
        assert stat(cay, box, f"/tmp/{name}")["mode"] == 0, name


def test_put_as_a_user(cay, box):
    cay.run("fs", "put", "-u", "user", box, "/home/user/sub/f", input="x", check=True)
    assert stat(cay, box, "/home/user/sub/f")["uid"] == 1000
    assert stat(cay, box, "/home/user/sub")["uid"] == 1000
    refused(cay.run("fs", "put", "-u", "user", box, "/root/f", input="x"), "/root/f")
    refused(cay.run("fs", "cat", "-u", "user", box, "/etc/shadow"), "/etc/shadow")


def test_relative_paths_start_at_the_working_directory(cay, make):
    box = make("-w", "/var/tmp")
    cay.run("fs", "put", box, "rel/f", input="here", check=True)
    assert cay.run("fs", "cat", box, "/var/tmp/rel/f").stdout == "here"


def test_cat_ranges_and_several(cay, box):
    cay.run("fs", "put", box, "/tmp/r", input="0123456789", check=True)
    assert cay.run("fs", "cat", "--offset", "3", "--size", "4", box, "/tmp/r").stdout == "3456"
    assert cay.run("fs", "cat", "--offset", "8", box, "/tmp/r").stdout == "89"
    assert cay.run("fs", "cat", "--offset", "100", box, "/tmp/r").stdout == ""
    assert cay.run("fs", "cat", box, "/tmp/r", "/tmp/r").stdout == "0123456789" * 2


def test_put_replaces_in_one_step(cay, make):
    """A reader inside sees the old content or the new, whole; never anything between."""
    box = make()
    a, b = b"a" * 300_000, b"b" * 200_000
    cay.run("fs", "put", box, "/tmp/f", input=a, text=False, check=True)
    reader = ("import os, sys, time\nbad = n = 0\n"
              "while not os.path.exists('/tmp/stop'):\n"
              "    d = open('/tmp/f', 'rb').read(); n += 1\n"
              "    bad += not (d == b'a' * 300000 or d == b'b' * 200000)\n"
              "print(n > 10, bad)")
    caller = cay.popen("exec", box, "--", "python3", "-c", reader)
    for i in range(40):
        cay.run("fs", "put", box, "/tmp/f", input=b if i % 2 == 0 else a, text=False, check=True)
    cay.run("fs", "put", box, "/tmp/stop", input="", check=True)
    assert caller.communicate(timeout=30)[0] == b"True 0\n"
    assert cay.run("fs", "ls", box, "/tmp").stdout.split() == ["f", "stop"], "no temporary files stay"


def test_an_upload_that_breaks_off_leaves_the_old_file(cay, make):
    box = make()
    cay.run("fs", "put", box, "/tmp/f", input="old", check=True)
    caller = cay.popen("fs", "put", box, "/tmp/f")
    caller.stdin.write(b"n" * 300_000)
    caller.stdin.flush()
    end(caller)
    time.sleep(0.2)
    assert cay.run("fs", "cat", box, "/tmp/f").stdout == "old"
    until(lambda: cay.run("fs", "ls", box, "/tmp").stdout.split() == ["f"], 5)


def test_put_through_a_link_and_onto_a_directory(cay, make):
    box = make()
    cay.sh(box, "mkdir /tmp/d; echo t > /tmp/target; ln -s target /tmp/link", check=True)
    refused(cay.run("fs", "put", box, "/tmp/d", input="x"), "/tmp/d", "directory")
    cay.run("fs", "put", box, "/tmp/link", input="new", check=True)
    assert cay.run("fs", "cat", box, "/tmp/link").stdout == "new"


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_of_all_kinds(cay, box, tmp_path, name):
    path = b"/tmp/names/" + name
    done = raw(cay, b"fs", b"put", box.encode(), path, input=b"content")
    assert done.returncode == 0, done.stderr
    assert raw(cay, b"fs", b"cat", box.encode(), path).stdout == b"content"
    assert name + b"\n" in raw(cay, b"fs", b"ls", box.encode(), b"/tmp/names").stdout
    assert raw(cay, b"cp", box.encode() + b":" + path, os.fsencode(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out").read_bytes() == b"content"
    # there and back as a tree
    source = os.path.join(os.fsencode(tmp_path), b"tree")
    os.mkdir(source)
    with open(os.path.join(source, name), "wb") as f:
        f.write(b"tree")
    assert raw(cay, b"cp", source, box.encode() + b":/tmp/tree-in").returncode == 0
    done = raw(cay, b"cp", box.encode() + b":/tmp/tree-in", os.path.join(os.fsencode(tmp_path), b"tree-out"))
    assert done.returncode == 0, done.stderr
    assert os.listdir(os.path.join(os.fsencode(tmp_path), b"tree-out")) == [name]
    assert raw(cay, b"fs", b"rm", b"-r", box.encode(), b"/tmp/names", b"/tmp/tree-in").returncode == 0


# ---- larger than memory

def test_larger_than_memory_streams(cay, make, tmp_path):
    box = make("--memory", "256M", "--disk", "1G")
    size = 300 << 20
    block = os.urandom(1 << 20)
    digest = hashlib.sha256(block * 300).hexdigest()
    writer = cay.popen("fs", "put", box, "/var/tmp/big")
    for _ in range(300):
        writer.stdin.write(block)
    out, err = writer.communicate(timeout=120)
    assert writer.returncode == 0, err
    assert stat(cay, box, "/var/tmp/big")["size"] == size
    reader = cay.popen("fs", "cat", box, "/var/tmp/big", stdin=subprocess.DEVNULL)
    seen, peak = hashlib.sha256(), 0
    while chunk := reader.stdout.read(1 << 20):
        seen.update(chunk)
    assert reader.wait(30) == 0 and seen.hexdigest() == digest
    keeper = info(cay, box)["keeper_pid"]
    status = pathlib.Path(f"/proc/{keeper}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1])
    assert peak < 20_000, f"the keeper grew to {peak} KiB"
    assert info(cay, box)["state"] == "running"
    end(reader)
    end(writer)


# ---- looking

def test_stat(cay, make):
    box = make()
    cay.sh(box, "cd /tmp; echo hello > f; chmod 640 f; chown 7:8 f; touch -d @1000000000 f; ln f hard; ln -s f soft; "
           "ln -s nowhere broken; mkfifo p; mkdir d", check=True)
    f = stat(cay, box, "/tmp/f")
    assert (f["type"], f["size"], f["mode"], f["uid"], f["gid"], f["links"]) == ("file", 6, 0o640, 7, 8, 2)
    assert f["mtime_ns"] == 1000000000 * 10**9 and f["target"] is None
    soft = stat(cay, box, "/tmp/soft")
    assert (soft["type"], soft["target"]) == ("link", "f")
    assert stat(cay, box, "/tmp/soft", "-L")["inode"] == f["inode"]
    assert stat(cay, box, "/tmp/broken")["type"] == "link"
    refused(cay.run("fs", "stat", "-L", box, "/tmp/broken"), "/tmp/broken")
    assert stat(cay, box, "/tmp/p")["type"] == "pipe"
    assert stat(cay, box, "/tmp/d")["type"] == "directory"
    assert stat(cay, box, "/dev/null")["type"] == "char_device"
    text = cay.run("fs", "stat", box, "/tmp/f").stdout
    assert "/tmp/f" in text and "6" in text


def test_ls(cay, make):
    box = make()
    cay.sh(box, "cd /tmp; mkdir -p d/e/f; touch b a .hidden d/x d/e/y d/e/f/z; ln -s a l", check=True)
    assert cay.run("fs", "ls", box, "/tmp").stdout.split() == [".hidden", "a", "b", "d", "l"]
    names = [e["name"] for e in cay.json("fs", "ls", "-R", "--json", box, "/tmp")]
    assert {n.removeprefix("/tmp/") for n in names} == {".hidden", "a", "b", "d", "d/x", "d/e", "d/e/y", "d/e/f", "d/e/f/z", "l"}
    two = [e["name"] for e in cay.json("fs", "ls", "--depth", "2", "--json", box, "/tmp")]
    assert {n.removeprefix("/tmp/") for n in two} == {".hidden", "a", "b", "d", "d/x", "d/e", "l"}
    assert re.search(r"^l\S+ .* l -> a$", cay.run("fs", "ls", "-l", box, "/tmp").stdout, re.M)
    refused(cay.run("fs", "ls", box, "/nope"), "/nope")


def test_ls_of_a_large_directory(cay, make):
    box = make()
    cay.run("exec", box, "--", "python3", "-c",
            "import os\nos.mkdir('/tmp/m')\nfor i in range(20000): open(f'/tmp/m/file-with-a-longer-name-{i:06}', 'w').close()",
            check=True)
    names = cay.run("fs", "ls", box, "/tmp/m").stdout.split()
    assert len(names) == 20000 and names == sorted(names)
    assert len(cay.json("fs", "ls", "--json", box, "/tmp/m")) == 20000


def test_find(cay, make):
    box = make()
    cay.sh(box, "mkdir -p /tmp/p/src/deep /tmp/p/doc; cd /tmp/p; touch a.py src/b.py src/deep/c.py doc/d.md 'src/s p.py'",
           check=True)

    def found(*args):
        return {n.removeprefix("/tmp/p/") for n in cay.run("fs", "find", box, *args, check=True).stdout.splitlines()}

    assert found("/tmp/p", "*.py") == {"a.py", "src/b.py", "src/deep/c.py", "src/s p.py"}
    assert found("/tmp/p", "src/*.py") >= {"src/b.py", "src/s p.py"}
    assert "src/deep/c.py" in found("/tmp/p", "src/**/*.py") | found("/tmp/p", "*/deep/*.py")
    assert found("/tmp/p", "*.none") == set()
    assert len(found("--limit", "2", "/tmp/p", "*.py")) == 2
    assert {e["type"] for e in cay.json("fs", "find", "--json", box, "/tmp/p", "src")} == {"directory"}


def test_grep(cay, make):
    box = make()
    cay.sh(box, r"mkdir /tmp/g; cd /tmp/g; printf 'one\nTwo a+b\nthree 42\n' > x.txt; printf 'two\n' > y.md; "
           r"head -c 5000 /dev/urandom > bin; printf 'no newline at end two' > z.txt", check=True)

    def found(*args):
        done = cay.run("fs", "grep", "--json", *args)
        return done.returncode, [(m["path"].rpartition("/")[2], m["line"], m["text"]) for m in json.loads(done.stdout or "[]")]

    assert found(box, "/tmp/g", "[0-9]+$") == (0, [("x.txt", 3, "three 42")])
    assert sorted(found(box, "/tmp/g", "two")[1]) == [("y.md", 1, "two"), ("z.txt", 1, "no newline at end two")]
    assert len(found("-i", box, "/tmp/g", "two")[1]) == 3
    assert found("-F", box, "/tmp/g", "a+b") == (0, [("x.txt", 2, "Two a+b")])
    assert found("--include", "*.md", box, "/tmp/g", "two")[1] == [("y.md", 1, "two")]
    assert len(found("--limit", "1", box, "/tmp/g", "o")[1]) == 1
    assert found(box, "/tmp/g", "nothing like it")[0] == 1
    refused(cay.run("fs", "grep", box, "/tmp/g", "(unclosed"))
    assert "/tmp/g/x.txt:3:three 42" in cay.run("fs", "grep", box, "/tmp/g", "42").stdout


# ---- changing

def test_what_a_walk_cannot_read_is_an_error_at_its_end(cay, make):
    box = make()
    cay.sh(box, "mkdir -p /tmp/h/a /tmp/h/b /tmp/h/c; for d in a b c; do echo hi > /tmp/h/$d/1; done; chmod 700 /tmp/h/b", check=True)
    for command, shown in ((("find", "/tmp/h", "1"), "/tmp/h/a/1\n/tmp/h/c/1\n"),
                           (("grep", "/tmp/h", "hi"), "/tmp/h/a/1:1:hi\n/tmp/h/c/1:1:hi\n"),
                           (("ls", "/tmp/h"), "a\na/1\nb\nc\nc/1\n")):
        options = ["--depth", "9"] if command[0] == "ls" else []
        done = cay.run("fs", command[0], "--user", "1000", *options, box, *command[1:])
        assert (done.returncode, done.stdout) == (125, shown), done
        assert "'b'" in done.stderr and "ermission" in done.stderr, done
    done = cay.run("fs", "find", "--json", "--user", "1000", box, "/tmp/h", "1")
    assert done.returncode == 125 and len(json.loads(done.stdout)) == 2, done


def test_mkdir_mv_rm(cay, make):
    box = make()
    cay.run("fs", "mkdir", box, "/tmp/a/b/c", "/tmp/q", check=True)
    cay.run("fs", "mkdir", box, "/tmp/a/b/c", check=True)
    cay.run("fs", "mkdir", "--mode", "700", box, "/tmp/private", check=True)
    assert stat(cay, box, "/tmp/private")["mode"] == 0o700
    cay.run("fs", "put", box, "/tmp/a/f", input="x", check=True)
    refused(cay.run("fs", "mkdir", box, "/tmp/a/f"), "/tmp/a/f")
    cay.run("fs", "mv", box, "/tmp/a", "/tmp/moved", check=True)
    assert cay.run("fs", "cat", box, "/tmp/moved/f").stdout == "x"
    refused(cay.run("fs", "mv", box, "/tmp/a", "/tmp/b"), "/tmp/a")
    refused(cay.run("fs", "rm", box, "/tmp/moved"), "/tmp/moved")
    cay.run("fs", "rm", "-r", box, "/tmp/moved", check=True)
    refused(cay.run("fs", "stat", box, "/tmp/moved"), "/tmp/moved")
    refused(cay.run("fs", "rm", box, "/tmp/moved"), "/tmp/moved")
    cay.run("fs", "rm", "-f", box, "/tmp/moved", check=True)


def test_mv_between_file_systems(cay, box):
    cay.run("fs", "put", "--mode", "741", box, "/dev/shm/d/f", input="shm", check=True)
    cay.run("fs", "mv", box, "/dev/shm/d", "/tmp/from-shm", check=True)
    assert cay.run("fs", "cat", box, "/tmp/from-shm/f").stdout == "shm"
    assert stat(cay, box, "/tmp/from-shm/f")["mode"] == 0o741
    refused(cay.run("fs", "stat", box, "/dev/shm/d"), "/dev/shm/d")


def test_rm_follows_no_links(cay, make):
    box = make()
    cay.sh(box, "mkdir /tmp/keep /tmp/gone; touch /tmp/keep/f; ln -s /tmp/keep /tmp/gone/l", check=True)
    cay.run("fs", "rm", "-r", box, "/tmp/gone", check=True)
    assert stat(cay, box, "/tmp/keep/f")["type"] == "file"


def test_watch(cay, make):
    box = make()
    cay.run("fs", "mkdir", box, "/tmp/w/sub", check=True)
    watcher = cay.popen("fs", "watch", "-r", "--json", box, "/tmp/w", stdin=subprocess.DEVNULL)
    lines, seen = [], []
    thread = threading.Thread(target=lambda: [lines.append(line) for line in watcher.stdout], daemon=True)
    thread.start()
    try:
        def changes(script, *wanted):
            cay.sh(box, script, check=True)

            def there():
                seen[:] = [json.loads(line) for line in lines]
                got = [(next(iter(c[k] for k in ("kind", "change", "type") if k in c)), c["path"].rpartition("/tmp/w/")[2])
                       for c in seen]
                return all(any(k.startswith(kind) and path == name for k, path in got) for kind, name in wanted)

            try:
                until(there, 5)
            except AssertionError:
                raise AssertionError(f"{wanted} not in {lines}")

        # the watch is there once its first event is seen
        until(lambda: cay.sh(box, "touch /tmp/w/start; rm /tmp/w/start") and lines, 10)
        changes("echo 1 > /tmp/w/f", ("c", "f"))
        changes("echo 2 >> /tmp/w/f", ("m", "f"))
        changes("mv /tmp/w/f /tmp/w/g", ("r", "g"))
        changes("rm /tmp/w/g", ("d", "g"))
        changes("echo 3 > /tmp/w/sub/deep", ("c", "sub/deep"))
        changes("mkdir -p /tmp/w/new; sleep 0.3; touch /tmp/w/new/inner", ("c", "new"), ("c", "new/inner"))
    finally:
        end(watcher)
        thread.join(5)


# ---- cp

def test_cp_file_both_ways(cay, box, tmp_path):
    data = os.urandom(100_000)
    (tmp_path / "in").write_bytes(data)
    (tmp_path / "in").chmod(0o751)
    cay.run("cp", tmp_path / "in", f"{box}:/tmp/cp-file", check=True)
    assert stat(cay, box, "/tmp/cp-file")["mode"] == 0o751
    cay.run("cp", f"{box}:/tmp/cp-file", tmp_path / "out", check=True)
    assert (tmp_path / "out").read_bytes() == data
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o751


def test_cp_into_an_existing_directory(cay, box, tmp_path):
    (tmp_path / "name").write_text("x")
    cay.run("fs", "mkdir", box, "/tmp/into", check=True)
    cay.run("cp", tmp_path / "name", f"{box}:/tmp/into", check=True)
    assert cay.run("fs", "cat", box, "/tmp/into/name").stdout == "x"
    cay.run("cp", f"{box}:/tmp/into/name", f"{tmp_path}/", check=True)
    (tmp_path / "d").mkdir()
    cay.run("cp", f"{box}:/tmp/into/name", tmp_path / "d", check=True)
    assert (tmp_path / "d" / "name").read_text() == "x"


def make_tree(top):
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "file").write_bytes(b"content")
    (top / "sub" / "script").write_text("#!/bin/sh\n")
    (top / "sub" / "script").chmod(0o755)
    (top / "sub" / "deep" / "big").write_bytes(os.urandom(300_000))
    (top / "link").symlink_to("file")
    (top / "up").symlink_to("../outside")
    (top / "broken").symlink_to("/no/such")
    os.utime(top / "file", (1_000_000_000, 1_000_000_000))


def tree(top, times=True):
    found = {}
    for path in sorted(pathlib.Path(top).rglob("*")):
        name, st = str(path.relative_to(top)), path.lstat()
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("dir", st.st_mode & 0o777)
        else:
            found[name] = ("file", st.st_mode & 0o777, hashlib.sha256(path.read_bytes()).hexdigest(),
                           int(st.st_mtime) if times else 0)
    return found


def test_cp_directory_both_ways(cay, box, tmp_path):
    make_tree(tmp_path / "t")
    cay.run("cp", tmp_path / "t", f"{box}:/tmp/tree", check=True)
    assert cay.run("exec", box, "-c", "cd /tmp/tree; readlink link broken; cat link; test -x sub/script && test -d empty "
                   "&& echo ok").stdout == "file\n/no/such\ncontentok\n"
    cay.run("cp", f"{box}:/tmp/tree", tmp_path / "back", check=True)
    assert tree(tmp_path / "back", times=False) == tree(tmp_path / "t", times=False)


KEPT = """
import json, os, sys
found = {}
for top, dirs, files in os.walk(sys.argv[1]):
    for full in [top] + [os.path.join(top, name) for name in dirs + files]:
        st = os.lstat(full)
        found[os.path.relpath(full, sys.argv[1])] = [
            st.st_mode, st.st_mtime_ns, 0 if os.path.isdir(full) else st.st_nlink,
            {} if os.path.islink(full) else {n: os.getxattr(full, n).hex() for n in os.listxattr(full)}]
print(json.dumps(found))
"""


def kept(*command):
    return json.loads(subprocess.run([*command], stdout=subprocess.PIPE, check=True).stdout)


def can_keep_attributes(cay, box):
    """A tmpfs has user.* attributes from Linux 6.6 on."""
    return cay.sh(box, ": > /tmp/probe; python3 -c 'import os; os.setxattr(\"/tmp/probe\", \"user.x\", b\"1\")'").returncode == 0


def test_cp_keeps_what_files_are(cay, make, tmp_path):
    """Modes, times (nanoseconds, before 1970, of directories and links), hard links and attributes, both ways."""
    box, top = make(), tmp_path / "t"
    make_tree(top)
    for name, mode in (("file", 0), ("sub/script", 0o711), ("sub/deep", 0o1777), ("sub", 0o500)):
        (top / name).chmod(mode)
    os.link(top / "file", top / "sub" / "second")
    os.link(top / "file", top / "empty" / "third")
    os.setxattr(top / "sub" / "script", "user.note", bytes(range(256)))
    os.setxattr(top / "empty", "user.dir", b"")
    times = {"file": -300_000_000_249_999_999, "link": 1_500_000_000_123_456_789, "sub/script": 1, "sub/deep": 2 * 10**18,
             "empty": 1_400_000_000_000_000_001, "sub": 1_300_000_000_999_999_999, ".": 1_200_000_000_000_000_000}
    for name, when in times.items():
        os.utime(top / name, ns=(0, when), follow_symlinks=False)
    here = kept("python3", "-c", KEPT, top)
    assert here["file"][2] == 3 and here["file"][1] < 0
    done = cay.run("cp", top, f"{box}:/tmp/tree")
    attributes = can_keep_attributes(cay, box)
    if attributes:
        assert done.returncode == 0, done
    else:
        refused(done, "unpacked, but cannot set an attribute of")
        for entry in here.values():
            entry[3] = {}
    assert json.loads(cay.run("exec", box, "--", "python3", "-c", KEPT, "/tmp/tree", check=True).stdout) == here
    done = cay.run("cp", f"{box}:/tmp/tree", tmp_path / "back", check=True)
    assert done.stderr == "" and kept("python3", "-c", KEPT, tmp_path / "back") == here
    cay.run("cp", top / "sub" / "script", f"{box}:/tmp/one", check=attributes)
    cay.run("cp", f"{box}:/tmp/one", tmp_path / "one", check=True)
    assert (tmp_path / "one").stat().st_mtime_ns == 1 == stat(cay, box, "/tmp/one")["mtime_ns"]


def test_cp_tells_what_it_does_not_keep(cay, make, tmp_path):
    """Set-id bits stay out of the host; sockets and devices are named."""
    box, top = make(), tmp_path / "t"
    top.mkdir()
    (top / "tool").write_text("x")
    (top / "tool").chmod(0o6755)
    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(top / "sock"))
        done = cay.run("cp", top, f"{box}:/tmp/t", check=True)
    assert done.stderr.count("\n") == 1 and "skipped" in done.stderr and "sock" in done.stderr, done
    assert stat(cay, box, "/tmp/t/tool")["mode"] == 0o6755 and stat(cay, box, "/tmp/t/pipe")["type"] == "pipe"
    cay.sh(box, "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/t/inner\")'", check=True)
    done = cay.run("cp", f"{box}:/tmp/t", tmp_path / "back", check=True)
    assert sorted(os.listdir(tmp_path / "back")) == ["tool"] and (tmp_path / "back" / "tool").stat().st_mode & 0o7777 == 0o755
    for word in ("set-id", "/tmp/t/pipe", "inner"):
        assert done.stderr.count(word) == 1, done


def test_cp_leaves_files_to_their_owner(cay, make, tmp_path):
    """What is new belongs to who copies, what is replaced to whom it belonged; a directory stays what it is."""
    box, top = make(), tmp_path / "t"
    make_tree(top)
    os.chown(top / "sub", 4321, 4321)
    os.chown(top / "file", 4321, 4321)
    cay.sh(box, "mkdir -p /tmp/t; echo old > /tmp/t/file; chown -R 1000:1000 /tmp/t; chmod 711 /tmp/t", check=True)
    cay.run("cp", f"{top}/.", f"{box}:/tmp/t", check=True)
    entry = stat(cay, box, "/tmp/t/file")
    assert (entry["uid"], entry["gid"], entry["size"]) == (1000, 1000, 7)
    assert stat(cay, box, "/tmp/t")["uid"] == 1000 and stat(cay, box, "/tmp/t")["mode"] == 0o711
    assert stat(cay, box, "/tmp/t/sub")["uid"] == 0 == stat(cay, box, "/tmp/t/sub/script")["uid"]
    cay.run("cp", top / "sub" / "script", f"{box}:/tmp/t/file", check=True)
    assert stat(cay, box, "/tmp/t/file")["uid"] == 1000


def test_cp_of_files_that_tell_no_size(cay, box, tmp_path):
    cay.run("cp", "/proc/filesystems", f"{box}:/tmp/fs1", check=True)
    assert cay.run("fs", "cat", box, "/tmp/fs1").stdout == pathlib.Path("/proc/filesystems").read_text() != ""
    cay.run("cp", "/sys/kernel/mm/transparent_hugepage", f"{box}:/tmp/thp", check=True)
    assert cay.run("fs", "cat", box, "/tmp/thp/enabled").stdout == \
        pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    cay.run("cp", "/proc/kallsyms", f"{box}:/tmp/syms", check=True)
    assert stat(cay, box, "/tmp/syms")["size"] > 100_000


def test_tar_streams_both_ways(cay, box, tmp_path):
    make_tree(tmp_path / "t")
    packed = subprocess.run(["tar", "-C", tmp_path / "t", "-cf", "-", "."], stdout=subprocess.PIPE, check=True).stdout
    cay.run("cp", "-", f"{box}:/tmp/tar", input=packed, text=False, check=True)
    out = cay.run("cp", f"{box}:/tmp/tar", "-", text=False, check=True).stdout
    (tmp_path / "back").mkdir()
    subprocess.run(["tar", "-C", tmp_path / "back", "-xf", "-"], input=out, check=True)
    back = tmp_path / "back"
    assert tree(back if (back / "file").exists() else back / "tar") == tree(tmp_path / "t")


def test_tar_of_many_formats(cay, box, tmp_path):
    for number, form in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        buffer = io.BytesIO()
        long = "d" * 70 + "/" + "e" * 70 + "/" + "f" * (60 if form == tarfile.USTAR_FORMAT else 200)
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            for name in ("plain", long):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = 5, 0o640
                tar.addfile(entry, io.BytesIO(b"hello"))
            link = tarfile.TarInfo("hard")
            link.type, link.linkname = tarfile.LNKTYPE, "plain"
            tar.addfile(link)
        cay.run("cp", "-", f"{box}:/tmp/form{number}", input=buffer.getvalue(), text=False, check=True)
        assert cay.run("fs", "cat", box, f"/tmp/form{number}/{long}").stdout == "hello"
        assert stat(cay, box, f"/tmp/form{number}/hard")["links"] == 2


def test_tar_of_a_file_that_shrinks_is_an_error(cay, make):
    box = make()
    cay.sh(box, "mkdir /tmp/d; head -c 40000000 /dev/zero > /tmp/d/f", check=True)
    copy = cay.popen("cp", f"{box}:/tmp/d", "-", text=False)
    assert len(copy.stdout.read(1 << 20)) == 1 << 20
    cay.sh(box, "truncate -s 1000 /tmp/d/f", check=True)
    rest, said = copy.communicate(timeout=60)
    assert copy.returncode == 125 and len(rest) < 40000000 - (1 << 20), copy.returncode
    assert b"shorter" in said, said


def test_tar_that_is_broken_or_cut(cay, box):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = 100_000
        tar.addfile(entry, io.BytesIO(b"x" * 100_000))
    data = buffer.getvalue()
    for bad in (data[:50_000], b"this is no tar archive at all" * 100, data[:512].replace(b"file", b"fiLe") + data[512:]):
        done = cay.run("cp", "-", f"{box}:/tmp/bad", input=bad, text=False)
        assert done.returncode == 125 and done.stderr.startswith(b"cay: ") and done.stderr.count(b"\n") == 1, done
    refused(cay.run("fs", "stat", box, "/tmp/bad/file"), "/tmp/bad/file")


def test_tar_stays_below_its_directory(cay, box):
    for name in ("/tmp/escaped", "../escaped", "a/../../escaped"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"x"))
        cay.run("cp", "-", f"{box}:/tmp/jail", input=buffer.getvalue(), text=False)
        refused(cay.run("fs", "stat", box, "/tmp/escaped"), "/tmp/escaped")


def test_cp_needs_one_side_inside(cay, box, tmp_path):
    refused(cay.run("cp", "/etc/hostname", tmp_path / "x"))
    refused(cay.run("cp", f"{box}:/etc/hostname", f"{box}:/tmp/x"))
    refused(cay.run("cp", tmp_path / "missing", f"{box}:/tmp/x"), "missing")
    refused(cay.run("cp", f"{box}:/missing", tmp_path / "x"), "/missing")
    refused(cay.run("cp", "no-such-box:/etc/hostname", tmp_path / "x"), "no-such-box")
    assert not (tmp_path / "x").exists()


def test_cp_of_a_hostile_link_stays_in_its_place(cay, make, tmp_path):
    """What comes out is written below the target, whatever links were there or come along."""
    box = make()
    outside = tmp_path / "outside"
    outside.mkdir()
    cay.sh(box, f"mkdir -p /tmp/t; ln -s {outside} /tmp/t/d; ln -s {outside}/f /tmp/t/f", check=True)
    cay.run("cp", f"{box}:/tmp/t", tmp_path / "t", check=True)
    cay.sh(box, "rm /tmp/t/*; mkdir /tmp/t/d; echo bad > /tmp/t/d/x; echo bad > /tmp/t/f", check=True)
    cay.run("cp", f"{box}:/tmp/t", tmp_path / "t")
    assert list(outside.iterdir()) == []


# ---- errors

@pytest.mark.parametrize("command,words", [
    (("cat", "/missing"), ("/missing", "No such file")),
    (("cat", "/tmp"), ("/tmp", "directory")),
    (("ls", "/etc/passwd"), ("/etc/passwd",)),
    (("cat", "/etc/passwd/x"), ("/etc/passwd/x",)),
    (("put", "/etc/passwd/x"), ("/etc/passwd",)),
    (("put", "/proc/x"), ("/proc/x",)),
    (("rm", "/proc/1"), ("/proc/1",)),
    (("cat", "/" + "x" * 300), ("name too long",)),
    (("find", "/missing", "*"), ("/missing",)),
    (("grep", "/missing", "x"), ("/missing",)),
    (("watch", "/missing"), ("/missing",)),
])
def test_errors_say_what_and_why(cay, box, command, words):
    line = refused(cay.run("fs", command[0], box, *command[1:], input="x"))
    for word in words:
        assert word.lower() in line.lower(), line


def test_a_fifo_or_device_does_not_hang(cay, make):
    box = make()
    cay.sh(box, "mkfifo /tmp/p", check=True)
    refused(cay.run("fs", "cat", box, "/tmp/p", timeout=10), "/tmp/p")
    refused(cay.run("fs", "cat", box, "/dev/zero", timeout=10), "/dev/zero")
    done = cay.run("fs", "grep", box, "/tmp", "x", timeout=10)
    assert done.returncode == 1
    cay.run("fs", "put", box, "/tmp/p", input="now a file", timeout=10)


def test_full_disk_is_an_error_that_leaves_the_old_file(cay, make):
    box = make("--disk", "16M")
    cay.run("fs", "put", box, "/tmp/f", input="old", check=True)
    done = cay.run("fs", "put", box, "/tmp/f", input=b"x" * (32 << 20), text=False)
    refused(subprocess.CompletedProcess([], done.returncode, "", done.stderr.decode()), "/tmp/f", "space")
    assert cay.run("fs", "cat", box, "/tmp/f").stdout == "old"
    assert cay.run("fs", "ls", box, "/tmp").stdout.split() == ["f"]
    cay.run("fs", "put", box, "/tmp/g", input=b"x" * (4 << 20), text=False, check=True)


def test_many_file_calls_at_once(cay, make):
    box = make()
    writers = [cay.popen("fs", "put", box, f"/tmp/c/{i}") for i in range(50)]
    for i, w in enumerate(writers):
        w.stdin.write(b"%d" % i * 10000)
        w.stdin.close()
    codes = [w.wait(60) for w in writers]
    for w in writers:
        end(w)
    assert codes == [0] * 50
    assert len(cay.run("fs", "ls", box, "/tmp/c").stdout.split()) == 50
    assert cay.run("fs", "cat", box, "/tmp/c/7").stdout == "7" * 10000


def test_files_while_a_command_runs(cay, make):
    box = make()
    background(cay, box, "while :; do :; done")
    start = time.monotonic()
    cay.run("fs", "put", box, "/tmp/x", input="x", check=True)
    assert time.monotonic() - start < 5
