# SPDX-License-Identifier: Apache-2.0
"""DeerFlow's SandboxBackend on cay, and a provider for `sandbox.use: cay.adapters.deerflow:CayProvider`.

A sandbox of DeerFlow is a sandbox of cay whose id follows from DeerFlow's own, so that any process finds it again,
also after the one that made it was killed. Its URL is one of cayd's, /aio/KEY, which answers the REST calls that
DeerFlow's AioSandbox makes; the key in it is the only credential, as DeerFlow sends no headers.

One class serves all versions of DeerFlow: from the one whose backend had five methods to those that pass further
arguments by keyword and ask for `is_absent`, `inspect_runtime` and `complete_absent_teardown`.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, cast

import httpx

import cay

_log = logging.getLogger(__name__)

# Where DeerFlow has its classes: now, and when the interface was first published.
_HOMES = ("deerflow.community.aio_sandbox", "src.community.aio_sandbox")
_LABEL, _ID_LABEL, _THREAD_LABEL, _USER_LABEL = "deerflow", "deerflow.sandbox-id", "deerflow.thread", "deerflow.user"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_READY = ("running", "paused")
_LIVE = ("creating", *_READY)
_HEALTH_SECONDS = 5.0
_CREATE_SECONDS, _CREATE_PAUSE = 30.0, 0.02
DEFAULT_PREFIX = "deer-flow-sandbox"
# Sandboxes that DeerFlow forgot, because it never came back, end after this long without use.
_FORGOTTEN_SECONDS = 3600


def _framework(module: str, name: str) -> Any:
    """A class of the DeerFlow that is installed; None without one."""
    for home in _HOMES:
        try:
            return getattr(importlib.import_module(f"{home}.{module}"), name)
        except ModuleNotFoundError as error:
            if not f"{home}.{module}".startswith(error.name or "?"):
                raise  # DeerFlow is there, and something that it needs is not
    return None


@dataclass
class _OwnInfo:
    """DeerFlow's SandboxInfo, for where DeerFlow is not installed."""

    sandbox_id: str
    sandbox_url: str
    container_name: str | None = None
    container_id: str | None = None
    created_at: float = field(default_factory=time)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> _OwnInfo:
        """Of `to_dict`; the URL may have its first name, base_url. What is not known is left out."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        return cls(**{"sandbox_url": data.get("base_url", ""), **known})


if TYPE_CHECKING:
    SandboxInfo = _OwnInfo

    class SandboxBackend:
        pass

    class AioSandboxProvider:
        _config: dict[str, Any]

else:
    SandboxInfo = _framework("sandbox_info", "SandboxInfo") or _OwnInfo
    SandboxBackend = _framework("backend", "SandboxBackend") or object
    AioSandboxProvider = _framework("aio_sandbox_provider", "AioSandboxProvider")


class CayBackend(SandboxBackend):
    """Makes, finds and removes the sandboxes of a DeerFlow.

    client       a cay.Cay; else `host` and `token` as for one
    prefix       of the ids; two DeerFlows with different prefixes do not see each other's sandboxes
    mounts       further (host path, container path, read only) for every sandbox
    environment  of every command
    forgotten    seconds without use after which a sandbox ends, or fewer if the operator of cayd says so; None: never
    spec         further options of `Cay.create`: image, memory, cpus, user, ...
    """

    def __init__(self, client: cay.Cay | None = None, *, host: str | None = None, token: str | None = None,
                 prefix: str = DEFAULT_PREFIX, mounts: Iterable[tuple[str, str, bool]] = (),
                 environment: Mapping[str, str] | None = None, forgotten: float | None = _FORGOTTEN_SECONDS,
                 **spec: Any) -> None:
        self._cay = client or cay.Cay(host, token=token)
        self._prefix = prefix
        self._mounts = list(mounts)
        self._spec: dict[str, Any] = {**spec, "env": dict(environment or {})}
        self._wishes: cay.Spec = {"idle": forgotten}

    def create(self, thread_id: str | None, sandbox_id: str,
               extra_mounts: list[tuple[str, str, bool]] | None = None, *, user_id: str | None = None,
               provision_lark_cli_runtime: bool = False, provision_lark_cli_broker: bool = False,
               **options: Any) -> SandboxInfo:
        """The sandbox of that id: the one that runs already, or a new one. Ready when this returns."""
        if provision_lark_cli_runtime or provision_lark_cli_broker:
            raise cay.Unsupported("the Lark CLI comes from an image of a registry, which this version does not have",
                                  {"field": "provision_lark_cli_runtime"})
        _check_network(options.pop("network", None))
        image = {"image": options.pop("image")} if options.get("image") else {}
        if options:
            _log.debug("options that mean nothing to cay: %s", ", ".join(sorted(options)))
        name = self._name(sandbox_id)
        labels = self._labels(sandbox_id, {_THREAD_LABEL: thread_id, _USER_LABEL: user_id})
        mounts = _in_order([*(extra_mounts or []), *self._mounts])
        box = self._adopt(name) or self._make(name, labels, mounts, image)
        try:
            return self._info(box, sandbox_id)
        except cay.Unsupported:
            box.remove()  # a sandbox without a URL is of no use to anybody
            raise

    def destroy(self, info: SandboxInfo) -> None:
        """Removes it. Returns when it is gone, or was already; raises if it may still be there."""
        found = self._find(info.sandbox_id)
        # A later sandbox of the same id is not the one that was meant.
        if found is not None and info.container_id in (None, _generation(found)):
            self._cay.attach(found.id).remove()

    def is_alive(self, info: SandboxInfo) -> bool:
        """False only if it is certain; raises if it cannot be told."""
        found = self._find(info.sandbox_id)
        return found is not None and found.state in _LIVE and info.container_id in (None, _generation(found))

    def discover(self, sandbox_id: str) -> SandboxInfo | None:
        """The sandbox of that id if it runs and answers; never raises."""
        try:
            found = self._find(sandbox_id)
            if found is None or found.state not in _READY:
                return None
            info = self._info(self._cay.attach(found.id), sandbox_id, found)
            healthy = httpx.get(f"{info.sandbox_url}/v1/sandbox", timeout=_HEALTH_SECONDS, trust_env=False)
        except (cay.CayError, httpx.HTTPError) as error:
            _log.warning("sandbox %s cannot be discovered: %s", sandbox_id, error)
            return None
        return info if healthy.status_code == httpx.codes.OK else None

    def list_running(self) -> list[SandboxInfo]:
        """All sandboxes of this prefix that run, whoever made them; [] if that cannot be told."""
        running = []
        try:
            for found in self._cay.list(labels={_LABEL: self._prefix}):
                if found.state in _READY and _ID_LABEL in found.labels:
                    with suppress(cay.Gone, cay.NotFound):  # it ended since
                        running.append(self._info(self._cay.attach(found.id), found.labels[_ID_LABEL], found))
        except cay.CayError as error:
            _log.warning("the sandboxes cannot be listed: %s", error)
            return []
        return running

    def is_absent(self, sandbox_id: str) -> bool:
        """True only if there is nothing of that id, not even one that has ended; raises if it cannot be told."""
        return self._find(sandbox_id) is None

    def inspect_runtime(self, sandbox_id: str) -> SandboxInfo | None:
        """What is known of it, whether it is well or not; None: there is none. Raises if it cannot be told."""
        found = self._find(sandbox_id)
        if found is None:
            return None
        return self._info(self._cay.attach(found.id) if found.state in _LIVE else None, sandbox_id, found)

    def complete_absent_teardown(self, sandbox_id: str) -> None:
        """Removes the record of one that has ended. Ports and networks it has none."""
        found = self._find(sandbox_id)
        if found is not None and found.state not in _LIVE:
            self._cay.attach(found.id).remove()

    # -- how it is done

    def _name(self, sandbox_id: str) -> str:
        """The id in cay: DeerFlow's own where that is one, else a hash of it."""
        name = f"{self._prefix}-{sandbox_id}"
        if not _NAME.fullmatch(name):
            name = f"deerflow-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        return name

    def _labels(self, sandbox_id: str, known: Mapping[str, str | None]) -> dict[str, str]:
        """`_ID_LABEL` leads back from a list; the others are for people, in a form that labels can have."""
        labels = {_LABEL: self._prefix, _ID_LABEL: sandbox_id}
        labels |= {name: _UNPRINTABLE.sub("?", value)[:128] for name, value in known.items() if value}
        return labels

    def _find(self, sandbox_id: str) -> cay.SandboxInfo | None:
        try:
            return self._cay.get(self._name(sandbox_id)).info
        except cay.NotFound:
            return None

    def _adopt(self, name: str) -> cay.Sandbox | None:
        """The one that runs; one that is just being made is waited for. One that has ended makes room."""
        try:
            box = self._cay.get(name)
            deadline = monotonic() + _CREATE_SECONDS
            while box.info is not None and box.info.state == "creating" and monotonic() < deadline:
                sleep(_CREATE_PAUSE)
                box.refresh()
        except cay.NotFound:
            return None
        if box.info is not None and box.info.state in _LIVE:
            return box
        box.remove()
        return None

    def _make(self, name: str, labels: dict[str, str], mounts: list[cay.Mount], image: dict[str, Any]) -> cay.Sandbox:
        try:
            spec = cast(cay.Spec, {"id": name, "labels": labels, "mounts": mounts, **self._spec, **image})
            return self._cay._create_wishing(spec, self._wishes)
        except cay.Conflict:
            # Another process was faster, perhaps with other mounts: one sandbox for each id.
            box = self._adopt(name)
            if box is None:
                raise
            return box

    def _info(self, box: cay.Sandbox | None, sandbox_id: str, found: cay.SandboxInfo | None = None) -> SandboxInfo:
        found = found or (box and (box.info or box.refresh())) or None
        return SandboxInfo(sandbox_id=sandbox_id, sandbox_url=box.aio_url() if box else "",
                           container_name=self._name(sandbox_id), container_id=_generation(found) if found else None,
                           created_at=found.created_ms / 1000 if found else 0.0)


def _generation(found: cay.SandboxInfo) -> str | None:
    """Tells a sandbox from a later one of the same id; None as long as it is being made."""
    return f"{found.id}@{found.created_ms}" if found.created_ms else None


def _check_network(network: Any) -> None:
    """Of DeerFlow's modes `isolated` is what a sandbox is. `open`, which a section without a mode means, and
    `allowlist` would be promises that nobody keeps."""
    if not network:
        return
    if isinstance(network, str):
        mode: Any = network
    else:
        mode = network.get("mode") if isinstance(network, Mapping) else getattr(network, "mode", None)
    if mode not in ("isolated", "deny-all"):
        raise cay.Unsupported(f"sandbox.network.mode {mode or 'open'}: sandboxes have no network in this version; "
                              "isolated is what they are", {"field": "network"})


def _in_order(mounts: Iterable[tuple[str, str, bool]]) -> list[cay.Mount]:
    """Each container path once, the first wins; parents before what lies below them."""
    wanted: dict[str, cay.Mount] = {}
    for source, target, read_only in mounts:
        wanted.setdefault(target.rstrip("/"), cay.Mount(source, target.rstrip("/"), read_only))
    return [wanted[target] for target in sorted(wanted)]


if TYPE_CHECKING or AioSandboxProvider is not None:

    class CayProvider(AioSandboxProvider):
        """DeerFlow's AIO provider with cay in place of Docker.

        Of config.yaml's section `sandbox` it takes, besides what DeerFlow knows (mounts, environment, idle_timeout,
        replicas, container_prefix): cay_host, cay_token, and cay_spec, further options of `Cay.create`. `image` is the
        image of the sandboxes, as in cay_spec: one that cayd does not have is Unsupported.
        """

        def _create_backend(self) -> CayBackend:
            settings = importlib.import_module(f"{_home_of(AioSandboxProvider)}.config").get_app_config().sandbox
            _check_network(_written(settings, "network"))
            config = self._config
            idle = config.get("idle_timeout", 0)
            spec = _with_image(getattr(settings, "cay_spec", None) or {}, _written(settings, "image"))
            return CayBackend(host=getattr(settings, "cay_host", None), token=getattr(settings, "cay_token", None),
                              prefix=config.get("container_prefix") or DEFAULT_PREFIX,
                              mounts=[(m.host_path, m.container_path, m.read_only) for m in config.get("mounts") or []],
                              environment=config.get("environment"),
                              forgotten=max(_FORGOTTEN_SECONDS, 6 * idle) if idle else None, **spec)

        @property
        def uses_thread_data_mounts(self) -> bool:
            """The thread's directories are mounted: DeerFlow need not copy uploads."""
            wanted = self._config.get("thread_data_mounts")
            return True if wanted is None else bool(wanted)

    def _written(settings: Any, name: str) -> Any:
        """What config.yaml says; None where DeerFlow's own default stands: nobody has chosen that."""
        written = getattr(settings, "model_fields_set", None)
        return getattr(settings, name, None) if written is None or name in written else None

    def _with_image(spec: Mapping[str, Any], image: str | None) -> dict[str, Any]:
        """One image that is given twice has to be the same one: whichever is left out would be ignored."""
        if image and spec.get("image") not in (None, image):
            raise cay.Invalid(f"sandbox.image '{image}' and cay_spec's image '{spec['image']}' are two: give one of them",
                              {"field": "image"})
        return {**spec, "image": image} if image else dict(spec)

    def _home_of(provider: type) -> str:
        """The top package of the DeerFlow that `provider` belongs to."""
        return provider.__module__.partition(".")[0]

else:

    def __getattr__(name: str) -> Any:
        if name == "CayProvider":
            raise ImportError("CayProvider extends DeerFlow's AioSandboxProvider, and DeerFlow is not installed")
        raise AttributeError(name)
