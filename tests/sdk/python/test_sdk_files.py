# SPDX-License-Identifier: Apache-2.0
"""Files of a sandbox, for both twins."""
import asyncio
import hashlib
import io
import os
import tarfile

import pytest

import cay as sdk

PIECE = bytes(range(256)) * 256  # 64 KiB


@pytest.fixture
def top(twin, sandbox):
    """A directory of its own for one test."""
    path = twin(sandbox.exec("mktemp -d")).stdout.strip()
    yield path
    twin(sandbox.files.remove(path, recursive=True))


def test_text_and_bytes(twin, sandbox, top):
    """Written and read back; directories above are made; an old file is replaced."""
    files = sandbox.files
    twin(files.write(f"{top}/a/b/text", "hällo\n"))
    assert twin(files.read(f"{top}/a/b/text")) == "hällo\n".encode()
    assert twin(files.read_text(f"{top}/a/b/text")) == "hällo\n"
    twin(files.write(f"{top}/a/b/text", b"\xff\0"))
    assert twin(files.read(f"{top}/a/b/text")) == b"\xff\0"
    with pytest.raises(UnicodeDecodeError):
        twin(files.read_text(f"{top}/a/b/text"))
    assert twin(files.read_text(f"{top}/a/b/text", "latin-1")) == "ÿ\0"
    assert twin(files.read_text(f"{top}/a/b/text", errors="replace")) == "\N{REPLACEMENT CHARACTER}\0"
    for data in (b"", bytearray(b"x"), memoryview(b"y")):
        twin(files.write(f"{top}/bytes", data))
        assert twin(files.read(f"{top}/bytes")) == bytes(data)


def test_20_megabytes_in_pieces(twin, sandbox, top):
    """Written from an iterator and read as a stream: no more than a piece is in memory at a time."""
    made = 0

    def pieces():
        nonlocal made
        for _ in range(320):
            made += 1
            yield PIECE

    twin(sandbox.files.write(f"{top}/large", pieces()))
    assert made == 320
    digest = hashlib.sha256(PIECE * 320).hexdigest()
    assert twin(sandbox.exec(["sha256sum", f"{top}/large"])).stdout.split()[0] == digest
    stream = sandbox.files.stream(f"{top}/large")
    back, size = hashlib.sha256(), 0
    for chunk in [twin.next(stream), *twin(stream)]:
        assert chunk and len(chunk) < 4 << 20
        back.update(chunk)
        size += len(chunk)
    assert (size, back.hexdigest()) == (320 * len(PIECE), digest)


def test_from_a_file_and_from_an_async_iterator(twin, sandbox, top, tmp_path):
    """An open file of the host; for the async twin an async iterator, too."""
    (tmp_path / "local").write_bytes(PIECE * 3 + b"\n\n")
    with open(tmp_path / "local", "rb") as local:
        twin(sandbox.files.write(f"{top}/copy", local))
    assert twin(sandbox.files.read(f"{top}/copy")) == PIECE * 3 + b"\n\n"
    twin(sandbox.files.write(f"{top}/copy", io.BytesIO(b"from memory")))
    assert twin(sandbox.files.read(f"{top}/copy")) == b"from memory"

    async def pieces():
        for n in range(3):
            yield b"%d" % n

    if twin.loop:
        twin(sandbox.files.write(f"{top}/copy", pieces()))
        assert twin(sandbox.files.read(f"{top}/copy")) == b"012"


def test_pieces_of_any_kind_of_bytes(twin, sandbox, top):
    """bytearray and memoryview, counted in bytes; what is no bytes is a TypeError, and writes nothing."""
    pieces = [bytearray(b"ab"), memoryview(b"cdef").cast("I"), b"", b"g"]
    twin(sandbox.files.write(f"{top}/pieces", pieces))
    assert twin(sandbox.files.read(f"{top}/pieces")) == b"abcdefg"
    for wrong in (["text"], [1, 2], io.StringIO(""), io.StringIO("text")):
        with pytest.raises(TypeError, match="bytes"):
            twin(sandbox.files.write(f"{top}/pieces", wrong))
    assert twin(sandbox.files.read(f"{top}/pieces")) == b"abcdefg"


def test_a_pipe_does_not_hold_up_the_loop(acay, box):
    """A file that has nothing to give yet is waited for in a thread."""
    async def body(client):
        files = client.attach(box.id).files
        source, sink = os.pipe()
        with open(source, "rb") as pipe:
            writing = asyncio.ensure_future(files.write("/work/piped", pipe))
            await files.mkdir("/work")  # while the other one has nothing to send
            os.write(sink, b"late")
            os.close(sink)
            await writing
        assert await files.read("/work/piped") == b"late"

    acay(body)


@pytest.mark.parametrize("pieces", [100, 1024])
def test_a_full_disk_is_told_however_much_is_still_to_come(twin, client, pieces):
    box = twin(client.create(disk="16M"))
    try:
        with pytest.raises(sdk.NoSpace):
            twin(box.files.write("/tmp/x", (bytes(1 << 20) for _ in range(pieces))))
        with pytest.raises(sdk.Invalid):
            twin(box.files.write("/tmp", (bytes(1 << 20) for _ in range(pieces))))
    finally:
        twin(box.remove())


def test_a_write_that_breaks_off_changes_nothing(twin, sandbox, top):
    """The old file stays when the iterator raises; its exception is the caller's."""
    twin(sandbox.files.write(f"{top}/file", "old"))

    def pieces():
        yield PIECE
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        twin(sandbox.files.write(f"{top}/file", pieces()))
    assert twin(sandbox.files.read_text(f"{top}/file")) == "old"
    assert [entry.name for entry in twin(sandbox.files.list(top))] == ["file"]


def test_parts_of_a_file(twin, sandbox, top):
    """`start` and `end` are those of a slice."""
    twin(sandbox.files.write(f"{top}/ten", "0123456789"))
    twin(sandbox.files.write(f"{top}/empty", ""))
    for start, end in ((None, None), (3, None), (None, 4), (2, 5), (9, 10), (5, 5), (6, 5), (0, 0), (8, 100), (10, 20),
                       (99, None)):
        found = b"".join(twin(sandbox.files.stream(f"{top}/ten", start=start, end=end)))
        assert found == b"0123456789"[start:end], (start, end)
    assert b"".join(twin(sandbox.files.stream(f"{top}/empty"))) == b""
    assert b"".join(twin(sandbox.files.stream(f"{top}/empty", start=0))) == b""
    with pytest.raises(sdk.NotFound):
        twin(sandbox.files.stream(f"{top}/none"))
    for wrong in ({"start": -5}, {"end": -1}, {"start": -5, "end": 3}):
        with pytest.raises(sdk.Invalid):
            twin(sandbox.files.stream(f"{top}/ten", **wrong))


def test_mode_and_user(twin, sandbox, top):
    """0o644 unless told otherwise; as a number or in octal digits; with another user's rights."""
    files = sandbox.files
    for given, mode in ((None, 0o644), (0o755, 0o755), ("600", 0o600)):
        twin(files.write(f"{top}/mode-{given}", "x", mode=given))
        assert twin(files.stat(f"{top}/mode-{given}")).mode == mode
    with pytest.raises(sdk.Denied):
        twin(files.write(f"{top}/not-mine", "x", user="user"))
    with pytest.raises(sdk.Denied):
        twin(files.read("/etc/shadow", user="user"))
    twin(files.write("/workspace/mine", "x", user="user"))
    assert twin(files.stat("/workspace/mine")).uid == int(twin(sandbox.exec("id -u user")).stdout)
    twin(files.remove("/workspace/mine", user="user"))


def test_stat_and_exists(twin, sandbox, top):
    """All that is known of a file; of a link, or with `follow` of what it points to."""
    files = sandbox.files
    twin(files.write(f"{top}/file", "12345"))
    twin(sandbox.exec(["ln", "-s", "file", f"{top}/link"]))
    twin(sandbox.exec(["ln", "-s", "none", f"{top}/broken"]))
    found = twin(files.stat(f"{top}/file"))
    assert (found.name, found.path, found.type, found.size, found.target) == ("file", f"{top}/file", "file", 5, None)
    assert found.is_file and not found.is_dir and found.mtime_ns > 10**18 and found.links == 1 and found.uid == 0
    link = twin(files.stat(f"{top}/link"))
    assert (link.type, link.target, link.is_file) == ("link", "file", False)
    assert twin(files.stat(f"{top}/link", follow=True)).size == 5
    assert twin(files.stat(top)).is_dir and twin(files.stat("/")).name == "/"
    answers = {name: twin(files.exists(f"{top}/{name}")) for name in ("file", "link", "broken", "none", "file/x", "")}
    assert answers == {"file": True, "link": True, "broken": False, "none": False, "file/x": False, "": True}
    with pytest.raises(sdk.NotFound):
        twin(files.stat(f"{top}/none"))


def test_a_sandbox_that_is_not_there_is_no_missing_file(twin, client):
    """Neither exists nor remove takes one for the other."""
    files = client.attach("no-such-sandbox").files
    with pytest.raises(sdk.NotFound):
        twin(files.exists("/etc"))
    with pytest.raises(sdk.NotFound):
        twin(files.remove("/etc", missing_ok=True))


def test_what_was_found_in_spite_of_an_error(twin, sandbox, top):
    """A directory that the user may not read is told, and what the others hold is not lost."""
    files = sandbox.files
    twin(files.write(f"{top}/a/one", "line\n", mode=0o644))
    twin(files.write(f"{top}/closed/two", "line\n", mode=0o644))
    twin(files.write(f"{top}/z/three", "line\n", mode=0o644))
    assert twin(sandbox.exec(f"chmod 755 {top} {top}/a {top}/z; chmod 700 {top}/closed")).ok
    nobody = {"user": "65534:65534"}
    with pytest.raises(sdk.Denied) as caught:
        twin(files.grep(top, "line", **nobody))
    assert {match.path for match in caught.value.found} == {f"{top}/a/one", f"{top}/z/three"}
    with pytest.raises(sdk.Denied) as caught:
        twin(files.find(top, glob="*", **nobody))
    names = {"a", "a/one", "closed", "z", "z/three"}
    assert {entry.path for entry in caught.value.found} == {f"{top}/{name}" for name in names}
    with pytest.raises(sdk.NotFound) as caught:
        twin(files.find(f"{top}/none"))
    assert caught.value.found == []


def test_list_find_grep(twin, sandbox, top):
    """Absolute paths, sorted; to a depth; by pattern; lines by their content."""
    files = sandbox.files
    for name in ("b.py", "a.txt", "sub/c.py", "sub/deep/d.py"):
        twin(files.write(f"{top}/{name}", f"first\nimport {name}\n"))
    assert [(e.name, e.path) for e in twin(files.list(top))] == [(n, f"{top}/{n}") for n in ("a.txt", "b.py", "sub")]
    assert [e.path for e in twin(files.list(top, depth=2))] == [
        f"{top}/{n}" for n in ("a.txt", "b.py", "sub", "sub/c.py", "sub/deep")]
    assert sorted(e.path for e in twin(files.find(top, glob="*.py"))) == [
        f"{top}/{n}" for n in ("b.py", "sub/c.py", "sub/deep/d.py")]
    assert [e.name for e in twin(files.find(top, glob="sub/**/d.py"))] == ["d.py"]
    assert len(twin(files.find(top))) == 6 and len(twin(files.find(top, limit=2))) == 2
    match, = twin(files.grep(top, "^IMPORT a.t", ignore_case=True))
    assert match == sdk.Match(f"{top}/a.txt", 2, "import a.txt")
    assert len(twin(files.grep(top, "import", glob="*.py"))) == 3
    assert twin(files.grep(top, "a.t", literal=True))[0].path == f"{top}/a.txt"
    assert len(twin(files.grep(top, "first", limit=2))) == 2 and twin(files.grep(top, "nowhere")) == []
    with pytest.raises(sdk.Invalid):
        twin(files.grep(top, "("))
    with pytest.raises(sdk.CayError):
        twin(files.list(f"{top}/a.txt"))


def test_names_of_any_bytes(twin, sandbox, top):
    """Spaces, what URLs use, Unicode, newlines; names that are not UTF-8 go there and back."""
    files = sandbox.files
    names = ["a b", "a+b&c=d?e#f%41", "ünï\u2028cödé", "new\nline", "'quote\"", "*?["]
    for name in names:
        twin(files.write(f"{top}/{name}", name))
    assert sorted(e.name for e in twin(files.list(top))) == sorted(names)
    assert all(twin(files.read_text(f"{top}/{name}")) == name for name in names)
    strange = b"caf\xe9".decode("utf-8", "surrogateescape")
    twin(files.write(f"{top}/x/{strange}", "bytes"))
    entry, = twin(files.list(f"{top}/x"))
    assert entry.name == strange and twin(files.read(entry.path)) == b"bytes"
    assert twin(sandbox.exec_bytes(["ls", f"{top}/x"])).stdout == b"caf\xe9\n"
    assert twin(files.stat(entry.path)).path == entry.path
    twin(files.remove(entry.path))


def test_directories(twin, sandbox, top):
    """mkdir makes those above, and is content with what is there; move; remove."""
    files = sandbox.files
    for _ in range(2):
        twin(files.mkdir(f"{top}/a/b/c", mode=0o700))
    assert twin(files.stat(f"{top}/a/b/c")).mode == 0o700
    twin(files.write(f"{top}/a/file", "x"))
    twin(files.move(f"{top}/a", f"{top}/moved"))
    assert not twin(files.exists(f"{top}/a")) and twin(files.read_text(f"{top}/moved/file")) == "x"
    with pytest.raises(sdk.CayError):
        twin(files.remove(f"{top}/moved"))
    twin(files.remove(f"{top}/moved/b", recursive=True))
    twin(files.remove(f"{top}/moved/file"))
    twin(files.remove(f"{top}/moved"))
    with pytest.raises(sdk.NotFound):
        twin(files.remove(f"{top}/moved"))
    twin(files.remove(f"{top}/moved", missing_ok=True))
    with pytest.raises(sdk.NotFound):
        twin(files.move(f"{top}/none", f"{top}/x"))
    with pytest.raises(sdk.Invalid):
        twin(files.mkdir("relative"))


def test_a_directory_is_no_file(twin, sandbox, top):
    for call in (lambda: sandbox.files.read(top), lambda: sandbox.files.write(top, "x")):
        with pytest.raises(sdk.CayError):
            twin(call())


def test_archives(twin, sandbox, top):
    """A directory as tar, and a tar of Python's own unpacked."""
    files = sandbox.files
    twin(files.write(f"{top}/from/sub/file", "content", mode=0o755))
    whole = b"".join(twin(files.get_archive(f"{top}/from")))
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        member = next(one for one in tar if one.isfile())
        assert member.name.removeprefix("./") == "sub/file" and member.mode == 0o755
        assert tar.extractfile(member).read() == b"content"
    twin(files.put_archive(f"{top}/copy", whole))
    assert twin(files.read_text(f"{top}/copy/sub/file")) == "content"
    twin(files.put_archive(f"{top}/pieces", iter([whole[:700], whole[700:]])))
    assert twin(files.stat(f"{top}/pieces/sub/file")).mode == 0o755
    with pytest.raises(sdk.CayError):
        twin(files.put_archive(f"{top}/bad", b"this is no archive" * 100))
    with pytest.raises(sdk.NotFound):
        twin(files.get_archive(f"{top}/none"))


def test_watching(twin, sandbox, top):
    """Nothing is missed from the beginning of the block on; below it only if asked for."""
    twin(sandbox.files.mkdir(f"{top}/sub"))
    with twin.within(sandbox.files.watch(top)) as changes:
        twin(sandbox.exec(f"echo x > {top}/sub/deep; echo x > {top}/new"))
        assert twin.next(changes) == sdk.Change("created", f"{top}/new")
    with twin.within(sandbox.files.watch(top, recursive=True)) as changes:
        twin(sandbox.exec(["rm", f"{top}/sub/deep"]))
        assert twin.next(changes) == sdk.Change("deleted", f"{top}/sub/deep")
    with pytest.raises(sdk.NotFound):
        with twin.within(sandbox.files.watch(f"{top}/none")):
            pass


def test_watching_ends_with_the_sandbox(twin, client):
    with twin.within(client.sandbox()) as sandbox, twin.within(sandbox.files.watch("/tmp")) as changes:
        twin(sandbox.kill())
        with pytest.raises(sdk.CayError):
            twin(changes)
