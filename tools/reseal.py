"""Seals the checkpoints that ship, each as the model of its folder's name: `python -m tools.reseal`."""

from sinkinterp.backends.named_models import owner_by_name, shipped
from sinkinterp.seals import SEAL, hashes_in, seal, verify


def main() -> None:
    """Seals every folder that is whole, or has no seal yet. Raises InputError for a folder that is damaged."""
    for folder in shipped().values():
        of = owner_by_name(folder)
        verify(folder, of=of)
        (folder / SEAL).unlink(missing_ok=True)
        seal(folder, of)
        print(f"{folder.name}: {len(hashes_in(folder, of))} files")


if __name__ == "__main__":
    main()
