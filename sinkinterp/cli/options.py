"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

BOS = "When sequences begin with BOS: as the tokenizer decides, always, or never."
ENCODER = "Of Whisper, BART, T5, ...: what the encoder is given: silence, off, a .wav or .txt file, or a text."
EPSILON = "A head whose importance exceeds this has a sink."

Model = Annotated[str, typer.Argument(help="Hugging Face name, local model folder, or checkpoint of ours.")]
Column = Annotated[str, typer.Option(help="The column or field that holds the text.")]
Backend = Annotated[str, typer.Option(help="The library that runs it: huggingface, nnsight or transformer_lens.")]
Encoder = Annotated[str | None, typer.Option(help=ENCODER)]
DeviceMap = Annotated[str | None, typer.Option(help="Where weights go, as in transformers: auto, cuda:0.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the tables to this file.")]

Settings = Annotated[list[str], typer.Option("--set", help="key=value, dotted: lr=1e-2, model.n_layers=4; repeatable.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if there is one.")]
Log = Annotated[str | None, typer.Option(help="Also write the numbers of every step to wandb or tensorboard.")]
