# SPDX-License-Identifier: Apache-2.0
"""Workspaces of a2a's sandboxes on cay: which directory is mounted, what of it may be written, the links at /."""
import json
import os

import pytest
from a2a_pack.sandbox import ExecResult, SandboxRuntimeError, SandboxSpec
from a2a_kit import runner

import cay as sdk

TRY_ALL = """
for path in /workspace/x /workspace/data/x /workspace/reports/x /workspace/reports/deep/x /workspace/outputs/x; do
    mkdir -p "${path%/*}" 2> /dev/null
    if echo written 2> /dev/null > $path; then echo $path; fi
done"""


@pytest.fixture
def top(tmp_path):
    """The directory of all workspaces, with "local" in it, which has some files."""
    for name in ("data", "reports"):
        (tmp_path / "local" / name).mkdir(parents=True)
    (tmp_path / "local" / "data" / "in.txt").write_text("input\n")
    return tmp_path


@pytest.fixture
def run(host, top):
    """run(body, **options); see a2a_kit.py."""
    return runner(host, workspaces=str(top))


@pytest.fixture
def shell(run):
    """shell(script, labels, **options): the result of a one-shot in the workspace "local"."""

    def go(script, labels=None, workspace="local", **options):
        return run(lambda client: client.run_shell(script, workspace=workspace, labels=labels or {}), **options)

    return go


def ids(cay):
    return {info.id for info in cay.list(state="all")}


# ---- which directory


def test_workspace_is_mounted_and_kept(shell, top):
    """workspace: the directory of that name, mounted at /workspace; what is written to outputs stays on the host."""
    assert shell("cat /workspace/data/in.txt; echo result > /workspace/outputs/out.txt") == ExecResult(stdout="input\n")
    assert (top / "local" / "outputs" / "out.txt").read_text() == "result\n"


@pytest.mark.parametrize("bucket", ["user-17-files", "agent-My_agent.v1-2", "local2", "a" * 128])
def test_workspace_is_made_on_first_use(shell, top, bucket):
    """A bucket is created when it is first used; names are those of the contract and other safe ones."""
    assert shell("echo a > /outputs/a && ls /workspace", workspace=bucket).stdout == "outputs\n"
    assert (top / bucket / "outputs" / "a").read_text() == "a\n"
    assert (top / bucket).stat().st_uid == top.stat().st_uid


@pytest.mark.parametrize("bucket", ["..", ".", "../local", "a/b", "/etc", "a\0b", "-x", ".hidden", "a b", "a\n",
                                    "a" * 129, "proc"])
def test_workspace_names_play_no_tricks(shell, top, cay, bucket):
    """A name that is not a plain one is a ValueError; nothing is made."""
    before = ids(cay), sorted(os.listdir(top))
    with pytest.raises(ValueError, match="invalid workspace bucket"):
        shell("true", workspace=bucket)
    assert (ids(cay), sorted(os.listdir(top))) == before


def test_no_place_for_workspaces(shell):
    """A client without the option `workspaces` refuses a spec with one: cay.Unsupported, and says what to do."""
    with pytest.raises(sdk.Unsupported, match="`workspaces`"):
        shell("true", workspaces=None)


def test_default_workspace(run, top):
    """default_workspace is for specs that name none; `bucket` is another name of the argument."""

    async def body(client):
        await client.run_shell("echo 1 > /outputs/default")
        await client.run_shell("echo 2 > /outputs/named", bucket="local")

    run(body, default_workspace="usual")
    assert os.listdir(top / "usual" / "outputs") == ["default"]
    assert os.listdir(top / "local" / "outputs") == ["named"]


def test_a_directory_that_is_not_there(shell, tmp_path):
    """A directory of workspaces that does not exist on cayd's host is an error of create that names it."""
    with pytest.raises(SandboxRuntimeError, match="nowhere"):
        shell("true", workspaces=str(tmp_path / "nowhere"))


def test_without_a_workspace_there_are_outputs(shell):
    """/outputs always exists; without a workspace it is the sandbox's own."""
    script = "echo a > /outputs/a && cat /workspace/outputs/a && echo b > /workspace/b && ls -d /b"
    result = shell(script, workspace=None)
    assert result.stdout == "a\n" and result.exit_code == 2, "nothing is linked at / without a workspace"


# ---- what may be written


def written(shell, labels=None, **options):
    return shell(TRY_ALL, labels, **options).stdout.split()


def test_default_policy_is_outputs_alone(shell, top):
    """Without a label only /workspace/outputs is writable; the rest is read-only and can be read."""
    assert written(shell) == ["/workspace/outputs/x"]
    result = shell("cat /workspace/data/in.txt; rm /workspace/data/in.txt")
    assert result.stdout == "input\n" and "Read-only file system" in result.stderr
    assert (top / "local" / "data" / "in.txt").exists()
    assert written(shell, {"workspace_write_policy": "outputs"}) == ["/workspace/outputs/x"]


def test_workspace_policy_is_everything(shell, top):
    """workspace_write_policy=workspace: all of it is writable, and deletions count."""
    assert len(written(shell, {"workspace_write_policy": "workspace"})) == 5
    assert shell("rm -r /workspace/data", {"workspace_write_policy": "workspace"}).ok
    assert not (top / "local" / "data").exists()


def test_policy_of_the_client(shell):
    """write_policy of the client is for specs without the label."""
    assert len(written(shell, write_policy="workspace")) == 5
    assert written(shell, {"workspace_write_policy": "outputs"}, write_policy="workspace") == ["/workspace/outputs/x"]


def test_read_only_mode(shell, top):
    """workspace_mode=read_only: nothing is writable, whatever else is said; /outputs exists all the same."""
    labels = {"workspace_mode": "read_only", "workspace_write_policy": "workspace",
              "workspace_write_prefixes": '["reports/"]'}
    assert written(shell, labels) == []
    assert shell("cat /workspace/data/in.txt && test -d /outputs", labels).ok
    assert not (top / "local" / "outputs").exists()
    for mode in ("read_write_overlay", "read_write_direct"):
        assert written(shell, {"workspace_mode": mode}) == ["/workspace/outputs/x"]


@pytest.mark.parametrize("prefixes, paths", [
    (["reports/"], ["/workspace/reports/x", "/workspace/reports/deep/x"]),
    (["outputs/**", "/reports/deep"], ["/workspace/reports/deep/x", "/workspace/outputs/x"]),
    (["reports", "reports/deep"], ["/workspace/reports/x", "/workspace/reports/deep/x"]),
    (["data\\"], ["/workspace/data/x"]),
])
def test_write_prefixes(shell, prefixes, paths):
    """workspace_write_prefixes: those directories are writable, made where they are missing, and nothing else."""
    for policy in ({}, {"workspace_write_policy": "workspace"}):
        assert written(shell, {"workspace_write_prefixes": json.dumps(prefixes), **policy}) == paths


def test_write_prefix_of_everything(shell):
    """The prefix ** is the whole workspace."""
    assert len(written(shell, {"workspace_write_prefixes": '["**"]'})) == 5


def test_outputs_prefix(shell, top):
    """workspace_outputs_prefix: where outputs go instead; /outputs is that directory."""
    labels = {"workspace_outputs_prefix": "reports/run 1/"}
    result = shell("echo a > /outputs/a; readlink /outputs; ls -d /workspace/outputs", labels)
    assert result.stdout == "/workspace/reports/run 1\n"
    assert (top / "local" / "reports" / "run 1" / "a").read_text() == "a\n"


def test_patterns_that_mounts_cannot_enforce(shell, cay):
    """Allow and deny patterns other than "everything" and "nothing": cay.Unsupported, never ignored."""
    before = ids(cay)
    for labels in ({"workspace_allow_patterns": '["data/**"]'}, {"workspace_deny_patterns": '["**/.env"]'},
                   {"workspace_write_prefixes": '["reports/*.md"]'}):
        with pytest.raises(sdk.Unsupported, match="cannot"):
            shell("true", labels)
    assert shell("true", {"workspace_allow_patterns": '["**"]', "workspace_deny_patterns": "[]"}).ok
    assert ids(cay) == before


@pytest.mark.parametrize("labels", [
    {"workspace_write_prefixes": "reports"}, {"workspace_write_prefixes": '{"a": 1}'},
    {"workspace_write_prefixes": "[1]"}, {"workspace_write_prefixes": '["../other"]'},
    {"workspace_write_prefixes": '["a//b"]'},
    {"workspace_outputs_prefix": "a/../.."}, {"workspace_mode": "rw"}, {"workspace_write_policy": "all"},
    {"workspace_deny_patterns": "no json"},
])
def test_labels_of_the_runtime_are_checked(shell, labels):
    """A label of the runtime that makes no sense is a ValueError."""
    with pytest.raises(ValueError, match="workspace"):
        shell("true", labels)


# ---- links


def test_top_level_entries_are_at_the_root(shell):
    """Before each command the top-level entries of the workspace are linked at /, where the name is free."""
    result = shell("cat /data/in.txt; readlink /data /outputs; mkdir /workspace/usr /workspace/late",
                   {"workspace_write_policy": "workspace"})
    assert result.stdout == "input\n/workspace/data\n/workspace/outputs\n"
    assert shell("readlink /late; test -x /usr/bin/env && echo own").stdout == "/workspace/late\nown\n"


def test_entries_from_outside_are_there_at_the_next_command(run, top):
    """What is put into the workspace from outside is visible at the next command, by either path; exec does it, too."""

    async def body(client):
        box = await client.create(SandboxSpec(name="box", workspace="local"))
        (top / "local" / "new").mkdir()
        (top / "local" / "new" / "file").write_text("first\n")
        seen = [await box.exec("cat", ["/new/file", "/workspace/new/file"])]
        (top / "local" / "new" / "file").write_text("second\n")
        seen.append(await box.shell("cat /new/file"))
        return [*seen, await box.exec("no-such-program"), await box.exec("/etc/passwd")]

    first, second, missing, denied = run(body)
    assert first.stdout == "first\nfirst\n" and second.stdout == "second\n"
    assert (missing.exit_code, denied.exit_code) == (127, 126)


def test_arguments_stay_as_they_are(run):
    """exec in a workspace passes arguments as they are, too; an empty script is one."""

    async def body(client):
        box = await client.create(SandboxSpec(name="box", workspace="local"))
        printed = await box.exec("printf", ["%s|", "$HOME", "a b", "*", ""])
        return printed, await box.shell(""), await box.shell("exit 5")

    printed, empty, code = run(body)
    assert printed.stdout == "$HOME|a b|*||" and empty.ok and code.exit_code == 5


LINK = "'out' of the workspace 'local' is not a directory of its own"


@pytest.mark.parametrize("target, text", [("/etc", LINK), ("..", LINK), ("data", LINK), ("../other", "create failed")])
def test_links_lead_nowhere(shell, top, cay, target, text):
    """A link that earlier code put in the place of a writable directory is not followed: create is refused."""
    (top / "other").mkdir()
    assert shell(f"mkdir /workspace/keep && ln -s {target} /workspace/out", {"workspace_write_policy": "workspace"}).ok
    before = ids(cay)
    with pytest.raises(SandboxRuntimeError, match=text):
        shell("touch /workspace/out/escaped", {"workspace_write_prefixes": '["keep", "out"]'})
    assert ids(cay) == before
    assert not [path for path in ("/etc/escaped", top / "escaped", top / "other" / "escaped") if os.path.exists(path)]


def test_links_make_no_directories_elsewhere(daemons, shell, top):
    """A link in a workspace to another one: what is missing below it is not made in the other."""
    daemon = daemons(tcp=True, policy=f"[tenant acme]\nmounts_rw = {top}\n")
    access = {"host": daemon.url, "token": daemon.token("acme", tenant="acme")}
    (top / "other").mkdir()
    assert shell("ln -s ../other /workspace/out", {"workspace_write_policy": "workspace"}, **access).ok
    with pytest.raises((SandboxRuntimeError, ValueError)):
        shell("true", {"workspace_write_prefixes": '["out/deep"]'}, **access)
    assert list((top / "other").iterdir()) == []


# ---- ends, tenants


def test_stop_is_graceful(run, top):
    """stop() asks processes to end before it makes them."""

    async def body(client):
        box = await client.create(SandboxSpec(name="box", workspace="local"))
        await box.shell("""
            (trap 'echo bye > /outputs/bye; exit' TERM; echo > /outputs/up; while :; do sleep 0.05; done) &> /dev/null &
            until [ -e /outputs/up ]; do sleep 0.01; done""")
        await box.stop()

    run(body)
    assert (top / "local" / "outputs" / "bye").read_text() == "bye\n"


def test_workspaces_of_a_tenant(daemons, run, top):
    """With a token: the tenant's rules have to allow the directory, and its ceiling of idle time holds."""
    daemon = daemons(tcp=True, policy=f"[policy]\nidle_max = 10m\n[tenant acme]\nmounts_rw = {top}\n")
    tokens = {name: daemon.token(name, tenant=name) for name in ("acme", "other")}

    async def body(client):
        box = await client.create(SandboxSpec(name="box", workspace="new"))
        assert await client.list() == ["box"]
        await box.shell("echo a > /outputs/a")
        return (await box.sandbox.spec())["idle_ms"]

    assert run(body, host=daemon.url, token=tokens["acme"]) == 600_000
    assert (top / "new" / "outputs" / "a").read_text() == "a\n"
    with pytest.raises(SandboxRuntimeError, match="mounts") as caught:
        run(body, host=daemon.url, token=tokens["other"])
    assert caught.value.status_code == 403
    with pytest.raises(SandboxRuntimeError, match="idle_max"):
        run(body, host=daemon.url, token=tokens["acme"], idle=3600)
