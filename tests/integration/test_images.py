# SPDX-License-Identifier: Apache-2.0
"""Images: the host's own, a directory, aliases of the config file."""
import json
import os
import pathlib
import shutil
import tempfile
import zipfile

import pytest

from integration.support import refused
from lib.engine import PROG

BUSYBOX = "/bin/busybox"


@pytest.fixture(scope="module")
def rootfs():
    """A small root: a static busybox, an /etc of its own, and nothing else."""
    if not os.path.exists(BUSYBOX):
        pytest.skip("busybox is not installed (package busybox-static)")
    top = pathlib.Path(tempfile.mkdtemp(prefix="cayr-", dir="/var/tmp"))
    top.chmod(0o755)
    for name in ("bin", "etc", "home/app", "data"):
        (top / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, top / "bin" / "busybox")
    for name in ("sh", "cat", "ls", "id", "echo", "touch", "rm", "env", "pwd", "true", "sleep", "test", "mount"):
        (top / "bin" / name).symlink_to("busybox")
    (top / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\napp:x:123:456::/home/app:/bin/sh\n")
    (top / "etc" / "group").write_text("root:x:0:\napp:x:456:\nextra:x:789:app\n")
    (top / "data" / "f").write_text("from the image")
    yield top
    shutil.rmtree(top)


def test_host_image_has_the_host_s_programs(cay, box):
    assert cay.run("exec", box, "--", "python3", "-c", "print(6 * 7)").stdout == "42\n"
    assert cay.run("exec", box, "-c", "ls -d /bin/sh /usr/bin/env /lib /etc/passwd | wc -l").stdout == "4\n"


def test_host_image_has_python(cay, box):
    """Agents write `python`; Debian has it only with python-is-python3."""
    done = cay.run("exec", box, "--", "python", "-c", "import sys; print(sys.version_info[0])", check=True)
    assert done.stdout == "3\n"


def test_host_image_is_writable_and_the_host_is_not(cay, make):
    box, other = make(), make()
    cay.sh(box, "echo x > /usr/local/cay-test-file; rm /usr/bin/env; echo changed > /etc/hostname; mkdir /new", check=True)
    assert cay.sh(box, "cat /usr/local/cay-test-file").stdout == "x\n"
    assert not os.path.exists("/usr/local/cay-test-file") and os.path.exists("/usr/bin/env")
    assert cay.sh(other, "ls /usr/local/cay-test-file /new 2>/dev/null; ls /usr/bin/env").stdout == "/usr/bin/env\n"


def test_a_damaged_skeleton_is_named(fresh):
    """By what is wrong with the part that will not open, not with one that need not be there."""
    fresh.run("run", "--", "true", check=True)
    skeleton, = (fresh.state / "images").glob("host-*")
    shutil.rmtree(skeleton / "root")
    (skeleton / "root").write_text("")
    refused(fresh.run("run", "--", "true"), "root of the host image", "Not a directory")


def test_host_image_hides_the_host(cay, box, tmp_path):
    """Files that are on this host for certain are not inside."""
    (tmp_path / "secret").write_text("secret")
    for path in (tmp_path / "secret", "/var/lib/cay", cay.state, cay.run_dir, "/work", "/var/lib/dpkg/lock", "/boot",
                 "/root/.ssh", "/var/log/dpkg.log", "/etc/ssh", "/etc/sudoers"):
        assert cay.run("exec", box, "--", "test", "-e", path).returncode == 1, path
    assert cay.run("exec", box, "-c", "ls /home").stdout == "user\n"
    assert cay.run("exec", box, "-c", "ls /root /tmp /mnt /srv /opt /run | grep -v '^/' | grep .").stdout.split() in ([], ["lock"])
    assert cay.run("exec", box, "-c", "ls -A /root").stdout.split() == [".bashrc", ".profile"]


@pytest.mark.skipif(os.geteuid() != 0, reason="reads what only root may")
def test_host_image_has_no_secrets_of_etc(cay, box):
    host = pathlib.Path("/etc/shadow").read_text()
    inside = cay.run("exec", box, "--", "cat", "/etc/shadow", "/etc/passwd").stdout
    hashes = [line.split(":")[1] for line in host.splitlines() if len(line.split(":")[1]) > 3]
    assert not any(h in inside for h in hashes)
    host_users = {line.split(":")[0] for line in pathlib.Path("/etc/passwd").read_text().splitlines()}
    inside_users = {line.split(":")[0] for line in cay.run("exec", box, "--", "cat", "/etc/passwd").stdout.splitlines()}
    assert "user" in inside_users and inside_users != host_users
    secret = pathlib.Path("/etc/caytest-secret")
    secret.write_text("x")
    try:
        assert cay.run("run", "--", "test", "-e", "/etc/caytest-secret").returncode == 1
    finally:
        secret.unlink()
    closed = [path for top, _, names in os.walk("/etc") for name in names
              if not os.path.islink(path := os.path.join(top, name)) and not os.stat(path).st_mode & 0o004]
    script = "import os, sys\nprint(*[p for p in sys.argv[1:] if os.path.exists(p)])"
    seen = set(cay.run("exec", box, "--", "python3", "-c", script, *closed[:500]).stdout.split())
    assert seen <= {"/etc/shadow", "/etc/gshadow"}, "those are the sandbox's own"


def test_directory_image(cay, make, rootfs):
    box = make("--image", f"dir:{rootfs}")
    done = cay.run("exec", box, "--", "cat", "/data/f")
    assert done.stdout == "from the image", done.stderr
    assert set(cay.run("exec", box, "--", "ls", "/").stdout.split()) >= {"bin", "etc", "home", "data", "proc", "dev"}
    assert cay.run("exec", box, "-c", "echo $0").stdout.strip() in ("/bin/sh", "sh"), "no bash: sh"
    cay.sh(box, "echo changed > /data/f; touch /new; rm /etc/group", check=True)
    assert (rootfs / "data" / "f").read_text() == "from the image"
    assert (rootfs / "etc" / "group").exists() and not (rootfs / "new").exists()
    assert sorted(p.name for p in rootfs.iterdir()) == ["bin", "data", "etc", "home"], "nothing was added to it"


def test_directory_image_users(cay, make, rootfs):
    box = make("--image", f"dir:{rootfs}", "-u", "app")
    assert cay.run("exec", box, "--", "id").stdout.strip() == "uid=123(app) gid=456(app) groups=456(app),789(extra)"
    assert cay.run("exec", box, "--", "pwd").stdout == "/home/app\n"
    refused(cay.run("exec", "-u", "user", box, "--", "id"), "user")


def test_directory_image_files_and_missing_commands(cay, make, rootfs):
    box = make("--image", f"dir:{rootfs}")
    refused(cay.run("exec", box, "--", "python3"), "python3", code=127)
    cay.run("fs", "put", box, "/tmp/new/file", input="x", check=True)
    assert cay.run("fs", "cat", box, "/tmp/new/file").stdout == "x"


def test_empty_directory_image(cay, make):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        os.chmod(top, 0o755)
        box = make("--image", f"dir:{top}")
        cay.run("fs", "put", box, "/hello", input="x", check=True)
        assert cay.run("fs", "cat", box, "/hello").stdout == "x"
        refused(cay.run("exec", box, "--", "/bin/sh"), "/bin/sh", code=127)
        assert os.listdir(top) == []
        cay.run("rm", "-f", box, check=True)


def test_hostile_directory_image(cay, make):
    """Links where the engine mounts things lead nowhere outside."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        os.chmod(top, 0o755)
        shutil.copy(BUSYBOX, f"{top}/busybox")
        for name, target in (("proc", "/tmp"), ("dev", "/etc"), ("sys", "/root"), ("etc", "/etc"), ("tmp", "/")):
            os.symlink(target, f"{top}/{name}")
        before = sorted(os.listdir("/tmp")), sorted(os.listdir("/etc"))
        done = cay.run("run", "--image", f"dir:{top}", "--", "/busybox", "true")
        assert done.returncode in (0, 125)
        assert "passwd" not in cay.run("run", "--image", f"dir:{top}", "--", "/busybox", "ls", "/etc").stdout
        assert sorted(os.listdir("/etc")) == before[1]


def test_aliases(cay, rootfs, tmp_path):
    config = tmp_path / "cay.conf"
    config.write_text(f"[image]\nown/tools:1 = host\ntiny = dir:{rootfs}\n")
    env = {"CAY_CONFIG": str(config)}
    assert cay.run("run", "--image", "own/tools:1", "--", "python3", "-c", "print(1)", env=env).stdout == "1\n"
    assert cay.run("run", "--image", "tiny", "--", "cat", "/data/f", env=env).stdout == "from the image"
    box = cay.create("--image", "tiny", env=env)
    try:
        assert cay.json("inspect", "--json", box)["image"] == "tiny"
        assert cay.create("--image", "tiny", "--name", box, env=env) == box
    finally:
        cay.run("rm", "-f", box, check=True)


def test_defaults_of_the_config(cay, tmp_path):
    config = tmp_path / "cay.conf"
    config.write_text("[defaults]\nmemory = 99M\nenv = FROM=config\nttl = 1h\n")
    env = {"CAY_CONFIG": str(config)}
    box = cay.create(env=env)
    try:
        spec = cay.json("inspect", "--json", box)["spec"]
        assert (spec["memory"], spec["env"], spec["ttl_ms"]) == (99 << 20, {"FROM": "config"}, 3600_000)
    finally:
        cay.run("rm", "-f", box, check=True)
    box = cay.create("--memory", "77M", env=env)
    assert cay.json("inspect", "--json", box)["spec"]["memory"] == 77 << 20
    cay.run("rm", "-f", box, check=True)


@pytest.mark.parametrize("text,words", [
    ("[image\nx = host\n", (":1",)), ("[nosuch]\nx = 1\n", (":1", "nosuch")), ("[defaults]\nmemroy = 1G\n", (":2", "memroy")),
    ("[defaults]\nmemory = lots\n", (":2", "lots")), ("junk\n", (":1",)),
])
def test_bad_config_names_file_and_line(cay, tmp_path, text, words):
    config = tmp_path / "cay.conf"
    config.write_text(text)
    refused(cay.run("create", env={"CAY_CONFIG": str(config)}), str(config), *words)


@pytest.mark.parametrize("name", ["ubuntu:22.04", "python", "ghcr.io/a/b@sha256:" + "0" * 64, "no/such:image", "Host"])
def test_registry_images_are_unsupported(cay, name):
    """Whoever asks for an image by its name must not get the host's files."""
    words = f"image '{name}': registry images are not supported yet; use --image host or dir:PATH"
    for command in (["run", "--image", name, "--", "true"], ["create", "--image", name]):
        refused(cay.run(*command), words)
    error = json.loads(cay.run("create", "--json", "--image", name).stderr)["error"]
    assert (error["code"], error["message"]) == ("unsupported", words)


def test_an_alias_of_an_alias_is_unsupported(cay, tmp_path):
    (tmp_path / "cay.conf").write_text("[image]\none = two\ntwo = host\n")
    refused(cay.run("create", "--image", "one", env={"CAY_CONFIG": str(tmp_path / "cay.conf")}), "image 'one': registry")


def test_unknown_images(cay):
    refused(cay.run("create", "--image", "dir:/no/such"), "/no/such")
    refused(cay.run("create", "--image", "dir:/etc/passwd"), "/etc/passwd")
    refused(cay.run("create", "--image", "dir:relative"), "relative")
    refused(cay.run("create", "--image", ""), "image")


# ---- the host image is at home in itself -----------------------------------------------------------------------------

@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_the_own_host_name_resolves(cay, profile):
    script = "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
    done = cay.run("run", "--name", f"me-{profile}", "--profile", profile, "--", "python3", "-c", script)
    assert done.stdout == f"me-{profile} 127.0.1.1\n", done
    done = cay.run("run", "-u", "user", "--name", "me", "--", "getent", "hosts", "me")
    assert done.stdout.split() == ["127.0.1.1", "me"]


def test_the_host_name_is_written_once_and_not_through_mounts(cay, make, tmp_path):
    box = make("--name", "once")
    for _ in range(3):
        assert cay.sh(box, "grep -c once /etc/hosts").stdout == "1\n"
    assert cay.run("fs", "cat", box, "/etc/hosts").stdout.endswith("127.0.1.1 once\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hosts").write_text("10.0.0.1 mine\n")
    box = make("-v", f"{tmp_path}/etc:/etc", "--name", "twice")
    assert cay.run("fs", "cat", box, "/etc/hosts").stdout == "10.0.0.1 mine\n"
    assert (tmp_path / "etc" / "hosts").read_text() == "10.0.0.1 mine\n"


@pytest.mark.parametrize("user,place", [("root", "/usr/local/"), ("user", "/home/user/.local/")])
def test_pip_installs_without_a_complaint(cay, tmp_path, user, place):
    parts = {"hi.py": "x = 42\n", "hi-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: hi\nVersion: 1.0\n",
             "hi-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
             "hi-1.0.dist-info/RECORD": ""}
    with zipfile.ZipFile(tmp_path / "hi-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in parts.items():
            wheel.writestr(name, text)
    tmp_path.chmod(0o755)
    script = "pip install -q --no-index --find-links /w hi && python3 -c 'import hi; print(hi.x, hi.__file__)'"
    done = cay.run("run", "-u", user, "-v", f"{tmp_path}:/w:ro", "-c", script)
    assert done.stdout.startswith(f"42 {place}") and done.stderr == "", done


def test_the_prompt_names_user_host_and_place(cay):
    done = cay.run("run", "--name", "prompt", "-i", "-t", "--", "bash", input="exit\n")
    assert "root@prompt:" in done.stdout, done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="root inside has no ids then either")
def test_cay_inside_of_nested(cay, make):
    """Root there is told what to do; what it is told works."""
    box = make("--profile", "nested", "-v", f"{PROG}:/prog:ro")
    run = "CAY_LIBEXEC_DIR=/prog CAY_STATE_DIR=/tmp/$(id -u)/s CAY_RUN_DIR=/tmp/$(id -u)/r /prog/cay run -- id -u"
    refused(cay.sh(box, run), "ordinary user", "su user -c")
    refused(cay.sh(box, f"su user -c '{run}'"), "/usr", "use another image")
    image = "cd /tmp && mkdir -p i/bin i/dev i/proc i/sys i/tmp i/etc && cp /bin/busybox /tmp/i/bin && ln -s busybox /tmp/i/bin/id && "
    own = run.replace("run --", "run --image dir:/tmp/i --")
    assert cay.sh(box, image + f"su user -c '{own}'").stdout == "0\n"
