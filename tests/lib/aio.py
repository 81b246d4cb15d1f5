# SPDX-License-Identifier: Apache-2.0
"""A sandbox of a Daemon as clients of the AIO protocol see it.

    aio = Aio(cayd, box)                             # asks for its key
    aio.shell("echo hi")["output"]                   # the data of POST v1/shell/exec
    aio.post("file/read", file="/etc/passwd")        # Answer(status, headers, body)
    send(cayd, "GET", "/aio/x/v1/sandbox")           # any path, as it stands
"""
import json as jsonlib

from lib.daemon import Answer


def send(daemon, method, path, tcp=True, token=None, json=None, body=None, headers=None, timeout=30.0):
    """A request whose path is not one of the native API's."""
    wanted = dict(headers or {})
    if json is not None:
        body = jsonlib.dumps(json).encode()
        wanted.setdefault("Content-Type", "application/json")
    if token is not None:
        wanted.setdefault("Authorization", f"Bearer {token}")
    with daemon.client(tcp=tcp, timeout=timeout) as client:
        try:
            client.connection.request(method, path, body=body, headers=wanted)
        except BrokenPipeError:
            pass  # answered before all of the body was sent
        response = client.connection.getresponse()
        got = response.read()
    if response.headers.get_content_type() == "application/json" and got:
        got = jsonlib.loads(got)
    return Answer(response.status, response.headers, got)


class Aio:
    def __init__(self, daemon, box, token=None, tcp=True):
        self.daemon, self.tcp = daemon, tcp
        answer = daemon.get(f"/sandboxes/{box}/aio", token=token, tcp=token is not None)
        assert answer.status == 200, answer
        self.path, self.url = answer.body["path"], answer.body["url"]

    def request(self, method, call, **options):
        return send(self.daemon, method, f"{self.path}/v1/{call}", tcp=self.tcp, **options)

    def get(self, call, **options):
        return self.request("GET", call, **options)

    def delete(self, call):
        return self.request("DELETE", call)

    def post(self, call, /, patience=30.0, **body):
        return self.request("POST", call, json=body, timeout=patience)

    def data(self, call, /, **body):
        """The data of a call that must succeed, in an envelope as all of them are."""
        answer = self.post(call, **body)
        assert answer.status == 200, answer
        assert set(answer.body) == {"success", "message", "data", "hint"}, answer.body
        assert answer.body["success"] is True and answer.body["hint"] is None, answer.body
        assert isinstance(answer.body["message"], str)
        return answer.body["data"]

    def shell(self, command, **body):
        return self.data("shell/exec", command=command, **body)

    def bash(self, command, **body):
        return self.data("bash/exec", command=command, **body)

    def write(self, file, content, **body):
        return self.data("file/write", file=file, content=content, **body)

    def refused(self, call, status, /, **body):
        """An error with a status of its own: the body, whose detail and message say what is wrong."""
        answer = self.post(call, **body)
        assert answer.status == status, answer
        assert answer.body["success"] is False and answer.body["data"] is None, answer.body
        assert answer.body["message"] and answer.body["detail"], answer.body
        return answer.body

    def file_error(self, call, kind, /, **body):
        """AIO's way to tell what is wrong with a file: status 200 and a FileOperationError."""
        answer = self.post(call, **body)
        assert answer.status == 200 and answer.body["success"] is False, answer
        data = answer.body["data"]
        assert {"path", "operation", "message", "error_type", "retryable", "errno", "errno_name"} <= set(data), data
        assert data["error_type"] == kind and data["operation"] == call.partition("/")[2], data
        return data
