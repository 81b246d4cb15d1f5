# SPDX-License-Identifier: Apache-2.0
"""Archives over HTTP: what they keep, what they say, and that no byte of them is made up."""
import http.client
import io
import json
import os
import pathlib
import tarfile

import pytest

from integration.test_api_files import MIB, Box, box, place, refused  # noqa: F401 (two of them are fixtures)


def test_archive_round_trip(box, place):
    data = os.urandom(200_000)
    box.put(f"{place}/from/sub/f", data, mode="751")
    box.put(f"{place}/from/" + "n" * 150, b"long")
    box.sh(f"cd {place}/from; ln -s sub/f link; mkdir empty; mkfifo pipe")
    answer = box.daemon.get(box.url("archive", path=f"{place}/from"))
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        members = {m.name: m for m in tar}
        assert tar.extractfile("sub/f").read() == data and members["sub/f"].mode == 0o751
        assert members["link"].linkname == "sub/f" and members["empty"].isdir()
    assert box.daemon.put(box.url("archive", path=f"{place}/to/new"), answer.body).status == 204
    assert box.get(f"{place}/to/new/sub/f").body == data
    assert sorted(box.names(f"{place}/to/new", depth=9)) == sorted(box.names(f"{place}/from", depth=9))
    assert box.daemon.get(box.url("archive", path=f"{place}/to/new")).status == 200
    one = box.daemon.get(box.url("archive", path=f"{place}/from/sub/f")).body
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert tar.getnames() == ["f"]
    box.post("mkdir", {"path": f"{place}/void"})
    assert box.daemon.get(box.url("archive", path=f"{place}/void")).status == 200


KEPT = """
import json, os, sys
found = {}
for top, dirs, files in os.walk(sys.argv[1]):
    for name in dirs + files:
        full = os.path.join(top, name)
        st = os.lstat(full)
        found[os.path.relpath(full, sys.argv[1])] = [
            st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, 0 if os.path.isdir(full) else st.st_nlink,
            {} if os.path.islink(full) else {n: os.getxattr(full, n).hex() for n in os.listxattr(full)}]
print(json.dumps(found))
"""
MADE = """
import errno, os, socket, sys
os.chdir(sys.argv[1])
os.makedirs('sub/deep')
for name in ('sub/f', 'old', 'sub/deep/g'):
    open(name, 'w').write(name)
os.chmod('sub/f', 0o4751), os.chmod('sub/deep', 0o1777), os.chmod('old', 0)
os.link('sub/f', 'other name'), os.link('sub/f', 'sub/deep/third')
os.symlink('sub/f', 'link'), os.mkfifo('pipe'), os.chmod('pipe', 0o666)
try:
    os.setxattr('sub/f', 'user.note', bytes(range(256))), os.setxattr('sub', 'user.empty', b'')
except OSError as error:
    if error.errno != errno.ENOTSUP: # a tmpfs before Linux 6.6 has none
        raise
os.chown('sub/deep/g', 1234, 4321), os.chown('link', 1000, 1000, follow_symlinks=False)
os.utime('old', ns=(0, -300_000_000_000_000_000 + 250_000_001))
for n, name in enumerate(('sub/f', 'link', 'pipe', 'sub/deep/g', 'sub/deep', 'sub')):
    os.utime(name, ns=(1, 1_500_000_000_123_456_789 + n), follow_symlinks=False)
"""


def test_archives_keep_what_files_are(box, place):
    """Modes, owners, times to the nanosecond and before 1970, hard links and attributes, of every kind of entry."""
    box.sh(f"mkdir {place}/from {place}/half; python3 -c \"{MADE}\" {place}/from")
    body = box.daemon.get(box.url("archive", path=f"{place}/from")).body
    assert box.daemon.put(box.url("archive", path=f"{place}/to"), body).status == 204
    kept = [json.loads(box.sh(f"python3 -c '{KEPT}' {place}/{top}")) for top in ("from", "to")]
    assert kept[0] == kept[1] and kept[0]["sub/f"][4] == 3 and kept[0]["old"][3] < 0
    assert box.stat(f"{place}/to/old")["mtime_ns"] == kept[0]["old"][3]
    assert box.get(f"{place}/to/old", method="HEAD").headers["X-Cay-Mtime-Ns"] == str(kept[0]["old"][3])


def test_an_archive_says_what_it_leaves_out(box, place):
    box.sh(f"cd {place}; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'; : > file")
    body = box.daemon.get(box.url("archive", path=place)).body
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert tar.getnames() == ["file", "."]
        assert tar.pax_headers["comment"] == "cay: left out the socket 's'"
    assert box.daemon.put(box.url("archive", path=f"{place}/again"), body).status == 204


def test_archive_as_a_user(box):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo("f")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    assert box.daemon.put(box.url("archive", path="/home/user/t", user="user"), made.getvalue()).status == 204
    assert box.stat("/home/user/t/f")["uid"] == 1000
    refused(box.daemon.put(box.url("archive", path="/root/t", user="user"), made.getvalue()), "denied")


def test_bad_archives(box, place, tmp_path):
    refused(box.daemon.put(box.url("archive", path=place), b"no archive" * 1000), "invalid")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("f")
        member.size = 100_000
        tar.addfile(member, io.BytesIO(bytes(100_000)))
    refused(box.daemon.put(box.url("archive", path=place), made.getvalue()[:50_000]), "invalid", "cut short")
    for name in ("../../../../../../../../../../tmp/evil", str(tmp_path / "evil"), "a/../../evil"):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
        box.daemon.put(box.url("archive", path=f"{place}/in"), made.getvalue())
        assert not pathlib.Path("/tmp/evil").exists() and os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_large_archive_through_the_daemon(box, place):
    box.sh(f"mkdir {place}/t; for i in $(seq 40); do head -c 1000000 /dev/urandom > {place}/t/$i; done")
    before = box.daemon.rss()
    body = box.daemon.get(box.url("archive", path=f"{place}/t"), timeout=60).body
    assert box.daemon.put(box.url("archive", path=f"{place}/u"), body, timeout=60).status == 204
    assert box.daemon.rss() - before < 4 * MIB
    assert box.sh(f"cd {place}/t; sha256sum *") == box.sh(f"cd {place}/u; sha256sum *")


def test_an_archive_of_a_file_that_shrinks_breaks_off(box, place):
    """No byte is made up: the connection ends before the archive does."""
    box.sh(f"mkdir {place}/d; head -c 40000000 /dev/zero > {place}/d/f")
    with box.daemon.stream(box.url("archive", path=f"{place}/d"), timeout=20) as stream:
        assert stream.status == 200
        stream.read(10)
        box.sh(f"truncate -s 1000 {place}/d/f")
        with pytest.raises(http.client.IncompleteRead):
            stream.read()


def test_an_archive_of_what_cannot_be_read_is_refused(box):
    answer = box.daemon.get(box.url("archive", path="/proc/self/mem"))
    assert answer.status >= 400 and "mem" in answer.error["message"], answer


def test_an_archive_of_files_whose_size_is_not_true(box, cayd):
    """sysfs says 4096 of a few bytes, procfs says 0 of many."""
    source = "/sys/kernel/mm/transparent_hugepage"
    mounted = Box(cayd, cayd.cay.create("-v", f"{source}:/thp:ro"))
    body = cayd.get(mounted.url("archive", path="/thp")).body
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        for name in ("enabled", "defrag"):
            assert tar.extractfile(name).read() == pathlib.Path(source, name).read_bytes()
    mounted.daemon.cay.run("rm", "-f", mounted.id, check=True)
    one = box.daemon.get(box.url("archive", path="/proc/filesystems")).body
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert tar.extractfile("filesystems").read() == box.get("/proc/filesystems").body != b""
