# SPDX-License-Identifier: Apache-2.0
"""Bind mounts: read-only and read-write, nested, files, and who owns what."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from integration.support import refused, until

OWNER = 12345


@pytest.fixture
def folder():
    """A directory that the sandbox's ids may reach by path: pytest's own are closed to others."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="caym-", dir="/var/tmp"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


def test_read_write_and_read_only(cay, make, folder):
    (folder / "f").write_text("host")
    box = make("-v", f"{folder}:/mnt/rw", "-v", f"{folder}:/mnt/ro:ro")
    assert cay.sh(box, "cat /mnt/rw/f /mnt/ro/f; echo new > /mnt/rw/g; cat /mnt/ro/g").stdout == "hosthostnew\n"
    done = cay.sh(box, "echo x > /mnt/ro/h; rm /mnt/ro/f; chmod 777 /mnt/ro; mount -o remount,rw /mnt/ro")
    assert "Read-only file system" in done.stderr
    assert sorted(p.name for p in folder.iterdir()) == ["f", "g"] and (folder / "g").read_text() == "new\n"
    (folder / "later").write_text("seen")
    assert cay.sh(box, "cat /mnt/ro/later").stdout == "seen"


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request, folder):
    """A file system of 1 MiB, one that can reserve room and one that cannot."""
    place = folder / "small"
    place.mkdir()
    what = ["-t", "tmpfs", "-o", "size=1m", "caytest"]
    if request.param == "ext4":
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(1 << 20)
        subprocess.run(["/sbin/mkfs.ext4", "-q", "-O", "^extent,^64bit,^has_journal", image], check=True)
        what = ["-t", "ext4", "-o", "loop", image]
    subprocess.run(["mount", *what, place], check=True)
    place.chmod(0o755)
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_mounted_file_keeps_its_content_when_the_new_does_not_fit(cay, small):
    conf = small / "conf"
    old = os.urandom(300_000)
    conf.write_bytes(old)
    made = cay.run("create", "-v", f"{conf}:/etc/conf")
    if "cannot shift owners" in made.stderr:
        pytest.skip("this kernel mounts no tmpfs with other owners (Linux 6.3 does)")
    assert made.returncode == 0, made
    box = made.stdout.strip()
    done = cay.run("fs", "put", box, "/etc/conf", input=os.urandom(3_000_000), text=False)
    assert done.returncode == 125 and b"space" in done.stderr, done
    assert conf.read_bytes() == old
    for new in (os.urandom(400_000), b"short", b""):
        cay.run("fs", "put", box, "/etc/conf", input=new, text=False, check=True)
        assert conf.read_bytes() == new
    assert not cay.sh(box, "ls -A /etc | grep '^[.]cay-'").stdout
    cay.run("rm", "-f", box, check=True)


def test_file_api_works_in_mounts(cay, make, folder):
    box = make("-v", f"{folder}:/mnt/d", "-v", f"{folder}:/mnt/ro:ro")
    cay.run("fs", "put", box, "/mnt/d/sub/f", input="x", check=True)
    assert (folder / "sub" / "f").read_text() == "x"
    refused(cay.run("fs", "put", box, "/mnt/ro/f", input="x"), "/mnt/ro/f", "ead-only")


def test_nested_parents_before_children(cay, make, folder):
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
        (folder / name / "me").write_text(name)
    (folder / "b" / "y").mkdir()  # a mount point cannot be made in what is mounted read-only
    # given in the wrong order
    box = make("-v", f"{folder}/c:/mnt/p/x/y", "-v", f"{folder}/b:/mnt/p/x:ro", "-v", f"{folder}/a:/mnt/p")
    assert cay.sh(box, "cat /mnt/p/me /mnt/p/x/me /mnt/p/x/y/me").stdout == "abc"
    done = cay.sh(box, "echo 1 > /mnt/p/n; echo 1 > /mnt/p/x/n; echo 1 > /mnt/p/x/y/n")
    assert done.stderr.count("Read-only") == 1
    assert (folder / "a" / "n").exists() and (folder / "c" / "n").exists() and not (folder / "b" / "n").exists()


def test_no_mount_point_below_a_read_only_mount(fresh, folder):
    (folder / "a").mkdir()
    refused(fresh.run("create", "-v", f"{folder}/a:/p/x", "-v", f"{folder}:/p:ro", "-v", f"{folder}/a:/p/no"), "/p/no")
    assert fresh.ids() == [] and sorted(p.name for p in folder.iterdir()) == ["a"]


def test_file_mounts(cay, make, folder):
    (folder / "one").write_text("one file")
    (folder / "secret").write_text("not mounted")
    box = make("-v", f"{folder}/one:/etc/app.conf:ro", "-v", f"{folder}/one:/new/place/rw.txt")
    assert cay.sh(box, "cat /etc/app.conf; ls /new/place").stdout == "one filerw.txt\n"
    assert "Read-only" in cay.sh(box, "echo x > /etc/app.conf").stderr
    cay.sh(box, "echo changed > /new/place/rw.txt", check=True)
    assert (folder / "one").read_text() == "changed\n"


def test_over_what_the_image_has(cay, make, folder):
    (folder / "hosts").write_text("10.0.0.1 mine\n")
    box = make("-v", f"{folder}/hosts:/etc/hosts:ro", "-v", f"{folder}:/opt")
    assert cay.sh(box, "cat /etc/hosts; ls /opt").stdout == "10.0.0.1 mine\nhosts\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another owner")
@pytest.mark.parametrize("user", [None, "user", "4321"])
def test_a_directory_of_an_ordinary_user(cay, make, folder, user):
    """Inside it belongs to the sandbox's user, and what is written there belongs to its owner on the host."""
    os.chown(folder, OWNER, OWNER)
    folder.chmod(0o700)
    (folder / "old").write_text("readable\n")
    (folder / "old").chmod(0o600)
    os.chown(folder / "old", OWNER, OWNER)
    box = make("-v", f"{folder}:/work", *(("-u", user) if user else ()))
    done = cay.sh(box, "cat /work/old && echo new > /work/new && mkdir /work/d && touch /work/d/f && chmod 600 /work/old "
                  "&& stat -c %u /work/old /work/new && id -u")
    assert done.returncode == 0, done
    uid = done.stdout.split()[-1]
    assert done.stdout.split()[1:] == [uid, uid, uid], done.stdout
    for name in ("old", "new", "d", "d/f"):
        assert ((folder / name).stat().st_uid, (folder / name).stat().st_gid) == (OWNER, OWNER), name
    # and by the file API
    cay.run("fs", "put", box, "/work/put", input="x", check=True)
    assert (folder / "put").stat().st_uid == OWNER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another owner")
def test_a_directory_of_root_stays_root_s(cay, make, folder):
    box = make("-v", f"{folder}:/work")
    cay.sh(box, "echo x > /work/f; chown 1000 /work/f 2>/dev/null; :", check=True)
    assert (folder / "f").stat().st_uid in (0,), "no id of a sandbox appears on the host"
    assert not (folder / "f").stat().st_mode & 0o6000


def test_no_setuid_program_comes_out(cay, make, folder):
    box = make("-v", f"{folder}:/work")
    cay.sh(box, "cp /bin/true /work/t; chmod 4755 /work/t")
    mode, uid = (folder / "t").stat().st_mode, (folder / "t").stat().st_uid
    done = cay.sh(box, "/work/t && grep nosuid /proc/self/mountinfo | grep -c /work")
    assert done.stdout.strip() == "1", (oct(mode), uid)


def test_missing_source(cay, fresh):
    refused(fresh.run("create", "--name", "m", "-v", "/no/such/dir:/mnt/x"), "/no/such/dir")
    assert fresh.ids() == [] and [p.name for p in fresh.run_dir.iterdir() if p.name not in ("ids", ".cay")] == []


@pytest.mark.parametrize("mount", ["/tmp:relative", "/tmp:/", "/tmp", ":/x", "/tmp:", "/tmp:/x:rx", "/tmp:/x/../../y",
                                   "/dev/null:/x", "/tmp:/x:ro:rw"])
def test_bad_mounts_are_refused(cay, mount):
    refused(cay.run("create", "-v", mount))


def test_two_mounts_at_one_place(cay):
    refused(cay.run("create", "-v", "/usr/share:/x", "-v", "/usr/lib:/x"), "/x")


def test_relative_source_is_the_caller_s(cay, folder):
    (folder / "here").mkdir()
    (folder / "here" / "f").write_text("found")
    done = cay.run("run", "-v", "./here:/x:ro", "--", "cat", "/x/f", cwd=folder)
    assert done.stdout == "found" or done.returncode == 125, done


def test_a_link_as_source_is_resolved_once(cay, make, folder):
    for name in ("first", "second"):
        (folder / name).mkdir()
        (folder / name / "f").write_text(name)
    (folder / "link").symlink_to("first")
    box = make("-v", f"{folder}/link:/x")
    assert cay.sh(box, "cat /x/f").stdout == "first"
    (folder / "link").unlink()
    (folder / "link").symlink_to("second")
    assert cay.sh(box, "cat /x/f").stdout == "first"


def test_links_inside_lead_nowhere_on_the_host(cay, make, folder):
    (folder / "passwd").symlink_to("/etc/shadow")
    (folder / "up").symlink_to("../../..")
    box = make("-v", f"{folder}:/x:ro")
    assert "root:*:" in cay.sh(box, "cat /x/passwd").stdout, "the sandbox's own"


def test_mounts_do_not_spread_and_go_away(cay, folder):
    before = open("/proc/self/mountinfo").read()
    box = cay.create("-v", f"{folder}:/x")
    assert open("/proc/self/mountinfo").read() == before
    cay.run("rm", "-f", box, check=True)
    subprocess.run(["mount", "-t", "tmpfs", "t", folder], check=True)
    subprocess.run(["umount", folder], check=True)
    assert (until(lambda: open("/proc/self/mountinfo").read() == before, 5))


def test_host_mounts_below_a_source(cay, folder):
    """A file system mounted below the source is either there or an empty directory; it never keeps it busy."""
    (folder / "below").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "t", folder / "below"], check=True)
    try:
        (folder / "below" / "f").write_text("x")
        done = cay.run("run", "-v", f"{folder}:/x", "--", "ls", "/x/below")
        assert done.returncode == 0 and done.stdout in ("f\n", "")
    finally:
        subprocess.run(["umount", folder / "below"], check=True)
