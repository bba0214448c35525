"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from . import names
from .values import LARGEST_SEED, filled, input_file, output_file, share, whole

BOS = "When sequences begin with BOS: as the tokenizer decides, always, or never."
ENCODER = "Of Whisper, BART, T5, ...: what the encoder is given: silence, off, a .wav or .txt file, or a text."
EPSILON = "A head whose importance exceeds this has a sink."
MODEL = "Hugging Face name, local model folder, or checkpoint of ours: see `sinkinterp list checkpoints`."
BACKEND = "The library that runs it: huggingface, nnsight or transformer_lens."
PLACE = "Where weights go, as in transformers: auto, cuda:0."

SEED = whole(0, LARGEST_SEED)
TOKENS = whole(2)  # of a sequence: one token shows no attention to another
SEQUENCES = whole(1)
SHARE = share

Model = Annotated[str, typer.Argument(help=MODEL, parser=filled, autocompletion=names.beginning(names.models))]
Column = Annotated[str, typer.Option(help="The column or field that holds the text.", parser=filled)]
Backend = Annotated[str, typer.Option(help=BACKEND, parser=filled, autocompletion=names.beginning(names.BACKENDS))]
Encoder = Annotated[str | None, typer.Option(help=ENCODER, parser=filled)]
DeviceMap = Annotated[str | None, typer.Option(help=PLACE, parser=filled)]
Json = Annotated[Path | None, typer.Option("--json", help="Write the tables to this file.", parser=output_file)]
TokenFile = Annotated[Path | None, typer.Option(help="A .json file: a list of lists of token ids.", parser=input_file)]

Settings = Annotated[list[str], typer.Option("--set", help="key=value, dotted: lr=1e-2, model.n_layers=4; repeatable.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if there is one.", parser=filled)]
Log = Annotated[str | None, typer.Option(help="Also write the numbers of every step to wandb or tensorboard.")]
