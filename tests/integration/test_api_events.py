# SPDX-License-Identifier: Apache-2.0
"""Lifecycle events over the life of several daemons: for every sandbox created and removed in turns, whatever was
killed in between, and what nobody noted at the time is told at the next start, once."""
import collections
import concurrent.futures
import contextlib
import json
import shutil
import threading
import time

from integration.support import until


def history(daemon):
    found = collections.defaultdict(list)
    for event in daemon.stream("/events"):
        found[event["sandbox"]].append((event["type"], event.get("reason")))
    return found


def types(daemon, box):
    return [kind for kind, _ in history(daemon).get(box, [])]


def check(daemon):
    """Created, at most one end, removed; over and over; and the last one says what is."""
    there = {box["id"] for box in daemon.get("/sandboxes?state=all").body["sandboxes"]}
    for box, events in history(daemon).items():
        kinds = [kind for kind, _ in events if kind in ("created", "removed")]
        assert kinds == ["created", "removed"] * (len(kinds) // 2) + ["created"] * (len(kinds) % 2), (box, events)
        assert (kinds[-1] == "created") == (box in there), (box, events)
        for before, after in zip(events, events[1:]):
            assert before[0] != "ended" or after[0] == "removed", (box, events)
    assert there <= set(history(daemon))


def test_rounds_of_kills_while_sandboxes_are_made_and_removed(daemons):
    daemon = daemons()
    daemon.create()
    stop, number = threading.Event(), iter(range(10**6))

    def work():
        while not stop.is_set():
            box = f"r{next(number)}"
            for method, path, body in (("POST", "/sandboxes", {"id": box}), ("DELETE", f"/sandboxes/{box}", None)):
                while not stop.is_set():
                    with contextlib.suppress(OSError, AttributeError):
                        daemon.request(method, path, json=body)
                        break
                    time.sleep(0.01)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work) for _ in range(4)]
        try:
            for i in range(12):
                time.sleep(0.25 + 0.037 * i)
                daemon.kill9()
                daemon.start()
        finally:
            stop.set()
        for one in done:
            one.result(60)
    daemon.restart("kill9")
    check(daemon)
    before = {box: list(events) for box, events in history(daemon).items()}
    assert len(before) > 20
    daemon.restart("kill9")
    daemon.restart()
    assert dict(history(daemon)) == before, "told once"


def test_what_the_command_line_did_while_no_daemon_ran(daemons):
    daemon = daemons()
    kept, gone, again = daemon.create(id="kept"), daemon.create(id="gone"), daemon.create(id="again")
    daemon.kill9()
    cay = daemon.cay
    cay.run("rm", "-f", gone, check=True)
    cay.run("create", "--name", "new", check=True)
    cay.run("create", "--name", "short", check=True)
    cay.run("rm", "-f", "short", check=True)
    cay.run("stop", again, check=True)
    daemon.start()
    found = history(daemon)
    assert found[kept] == [("created", None)] and "short" not in found
    assert found[gone] == [("created", None), ("removed", "removed without the daemon")]
    assert found["new"] == [("created", "made without the daemon")]
    assert [kind for kind, _ in found[again]] == ["created", "ended"]
    for how in ("stop", "kill9", "kill9"):
        daemon.restart(how)
        assert history(daemon) == found, "told once"
    (daemon.state / "audit" / "known").unlink()
    daemon.restart("kill9")
    assert history(daemon) == found, "and the log alone is enough"
    for text in ("", "known 1 99999\nend 0\n", "known 1 1\nlive x\nend 2\n", "junk"):
        daemon.kill9()
        (daemon.state / "audit" / "known").write_text(text)
        daemon.start()
        assert history(daemon) == found
    cay.run("rm", again, check=True)
    until(lambda: types(daemon, again) == ["created", "ended", "removed"], 5)
    check(daemon)


def test_killed_after_old_entries_were_removed(daemons):
    """What the removed files told is known still: nothing is told twice, and nothing is missing."""
    daemon = daemons(audit_size="8K", audit_keep=1)
    stays, goes, ends = daemon.create(id="stays"), daemon.create(id="goes"), daemon.create(id="ends")
    assert daemon.delete(f"/sandboxes/{goes}").status == 204
    assert daemon.post(f"/sandboxes/{ends}/kill").status == 204
    log = daemon.state / "audit"
    until(lambda: types(daemon, ends) == ["created", "ended"], 5)
    until(lambda: daemon.exec(stays, argv=["true", "x" * 1000]) and types(daemon, stays) == [], 60)
    last = json.loads((log / "audit.jsonl").read_text().splitlines()[-1])["seq"]
    daemon.kill9()
    daemon.cay.run("create", "--name", "new", check=True)
    daemon.start()
    told = [e for e in daemon.stream(f"/events?from={last + 1}") if "sandbox" in e]
    assert [(e["sandbox"], e["type"]) for e in told] == [("new", "created")], told
    daemon.restart("kill9")
    assert [e for e in daemon.stream(f"/events?from={last + 1}") if "sandbox" in e] == told
    daemon.kill9()
    daemon.cay.run("rm", "-f", stays, ends, check=True)
    daemon.start()
    found = [(e["sandbox"], e["type"]) for e in daemon.stream(f"/events?from={told[-1]['seq'] + 1}")]
    assert sorted(found) == [("ends", "removed"), ("stays", "removed")]


def test_a_sandbox_that_was_there_before_the_log(daemons):
    daemon = daemons()
    daemon.stop()
    shutil.rmtree(daemon.state / "audit")
    daemon.cay.run("create", "--name", "early", check=True)
    daemon.cay.run("create", "--name", "over", check=True)
    daemon.cay.run("stop", "over", check=True)
    daemon.start()
    assert types(daemon, "early") == ["created"] and types(daemon, "over") == ["created", "ended"]
    assert daemon.post("/sandboxes", {"id": "early"}).status == 200
    assert types(daemon, "early") == ["created"], "found, not made"
    check(daemon)


def test_a_create_whose_entry_was_lost_is_told_when_it_is_repeated(daemons):
    """The entry of a create goes missing with the end of the log, and the sandbox stays."""
    daemon = daemons()
    daemon.create(id="first")
    log = daemon.state / "audit" / "audit.jsonl"
    size = log.stat().st_size
    daemon.create(id="second")
    daemon.kill9()
    for name in ("known", "head"):
        (daemon.state / "audit" / name).unlink()
    with open(log, "r+b") as f:
        f.truncate(size)
    daemon.start()
    assert daemon.post("/sandboxes", {"id": "second"}).status == 200
    assert types(daemon, "second") == ["created"] and types(daemon, "first") == ["created"]
    assert daemon.delete("/sandboxes/second").status == 204
    check(daemon)


def test_two_who_remove_it_and_one_who_makes_it_at_once(daemons):
    daemon = daemons()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for i in range(30):
            calls = [("POST", "/sandboxes", {"id": f"c{i % 4}"}), ("DELETE", f"/sandboxes/c{i % 4}", None)] * 3
            for one in [pool.submit(daemon.request, method, path, json=body) for method, path, body in calls]:
                one.result(60)
    time.sleep(1)  # what inotify has yet to say
    check(daemon)
    daemon.restart("kill9")
    check(daemon)
