"""Uploads a model with its card to the Hugging Face hub."""

from pathlib import Path

import huggingface_hub as hub  # imports its modules on first use

from polytask.export.onnx_folder import RECORD
from polytask.runs.folder import ModelFolder, RunFolder, find_model
from polytask.types import UserError


def push(run: str | Path, name: str, public: bool = False) -> str:
    """Uploads a run's model folder, or an exported folder, to the repository `name`, and returns its address.

    A new repository is private unless `public`; an existing one stays as it is. The access token is that of the hub's
    client: `hf auth login`, or HF_TOKEN. Data, predictions and checkpoints of the run are not uploaded.
    """
    folder = _folder(Path(run))
    if name.count("/") != 1:
        raise UserError(f"push: the repository must be OWNER/NAME, found {name!r:.100}")
    try:
        api = hub.HfApi()
        repo = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(repo_id=repo.repo_id, folder_path=folder, commit_message="Upload with polytask")
    except hub.errors.HFValidationError as error:
        raise UserError(f"push: {name!r:.100} is not the name of a repository: {error}") from error
    except Exception as error:  # errors of the hub's HTTP library, which differs between versions
        raise UserError(f"push: {name}: {_problem(error, name)}") from error
    return str(repo)


def _problem(error: Exception, name: str) -> str:
    """What went wrong, and what to do."""
    endpoint = hub.constants.ENDPOINT
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401 or isinstance(error, hub.errors.LocalTokenNotFoundError):
        return f"{endpoint} does not accept the access token; log in with `hf auth login`, or set HF_TOKEN"
    if status == 403:
        owner = name.partition("/")[0]
        return f"the access token may not write to repositories of {owner}; log in with a token that has write access"
    reason = str(error).strip() or type(error).__name__
    return f"not uploaded to {endpoint}: {reason:.500}"


def _folder(run: Path) -> Path:
    """What is uploaded: the model of a run, or the folder itself if it is a model."""
    if not run.is_dir():
        raise UserError(f"{run}: there is no such run or folder")
    model = find_model(run)
    folder = run if model is None else model.path
    is_model = model is not None or (folder / RECORD).is_file() or ModelFolder(folder).config.is_file()
    if not is_model:
        unfinished = " (the run has not finished)" if RunFolder(run).recipe.is_file() else ""
        raise UserError(f"{run}: no model to upload here{unfinished}; pass a run, or a folder that export wrote")
    if not ModelFolder(folder).card.is_file():
        raise UserError(f"{folder}: has no model card (README.md); write one before you upload the model")
    return folder
