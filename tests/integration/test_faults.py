# SPDX-License-Identifier: Apache-2.0
"""Shortages and hanging parts: what cannot be looked at is told, and nothing is concluded from it."""
import subprocess

import pytest

from integration.support import state, until
from lib.daemon import Daemon


def short(engine, files, *args, **options):
    """`cay ARGS` with so many open files at most."""
    argv = ["prlimit", f"--nofile={files}:{files}", engine.program, *args]
    return subprocess.run(argv, env=engine.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, **options)


# ---- only what is not there is "not there" ---------------------------------------------------------------------


@pytest.mark.parametrize("files", range(4, 13))
def test_without_descriptors_nothing_is_taken_for_ended(fresh, files):
    """A list is whole or an error, and nothing that lives is removed without force, or left without its record."""
    fresh.create("--name", "one", "--label", "k=v")
    fresh.create("--name", "two")
    fresh.create("--name", "over")
    fresh.run("kill", "over", check=True)
    lists = (("ps", "-q"), {"one", "two"}), (("ps", "-a", "-q"), {"one", "two", "over"})
    for args, names in lists:
        done = short(fresh, files, *args)
        assert done.returncode == 125 or set(done.stdout.split()) == names, done
        assert done.returncode == 0 or "open files" in done.stderr, done
    done = short(fresh, files, "rm", "one")
    assert done.returncode == 125 and done.stderr, done
    for args in (("inspect", "one"), ("exec", "one", "--", "true"), ("logs", "over")):
        done = short(fresh, files, *args)
        assert done.returncode in (0, 125) and "no sandbox" not in done.stderr and "ended" not in done.stderr, done
    assert {e["id"]: e["state"] for e in fresh.json("ps", "-a", "--json")} == {
        "one": "running", "two": "running", "over": "exited"}
    done = short(fresh, files, "rm", "-f", "two")
    assert (state(fresh, "two") is None) == (done.returncode == 0), done
    assert (fresh.state / "sandboxes" / "two").exists() == (fresh.run_dir / "two").exists(), done


def test_a_daemon_without_descriptors_answers_no_wrong_lists():
    """Idle connections take all but a few: each answer is right, or an error."""
    with Daemon(wrap=("prlimit", "--nofile=96:96")) as daemon:
        boxes = {daemon.create(id=f"s{n}") for n in range(4)}
        held = []
        seen = set()
        unheard = 0
        try:
            while unheard < 4:
                try:
                    held.append(daemon.dial(timeout=1))
                    with daemon.client(timeout=1) as client:
                        answers = [client.get("/sandboxes"), client.get("/sandboxes/s1"),
                                   client.delete("/sandboxes/s2?force=false")]
                except OSError:
                    unheard += 1  # no descriptor for our connection: it waits, or is closed
                    continue
                for answer in answers:
                    seen.add(answer.status)
                    assert answer.status not in (204, 404), answer
                if answers[0].status == 200:
                    assert {b["id"] for b in answers[0].body["sandboxes"]} == boxes, answers[0]
                if answers[1].status == 200:
                    assert answers[1].body["state"] == "running", answers[1]
        finally:
            for sock in held:
                sock.close()
        assert 200 in seen and len(seen) > 2, seen
        until(lambda: {b["id"] for b in daemon.get("/sandboxes").body["sandboxes"]} == boxes, 10)
        assert all(daemon.state_of(box) == "running" for box in boxes)
        daemon.remove(*boxes)


@pytest.mark.parametrize("files", [9, 16, 30, 50])
def test_a_create_without_descriptors_names_the_limit(fresh, files):
    done = short(fresh, files, "create", "--name", "box")
    assert done.returncode == 125 and "ulimit -n" in done.stderr, done
    assert state(fresh, "box") is None and list((fresh.state / "sandboxes").iterdir()) == []
