"""polytask push: the hub's own client uploads to a local server that answers as the hub does."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from polytask import Finished, UserError, export_hugging_face, load, push

TOKEN = "hf_" + "a" * 34
READ_TOKEN = "hf_" + "b" * 34
COMMIT = "c" * 40


class FakeHub(ThreadingHTTPServer):
    """Keeps repositories in memory: POST repos/create, preupload, LFS batch, PUT objects, commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.created: list[dict[str, Any]] = []
        self.objects: dict[str, bytes] = {}
        self.files: dict[str, dict[str, bytes]] = {}


class Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def answer(self, content: Any, status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_PUT(self) -> None:
        data = self.body()
        self.server.objects[hashlib.sha256(data).hexdigest()] = data
        self.answer({})

    def do_GET(self) -> None:
        self.answer({"error": "not here"}, 404)

    def do_POST(self) -> None:
        data = self.body()
        if self.headers.get("Authorization") not in (f"Bearer {TOKEN}", f"Bearer {READ_TOKEN}"):
            return self.answer({"error": "Invalid credentials"}, 401)
        if self.headers.get("Authorization") == f"Bearer {READ_TOKEN}":
            return self.answer({"error": "You don't have the rights to create a model"}, 403)
        if self.path == "/api/repos/create":
            given = json.loads(data)
            if given in self.server.created:
                url = f"{self.server.address}/{given['organization']}/{given['name']}"
                return self.answer({"error": "You already created this model repo", "url": url}, 409)
            self.server.created.append(given)
            return self.answer({"url": f"{self.server.address}/{given['organization']}/{given['name']}"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(data)["files"]]
            modes = {path: "lfs" if path.endswith((".safetensors", ".onnx")) else "regular" for path in paths}
            return self.answer(
                {"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]}
            )
        if self.path.endswith("/info/lfs/objects/batch"):
            return self.answer(self.batch(json.loads(data)))
        if "/commit/" in self.path:
            repo = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            files = self.server.files.setdefault(repo, {})
            for line in map(json.loads, data.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = self.server.objects[value["oid"]]
            url = f"{self.server.address}/{repo}/commit/{COMMIT}"
            return self.answer({"success": True, "commitOid": COMMIT, "commitUrl": url})
        return self.answer({"error": self.path}, 404)

    def batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.server.address}/objects/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        return {"transfer": "basic", "objects": objects}


@pytest.fixture
def fake_hub() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def run_push(server: FakeHub, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In another process: the client reads its settings when it is imported."""
    settings = {"HF_ENDPOINT": server.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path)}
    environment = {**os.environ, **settings, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-P", "-m", "polytask", "push", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_the_model_and_its_card_are_uploaded(fake_hub: FakeHub, tiny_run: Finished, tmp_path: Path) -> None:
    done = run_push(fake_hub, tmp_path, str(tiny_run.folder), "me/quickstart")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{fake_hub.address}/me/quickstart"
    (created,) = fake_hub.created
    assert (created["organization"], created["name"]) == ("me", "quickstart")
    assert is_private(created)
    files = fake_hub.files["me/quickstart"]
    model = tiny_run.folder / "model"
    assert files == {path.name: path.read_bytes() for path in model.iterdir()}
    assert b"library_name: polytask" in files["README.md"]
    downloaded = tmp_path / "downloaded"
    downloaded.mkdir()
    for name, content in files.items():
        (downloaded / name).write_bytes(content)
    text = "Not bad at all."
    assert load(downloaded).predict("opinion", text) == load(tiny_run.folder).predict("opinion", text)


def is_private(created: dict[str, Any]) -> bool:
    return created.get("private") is True or created.get("visibility") == "private"


@pytest.fixture
def use_hub(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """use_hub(token): this process uploads to the local server."""

    def use(token: str) -> None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", fake_hub.address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", token)

    return use


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the hub's client about its HTTP library
def test_an_exported_folder_is_uploaded_again_to_the_same_repository(
    fake_hub: FakeHub, use_hub: Callable[[str], None], tiny_run: Finished, tmp_path: Path
) -> None:
    folder = export_hugging_face(tiny_run.folder, "similarity", tmp_path / "exported").folder
    use_hub(TOKEN)
    for _ in range(2):
        assert push(folder, "me/similarity", public=True) == f"{fake_hub.address}/me/similarity"
    (created,) = fake_hub.created
    assert not is_private(created)
    files = fake_hub.files["me/similarity"]
    assert files == {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert b"## Use with sentence-transformers" in files["README.md"]


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("hf_wrong", "does not accept the access token; log in with `hf auth login`, or set HF_TOKEN"),
        (READ_TOKEN, "the access token may not write to repositories of me; log in with a token that has write access"),
    ],
    ids=["unknown", "read-only"],
)
def test_a_wrong_token_is_an_error_that_says_what_to_do(
    token: str, message: str, fake_hub: FakeHub, use_hub: Callable[[str], None], tiny_run: Finished
) -> None:
    use_hub(token)
    with pytest.raises(UserError) as refused:
        push(tiny_run.folder, "me/quickstart")
    assert str(refused.value).startswith("push: me/quickstart: ")
    assert str(refused.value).endswith(message)
    assert token not in str(refused.value)
    assert not fake_hub.files


def test_what_cannot_be_uploaded_is_refused_before_the_hub_is_asked(tiny_run: Finished, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be OWNER/NAME"):
        push(tiny_run.folder, "quickstart")
    with pytest.raises(UserError, match="no model to upload here"):
        push(tmp_path, "me/quickstart")
    with pytest.raises(UserError, match="there is no such run"):
        push(tmp_path / "nowhere", "me/quickstart")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="has no model card"):
        push(tmp_path, "me/quickstart")
