"""Ways in which files are damaged."""

import random
import shutil


def flip(file, rng):
    """Changes one byte."""
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    file.write_bytes(content)


def cut(file, rng):
    """Cuts the file off."""
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def lose(file, rng):
    """Removes the file."""
    file.unlink()


def blank(file, rng):
    """Fills a stretch with zeros, as a file system may after a power failure."""
    content = bytearray(file.read_bytes())
    start = rng.randrange(len(content))
    content[start:] = bytes(len(content) - start)
    file.write_bytes(content)


def empty_object(file, rng):
    """Leaves valid JSON that says nothing."""
    file.write_text("{}")


DAMAGES = (flip, cut, lose, blank, empty_object)


def files_in(folder):
    """The paths of the files in a folder, in an order that never changes."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def damaged_copies(folder, target, times, damages=(flip, cut, blank), left_out=("lock",)):
    """A copy of a folder per file and damage, `times` over; each is repaired before the next. Yields what was done."""
    rng = random.Random(11)
    shutil.copytree(folder, target)
    for name in files_in(folder):
        for damage in () if name in left_out else damages * times:
            damage(target / name, rng)
            yield target, name, damage
            shutil.copyfile(folder / name, target / name)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in files_in(folder)}
