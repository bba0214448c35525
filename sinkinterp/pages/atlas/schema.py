"""The data of an atlas's page, as JSON: what Python writes and the scripts read.

The page carries the types of these fields, and checks its data by them before it draws. A test holds that the scripts
read every field, and no other.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScaleData:
    """How codes become numbers: see `encode.Scale`."""

    log: bool
    low: float
    high: float
    bits: int
    step: float


@dataclass(frozen=True)
class ImportanceData:
    """Importance: its scale, and for each state the id of the block that holds it."""

    scale: ScaleData
    blocks: list[str]


@dataclass(frozen=True)
class ChannelData:
    """A channel: its name, its colours and codes, and for each state, by layer, the id of its block."""

    name: str
    title: str
    colour_range: tuple[float, float]
    scale: ScaleData
    blocks: list[dict[str, str]]


@dataclass(frozen=True)
class CaptionData:
    """The text under each figure."""

    overview: str
    maps: str
    head: str
    text: str


@dataclass(frozen=True)
class ColumnData:
    """The head of a table's column, and whether it holds words, which are aligned to the left."""

    name: str
    wordy: bool


@dataclass(frozen=True)
class TableData:
    """A table as text."""

    title: str
    note: str
    columns: list[ColumnData]
    rows: list[list[str]]


@dataclass(frozen=True)
class ThemeData:
    """Colours as #RRGGBB: two scales, evenly spaced, the lines of axes, and the frame around the open head."""

    sequential: list[str]
    diverging: list[str]
    axis: str
    mark: str


@dataclass(frozen=True)
class PageData:
    """Everything that the scripts of a page read, except the blocks of numbers.

    tokens: their text. layers: the attention layers. heads: how many each of them has. maps: (layer, head) of each map.
    strongest: the map with the most attention to position 0. side: how many tokens a cell covers. rows, columns: cells
    of a map. stats: the numbers of a cell. states: names of the runs of the model. places: positions of the overview,
    -1 for the slot. received: for each state, the importance of every position, mean over the maps; empty where the
    cells tell it. slot_blocks: for each state, by layer, the id of the block of the slot's weights; none without a
    slot. pair_blocks: by layer, the id of the block that says how many pairs of each cell may attend. themes: colours
    for viewers who prefer "light" pages, and for those who prefer "dark" ones.
    """

    model: str
    lead: str
    protocol: str
    captions: CaptionData
    tables: list[TableData]
    tokens: list[str]
    layers: list[int]
    heads: int
    maps: list[tuple[int, int]]
    strongest: int
    side: int
    rows: int
    columns: int
    stats: list[str]
    states: list[str]
    places: list[int]
    importance: ImportanceData
    received: list[list[float]]
    channels: list[ChannelData]
    slot_blocks: list[dict[str, str]]
    pair_blocks: dict[str, str]
    themes: dict[str, ThemeData]
