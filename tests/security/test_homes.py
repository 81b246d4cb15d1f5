# SPDX-License-Identifier: Apache-2.0
"""The run and the state directory: what is not cay's stays, whatever the variables and links say."""

import os
import pathlib
import shutil
import stat
import subprocess
import time

import pytest

from lib.engine import PROG
from security import harness

VICTIM, ATTACKER = 64322, 64323  # of nobody: no home, no session


@pytest.fixture
def foreign(scratch):
    """Somebody's directory, whose names could all be ids; older than any create that is still at work."""
    place = scratch / "srv"
    for name in ("photos", "projects/thesis"):
        (place / name).mkdir(parents=True)
        (place / name / "text").write_text("mine\n")
    (place / "empty").mkdir()
    place.chmod(0o700)
    wait_until_old(place / "empty")
    return place


def wait_until_old(path):
    harness.wait_for(lambda: time.time() - path.stat().st_ctime > 3.1, 10, "the grace for creators to be over")


def intact(place):
    return [(place / name / "text").read_text() for name in ("photos", "projects/thesis")] == ["mine\n"] * 2


def sweeps(engine):
    """The control: what a creator left in a run directory of cay's is removed by the same command."""
    left = engine.run_dir / "left"
    left.mkdir(mode=0o700)
    (left / "status").touch(mode=0o600)
    harness.wait_for(lambda: engine.run("ps", check=True) and not left.exists(), 15, "the sweep")


@pytest.mark.attack("foreign-run-directory", "files", "a run directory that is somebody's files")
@pytest.mark.parametrize("variable", ["CAY_RUN_DIR", "CAY_STATE_DIR"])
def test_a_directory_that_is_not_cay_s(fresh, foreign, variable):
    fresh.run("ps", check=True)
    before = sorted(foreign.rglob("*"))
    for command in (("ps", "-a"), ("create", "--name", "photos"), ("rm", "-f", "photos")):
        done = fresh.run(*command, env={variable: f"{foreign}/"})
        assert done.returncode == 125 and done.stderr.count("\n") == 1, done
        assert str(foreign) in done.stderr and variable in done.stderr, done.stderr
    assert intact(foreign) and sorted(foreign.rglob("*")) == before
    sweeps(fresh)


@pytest.mark.attack("foreign-run-directory-daemon", "files", "a daemon over somebody's files")
def test_a_daemon_over_a_directory_that_is_not_cay_s(daemons, foreign):
    daemon = daemons()
    daemon.stop()
    daemon.env["CAY_RUN_DIR"] = str(foreign)
    code, text = daemon.refused()
    assert code == 125 and str(foreign) in text
    assert intact(foreign) and (foreign / "empty").exists()


@pytest.mark.attack("foreign-entry", "files", "a directory without a status file among sandboxes")
def test_a_foreign_directory_among_sandboxes(fresh, foreign):
    """Where cay is at home it still removes only what is its own."""
    fresh.run("ps", check=True)
    shutil.move(foreign / "photos", fresh.run_dir / "photos")
    (fresh.run_dir / "bare").mkdir(mode=0o700)
    harness.wait_for(lambda: fresh.run("ps", check=True) and not (fresh.run_dir / "bare").exists(), 15, "the sweep")
    assert (fresh.run_dir / "photos/text").read_text() == "mine\n"
    assert fresh.run("ps", "-a", "-q", check=True).stdout == ""
    (fresh.run_dir / "photos/status").touch(mode=0o600)  # even if it looks like a sandbox's
    wait_until_old(fresh.run_dir / "photos")
    fresh.run("ps", check=True)
    assert (fresh.run_dir / "photos/text").read_text() == "mine\n"


@pytest.mark.attack("run-directory-link", "files", "a link in /tmp where the run directory would be")
def test_a_link_in_place_of_the_run_directory(foreign, scratch):
    """Without a session the run directory is in /tmp, where anybody may put a link first."""
    place = pathlib.Path(f"/tmp/cay-{VICTIM}")
    assert not os.path.lexists(place)
    env = {"PATH": os.environ["PATH"], "HOME": str(scratch / "home"), "CAY_LIBEXEC_DIR": str(PROG)}
    (scratch / "home").mkdir()
    for path in (scratch / "home", *foreign.rglob("*"), foreign):
        os.chown(path, VICTIM, VICTIM)

    def ps():
        return harness.run_host([PROG / "cay", "ps", "-a"], env=env, user=VICTIM, group=VICTIM, extra_groups=[])

    place.symlink_to(foreign)
    os.chown(place, ATTACKER, ATTACKER, follow_symlinks=False)
    try:
        done = ps()
        assert done.returncode == 125 and str(place) in done.stderr and "symbolic link" in done.stderr, done
        assert intact(foreign) and (foreign / "empty").exists()
        place.unlink()
        done = ps()  # the control: without the link it is made and used
        assert done.returncode == 0 and place.stat().st_mode & 0o777 == 0o700, done
    finally:
        place.unlink() if place.is_symlink() else shutil.rmtree(place, ignore_errors=True)


def test_a_link_of_the_administrator_is_followed(fresh, scratch):
    """/var/lib/cay on another disk, say."""
    (scratch / "disk").mkdir(mode=0o700)
    (scratch / "link").symlink_to("disk")
    done = fresh.run("run", "--", "echo", "there", env={"CAY_STATE_DIR": str(scratch / "link")})
    assert done.stdout == "there\n" and (scratch / "disk/sandboxes").is_dir(), done


def test_directories_of_versions_without_a_marker(fresh):
    """They are taken over: by what is in them, or because they are empty."""
    fresh.create("--name", "old")
    for place in (fresh.run_dir, fresh.state):
        (place / ".cay").unlink()
    assert fresh.run("ps", "-q", check=True).stdout == "old\n"
    for place in (fresh.run_dir, fresh.state):
        assert (place / ".cay").is_file()
    fresh.run("rm", "-f", "old", check=True)
    for place in (fresh.run_dir, fresh.state):
        subprocess.run(["find", place, "-mindepth", "1", "-delete"], check=True)
    fresh.run("run", "--", "true", check=True)


def test_a_rootless_run_directory_without_a_marker(fresh):
    """There are no ids in it, only sandboxes."""
    fresh.create("--name", "old")
    (fresh.run_dir / ".cay").unlink()
    shutil.rmtree(fresh.run_dir / "ids")
    (fresh.run_dir / "started").mkdir(mode=0o700)  # its creator is at work
    os.mknod(fresh.run_dir / "api.sock", stat.S_IFSOCK | 0o600)  # a service manager's
    assert "old" in fresh.run("ps", "-q", check=True).stdout.split()
    assert (fresh.run_dir / ".cay").is_file()
