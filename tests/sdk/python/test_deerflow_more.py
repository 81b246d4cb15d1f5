# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.deerflow: the abstract class as it was published first, what several processes do at once, DeerFlow's
own mounts and configuration, and what this version refuses."""
import hashlib
import importlib
import inspect
import os
import pathlib
import sys
import types
import urllib.parse
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from deerflow_kit import load

import cay as sdk

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture
def alone(monkeypatch):
    """The adapter without a DeerFlow."""
    return load(monkeypatch)


@pytest.fixture
def backend(alone, cay):
    backend = alone.CayBackend(cay, prefix="m" + os.urandom(4).hex())
    yield backend
    for info in backend.list_running():
        backend.destroy(info)


FIRST_BACKEND = '''
from abc import ABC, abstractmethod

from .sandbox_info import SandboxInfo


class SandboxBackend(ABC):
    @abstractmethod
    def create(self, thread_id: str, sandbox_id: str,
               extra_mounts: list[tuple[str, str, bool]] | None = None) -> SandboxInfo: ...

    @abstractmethod
    def destroy(self, info: SandboxInfo) -> None: ...

    @abstractmethod
    def is_alive(self, info: SandboxInfo) -> bool: ...

    @abstractmethod
    def discover(self, sandbox_id: str) -> SandboxInfo | None: ...

    def list_running(self) -> list[SandboxInfo]:
        return []
'''
FIRST_INFO = '''
import time
from dataclasses import dataclass, field


@dataclass
class SandboxInfo:
    sandbox_id: str
    sandbox_url: str
    container_name: str | None = None
    container_id: str | None = None
    created_at: float = field(default_factory=time.time)
'''


@pytest.fixture
def first(monkeypatch, tmp_path):
    """The adapter with the first version of DeerFlow's classes, where they were then: below src."""
    home = tmp_path / "src" / "community" / "aio_sandbox"
    home.mkdir(parents=True)
    for directory in (home, home.parent, home.parent.parent):
        (directory / "__init__.py").touch()
    (home / "backend.py").write_text(FIRST_BACKEND)
    (home / "sandbox_info.py").write_text(FIRST_INFO)
    return load(monkeypatch, tmp_path)


# ---- the declarations


def test_with_the_abstract_class_that_was_published_first(first):
    """A subclass of the first version's ABC, nothing of it left abstract; every method takes the same parameters, with
    the same defaults, positionally and by keyword."""
    from src.community.aio_sandbox.backend import SandboxBackend
    from src.community.aio_sandbox.sandbox_info import SandboxInfo

    assert issubclass(first.CayBackend, SandboxBackend) and not first.CayBackend.__abstractmethods__
    assert first.SandboxInfo is SandboxInfo
    for method in ("create", "destroy", "is_alive", "discover", "list_running"):
        wanted = list(inspect.signature(getattr(SandboxBackend, method)).parameters.values())
        found = list(inspect.signature(getattr(first.CayBackend, method)).parameters.values())
        assert [(p.name, p.kind, p.default) for p in found[:len(wanted)]] \
            == [(p.name, p.kind, p.default) for p in wanted], method
        assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in found[len(wanted):]), method


def test_arguments_of_later_versions_are_keywords(alone):
    """user_id=None, provision_lark_cli_runtime=False, provision_lark_cli_broker=False: keyword-only; **kwargs for what
    comes later; is_absent, inspect_runtime and complete_absent_teardown take the id."""
    parameters = inspect.signature(alone.CayBackend.create).parameters
    found = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert found == {"user_id": None, "provision_lark_cli_runtime": False, "provision_lark_cli_broker": False}
    assert any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for method in ("is_absent", "inspect_runtime", "complete_absent_teardown"):
        assert list(inspect.signature(getattr(alone.CayBackend, method)).parameters) == ["self", "sandbox_id"]


def test_infos_without_deerflow_are_like_its_own(alone):
    """SandboxInfo(sandbox_id, sandbox_url, container_name=None, container_id=None, created_at=now); to_dict and
    from_dict; base_url is the old name of the URL."""
    info = alone.SandboxInfo("id", "http://127.0.0.1:1/x")
    assert (info.container_name, info.container_id) == (None, None) and info.created_at > 1.7e9
    assert info.to_dict() == {"sandbox_id": "id", "sandbox_url": "http://127.0.0.1:1/x", "container_name": None,
                              "container_id": None, "created_at": info.created_at}
    assert alone.SandboxInfo.from_dict(info.to_dict()) == info
    old = alone.SandboxInfo.from_dict({"sandbox_id": "id", "base_url": "http://h:1", "created_at": 5.0, "more": 1})
    assert old == alone.SandboxInfo("id", "http://h:1", created_at=5.0)
    assert alone.SandboxInfo.from_dict({"sandbox_id": "id"}).sandbox_url == ""


# ---- creating


@pytest.mark.parametrize("sandbox_id", [hashlib.sha256(b"thread").hexdigest()[:8],
                                        hashlib.sha256(b"user:thread").hexdigest()[:16], str(uuid.uuid4())[:8]])
def test_ids_of_all_versions(backend, cay, sandbox_id):
    """sha256(thread_id)[:8], sha256(user:thread)[:16], a random uuid[:8]: the id in cay is PREFIX-ID."""
    info = backend.create(None, sandbox_id, None)
    assert info.sandbox_id == sandbox_id and info.container_name == f"{backend._prefix}-{sandbox_id}"
    assert cay.get(info.container_name).info.labels["deerflow.sandbox-id"] == sandbox_id


def test_creates_at_the_same_time_are_one_sandbox(alone, backend, cay, tmp_path):
    """Name conflict: adopted and returned, also when another process was faster and wanted other mounts."""
    def make(number):
        (tmp_path / str(number)).mkdir()
        mounts = [(str(tmp_path / str(number)), "/mnt/user-data/workspace", False)]
        return alone.CayBackend(cay, prefix=backend._prefix).create("thread", "one", extra_mounts=mounts)

    with ThreadPoolExecutor(4) as pool:
        infos = list(pool.map(make, range(4)))
    assert infos == [infos[0]] * 4
    assert [info.sandbox_id for info in backend.list_running()] == ["one"]


def test_what_nobody_can_reach_is_not_left_behind(alone, daemons):
    """RuntimeError on failure: a sandbox without a URL, as cayd has no TCP address, is removed."""
    host = f"unix:{daemons(tcp=False).sock}"
    with pytest.raises(RuntimeError):
        alone.CayBackend(host=host).create("thread", "lost")
    with sdk.Cay(host) as client:
        assert client.list(state="all") == []


def test_mounts_of_deerflow(backend, cay, tmp_path):
    """All that DeerFlow mounts: user data read-write, the ACP workspace, skills and their parts read-only, nested ones
    below read-only parents, /data and /runtime."""
    writable = ["/mnt/user-data/workspace", "/mnt/user-data/uploads", "/mnt/user-data/outputs", "/data",
                "/mnt/integrations/lark-cli/config/locks"]
    read_only = ["/mnt/acp-workspace", "/mnt/skills/public", "/mnt/skills/custom", "/mnt/skills/legacy",
                 "/mnt/skills/integrations", "/mnt/integrations/lark-cli/config", "/runtime"]
    mounts = []
    for target in writable + read_only:
        source = tmp_path / target.strip("/").replace("/", "-")
        source.mkdir()
        mounts.append((str(source), target, target in read_only))
    (tmp_path / "mnt-integrations-lark-cli-config" / "locks").mkdir()
    info = backend.create("thread", "mounts", extra_mounts=mounts)
    script = "".join(f"touch {target}/x 2> /dev/null && echo {target}\n" for target in writable + read_only)
    assert cay.attach(info.container_name).exec(script).stdout.split() == writable
    assert all((pathlib.Path(source) / "x").exists() != read_only for source, _, read_only in mounts)


# ---- the URL


def test_the_url_cannot_be_guessed(backend):
    """No header is sent: the key in the path is the credential. Loopback; a path prefix; another key for each sandbox,
    at least 128 bits of it; a wrong one is 404."""
    urls = [backend.create("thread", name).sandbox_url for name in ("a1", "b2")]
    for url in urls:
        parts = urllib.parse.urlsplit(url)
        assert parts.scheme == "http" and parts.hostname == "127.0.0.1" and not url.endswith("/")
        key = parts.path.rpartition("/")[2]
        assert len(key) >= 22 and len(set(key)) > 8
        assert httpx.get(f"{url}/v1/sandbox", trust_env=False).status_code == 200
        assert httpx.get(f"{url[:-1]}{'0' if url[-1] != '0' else '1'}/v1/sandbox", trust_env=False).status_code == 404
    assert urls[0] != urls[1]


def test_proxies_of_the_environment_are_not_asked(backend, monkeypatch):
    """HTTP_PROXY does not come between (#3441)."""
    info = backend.create("thread", "proxy")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert backend.discover("proxy") == info


# ---- finding and destroying


def test_destroy_takes_what_the_others_give(backend):
    """destroy(info) of list_running, of discover and of inspect_runtime; afterwards each of them finds nothing."""
    for number, find in enumerate((lambda name: backend.list_running()[0], backend.discover, backend.inspect_runtime)):
        name = f"d{number}"
        backend.create("thread", name)
        info = find(name)
        assert info.sandbox_id == name
        backend.destroy(info)
        assert backend.is_absent(name) and backend.discover(name) is None and backend.inspect_runtime(name) is None
        assert backend.list_running() == [] and backend.is_alive(info) is False


def test_times_are_seconds_since_the_epoch(backend):
    """created_at is a float of epoch seconds, the same from every call."""
    made = backend.create("thread", "time")
    times = {info.created_at for info in (made, backend.discover("time"), *backend.list_running())}
    assert times == {made.created_at} and isinstance(made.created_at, float) and made.created_at > 1.7e9


# ---- the provider


@pytest.fixture
def provider(monkeypatch, cayd):
    """provider(**settings): a CayProvider, made with no arguments, of these settings of config.yaml's section."""
    adapter = load(monkeypatch, HERE / "deerflow_standin")
    settings = importlib.import_module("deerflow.config").get_app_config().sandbox
    made = []

    def make(**options):
        options = {"cay_host": f"unix:{cayd.sock}", "container_prefix": "q" + os.urandom(4).hex(), **options}
        for name, value in options.items():
            monkeypatch.setattr(settings, name, value, raising=False)
        module, _, name = "cay.adapters.deerflow:CayProvider".partition(":")
        assert importlib.import_module(module) is adapter
        made.append(getattr(adapter, name)())
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def test_configured_mounts_of_the_provider(provider, cay, tmp_path):
    """sandbox.mounts (host_path, container_path, read_only) of config.yaml are in every sandbox; extra ones beside."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "f").write_text("configured")
    (tmp_path / "extra").mkdir()
    mount = types.SimpleNamespace(host_path=str(tmp_path / "conf"), container_path="/mnt/conf", read_only=True)
    one = provider(mounts=[mount])
    name = one.acquire("thread", extra_mounts=[(str(tmp_path / "extra"), "/mnt/user-data/workspace", False)])
    box = cay.attach(one.get(name).container_name)
    assert box.exec("cat /mnt/conf/f; echo w > /mnt/user-data/workspace/w; touch /mnt/conf/x").stdout == "configured"
    assert (tmp_path / "extra" / "w").exists() and not (tmp_path / "conf" / "x").exists()


@pytest.mark.parametrize("idle_timeout, idle_ms", [(0, 0), (600, 3_600_000), (7200, 6 * 7_200_000)])
def test_idle_times(provider, cay, idle_timeout, idle_ms):
    """idle_timeout 0 disables: cay has no idle time either; else cay's is longer, so that DeerFlow decides."""
    one = provider(idle_timeout=idle_timeout)
    assert cay.attach(one.get(one.acquire("thread")).container_name).spec()["idle_ms"] == idle_ms


def test_thread_data_mounts(provider):
    """thread_data_mounts: true and false override; without it the directories are mounted."""
    assert [provider(thread_data_mounts=wanted).uses_thread_data_mounts for wanted in (None, True, False)] \
        == [True, True, False]


# ---- not in this version


@pytest.mark.parametrize("network, mode", [
    ({"mode": "allowlist", "allow": ["pypi.org"]}, "allowlist"), (types.SimpleNamespace(mode="allowlist"), "allowlist"),
    ({"mode": "open"}, "open"), (types.SimpleNamespace(mode="open"), "open"), ("open", "open"),
    ({"allow": ["pypi.org"]}, "open")])
def test_networks_are_unsupported(provider, network, mode):
    """sandbox.network: any mode but isolated is cay.Unsupported when the provider is made, never ignored."""
    with pytest.raises(sdk.Unsupported, match=f"sandbox.network.mode {mode}") as caught:
        provider(network=network)
    assert caught.value.detail == {"field": "network"}


def test_create_takes_no_image_and_no_network_of_others(backend):
    """image and network among the further arguments of create are looked at as those of the configuration are."""
    for options in ({"network": "open"}, {"network": {"mode": "allowlist"}}, {"image": "other:1"}):
        with pytest.raises(sdk.Unsupported) as caught:
            backend.create("thread", "one", **options)
        assert caught.value.detail == {"field": next(iter(options))}
    assert backend.is_absent("one")
    assert backend.create("thread", "one", image="host", network={"mode": "isolated"}).sandbox_url


@pytest.mark.parametrize("network", [{"mode": "isolated"}, types.SimpleNamespace(mode="isolated"), {}, None])
def test_isolated_is_what_a_sandbox_is(provider, cay, network):
    """sandbox.network.mode: isolated, or no such section."""
    one = provider(network=network)
    assert cay.attach(one.get(one.acquire("thread")).container_name).exec("ls /sys/class/net").stdout == "lo\n"


def test_defaults_of_deerflow_are_not_chosen(provider, monkeypatch):
    """An image and a network that stand in DeerFlow's model and not in config.yaml (pydantic's model_fields_set) mean
    nothing."""
    network = types.SimpleNamespace(mode="open")
    one = provider(image="registry.example/aio:latest", network=network, model_fields_set={"cay_host"})
    assert one.get(one.acquire("thread")).sandbox_url


@pytest.mark.parametrize("where", ["image", "cay_spec"])
def test_images_of_registries_are_unsupported(provider, cay, where):
    """sandbox.image and cay_spec's image: one that cayd does not have is cay.Unsupported at create; nothing is made."""
    image = "registry.example/all-in-one-sandbox:latest"
    before = {info.id for info in cay.list(state="all")}
    one = provider(**({"image": image} if where == "image" else {"cay_spec": {"image": image}}))
    with pytest.raises(sdk.Unsupported, match=f"image '{image}': registry images are not supported yet") as caught:
        one.acquire("thread")
    assert caught.value.detail == {"field": "image"}
    assert {info.id for info in cay.list(state="all")} == before


def test_image_of_the_configuration(provider, cay):
    """sandbox.image is the sandboxes' own; beside another one of cay_spec it is refused."""
    for options in ({"image": "host"}, {"image": "host", "cay_spec": {"image": "host", "memory": "64M"}}):
        one = provider(**options)
        assert cay.attach(one.get(one.acquire("thread")).container_name).spec()["image"] == "host"
    with pytest.raises(sdk.Invalid, match="other:1"):
        provider(image="other:1", cay_spec={"image": "host"})


def test_cayd_is_not_a_provisioner(cayd):
    """provisioner_url at cayd: not_found for every route of the provisioner, which DeerFlow tells as a failure."""
    headers = {"X-API-Key": "key", "Authorization": f"Bearer {cayd.token('not-a-provisioner')}"}
    with httpx.Client(base_url=cayd.url, headers=headers, trust_env=False) as client:
        answers = [client.post("/api/sandboxes", json={"sandbox_id": "a", "thread_id": "t"}),
                   client.get("/api/sandboxes"), client.get("/api/sandboxes/a"), client.delete("/api/sandboxes/a"),
                   client.get("/api/sandboxes/a/presence"), client.get("/api/capabilities"), client.get("/health")]
    assert [answer.status_code for answer in answers] == [404] * 7
    assert all(answer.json()["error"]["code"] == "not_found" for answer in answers)
