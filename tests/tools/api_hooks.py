# SPDX-License-Identifier: Apache-2.0
"""Hooks of the schema-driven fuzzer (tests/integration/test_api_schema.py); loaded by schemathesis, not by pytest.

Random ids hit nothing: most generated requests are pointed at sandboxes and processes that exist. What ends or
changes a sandbox gets one of its own each time, so that the others stay as they are. Requests that would wait for
ever are bounded. CAY_FUZZ_URL, CAY_FUZZ_TOKEN: the daemon; CAY_FUZZ_CONTRACT: the document.
"""
import io
import json
import os
import pathlib
import tarfile
import threading
import zlib

import requests
import schemathesis
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

URL = os.environ["CAY_FUZZ_URL"] + "/api/v1/sandboxes"
CONTRACT = json.loads(pathlib.Path(os.environ["CAY_FUZZ_CONTRACT"]).read_text())
REGISTRY = Registry().with_resource("urn:contract", Resource(contents=CONTRACT, specification=DRAFT202012))

# What leaves a sandbox ended, frozen, about to end or without the files that a shell needs.
SPEND_SANDBOX = {"removeSandbox", "killSandbox", "stopSandbox", "pauseSandbox", "updateSandbox", "removeFile",
                 "moveFile"}
SPEND_PROCESS = {"killProcess", "signalProcess", "writeStdin"}

session = requests.Session()
session.headers["Authorization"] = "Bearer " + os.environ["CAY_FUZZ_TOKEN"]
local = threading.local()


def call(method, path, **options):
    answer = session.request(method, URL + path, timeout=20, **options)
    answer.raise_for_status()
    return answer.json() if answer.content else None


def new_sandbox():
    return call("POST", "", json={"labels": {"made-by": "fuzzer"}, "memory": "64M", "pids": 64})["id"]


def new_process(box):
    return call("POST", f"/{box}/processes", json={"argv": ["cat"], "stdin": True, "pty": True})["pid"]


BOX = new_sandbox()
PID = new_process(BOX)
call("POST", f"/{BOX}/exec", json={"shell": "echo hello > /tmp/hello.txt; mkdir -p /work; echo import os > /work/a.py"})


def operation_id(case):
    return case.operation.definition.raw["operationId"]


@schemathesis.hook
def before_call(context, case, kwargs):
    name = operation_id(case)
    local.spent = local.process = None
    parameters = case.path_parameters or {}
    # Three of four, always the same three: a case that is tried again must do the same. The others may be ids
    # that the fuzzer saw in an answer.
    if "id" in parameters and (zlib.crc32(repr(sorted(parameters.items())).encode()) % 4 or
                               parameters["id"] == BOX):
        if name in SPEND_SANDBOX:
            local.spent = new_sandbox()
        parameters["id"] = local.spent or BOX
        if "pid" in parameters:
            local.process = new_process(BOX) if name in SPEND_PROCESS else None
            parameters["pid"] = local.process or PID
    if isinstance(case.query, dict) and name not in ("startProcess", "statFile"):
        case.query.pop("follow", None)
    # The whole image is larger than the patience of any test.
    if name in ("readArchive", "grepFiles") and isinstance(case.query, dict) and case.query.get("path") == "/":
        case.query["path"] = "/tmp"
    if name == "waitProcess" and (not isinstance(case.body, dict) or "timeout" in case.body or not case.body):
        case.body = {"timeout": 0.05}
    if name in ("exec", "startProcess") and isinstance(case.body, dict) and "timeout" not in case.body:
        case.body["timeout"] = 2
    if name == "stopSandbox" and isinstance(case.body, dict) and isinstance(case.body.get("grace"), (int, float)):
        case.body["grace"] = min(case.body["grace"], 1)


@schemathesis.hook
def after_call(context, case, response):
    if operation_id(case) == "createSandbox" and response.status_code in (200, 201):
        local.spent = response.json()["id"]
    if getattr(local, "spent", None):
        session.delete(f"{URL}/{local.spent}", timeout=20)
    if getattr(local, "process", None):
        session.delete(f"{URL}/{BOX}/processes/{local.process}", timeout=20)
    local.spent = local.process = None


@schemathesis.serializer("application/x-tar")
def tar(context, value):
    """Bytes as they were made, or every other time an archive with them in it."""
    value = value if isinstance(value, bytes) else str(value).encode()
    if zlib.crc32(value) % 2:
        return value
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as out:
        entry = tarfile.TarInfo("a/b")
        entry.size = len(value)
        out.addfile(entry, io.BytesIO(value))
    return archive.getvalue()


@schemathesis.check
def ndjson_conformance(ctx, response, case):
    """Every line of a stream is an event of the contract, and the last one is whole."""
    if not response.headers.get("content-type", [""])[0].startswith("application/x-ndjson"):
        return
    parts = ("paths", case.operation.path, case.method.lower(), "responses", str(response.status_code), "content",
             "application/x-ndjson", "schema")
    place = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
    validator = Draft202012Validator({"$ref": "urn:contract#" + place}, registry=REGISTRY)
    assert response.content == b"" or response.content.endswith(b"\n"), "the last line has no end"
    for line in response.content.splitlines():
        error = next(validator.iter_errors(json.loads(line)), None)
        assert error is None, f"{line!r}: {error.message}"
