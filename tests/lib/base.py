# SPDX-License-Identifier: Apache-2.0
"""The base system of this host's distribution, made from nothing with mmdebstrap and kept for the next time.

    with base.locked(cache_dir()) as cache:
        base.unpack(cache, "/somewhere")        or with more packages: base.unpack(cache, "/somewhere", ["gcc"])
        base.registry_environment(bundle)       how pip, npm and others reach their registries from in there

Packages come from where the host's apt takes the distribution's own: its other sources are not part of a new machine.
"""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import subprocess
import time

MAX_AGE = 14 * 86400  # then it is made anew, so that not every package of it has to be upgraded
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
CLIENTS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "NPM_CONFIG_REGISTRY", "npm_config_registry")


def cache_dir():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "/var/cache") / "cay-tests"


@contextlib.contextmanager
def locked(cache):
    """One user at a time: apt allows no more in a directory of packages."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def release():
    """("debian", "bookworm")"""
    fields = platform.freedesktop_os_release()
    return fields["ID"], fields["VERSION_CODENAME"]


def sources():
    """The lines of a sources.list: whatever the host's apt has of its own distribution."""
    codename = release()[1]
    out = subprocess.run(["apt-get", "indextargets", "--format", "$(CREATED_BY) $(REPO_URI) $(RELEASE) $(COMPONENT)"],
                         check=True, text=True, stdout=subprocess.PIPE).stdout
    found = {}
    for line in out.splitlines():
        kind, uri, suite, component = line.split()
        if kind == "Packages" and (suite == codename or suite.startswith(codename + "-")):
            found.setdefault((uri, suite), []).append(component)
    assert found, "apt has no source of " + codename
    return "".join(f"deb {uri} {suite} {' '.join(parts)}\n" for (uri, suite), parts in found.items())


def apt_options():
    """How the host's apt reaches its mirror: proxies, certificates, clocks."""
    out = subprocess.run(["apt-config", "dump"], check=True, text=True, stdout=subprocess.PIPE).stdout
    wanted = ("Acquire::http::", "Acquire::https::", "Acquire::Check-", "Acquire::Retries")
    return [line for line in out.splitlines() if line.startswith(wanted)]


def tarball(cache, packages=()):
    """The base system, as it is right after the installation, and the packages if there are any."""
    more = "-" + hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8] if packages else ""
    path = cache / f"base-{release()[1]}{more}.tar"
    if path.exists() and time.time() - path.stat().st_mtime < MAX_AGE:
        return path
    for old in cache.glob("base-*-*.tar" if packages else f"base-{release()[1]}.tar"):
        old.unlink()
    made = cache / "new.tar"
    subprocess.run(["mmdebstrap", "--variant=minbase", "--quiet", *(f"--aptopt={o}" for o in apt_options()),
                    *([f"--include={','.join(packages)}"] if packages else []), release()[1], made, "-"],
                   input=sources(), text=True, check=True)
    made.rename(path)
    return path


def unpack(cache, place, packages=()):
    subprocess.run(["tar", "--numeric-owner", "-xpf", tarball(cache, packages), "-C", place], check=True)


def registry_environment(bundle):
    """Variables for the clients of registries in there, where the host's certificates are in the file `bundle`."""
    found = {name: os.environ[name] for name in PROXIES + CLIENTS if name in os.environ}
    if os.path.exists(BUNDLE):
        found.update({name: bundle for name in CERTIFICATES if name in os.environ})
    return found
