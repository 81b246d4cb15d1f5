# SPDX-License-Identifier: Apache-2.0
"""The audit log, seen by other programs: cay-audit, sha256sum, and a verifier that shares no code with it.

The logs are written by build/lib/tests/unit/audit_driver, as the daemon writes them.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from lib.engine import BUILD, ROOT

LIB = BUILD / "lib" if (BUILD / "lib/cay-audit").exists() else ROOT / "build/lib"
AUDIT, DRIVER = LIB / "cay-audit", LIB / "tests/unit/audit_driver"
pytestmark = pytest.mark.skipif(not AUDIT.exists(), reason="cay-audit is not built: GnuTLS, SQLite or Jansson is missing")


@pytest.fixture
def log():
    top = pathlib.Path(tempfile.mkdtemp(prefix="caya-", dir="/tmp"))
    yield top / "audit"
    shutil.rmtree(top)


def write(log, count, rotate=0, keep=0, mode="close", **options):
    return subprocess.run([DRIVER, log, str(count), str(rotate), str(keep), mode], capture_output=True, text=True,
                          timeout=120, **options)


def audit(log, *args, env=None, **options):
    return subprocess.run([AUDIT, *(("--dir", log) if log else ()), *args], capture_output=True, text=True, timeout=120,
                          env={"PATH": os.environ["PATH"], **(env or {})}, **options)


def entries(log, *args):
    done = audit(log, "--json", *args)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def files(log):
    return [*sorted(log.glob("audit-*.jsonl")), log / "audit.jsonl"]


def independent_verify(log):
    """What docs/AUDIT.md tells a third party to do. Returns the number of entries."""
    seq, previous = 0, "0" * 64
    for path in files(log):
        for line in path.read_bytes().splitlines(keepends=True):
            match = re.fullmatch(rb'(\{.*),"hash":"([0-9a-f]{64})"\}\n', line)
            entry = json.loads(line)
            assert match and hashlib.sha256(match[1]).hexdigest() == match[2].decode() == entry["hash"]
            assert entry["seq"] == seq + 1 and entry["prev"] == previous
            seq, previous = entry["seq"], entry["hash"]
    head_seq, head_hash = (log / "head").read_text().split()
    assert (int(head_seq), head_hash) == (seq, previous)
    return seq


def test_a_third_party_can_verify(log):
    assert write(log, 500, rotate=30000).returncode == 0
    assert len(files(log)) > 4
    assert independent_verify(log) == 500
    done = audit(log, "--verify")
    assert done.returncode == 0 and done.stdout.startswith("ok: 500 entries, seq 1 to 500, hash "), done


def test_the_script_of_the_manual_verifies(log):
    """The script in docs/AUDIT.md, run as it stands there."""
    text = (ROOT / "docs/AUDIT.md").read_text()
    script = re.search(r"```python\n(.*?)```", text, re.S)[1]
    shell = re.search(r"```sh\n(# one line.*?)```", text, re.S)[1]
    assert write(log, 300, rotate=30000).returncode == 0
    run = lambda: subprocess.run(["/usr/bin/python3", "-c", script, log], capture_output=True, text=True)  # noqa: E731
    assert run().returncode == 0, run().stderr
    assert subprocess.run(["sh", "-c", shell], cwd=log, capture_output=True).returncode == 0
    path = files(log)[1]
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"who":"ci"', b'"who":"me"', 1))
    assert run().returncode != 0
    path.write_bytes(data)
    before, last = (log / "audit.jsonl").read_bytes().rstrip(b"\n").rsplit(b"\n", 1)
    (log / "audit.jsonl").write_bytes(before + b"\n" + last.replace(b'"red"', b'"rad"') + b"\n")
    assert subprocess.run(["sh", "-c", shell], cwd=log, capture_output=True).returncode == 1


def test_no_secret_is_in_a_log(log):
    write(log, 100)
    everything = b"".join(p.read_bytes() for p in log.iterdir())
    assert b"very-secret-value" not in everything
    assert b'"env":["TOKEN","PATH"]' in everything
    assert all(p.stat().st_mode & 0o077 == 0 for p in [log, *log.iterdir()])


def test_tampering_is_named(log):
    write(log, 200, rotate=30000)
    path = files(log)[1]
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    first = json.loads(lines[0])["seq"]
    cases = {
        "changed": data.replace(b'"operator"', b'"operat0r"', 1),
        "gap": b"".join(lines[:3] + lines[4:]),
        "order": b"".join(lines[:3] + lines[2:]),
    }
    for fault, changed in cases.items():
        path.write_bytes(changed)
        done = audit(log, "--verify")
        assert done.returncode == 1 and done.stderr == ""
        assert done.stdout.splitlines()[0].startswith(f"{fault}: {path.name}:"), done.stdout
        assert "the first: " in done.stdout.splitlines()[-1]
        found = [json.loads(line) for line in audit(log, "--verify", "--json").stdout.splitlines()]
        assert found[0]["fault"] == fault and found[-1]["ok"] is False
        assert first <= found[0]["seq"] <= first + 10
    path.write_bytes(data)
    assert audit(log, "--verify").returncode == 0
    last = files(log)[-1]
    last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-1]))
    done = audit(log, "--verify")
    assert done.returncode == 1 and done.stdout.startswith("head: ") and "cut off" in done.stdout
    path.unlink()
    assert "gap" in audit(log, "--verify").stdout


def test_a_killed_writer_leaves_a_log_that_goes_on(log):
    total = 0
    for count in (10, 35, 101):
        done = write(log, count, rotate=20000, mode="kill")
        assert done.returncode == -signal.SIGKILL
        total += count
        assert audit(log, "--verify").returncode == 0
    with open(log / "audit.jsonl", "ab") as f:
        f.write(b'{"seq":147,"time":"20')
    assert audit(log, "--verify").returncode == 1
    assert len(entries(log)) == total
    assert write(log, 5, rotate=20000).returncode == 0
    assert independent_verify(log) == total + 6
    assert (log / f"torn-{total + 1}").read_bytes() == b'{"seq":147,"time":"20'
    assert [e["seq"] for e in entries(log, "--action", "recovered")] == [total + 1]
    assert "recovered by the engine: torn line" in audit(log, "--verify").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk(log):
    log.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k,mode=700", "cay-audit-test", log], check=True)
    driver = None
    try:
        hole = log / "ballast"
        hole.write_bytes(b"x" * 65536)  # beside 1 MiB that the log takes ahead
        driver = subprocess.Popen([DRIVER, log, "12", "0", "0", "full"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        word, full = driver.stdout.readline().split()
        assert word == "full" and int(full) > 10
        # Whole lines only; readable without room for an index.
        assert (log / "audit.jsonl").read_bytes().endswith(b"}\n")
        assert len(entries(log)) == int(full)
        hole.unlink()
        driver.stdin.write("go\n")
        driver.stdin.close()
        assert driver.wait(60) == 0, driver.stderr.read()
        assert independent_verify(log) == int(full) + 12
    finally:
        if driver:
            driver.kill()
            driver.wait()
        subprocess.run(["umount", log], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_read_only_log(log):
    write(log, 300)
    indexed = len(entries(log, "--id", "acme~box7"))
    write(log, 300)  # not indexed yet
    subprocess.run(["mount", "--bind", log, log], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", log], check=True)
        assert len(entries(log, "--id", "acme~box7")) == 2 * indexed == 6
        assert len(entries(log, "--id", "box8")) == 6
        assert audit(log, "--verify").returncode == 0
    finally:
        subprocess.run(["umount", log], check=True)


def test_filters(log):
    write(log, 1000)
    assert len(entries(log)) == 1000
    assert {e["sandbox"] for e in entries(log, "--id", "acme~box7")} == {"acme~box7"}
    assert len(entries(log, "--id", "acme~box7")) == 10
    assert len(entries(log, "--tenant", "acme")) == 500
    assert len(entries(log, "--tenant", "-")) == 500
    assert all(e["labels"]["run"] == "3" for e in entries(log, "--label", "run=3"))
    assert len(entries(log, "--label", "run=3")) == 143
    assert len(entries(log, "-l", "team")) == 1000
    assert len(entries(log, "--action", "refused")) == 200
    assert len(entries(log, "--since", "1h")) == 1000
    assert len(entries(log, "--until", "1h")) == 0
    middle = entries(log)[499]["time"]
    later = entries(log, "--since", middle)
    assert 500 <= len(later) <= 1000 and later[-1]["seq"] == 1000
    assert [e["seq"] for e in entries(log, "--limit", "3")] == [998, 999, 1000]
    assert [e["seq"] for e in entries(log, "-n", "2", "--tenant", "-")] == [997, 999]


def test_the_table(log):
    write(log, 10)
    done = audit(log)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == "" and len(lines) == 11
    assert lines[0].split() == ["TIME", "WHO", "ACTION", "SANDBOX", "RESULT", "SUMMARY"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  operator +exec +box0 +ok +"
                        r'/bin/sh -c "echo \\"héllo\\" > /tmp/x; true"', lines[1]), lines[1]
    assert re.search(r"ci@acme +write +acme~box1 +ok +/work/a\?b bytes=1$", lines[2]), lines[2]
    assert re.search(r"refused +box4 +denied +rule=policy.images$", lines[5]), lines[5]


def test_where_the_log_is(log):
    write(log, 3)
    assert len(audit(None, env={"CAY_STATE_DIR": str(log.parent)}).stdout.splitlines()) == 4
    done = audit(None, "--verify", env={"CAY_STATE_DIR": str(log.parent / "none")})
    assert (done.returncode, done.stdout) == (125, "") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("args", [("--since", "yesterday"), ("--action", "exce"), ("--limit", "0"), ("--bogus",),
                                  ("operand",), ("--id", ""), ("--limit", "999999999")])
def test_errors_are_one_line(log, args):
    write(log, 1)
    done = audit(log, *args)
    assert done.returncode == 125 and done.stdout == ""
    assert done.stderr.startswith("cay: ") and done.stderr.count("\n") == 1
    done = audit(log, "--json", *args)
    assert json.loads(done.stderr)["error"]["code"] == "invalid"


def test_help():
    done = audit(None, "--help")
    assert done.returncode == 0 and "--verify" in done.stdout and done.stdout.startswith("Usage: cay audit ")


def test_following(log):
    write(log, 20)
    follower = subprocess.Popen([AUDIT, "--dir", log, "--json", "--follow", "--limit", "2"], stdout=subprocess.PIPE,
                                text=True)
    try:
        assert [json.loads(follower.stdout.readline())["seq"] for _ in range(2)] == [19, 20]
        # Through rotations and restarts, each once and in order.
        for _ in range(3):
            write(log, 40, rotate=8000)
        assert [json.loads(follower.stdout.readline())["seq"] for _ in range(120)] == list(range(21, 141))
        follower.stdout.close()
        assert follower.wait(10) is not None  # who follows leaves when nobody listens
    finally:
        follower.kill()
        follower.wait()


def test_queries_while_it_is_written(log):
    driver = subprocess.Popen([DRIVER, log, "100000", "200000", "4", "slow"], stdin=subprocess.PIPE)
    try:
        deadline, seen = time.monotonic() + 4, 0
        while time.monotonic() < deadline:
            if not (log / "head").exists():
                continue
            askers = [subprocess.Popen([AUDIT, "--dir", log, "--json", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                      for more in (("--id", "box8"), ("--tenant", "acme", "--limit", "50"), ("--verify",))]
            for asker in askers:
                out, said = asker.communicate(timeout=60)
                assert asker.returncode == 0, (out[-500:], said)
                seqs = [json.loads(line).get("seq", 0) for line in out.splitlines()]
                if asker is askers[0]:
                    assert seqs == sorted(set(seqs))
                seen += len(seqs)
        assert seen > 100
    finally:
        driver.stdin.close()
        assert driver.wait(30) == 0
    whole = [e["seq"] for e in entries(log)]
    assert whole == list(range(whole[0], whole[-1] + 1))
    assert [e["seq"] for e in entries(log, "--id", "box8")] == \
        [e["seq"] for e in entries(log) if e["sandbox"] == "box8"]


def test_queries_see_every_line_of_a_log_that_rotates_all_the_time(log):
    """A query that met the new, still empty file indexed the lines that came next where no query found them again."""
    driver = subprocess.Popen([DRIVER, log, "3000", "2000", "0", "slow"], stdin=subprocess.PIPE)
    try:
        while driver.poll() is None:
            if (log / "head").exists():
                entries(log, "--id", "box8")
    finally:
        driver.stdin.close()
        assert driver.wait(30) == 0
    assert [e["seq"] for e in entries(log)] == list(range(1, 3001))


def test_an_index_pays(log, record_property):
    """100,000 entries: one sandbox of a hundred by the index and, with no room for one, by reading all."""
    write(log, 100000)
    start = time.monotonic()
    expected = entries(log, "--id", "box8", "--limit", "1000")
    build = time.monotonic() - start
    start = time.monotonic()
    assert entries(log, "--id", "box8", "--limit", "1000") == expected and len(expected) == 1000
    indexed = time.monotonic() - start
    # A directory in its place: no index can be made, everything is read.
    for path in log.glob("index.sqlite*"):
        path.unlink()
    (log / "index.sqlite").mkdir()
    start = time.monotonic()
    assert entries(log, "--id", "box8", "--limit", "1000") == expected
    scanned = time.monotonic() - start
    with contextlib.suppress(OSError):
        (log / "index.sqlite").rmdir()
    record_property("scan_over_index", round(scanned / indexed, 1))
    print(f"\n100,000 entries, 1,000 found: first query {build:.2f} s, indexed {indexed:.3f} s, scan {scanned:.2f} s, "
          f"ratio {scanned / indexed:.0f}")


def test_two_build_the_index_at_once(log):
    write(log, 30000)
    askers = [subprocess.Popen([AUDIT, "--dir", log, "--json", "--id", f"box{i}"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE) for i in (2, 4, 6)]
    for asker in askers:
        out, said = asker.communicate(timeout=120)
        assert asker.returncode == 0 and len(out.splitlines()) == 300, said
