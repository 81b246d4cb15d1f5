# SPDX-License-Identifier: Apache-2.0
# Generated from _async/files.py by tools/unasync.py: do not edit.
"""The files of one sandbox. Paths are absolute."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Callable
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from .._errors import CayError, Unavailable, from_body, is_missing
from .._frames import LineParser
from .._models import Change, FileInfo, Match, member
from .._requests import byte_range, mode_text, query
from ._http import Http
from ._runtime import Content, Stream

T = TypeVar("T")

BYTES, NDJSON = "application/octet-stream", "application/x-ndjson"


class Files:
    """`user`: whose rights are used, "name" or "uid:gid"; else the sandbox's own user."""

    def __init__(self, http: Http, above: str) -> None:
        self._http = http
        self._path = above

    def read(self, path: str, *, user: str | None = None) -> bytes:
        """The bytes of a file."""
        url = f"{self._path}/files" + query(path=path, user=user)
        answer = self._http.send("GET", url, repeat=True, most=None)
        return answer.content

    def read_text(
        self, path: str, encoding: str = "utf-8", errors: str = "strict", *, user: str | None = None,
    ) -> str:
        """The text of a file."""
        content = self.read(path, user=user)
        return content.decode(encoding, errors)

    def stream(
        self, path: str, *, start: int | None = None, end: int | None = None, user: str | None = None,
    ) -> Stream[bytes]:
        """The bytes of a file, or those from `start` to before `end`, as they come."""
        headers = {}
        if start is not None or end is not None:
            wanted = byte_range(start, end)
            if wanted is None:
                return
            headers["range"] = wanted
        url = f"{self._path}/files" + query(path=path, user=user)
        with closing(self._http.chunks(url, BYTES, takes=0.0, headers=headers)) as chunks:
            for chunk in chunks:
                if chunk:
                    yield chunk

    def write(self, path: str, data: Content, *, mode: int | str | None = None, user: str | None = None) -> None:
        """Writes a file, and makes the directories above it. It takes its place when all of it has come, not before.

        `data` may be a text (UTF-8), bytes, a file open for reading bytes, or pieces of bytes; `mode`: 0o644.
        """
        url = f"{self._path}/files" + query(path=path, mode=mode_text(mode), user=user)
        self._http.send("PUT", url, content=data)

    def stat(self, path: str, *, follow: bool = False, user: str | None = None) -> FileInfo:
        """What is there; `follow`: what a link points to, instead of the link."""
        url = f"{self._path}/fs/stat" + query(path=path, follow=follow, user=user)
        return FileInfo.from_json(self._http.get(url), path)

    def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether there is something, after links are followed."""
        try:
            self.stat(path, follow=True, user=user)
        except CayError as error:
            if not is_missing(error):
                raise
            return False
        return True

    def list(
        self, path: str, *, depth: int = 1, limit: int | None = None, user: str | None = None,
    ) -> builtins.list[FileInfo]:
        """The entries of a directory, by name, and of those below it down to `depth` levels; `limit` of them at most."""
        url = f"{self._path}/fs/list" + query(path=path, depth=depth, limit=limit, user=user)
        return self._results(url, "entries", lambda one: FileInfo.from_json(one, path))

    def find(
        self, path: str, *, glob: str | None = None, limit: int | None = None, user: str | None = None,
    ) -> builtins.list[FileInfo]:
        """What is below a directory and fits `glob`: "*.py" is of the name, "src/**/*.py" of the path.

        A directory that cannot be read is an error when all others were searched; its `found` has what they hold.
        """
        url = f"{self._path}/fs/find" + query(path=path, glob=glob, limit=limit, user=user)
        return self._results(url, "entries", lambda one: FileInfo.from_json(one, path))

    def grep(
        self, path: str, pattern: str, *, glob: str | None = None, literal: bool = False, ignore_case: bool = False,
        limit: int | None = None, user: str | None = None,
    ) -> builtins.list[Match]:
        """Lines of files below a directory that match `pattern`, a POSIX extended regular expression.

        A directory or file that cannot be read is an error when all others were searched; its `found` has their lines.
        """
        url = f"{self._path}/fs/grep" + query(path=path, pattern=pattern, literal=literal, ignore_case=ignore_case,
                                              glob=glob, limit=limit, user=user)
        return self._results(url, "matches", lambda one: Match.from_json(one, path))

    def mkdir(self, path: str, *, mode: int | str | None = None, user: str | None = None) -> None:
        """Makes a directory and those above it. No error if it is there."""
        self._post("mkdir", path=path, mode=mode_text(mode), user=user)

    def move(self, src: str, dst: str, *, user: str | None = None) -> None:
        """Renames or moves, also between file systems."""
        self._post("move", **{"from": src, "to": dst, "user": user})

    def remove(
        self, path: str, *, recursive: bool = False, missing_ok: bool = False, user: str | None = None,
    ) -> None:
        """Removes a file or a directory; `recursive`: with all that it holds."""
        url = f"{self._path}/files" + query(path=path, recursive=recursive, user=user)
        try:
            self._http.send("DELETE", url)
        except CayError as error:
            if not missing_ok or not is_missing(error):
                raise

    @contextmanager
    def watch(
        self, path: str, *, recursive: bool = False, user: str | None = None,
    ) -> Iterator[Stream[Change]]:
        """`with files.watch("/src") as changes: for change in changes: ...`

        From the beginning of the block no change is missed. Without an end; Unavailable if the connection is lost,
        since nobody knows what happened meanwhile.
        """
        url = f"{self._path}/fs/watch" + query(path=path, recursive=recursive, user=user)
        with closing(self._lines(url)) as lines:
            for line in lines:
                kind = member(line, "type", str)
                if kind == "error":
                    raise from_body(line.get("error"))
                if kind == "watching":
                    break
            yield self._changes(lines, path)

    def get_archive(self, path: str, *, user: str | None = None) -> Stream[bytes]:
        """A directory or file as a tar archive, piece by piece."""
        url = f"{self._path}/archive" + query(path=path, user=user)
        with closing(self._http.chunks(url, "application/x-tar", takes=0.0)) as chunks:
            for chunk in chunks:
                if chunk:
                    yield chunk

    def put_archive(self, path: str, data: Content, *, user: str | None = None) -> None:
        """Unpacks a tar archive into a directory, and nowhere else, whatever the archive says."""
        url = f"{self._path}/archive" + query(path=path, user=user)
        self._http.send("PUT", url, content=data, headers={"content-type": "application/x-tar"})

    def _results(self, url: str, name: str, take: Callable[[dict[str, Any]], T]) -> builtins.list[T]:
        answer = self._http.send("GET", url, repeat=True, takes=None)
        body = answer.json()
        results = [take(one) for one in member(body, name, list)]
        if "error" in body:  # after the first results had been sent
            error = from_body(body["error"])
            error.found = results
            raise error
        return results

    def _post(self, what: str, **members: Any) -> None:
        body = {name: value for name, value in members.items() if value is not None}
        self._http.send("POST", f"{self._path}/fs/{what}", json=body)

    def _lines(self, url: str) -> Stream[dict[str, Any]]:
        parser = LineParser()
        with closing(self._http.chunks(url, NDJSON)) as chunks:
            for chunk in chunks:
                for line in parser.feed(chunk):
                    yield line
        raise Unavailable("the stream of changes was cut off")

    def _changes(self, lines: Stream[dict[str, Any]], path: str) -> Stream[Change]:
        for line in lines:
            if member(line, "type", str) == "error":
                raise from_body(line.get("error"))
            yield Change.from_json(line, path)
