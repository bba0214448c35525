"""Adapters and checkpoints on the Hub, each with a card that says what it is and how it is read."""

import json
import re
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, ModelCardData

from ..checks import refusal
from ..seals import verify
from ..spec import Spec

_OF_HUB = re.compile(r"[\w.-]+/[\w.-]+")  # a name there; a name of ours or a folder is not one


def card(repo: str, title: str, answer: str, recipe: Spec, base: str = "") -> str:
    """The text of a model card: a title, what is known of the model, how it is read, and its recipe."""
    is_named = _OF_HUB.fullmatch(base) and not Path(base).exists()
    data = ModelCardData(base_model=base if is_named else None, tags=["attention-sink"], library_name="sinkinterp")
    code = f'```python\nimport sinkinterp as si\n\nsi.measure("{repo}", "A sentence of some length.")\n```'
    made = f"## Recipe\n\n```json\n{json.dumps(recipe.to_dict(), indent=1)}\n```\n"
    return f"---\n{data.to_yaml()}\n---\n\n# {title}\n\n{answer}\n\n{code}\n\n{made}"


def push(folder: Path, repo: str, text: str, private: bool) -> str:
    """Uploads the files of a sealed folder with a card in one commit, and returns the address of the repository.

    The repository is made if it is not there. Raises InputError where a file is damaged, and where the Hub refuses.
    """
    verify(folder)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    parts: dict[str, Path | bytes] = {**files, "README.md": text.encode()}
    operations = [CommitOperationAdd(name, part) for name, part in parts.items()]
    fix = "log in with `hf auth login`, and give a name such as me/model"
    with refusal(f"{repo} cannot be written to the Hub", fix, (OSError, ValueError)):
        hub = HfApi()
        address = hub.create_repo(repo, private=private, exist_ok=True)
        hub.create_commit(repo, operations, commit_message=f"Written by sinkinterp: {folder.name}")
    return str(address)
