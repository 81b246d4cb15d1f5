# SPDX-License-Identifier: Apache-2.0
"""Out of memory: the command whose memory it was dies, with all it started; nothing else is touched.

CAY_OOM_ROUNDS repeats the test with nine others (`make soak`: 10).
"""
import json
import os
import time

import pytest

from integration.support import background, end, procs, state, until

ROUNDS = int(os.environ.get("CAY_OOM_ROUNDS", "1"))
HOG = "x = bytearray({n} << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('fits', flush=True)"
GREEDY = ["python3", "-c", HOG.format(n=300)]
# Prints, writes to files in memory and forks: each needs memory, and must get it.
WORKER = "for i in $(seq 300); do echo $i; echo $i >>/tmp/w{n}; /bin/true || exit 1; done; echo end"
WORKED = "".join(f"{i}\n" for i in range(1, 301))


@pytest.fixture
def box(make):
    return make("--memory", "96M", "--disk", "32M")


def greedy_script(after="echo after"):
    """A shell script whose child is the one that needs the memory."""
    return f"python3 -c \"{HOG.format(n=300)}\"; {after}"


def lives(cay, box):
    """The same sandbox, with its file, that runs commands without a fault."""
    assert state(cay, box) == "running"
    for _ in range(20):
        assert cay.run("exec", box, "--", "true").returncode == 0
    return True


def told(done, *words):
    assert done.returncode == 137, (done.returncode, done.stdout, done.stderr)
    notes = [line for line in done.stderr.splitlines() if line.startswith("cay: ")]
    assert len(notes) == 1 and "out of memory" in notes[0], done.stderr
    for word in words:
        assert word in notes[0], notes[0]
    return notes[0]


def test_nine_others_and_all_files_are_untouched(cay, box):
    cay.sh(box, "echo kept >/root/file", check=True)
    for count in range(1, ROUNDS + 1):
        cay.sh(box, "rm -f /tmp/w*", check=True)
        others = [cay.popen("exec", box, "-c", WORKER.format(n=n)) for n in range(9)]
        try:
            told(cay.run("exec", box, "--", *GREEDY))
            told(cay.run("exec", box, "-c", greedy_script()))
            for n, other in enumerate(others):
                out, err = other.communicate(timeout=60)
                assert (other.returncode, out.decode(), err.decode()) == (0, WORKED + "end\n", ""), count
                assert cay.sh(box, f"cat /tmp/w{n}").stdout == WORKED
        finally:
            for other in others:
                end(other)
        assert cay.sh(box, "cat /root/file").stdout == "kept\n"
        assert cay.json("stats", "--json", box)["oom_kills"] == 2 * count
    assert lives(cay, box)


def test_json_says_so(cay, box):
    done = cay.run("exec", "--json", box, "--", *GREEDY)
    one = json.loads(done.stdout)
    assert done.returncode == 137
    assert (one["oom"], one["exit_code"], one["signal"], one["timed_out"]) == (True, 137, 9, False)
    assert one["reason"] == "out of memory" and one["stdout"] == ""


def test_the_whole_tree_dies_with_a_grandchild(cay, box):
    for _ in range(5):
        done = cay.run("exec", box, "-c", greedy_script("echo after; echo >/root/after"))
        told(done)
        assert done.stdout == ""
    assert cay.sh(box, "ls /root").stdout == ""
    assert lives(cay, box)


def test_many_small_processes_are_one_command(cay, box):
    small = f"python3 -c \"{HOG.format(n=4)}\nimport time; time.sleep(60)\" & "
    other = background(cay, box, "exec sleep 1000")
    told(cay.run("exec", box, "-c", small * 40 + "wait; echo after"))
    assert procs(cay, box)[other]["running"]
    assert lives(cay, box)


def test_what_a_command_left_behind_dies_as_a_whole(cay, box):
    script = f"(setsid sh -c '{greedy_script('echo >/root/after')}' >/dev/null 2>&1 &)"
    done = cay.run("exec", "--json", box, "-c", script.replace("'fits'", "0"))
    assert done.returncode == 0 and not json.loads(done.stdout)["oom"]
    until(lambda: cay.json("stats", "--json", box)["oom_kills"] == 1, 60)
    time.sleep(0.5)
    assert cay.sh(box, "ls /root").stdout == ""
    (left,) = [p for p in procs(cay, box).values() if "setsid" in p["command"]]
    assert (left["exit"]["exit_code"], left["exit"]["oom"]) == (0, False)
    assert lives(cay, box)


def test_two_at_once(cay, box):
    other = background(cay, box, "exec sleep 1000")
    both = [cay.popen("exec", "--json", box, "-c", greedy_script()) for _ in range(2)]
    try:
        for one in both:
            out, _ = one.communicate(timeout=60)
            assert one.returncode == 137 and json.loads(out)["oom"], out
    finally:
        for one in both:
            end(one)
    assert procs(cay, box)[other]["running"]
    assert lives(cay, box)


def test_in_the_background(cay, box):
    number = int(cay.run("exec", "-d", box, "--", *GREEDY, check=True).stdout)
    assert cay.run("wait", box, number).returncode == 137
    one = procs(cay, box)[number]["exit"]
    assert (one["exit_code"], one["oom"]) == (137, True)


def test_with_a_terminal(cay, box):
    done = cay.run("exec", "-t", box, "--", *GREEDY)
    assert done.returncode == 137 and "out of memory" in done.stderr, done
    assert lives(cay, box)


def test_run(cay):
    told(cay.run("run", "--memory", "64M", "--", *GREEDY), "--memory")
    told(cay.run("run", "--memory", "64M", "-c", greedy_script()), "--memory")


def test_killed_is_not_out_of_memory(cay, box):
    told(cay.run("exec", box, "--", *GREEDY))
    for _ in range(20):
        one = json.loads(cay.run("exec", "--json", box, "-c", "kill -9 $$").stdout)
        assert (one["exit_code"], one["oom"], one.get("reason")) == (137, False, None)


def test_timeout_stays_a_timeout(cay, box):
    one = json.loads(cay.run("exec", "--json", "--timeout", "300ms", box, "--", "sleep", "60").stdout)
    assert (one["exit_code"], one["timed_out"], one["oom"]) == (124, True, False)


def test_a_full_disk_is_not_full_memory(cay, box):
    """Files on the in-memory disk count as memory: what is full is told apart."""
    done = cay.run("exec", "--json", box, "-c", "head -c 40M /dev/zero >/root/big")
    one = json.loads(done.stdout)
    assert one["exit_code"] == 1 and not one["oom"] and "No space left" in one["stderr"]
    told(cay.run("exec", box, "--", "python3", "-c", HOG.format(n=80)), "files in memory take 3", "of 96 MiB")
    cay.sh(box, "rm /root/big", check=True)
    assert cay.run("exec", box, "--", "python3", "-c", HOG.format(n=60)).stdout == "fits\n"


def test_files_that_take_most_of_the_memory_are_named(cay, make):
    box = make("--memory", "64M", "--disk", "32M")
    cay.run("exec", box, "-c", "head -c 40M /dev/zero >/root/big")
    told(cay.run("exec", box, "--", "python3", "-c", HOG.format(n=50)), "files in memory take 3", "of 64 MiB",
         "remove some files")
    assert cay.sh(box, "ls /root").stdout == "big\n"
    cay.sh(box, "rm /root/big", check=True)
    assert cay.run("exec", box, "--", "python3", "-c", HOG.format(n=40)).stdout == "fits\n"


def test_an_upload_at_the_limit(cay, make, tmp_path):
    """A file worker's memory is the sandbox's too: a command makes room, and init and the file stay."""
    box = make("--memory", "64M", "--disk", "32M")
    (tmp_path / "file").write_bytes(os.urandom(30 << 20))
    number = background(cay, box, f"exec python3 -c \"{HOG.format(n=36)}\nimport time; time.sleep(60)\"")
    until(lambda: "fits" in cay.run("logs", box).stdout)
    cay.run("cp", tmp_path / "file", f"{box}:/root/file", check=True)
    assert cay.run("wait", box, number).returncode == 137 and procs(cay, box)[number]["exit"]["oom"]
    cay.run("cp", f"{box}:/root/file", tmp_path / "back", check=True)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()
    assert lives(cay, box)


def test_a_paused_neighbour(cay, make, box):
    other = make("--memory", "64M")
    number = background(cay, other, "i=0; while :; do i=$((i+1)); echo $i >/tmp/n; sleep 0.05; done")
    cay.run("pause", other, check=True)
    told(cay.run("exec", box, "--", *GREEDY))
    assert state(cay, other) == "paused"
    cay.run("resume", other, check=True)
    before = int(cay.sh(other, "cat /tmp/n").stdout)
    until(lambda: int(cay.sh(other, "cat /tmp/n").stdout or 0) > before)
    assert procs(cay, other)[number]["running"]


def test_after_pause_and_resume(cay, box):
    """One that is stopped in the middle of it runs into the limit when it goes on."""
    number = background(cay, box, f"sleep 1; exec python3 -c \"{HOG.format(n=300)}\"")
    cay.run("pause", box, check=True)
    time.sleep(1.2)
    cay.run("resume", box, check=True)
    assert cay.run("wait", box, number).returncode == 137 and procs(cay, box)[number]["exit"]["oom"]
    assert lives(cay, box)


def test_only_the_death_of_init_ends_a_sandbox(cay, box):
    """Commands are always ahead of init in the kernel's choice."""
    def score(pid):
        return int(cay.sh(box, f"cat /proc/{pid}/oom_score_adj").stdout)
    assert score("self") > score(1)


def test_over_http(cayd, cayd_make):
    box = cayd_make(memory="64M")
    done = cayd.exec(box, argv=GREEDY)
    assert (done["oom"], done["exit_code"], done["reason"]) == (True, 137, "out of memory")
    assert cayd.state_of(box) == "running" and cayd.exec(box, "echo on")["stdout"] == "on\n"
    assert cayd.get(f"/sandboxes/{box}/stats").body["oom_kills"] == 1
