"""Reads the binary of a CTranslate2 model, version 6: its tensors by name."""

import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sinkinterp.checks import InputError

DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Binary:
    """The specification that a CTranslate2 binary follows, its tensors, and other names of them."""

    specification: str
    tensors: dict[str, Tensor]
    aliases: dict[str, str]


def read(file: Path) -> Binary:
    """What a CTranslate2 binary holds. Raises InputError for any other file, and for one that ends too early."""
    try:
        return _read(_Bytes(file.read_bytes()))
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise InputError(f"{file} is not a whole CTranslate2 6 binary: {error}; download it again") from error


def _read(data: "_Bytes") -> Binary:
    version = data.number("I")
    if version != 6:
        raise ValueError(f"its version is {version}")
    specification, _revision = data.name(), data.number("I")
    tensors = dict(data.tensor() for _ in range(data.number("I")))
    aliases = {data.name(): data.name() for _ in range(data.number("I"))}
    if data.place != len(data.content):
        raise ValueError(f"{len(data.content) - data.place} bytes follow its end")
    return Binary(specification, tensors, aliases)


class _Bytes:
    """The bytes of a file, read from its start on; numbers are little-endian."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = bytearray(content), 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self.content, self.place)
        self.place += struct.calcsize(f"<{code}")
        return value

    def name(self) -> str:
        """A length, then so many bytes with a zero at their end."""
        length = self.number("H")
        self.place += length
        return self.content[self.place - length : self.place - 1].decode()

    def tensor(self) -> tuple[str, Tensor]:
        """Name, rank, shape, type, number of bytes, and the bytes themselves."""
        name = self.name()
        shape = [self.number("I") for _ in range(self.number("B"))]
        dtype, size = DTYPES[self.number("B")], self.number("I")
        count = size // dtype.itemsize
        values = torch.frombuffer(self.content, dtype=dtype, count=count, offset=self.place).clone()
        self.place += size
        return name, values.reshape(shape)
