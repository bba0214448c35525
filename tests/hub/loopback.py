"""A Hub on the loopback interface: what `huggingface_hub` and `datasets` ask of huggingface.co, as far as we use it.

It serves the files of folders under names of the Hub: their listings, and the files whole or in part. A name may be
closed to the user, and a download may end too early.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT, CONVERTED = "a" * 40, "b" * 40  # of the main branch, and of a pull request that adds safetensors


@dataclass
class Hub:
    """Repositories by kind and name, as folders; which of them are closed; how many bytes of a download arrive.

    `converted`: folders of pull requests that hold the safetensors of a model, as a bot of the Hub opens them.
    `asked`: every request, for a test that fails to show.
    """

    models: Mapping[str, Path] = field(default_factory=dict)
    datasets: Mapping[str, Path] = field(default_factory=dict)
    converted: Mapping[str, Path] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Answers in threads of this process at a free port. Yields the address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"hub": self}))
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()

    def folder(self, kind: str, name: str, revision: str) -> Path | None:
        """The folder that a revision of a repository shows; None where there is no such repository."""
        if kind == "models" and revision in ("refs/pr/1", CONVERTED):
            return self.converted.get(name)
        return (self.models if kind == "models" else self.datasets).get(name)


def environment_of(address: str, home: Path, **more: str) -> dict[str, str]:
    """The environment of a program whose Hub is at this address, and whose files of the Hub are in `home`."""
    unset = ("HF_HUB_OFFLINE", "HF_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_CACHE")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    hub = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return kept | hub | {"NO_PROXY": "127.0.0.1"} | more


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else headers and body, written apart, take 40 ms
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.asked.append(f"{self.command} {self.path}")
        api = re.fullmatch(r"api/(models|datasets)/([^/]+/[^/]+)(?:/(.*))?", path)
        file = re.fullmatch(r"(datasets/)?([^/]+/[^/]+)/resolve/(refs/pr/\d+|[^/]+)/(.+)", path)
        if api:
            self._api(api[1], api[2], api[3] or "", body)
        elif path == "api/repos/create":
            made = json.loads(body)
            self._json({"url": f"http://{self.headers['Host']}/{made['organization']}/{made['name']}"})
        elif path == "api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif file:
            self._file("datasets" if file[1] else "models", file[2], file[3], file[4])
        else:
            self._error(404, "RepoNotFound")

    do_HEAD = do_GET = do_POST = _answer

    def _api(self, kind: str, name: str, rest: str, body: bytes) -> None:
        """What is known of a repository: itself, a listing of its files, some of them, its commits, its requests."""
        asked = re.fullmatch(
            r"(?:(revision|tree|paths-info|commits|discussions)(?:/(refs/pr/\d+|[^/]+))?(?:/(.*))?)?", rest
        )
        revision = (asked[2] if asked else None) or "main"
        folder = self.hub.folder(kind, name, revision)
        if folder is not None and self.command == "POST" and rest in ("preupload/main", "commit/main"):
            self._upload(name, folder, rest, body)
        elif asked is None or folder is None:
            self._error(404, "RepoNotFound" if folder is None else "EntryNotFound")
        elif name in self.hub.closed and asked[1] not in (None, "revision"):
            self._error(403, "GatedRepo")
        elif asked[1] in (None, "revision"):
            files = [{"rfilename": entry["path"]} for entry in _entries(folder) if entry["type"] == "file"]
            said = {"id": name, "sha": _commit(revision), "private": False, "gated": False, "tags": [], "downloads": 0}
            self._json(said | {"siblings": files, "lastModified": "2026-01-01T00:00:00.000Z", "disabled": False})
        elif asked[1] == "commits":
            commits = [CONVERTED, COMMIT] if _commit(revision) == CONVERTED else [COMMIT]
            self._json([{"id": id, "title": "", "message": "", "date": _DATE, "authors": []} for id in commits])
        elif asked[1] == "discussions":
            self._json({"discussions": [_REQUEST] * (name in self.hub.converted), "count": 1, "start": 0})
        elif asked[1] == "paths-info":
            wanted = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            self._json([entry for entry in _entries(folder) if entry["path"] in wanted])
        else:
            query = parse_qs(urlsplit(self.path).query)
            is_recursive = query.get("recursive", ["False"])[0].lower() in ("true", "1")
            inside = _inside(_entries(folder), asked[3] or "", is_recursive)
            self._json(inside) if inside else self._error(404, "EntryNotFound")

    def _upload(self, name: str, folder: Path, rest: str, body: bytes) -> None:
        """Takes the files of a commit into a folder; none of them by LFS."""
        if rest == "preupload/main":
            names = [file["path"] for file in json.loads(body)["files"]]
            how = {"uploadMode": "regular", "shouldIgnore": False}
            self._json({"files": [{"path": name, **how} for name in names]})
            return
        address = f"http://{self.headers['Host']}/{name}/commit/{COMMIT}"
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                (folder / line["value"]["path"]).write_bytes(base64.b64decode(line["value"]["content"]))
        self._json({"success": True, "commitOid": COMMIT, "commitUrl": address})

    def _file(self, kind: str, name: str, revision: str, path: str) -> None:
        """A file, whole or the range that is asked for."""
        folder = self.hub.folder(kind, name, revision)
        if folder is None:
            self._error(401, "RepoNotFound")
        elif name in self.hub.closed:
            self._error(403, "GatedRepo", f"Access to model {name} is restricted. You must be authenticated.")
        elif not (folder / path).is_file():
            self._error(404, "EntryNotFound")
        else:
            self._content((folder / path).read_bytes(), _commit(revision), f"{name}/{path}")

    def _content(self, content: bytes, commit: str, file: str) -> None:
        """The bytes of a file that are asked for, or as many of them as arrive."""
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        asked = slice(int(span[1]), int(span[2] or len(content)) + 1) if span else slice(None)
        if span:
            begin, end, _ = asked.indices(len(content))
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        self._send(206 if span else 200, content[asked], headers, self.hub.cut.get(file))

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, message: str = "") -> None:
        body = json.dumps({"error": message or code}).encode()
        self._send(status, body, {"X-Error-Code": code, "X-Error-Message": message or code})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], arrives: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:arrives])
            self.close_connection = arrives is not None and arrives < len(body)


_DATE = "2026-01-01T00:00:00.000Z"
_REQUEST = {
    "num": 1, "title": "Adding `safetensors` variant of this model", "status": "open", "isPullRequest": True,
    "author": {"name": "SFconvertbot"}, "createdAt": _DATE, "repo": {"name": "", "type": "model"},
}  # fmt: skip


def _commit(revision: str) -> str:
    return CONVERTED if revision in ("refs/pr/1", CONVERTED) else COMMIT


def _entries(folder: Path) -> list[dict[str, object]]:
    """The files and folders in a folder, as a listing of the Hub names them."""
    return [_entry(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*"))]


def _entry(path: Path, name: str) -> dict[str, object]:
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest()}
    oid = hashlib.sha1(path.read_bytes()).hexdigest()
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": oid}


def _inside(entries: list[dict[str, object]], parent: str, is_recursive: bool) -> list[dict[str, object]]:
    """The entries in a folder of a repository, and on request in its subfolders too."""
    prefix = f"{parent}/" if parent else ""
    below = [entry for entry in entries if str(entry["path"]).startswith(prefix)]
    return [entry for entry in below if is_recursive or "/" not in str(entry["path"])[len(prefix) :]]
