"""Seals the checkpoints that ship, each as the model of its folder's name: `python -m tools.reseal`."""

from sinkinterp.backends.named_models import owner_by_name, shipped
from sinkinterp.files import SEAL, seal, sealed_hashes, verify


def main() -> None:
    """Seals every folder that is whole, or has no seal yet. Raises InputError for a folder that is damaged."""
    for folder in shipped().values():
        of = owner_by_name(folder)
        verify(folder, of=of)
        (folder / SEAL).unlink(missing_ok=True)
        seal(folder, of)
        print(f"{folder.name}: {len(sealed_hashes(folder, of))} files")


if __name__ == "__main__":
    main()
