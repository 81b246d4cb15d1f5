# SPDX-License-Identifier: Apache-2.0
"""The command line as people meet it: words of other tools, what is not ignored, what is found by its beginning."""
import datetime
import json
import os
import pty
import re
import select
import shutil
import subprocess

import pytest

from integration.support import background, end, refused, until
from lib.both import Both
from lib.engine import BUILD, PROG

VERBS = [
    ("start box", "cannot be started again"), ("restart box", "cannot be started again"), ("pull alpine", "--image"),
    ("build .", "--image"), ("images", "--image"), ("ls", "cay ps"), ("list", "cay ps"), ("port box", "no network"),
    ("info", "cay doctor"), ("rename a b", "--name"), ("unpause box", "cay resume"), ("commit box", "not supported"),
]
OPTIONS = [
    ("run -p 8080:80 true", "ports"), ("run --publish 8080:80 true", "ports"), ("create -p 8080:80", "ports"),
    ("run --rm true", "always removes"), ("create --rm", "'cay run'"), ("run --hostname x true", "--name"),
    ("run --mount type=bind true", "-v HOST:DEST"), ("stop -t 5 x", "--grace"), ("rm -v x", "go with it"),
    ("logs -t x", "not kept"), ("logs --since 1m x", "not kept"), ("ps --filter x", "--label"),
    ("ps --format x", "--json"), ("update --memory 1G x", "--memory of 'cay create'"),
]


@pytest.mark.parametrize("line,words", VERBS + OPTIONS, ids=[line for line, _ in VERBS + OPTIONS])
def test_words_of_other_tools_are_answered(cay, line, words):
    assert "did you mean" not in refused(cay.run(*line.split()), "unknown", words)


@pytest.mark.parametrize("word", ["stpo", "kil", "kll", "r", "rmm", "sto"])
def test_what_destroys_is_never_proposed(cay, word):
    assert "did you mean" not in refused(cay.run(word, "x"), "unknown command")


@pytest.mark.parametrize("word,meant", [("creat", "create"), ("exce", "exec"), ("inspct", "inspect"), ("stat", "stats")])
def test_what_is_near_is_proposed(cay, word, meant):
    refused(cay.run(word, "x"), f"did you mean '{meant}'?")


@pytest.mark.parametrize("image", ["python:3.12", "docker.io/library/alpine", "ubuntu"])
def test_an_image_where_the_command_belongs(cay, image):
    refused(cay.run("run", image, "python3", "-V"), "command not found", "--image", code=127)
    refused(cay.run("run", "-d", image, "python3", "-V"), "command not found", "--image", code=127)
    assert "--image" not in refused(cay.run("run", "nosuch", "-V"), "command not found", code=127)
    assert "--image" not in refused(cay.run("run", "/no:such", "-V"), code=127)


# ---- nothing is ignored -----------------------------------------------------------------------------------------------

def test_a_token_without_a_daemon(cay, tmp_path):
    (tmp_path / "token").write_text("x\n")
    refused(cay.run("--token-file", tmp_path / "token", "ps"), "--token-file", "--host")
    refused(cay.run("ps", env={"CAY_TOKEN": "x"}), "CAY_TOKEN", "--host")
    refused(cay.run("ps", env={"CAY_TOKEN_FILE": str(tmp_path / "token")}), "CAY_TOKEN_FILE", "--host")
    assert cay.run("ps", env={"CAY_TOKEN": "x", "CAY_HOST": ""}).returncode == 0
    assert cay.run("help", env={"CAY_TOKEN": "x"}).returncode == 0


def test_a_config_file_that_is_named_is_there(cay, tmp_path):
    refused(cay.run("run", "--", "true", env={"CAY_CONFIG": "/no/such.conf"}), "/no/such.conf")
    # The usual one may be missing.
    env = {"CAY_CONFIG": "", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert cay.run("run", "--", "true", env=env).returncode == 0


def test_ids_as_json(cay, make):
    box = make()
    assert box in cay.json("ps", "-aq", "--json")
    assert all(isinstance(name, str) for name in cay.json("ps", "-aq", "--json"))


def test_more_than_this_machine_has(cay):
    n = len(os.sched_getaffinity(0))
    done = cay.run("run", "--cpus", n + 1, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n") and f"--cpus is more than the {n} that" in done.stderr
    assert cay.run("run", "--cpus", n, "--", "true").stderr == ""
    done = cay.run("run", "--memory", "999T", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n") and "--memory 999T is more than" in done.stderr
    assert cay.run("run", "--memory", "64M", "--", "true").stderr == ""


def test_ranges_are_shown_as_they_are_written(cay):
    refused(cay.run("create", "--memory", "1"), "memory of 1 is out of range: 4M to 1024T")


# ---- found by the beginning ------------------------------------------------------------------------------------------

def test_an_id_can_be_shortened(fresh):
    box = fresh.create("--label", "a=b")
    short = box[:5]
    assert fresh.sh(short, "echo here > /tmp/f; echo in").stdout == "in\n"
    assert fresh.json("inspect", "--json", short)["id"] == box
    assert fresh.run("cp", f"{short}:/tmp/f", fresh.top / "f").returncode == 0
    assert (fresh.top / "f").read_text() == "here\n"
    refused(fresh.run("exec", box[:3], "true"), f"no sandbox '{box[:3]}'")
    refused(fresh.run("exec", "0000000", "true"), "no sandbox '0000000'")
    assert fresh.run("rm", "-f", short).returncode == 0
    assert fresh.ids() == []


def test_the_beginning_of_several_ids(fresh):
    for name in ("abcd00000001", "abcd00000002", "abcd"):
        fresh.create("--name", name)
    refused(fresh.run("rm", "-f", "abcd0"), "'abcd0' is the beginning of 2 ids", "abcd00000001", "abcd00000002")
    assert len(fresh.ids()) == 3
    # A whole id always wins.
    assert fresh.json("inspect", "--json", "abcd")["id"] == "abcd"
    assert fresh.run("rm", "-f", "abcd").returncode == 0
    assert sorted(fresh.ids()) == ["abcd00000001", "abcd00000002"]


def test_names_are_never_shortened(fresh):
    """A script that removes what an earlier run left must not hit another."""
    fresh.create("--name", "cafe2")
    fresh.create("--name", "worker10")
    for name in ("cafe", "worker1", "work"):
        assert fresh.run("rm", "-f", name).returncode == 0
        refused(fresh.run("exec", name, "true"), f"no sandbox '{name}'")
    assert sorted(fresh.ids()) == ["cafe2", "worker10"]
    # Nor is one taken for another that is to be made.
    box = fresh.create()
    assert fresh.create("--name", box[:6]) == box[:6] and len(fresh.ids()) == 4


# ---- listings --------------------------------------------------------------------------------------------------------

def table(done):
    """Rows of a table as dictionaries; cells hold no two blanks."""
    lines = [re.split(r" {2,}", line.rstrip()) for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


def test_ps_shows_time_left_and_labels(cay, make):
    plain, marked = make(), make("--ttl", "2h", "--label", "team=a", "--label", "x=y")
    rows = {row["ID"]: row for row in table(cay.run("ps"))}
    assert rows[marked]["TTL"] in ("2h", "119m")
    assert (rows[marked]["LABELS"], rows[marked]["REASON"]) == ("team=a,x=y", "-")
    assert (rows[plain]["TTL"], rows[plain]["LABELS"]) == ("-", "-")
    number = background(cay, plain, "sleep 100")
    until(lambda: {r["ID"]: r for r in table(cay.run("ps"))}[plain]["PROCS"] == "1", 2)
    cay.run("signal", plain, number, "KILL")


def test_inspect_has_times_for_people(cay, make):
    box = make()
    seen = cay.json("inspect", "--json", box)
    when = datetime.datetime.fromisoformat(seen["created"].replace("Z", "+00:00"))
    assert int(when.timestamp()) == seen["created_ms"] // 1000 and seen["ended"] is None
    cay.run("kill", box, check=True)
    assert cay.json("inspect", "--json", box)["ended"].endswith("Z")


def test_top_shows_what_procs_does_not(cay, make):
    box = make()
    cay.sh(box, "setsid sleep 1234 >/dev/null 2>&1 </dev/null & (sleep 4321 & ) ; :", check=True)
    assert [p["running"] for p in cay.json("procs", "--json", box)] == [False]
    rows = table(cay.run("top", box))
    assert {"sleep 1234", "sleep 4321"} <= {row["COMMAND"] for row in rows}, rows
    assert rows[0]["PID"] == "1" and rows[0]["COMMAND"].startswith("cay-init")
    [one] = [p for p in cay.json("top", "--json", box) if p["command"] == "sleep 1234"]
    assert (one["ppid"], one["uid"], one["state"]) == (1, 0, "S") and one["memory"] > 0
    # The number is the one that is valid inside.
    assert cay.run("exec", box, "--", "kill", one["pid"]).returncode == 0
    until(lambda: "sleep 1234" not in cay.run("top", box).stdout, 5)
    refused(cay.run("top", "nosuch"), "nosuch")


def test_top_of_a_name_that_pretends(cay, make):
    """What a process calls itself does not get into another column, nor as control bytes to the terminal."""
    box = make("--user", "user")
    script = "import ctypes,time; ctypes.CDLL(None).prctl(15, b') R 7 (\\n\\x1b[2J'); open('/tmp/up','w'); time.sleep(99)"
    number = background(cay, box, f"exec python3 -c \"{script}\"")
    until(lambda: cay.run("fs", "stat", box, "/tmp/up").returncode == 0, 10)
    [one] = [p for p in cay.json("top", "--json", box) if p["pid"] == number]
    assert (one["ppid"], one["uid"]) == (1, 1000) and "python3" in one["command"]
    assert "\x1b" not in cay.run("top", box).stdout


def test_stats_in_percent(cay, make):
    busy, idle = make("--memory", "64M", "--label", "s=1"), make()
    number = background(cay, busy, "while :; do :; done")
    rows = {row["ID"]: row for row in table(cay.run("stats", busy, idle))}
    percent = {name: float(rows[name]["CPU%"].rstrip("%")) for name in (busy, idle)}
    assert percent[busy] > 3 and percent[busy] > 5 * percent[idle], rows
    assert 0 < float(rows[busy]["MEM%"].rstrip("%")) < 100
    assert [s["id"] for s in cay.json("stats", "--json", busy, idle)] == [busy, idle]
    assert cay.json("stats", "--json", busy)["id"] == busy
    cay.run("signal", busy, number, "KILL")


def test_stats_again_and_again(cay, make):
    box = make()
    watch = cay.popen("stats", "--watch", "--interval", "100ms", "--json", box, text=True)
    try:
        assert [json.loads(watch.stdout.readline())["id"] for _ in range(4)] == [box] * 4
        cay.run("kill", box, check=True)
        assert watch.wait(10) == 125 and f"'{box}' has ended" in watch.stderr.read()
    finally:
        end(watch)


def test_logs_of_one_command(cay, make):
    box = make()
    one, two = (background(cay, box, f"for i in 1 2 3; do echo {name} $i; done; exit 3") for name in ("a", "b"))
    for number in (one, two):
        cay.run("wait", box, number)
    assert cay.run("logs", box, one).stdout == "a 1\na 2\na 3\n"
    done = cay.run("logs", "--tail", 1, box, two)
    assert (done.stdout, done.stderr, done.returncode) == ("b 3\n", "", 0)
    assert sorted(cay.run("logs", box).stdout.split("\n")[:-1])[:3] == ["a 1", "a 2", "a 3"]
    refused(cay.run("logs", box, 9999), "9999")


def test_prune(fresh):
    running, *ended = [fresh.create("--label", f"n={i}") for i in range(4)]
    fresh.run("kill", *ended, check=True)
    done = fresh.run("prune", "--dry-run")
    assert done.stdout.splitlines() == [*ended, "3 ended sandboxes would be removed"]
    assert fresh.run("prune", "--older", "1h").stdout == "0 ended sandboxes removed\n"
    assert fresh.run("prune", "--label", "n=1").stdout == f"{ended[0]}\n1 ended sandbox removed\n"
    assert fresh.json("prune", "--json") == {"removed": ended[1:], "dry_run": False}
    assert fresh.ids() == [running]


def test_events_need_a_daemon(cay):
    refused(cay.run("events"), "cayd", "--host")


def test_a_shell_is_called_what_it_is(cay, make):
    box = make()
    shell = cay.popen("shell", box)
    try:
        until(lambda: [p["command"] for p in cay.json("procs", "--json", box) if p["running"]] == ["bash"], 5)
    finally:
        end(shell)


# ---- by way of a daemon ----------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def both():
    with Both.with_daemon() as pair:
        yield pair


def test_the_same_by_way_of_a_daemon(both):
    box = both.engine.create("--label", "a=b")
    background(both.engine, box, "sleep 1234")
    short = box[:6]
    assert [p["command"] for p in json.loads(both.remote("top", "--json", short).stdout)][1:] == ["sleep 1234"]
    assert table(both.remote("ps"))[0]["LABELS"] == "a=b"
    assert both.remote("stats", short).returncode == 0
    assert json.loads(both.remote("inspect", "--json", short).stdout)["created"].endswith("Z")
    both.remote("kill", short, check=True)
    assert both.remote("prune").stdout == f"{box}\n1 ended sandbox removed\n"
    assert both.remote("top", short).returncode == 125


def test_events_are_followed_over_a_restart(both):
    follower = both.popen("events", "--all", "--json", text=True)
    try:
        box = both.remote("create", "--label", "a=b", check=True).stdout.strip()
        while (event := json.loads(follower.stdout.readline()))["sandbox"] != box:
            pass
        assert (event["type"], event["labels"]) == ("created", {"a": "b"})
        both.daemon.restart("kill9")
        both.remote("kill", box, check=True)
        event = json.loads(follower.stdout.readline())
        assert (event["type"], event["sandbox"]) == ("ended", box)
    finally:
        end(follower)
    lines = both.remote("events", "--no-follow").stdout.splitlines()
    assert [line.split()[1] for line in lines if box in line] == ["created", "ended"]
    assert "a=b" in lines[-1]
    both.remote("rm", box, check=True)
    seq = event["seq"]
    assert json.loads(both.remote("events", "--no-follow", "--json", "--from", seq).stdout.splitlines()[0]) == event


def test_doctor_tells_tenants_why_it_is_silent():
    with Both.with_daemon(tcp=True) as pair:
        tenant = Both(pair.daemon, pair.daemon.url, CAY_TOKEN=pair.daemon.token("acme", tenant="acme"))
        refused(tenant.remote("doctor"), "operator's token")
        assert pair.remote("doctor").returncode in (0, 1) and "user namespaces" in pair.remote("doctor").stdout


# ---- completion and help ---------------------------------------------------------------------------------------------

class Bash:
    """An interactive bash with the completion script, on a terminal."""

    def __init__(self, cay, tmp_path):
        script = tmp_path / "cay.bash"
        script.write_text(cay.run("completion", "bash", check=True).stdout)
        self.master, slave = pty.openpty()
        path = f"{PROG}:{BUILD}/lib:/usr/bin:/bin"
        self.process = subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], stdin=slave, stdout=slave, stderr=slave,
                                        env={**cay.env, "TERM": "dumb", "PS1": "", "PATH": path}, cwd=tmp_path,
                                        start_new_session=True)
        os.close(slave)
        self.line(f"bind 'set bell-style none'; source {script}")

    def send(self, data):
        os.write(self.master, data)

    def line(self, text, seconds=15):
        """Types it, with a tab where there is one; what it prints up to a mark."""
        self.send(text.encode() + b"\recho E\"\"ND\r")
        seen = b""
        while b"\nEND" not in seen:
            ready, _, _ = select.select([self.master], [], [], seconds)
            assert ready, seen
            seen += os.read(self.master, 65536)
        return seen.decode()

    def close(self):
        self.process.kill()
        self.process.wait(10)
        os.close(self.master)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_in_a_real_shell(cay, make, tmp_path):
    box = make("--name", "complete-me")
    cay.sh(box, "mkdir -p /data/folder; echo found > /data/folder/only-one", check=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a file").write_text("from the host\n")
    shell = Bash(cay, tmp_path)
    try:
        assert "\nfound" in shell.line("cay fs cat complete\t/dat\tfold\tonly\t")
        shell.line("cay cp complete\t/data/fol\tonl\t copy")
        assert (tmp_path / "copy").read_text() == "found\n"
        shell.line("cay cp he\ta\t complete-me:/data/fo\tgot")
        assert cay.run("fs", "cat", box, "/data/folder/got").stdout == "from the host\n"
        assert "\nstrict" in shell.line("cay run --profile st\t -c 'echo strict'")
        assert "\nhost" in shell.line("cay run --image=ho\t -c 'echo host'")
        assert "Usage: cay fs grep" in shell.line("cay help fs gr\t")
        assert "are fine" in shell.line("cayd --ch\t") or "cayd:" in shell.line("cayd --ch\t")
    finally:
        shell.close()


def commands(cay):
    found = re.findall(r"^  ([a-z]+)  ", cay.run("help", check=True).stdout, re.M)
    assert len(found) > 25 and "prune" in found
    below = re.findall(r"^  ([a-z]+)  ", cay.run("help", "fs", check=True).stdout, re.M)
    return [[name] for name in found if name != "fs"] + [["fs", name] for name in below if name != "cay"]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_is_wrapped_and_has_examples(cay, columns):
    for words in [[], *commands(cay)]:
        lines = cay.run("help", *words, check=True, env={"COLUMNS": str(columns)}).stdout.splitlines()
        usage = [line for line in lines if line.startswith("Usage: ")]
        assert len(usage) == 1, words
        body = lines[:next((i for i, line in enumerate(lines) if line.startswith("Example")), len(lines))]
        long = [line for line in body if len(line) > min(columns, 100) and not line.startswith(("Usage", "'cay help"))]
        assert long == [], (words, long)
        if words:
            assert [line for line in lines if line.startswith(f"  cay {' '.join(words)}") or
                    " ".join(["cay", *words]) in line], words


def test_options_of_the_examples_exist(cay):
    for words in commands(cay):
        text = cay.run("help", *words, check=True).stdout
        options, _, examples = text.partition("\nExample")
        for option in re.findall(r"(?<![\w-])--[a-z-]+[a-z]", examples):
            if words != ["events"]:
                assert f"{option} " in options or f"{option}\n" in options, (words, option)


@pytest.mark.parametrize("words", [["stop"], ["kill"], ["run"], ["create"], ["update"], ["rm"]])
def test_help_says_what_is_lost(cay, words):
    assert "files" in cay.run(*words, "--help", check=True).stdout


def test_completion_says_how_to_install_it(cay):
    text = cay.run("completion", "--help", check=True).stdout
    assert "/etc/bash_completion.d" in text and ".zshrc" in text and "fish" in text
