# SPDX-License-Identifier: Apache-2.0
"""The AIO front: files over /aio/KEY/v1/file, as DeerFlow's AioSandbox calls them. Commands: test_aio.py."""
import base64
import json
import os

import pytest

from lib.aio import Aio

TOP = "/mnt/user-data/workspace"
FILES = {"a.py": "import os\ndef main():\n    return 42\n", "b.txt": "Alpha\nbeta\nALPHA beta\n",
         "sub/c.py": "class C:\n    x = 42\n", "sub/deep/d.py": "# d\n", ".hidden/e.py": "42\n", ".dot.py": "42\n"}


@pytest.fixture(scope="module")
def aio(cayd, cayd_box):
    front = Aio(cayd, cayd_box)
    for name, text in FILES.items():
        front.write(f"{TOP}/{name}", text)
    return front


def read(aio, file, **lines):
    return aio.data("file/read", file=file, **lines)["content"]


# -- read

def test_read(aio):
    """file/read {file}: data.content."""
    assert aio.data("file/read", file=f"{TOP}/a.py") == {"file": f"{TOP}/a.py", "content": FILES["a.py"]}
    aio.write("/tmp/empty", "")
    assert read(aio, "/tmp/empty") == ""


@pytest.mark.parametrize("first,end,want", [(0, 1, "l0"), (1, 3, "l1\nl2"), (None, 2, "l0\nl1"), (3, None, "l3\nl4"),
                                            (0, 99, "l0\nl1\nl2\nl3\nl4"), (9, 99, ""), (3, 1, ""), (0, 0, "")])
def test_read_lines(aio, first, end, want):
    """start_line is 0-based, end_line exclusive."""
    aio.write("/tmp/lines", "l0\nl1\nl2\nl3\nl4\n")
    assert read(aio, "/tmp/lines", start_line=first, end_line=end) == want


def test_read_lines_of_a_large_file(aio):
    """Ranged reads are pushed down: a few lines of a large file cost little."""
    aio.shell("seq 3000000 > /tmp/large")
    assert read(aio, "/tmp/large", start_line=2999998) == "2999999\n3000000"
    assert read(aio, "/tmp/large", start_line=99999, end_line=100001) == "100000\n100001"


def test_read_what_is_no_text(aio):
    """Whatever is in the file, the answer is JSON: what is no UTF-8 becomes U+FFFD."""
    text = "ä€🏝" * 40000  # characters across the pieces that it travels in
    aio.write("/tmp/wide", "x" + text)
    assert read(aio, "/tmp/wide") == "x" + text
    aio.write("/tmp/bytes", base64.b64encode(b"\0\1\xff\xfea\r\nb\xe2\x82").decode(), encoding="base64")
    assert read(aio, "/tmp/bytes") == "\0\1\ufffd\ufffda\r\nb\ufffd"


def test_read_errors(aio):
    """File errors: HTTP 200, success=false, data FileOperationError with error_type, errno and errno_name."""
    data = aio.file_error("file/read", "not_found", file="/nope/x")
    assert (data["path"], data["errno"], data["errno_name"], data["retryable"]) == ("/nope/x", 2, "ENOENT", False)
    assert "content" not in data  # or a client that ignores success would take it for an empty file
    aio.file_error("file/read", "invalid", file="/tmp")
    aio.file_error("file/read", "not_directory", file="/etc/passwd/x")
    aio.file_error("file/read", "too_large", file=huge(aio))
    for body in ({}, {"file": "relative"}, {"file": 5}, {"file": "/" + "x" * 5000}, {"file": "/x", "start_line": -1}):
        aio.refused("file/read", 422, **body)


def huge(aio):
    aio.shell("truncate -s 100M /tmp/huge")
    return "/tmp/huge"


def test_read_as_another_user(cayd, cayd_make):
    """permission_denied is what it says."""
    front = Aio(cayd, cayd_make(user="user"))
    front.file_error("file/read", "permission_denied", file="/root/x")
    assert front.refused("file/write", 403, file="/root/x", content="")["code"] == "denied"


# -- write

def test_write(aio):
    """file/write {file, content}: parents are made."""
    data = aio.write("/tmp/new/deep/f.txt", "häl\n")
    assert data == {"file": "/tmp/new/deep/f.txt", "bytes_written": 5}
    assert aio.shell("cat /tmp/new/deep/f.txt")["output"] == "häl\n"
    aio.write("/tmp/new/deep/f.txt", "")
    assert aio.shell("stat -c '%s %a' /tmp/new/deep/f.txt")["output"] == "0 644\n"
    aio.write("/tmp/zeros", "a\0b")
    assert aio.shell("wc -c < /tmp/zeros")["output"] == "3\n"


def test_write_base64(aio):
    """encoding:"base64" writes bytes exactly (update_file)."""
    content = os.urandom(300001)
    aio.write("/tmp/blob", base64.b64encode(content).decode(), encoding="base64")
    assert aio.get("file/download?path=/tmp/blob").body == content
    for text in ("A", "A===", "AA=A", "?", "AAAA\n"):
        aio.refused("file/write", 422, file="/tmp/blob", content=text, encoding="base64")
    assert aio.get("file/download?path=/tmp/blob").body == content
    aio.refused("file/write", 422, file="/tmp/blob", content="x", encoding="rot13")


def test_write_large(aio):
    """An upload of many megabytes in one body."""
    content = os.urandom(1 << 20) * 12
    data = aio.write("/tmp/large-upload", base64.b64encode(content).decode(), encoding="base64")
    assert data["bytes_written"] == len(content)
    assert aio.get("file/download?path=/tmp/large-upload").body == content


def test_append(aio):
    """append, and newlines around the text."""
    aio.write("/tmp/app/log", "one\n", append=True)
    aio.write("/tmp/app/log", "two", append=True, trailing_newline=True)
    aio.write("/tmp/app/log", "three", append=True, leading_newline=True)
    assert read(aio, "/tmp/app/log") == "one\ntwo\n\nthree"
    assert aio.refused("file/write", 413, file=huge(aio), content="x", append=True)["code"] == "too_large"


def test_a_failed_write_is_no_200(aio):
    """DeerFlow never checks success: what could not be written is a non-2xx status."""
    assert aio.refused("file/write", 400, file="/tmp", content="x")["message"]
    aio.refused("file/write", 404, file="/proc/nope/x", content="x")
    aio.refused("file/write", 400, file="/dev/null", content="x")
    for body in ({"file": "/tmp/x"}, {"content": "x"}, {"file": "x", "content": ""}, {"file": "/tmp/x", "content": 5},
                 {"file": "/tmp/x\0y", "content": ""}, {}):
        aio.refused("file/write", 422, **body)
    answer = aio.request("POST", "file/write", body=b"{", headers={"Content-Type": "application/json"})
    assert answer.status == 422


def test_a_full_disk_is_no_200(cayd, cayd_make):
    """A disk that is full: 507, and the old content stays."""
    front = Aio(cayd, cayd_make(disk="8M"))
    front.write("/root/f", "old")
    content = base64.b64encode(os.urandom(12 << 20)).decode()
    assert front.refused("file/write", 507, file="/root/f", content=content, encoding="base64")["code"] == "no_space"
    assert read(front, "/root/f") == "old"


def test_replace(aio):
    """file/replace: every occurrence; the number of them."""
    aio.write("/tmp/r", "a.b.a")
    assert aio.data("file/replace", file="/tmp/r", old_str="a", new_str="aa") == {"file": "/tmp/r", "replaced_count": 2}
    assert read(aio, "/tmp/r") == "aa.b.aa"
    assert aio.data("file/replace", file="/tmp/r", old_str=".b.", new_str="")["replaced_count"] == 1
    assert aio.data("file/replace", file="/tmp/r", old_str="nope", new_str="x")["replaced_count"] == 0
    assert read(aio, "/tmp/r") == "aaaa"
    aio.refused("file/replace", 404, file="/nope", old_str="a", new_str="b")
    aio.refused("file/replace", 422, file="/tmp/r", old_str="", new_str="b")


# -- download

def test_download(aio):
    """GET file/download?path=: an octet stream."""
    answer = aio.get(f"file/download?path={TOP}/a.py")
    assert answer.status == 200 and answer.headers.get_content_type() == "application/octet-stream"
    assert answer.body == FILES["a.py"].encode()
    aio.write("/tmp/ä b&c", "x")
    assert aio.get("file/download?path=/tmp/%C3%A4%20b%26c").body == b"x"


def test_download_errors(aio):
    """Failures of downloads are HTTP errors."""
    assert aio.get("file/download?path=/nope").status == 404
    assert aio.get("file/download?path=/tmp").status == 400
    assert aio.get("file/download").status == 422 and aio.get("file/download?path=x").status == 422


# -- find, list

def found(aio, glob, path=TOP):
    data = aio.data("file/find", path=path, glob=glob)
    assert data["path"] == path and data["truncated"] is False
    return [file[len(path) + 1:] for file in data["files"]]


def test_find(aio):
    """file/find {path, glob}: absolute paths of files; **/*.py crosses directories."""
    data = aio.data("file/find", path=TOP, glob="**/*.py")
    assert sorted(data["files"]) == [f"{TOP}/a.py", f"{TOP}/sub/c.py", f"{TOP}/sub/deep/d.py"]
    assert found(aio, "*.py") == ["a.py"]
    assert found(aio, "sub/*") == ["sub/c.py"]
    assert sorted(found(aio, "**/*")) == ["a.py", "b.txt", "sub/c.py", "sub/deep/d.py"]
    assert found(aio, "**/d.*") == ["sub/deep/d.py"] and found(aio, "?.txt") == ["b.txt"]
    assert found(aio, ".*.py") == [".dot.py"] and found(aio, "nope*") == []
    assert found(aio, "*.py", path=f"{TOP}/sub") == ["c.py"]
    assert aio.data("file/find", path=TOP + "/", glob="a.*")["files"] == [f"{TOP}/a.py"]


def test_find_errors(aio):
    """A directory that is not there is a FileOperationError."""
    aio.file_error("file/find", "not_found", path="/nope", glob="*")
    aio.file_error("file/find", "invalid", path=f"{TOP}/a.py", glob="*")
    aio.refused("file/find", 422, path=TOP)


def test_list(aio):
    """file/list {path, recursive:true, show_hidden:false}: data.files[{name, path, is_directory}]."""
    data = aio.data("file/list", path=TOP, recursive=True, show_hidden=False)
    assert [(f["name"], f["path"][len(TOP) + 1:], f["is_directory"]) for f in data["files"]] == [
        ("a.py", "a.py", False), ("b.txt", "b.txt", False), ("sub", "sub", True), ("c.py", "sub/c.py", False),
        ("deep", "sub/deep", True), ("d.py", "sub/deep/d.py", False)]
    assert (data["total_count"], data["directory_count"], data["file_count"]) == (6, 2, 4)
    assert data["files"][0]["size"] == len(FILES["a.py"]) and data["files"][0]["extension"] == ".py"
    names = [f["name"] for f in aio.data("file/list", path=TOP, show_hidden=True)["files"]]
    assert names == [".dot.py", ".hidden", "a.py", "b.txt", "sub"]
    names = [f["path"] for f in aio.data("file/list", path=TOP, recursive=True, file_types=[".txt"])["files"]]
    assert names == [f"{TOP}/b.txt", f"{TOP}/sub", f"{TOP}/sub/deep"]
    two = aio.data("file/list", path=TOP, recursive=True, max_depth=2, include_permissions=True)["files"]
    assert f"{TOP}/sub/deep/d.py" not in [f["path"] for f in two] and two[0]["permissions"] == "644"
    aio.file_error("file/list", "not_found", path="/nope")
    aio.refused("file/list", 422, path=TOP, sort_by="size")


def test_lists_are_bounded(aio):
    """10000 entries at most, and truncated says so."""
    aio.shell("mkdir -p /tmp/many && cd /tmp/many && seq -f 'f%06g' 10001 | xargs touch")
    for call, body in (("file/list", {}), ("file/find", {"glob": "*"})):
        data = aio.data(call, path="/tmp/many", **body)
        assert len(data["files"]) == 10000 and data["truncated"] is True
    aio.shell("rm /tmp/many/f010001")
    assert aio.data("file/list", path="/tmp/many")["truncated"] is False


# -- grep, search

def grep(aio, pattern, path=TOP, **body):
    data = aio.data("file/grep", path=path, pattern=pattern, **{"recursive": True, **body})
    assert data["path"] == path and data["pattern"] == pattern and data["match_count"] == len(data["matches"])
    return [(m["file"].removeprefix(TOP + "/"), m["line_number"], m["line_content"]) for m in data["matches"]]


def test_grep(aio):
    """file/grep {path, pattern, case_insensitive, fixed_strings, max_results, max_file_size:"1M", recursive:true}."""
    assert ("a.py", 3, "    return 42") in grep(aio, "42", max_results=100, max_file_size="1M")
    assert grep(aio, "alpha", case_insensitive=True) == [("b.txt", 1, "Alpha"), ("b.txt", 3, "ALPHA beta")]
    assert grep(aio, "alpha", case_insensitive=False) == []
    assert grep(aio, "x = 4.", fixed_strings=True) == [] and grep(aio, "x = 4.") == [("sub/c.py", 2, "    x = 42")]
    assert grep(aio, "(", fixed_strings=True) == [("a.py", 2, "def main():")]
    assert grep(aio, "42", recursive=False) == [(".dot.py", 1, "42"), ("a.py", 3, "    return 42")]
    assert grep(aio, "42", include=["*.py"], exclude=[".*", "sub"]) == [("a.py", 3, "    return 42")]


def test_grep_of_a_file(aio):
    """path may be a file."""
    assert grep(aio, "beta", path=f"{TOP}/b.txt") == [("b.txt", 2, "beta"), ("b.txt", 3, "ALPHA beta")]


@pytest.mark.parametrize("pattern,lines", [
    (r"def \w+\(", [2]), (r"^\s+return \d{2}$", [3]), (r"[\w]+ os", [1]), (r"(?:im|ex)port", [1]),
    (r"ma.*?n", [2]), (r"(?P<a>ret)urn", [3]), (r"\bos\b", [1]), (r"return [^\d]", []), ("(?i)IMPORT", [1])])
def test_grep_patterns(aio, pattern, lines):
    """Patterns are Python's, as far as a line can be judged by them."""
    assert [n for _, n, _ in grep(aio, pattern, path=f"{TOP}/a.py")] == lines


def test_grep_limits(aio):
    """max_results, offset and truncated."""
    data = aio.data("file/grep", path=f"{TOP}/b.txt", pattern="a", max_results=2)
    assert len(data["matches"]) == 2 and data["truncated"] is True
    assert aio.data("file/grep", path=f"{TOP}/b.txt", pattern="a", max_results=3)["truncated"] is False
    assert grep(aio, "a", path=f"{TOP}/b.txt", offset=2) == [("b.txt", 3, "ALPHA beta")]


def test_grep_leaves_out_large_files(aio):
    """max_file_size:"1M": larger files are not searched."""
    aio.shell("mkdir -p /tmp/g && seq 200000 > /tmp/g/big && echo 77 > /tmp/g/small")
    files = {m["file"] for m in aio.data("file/grep", path="/tmp/g", pattern="^77$", max_file_size="1M")["matches"]}
    assert files == {"/tmp/g/small"}
    assert {f for f, _, _ in grep(aio, "^77$", path="/tmp/g")} == {"/tmp/g/big", "/tmp/g/small"}


def test_grep_errors(aio):
    """What is no pattern, and what is not supported, is said."""
    aio.file_error("file/grep", "invalid", path=TOP, pattern="[")
    aio.file_error("file/grep", "invalid", path=TOP, pattern="(")
    aio.file_error("file/grep", "unsupported", path=TOP, pattern="(?=x)")
    aio.file_error("file/grep", "not_found", path="/nope", pattern="x")
    aio.refused("file/grep", 422, path=TOP)
    for body in ({"context_before": 1}, {"multiline": True}, {"type": "py"}):
        aio.refused("file/grep", 422, path=TOP, pattern="x", **body)


def test_search(aio):
    """file/search {file, regex}: data{matches[str], line_numbers[int]}; the seed era's "(?i)" as well."""
    data = aio.data("file/search", file=f"{TOP}/b.txt", regex="(?i)alpha")
    assert data == {"file": f"{TOP}/b.txt", "matches": ["Alpha", "ALPHA beta"], "line_numbers": [1, 3],
                    "truncated": False}
    assert aio.data("file/search", file=f"{TOP}/b.txt", regex="nope")["matches"] == []
    data = aio.file_error("file/search", "not_found", file="/nope", regex="x")
    assert data["file"] == "/nope"
    aio.file_error("file/search", "invalid", file=TOP, regex="x")


# -- what the tools of a client need of the image

def test_list_dir_command(aio):
    """list_dir is a shell command: find, head and bash are there."""
    command = f"find {TOP} -maxdepth 2 -type f -o -type d 2>/dev/null | head -500"
    assert f"{TOP}/sub/c.py" in aio.shell(command, no_change_timeout=600)["output"].split("\n")


def test_names_that_are_no_text(aio):
    """Names are bytes: the answer is JSON all the same."""
    aio.shell("mkdir -p /tmp/names && cd /tmp/names && touch $'b\\xffad' $'new\\nline' 'quo\"te'")
    names = [f["name"] for f in aio.data("file/list", path="/tmp/names")["files"]]
    assert names == ["b\ufffdad", "new\nline", 'quo"te'] and json.dumps(names)
