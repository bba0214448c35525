"""What a page of attention maps costs to build, to send, to open and to zoom, in headless Chromium.

    python -m benchmarks.views [--repeats 5] [--quick] [--json FILE]

Random weights, large enough that attention is peaked: their codes compress badly, so sizes are on the safe side. Times
in the browser end when what was drawn is on the screen.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.console import NOISY, say
from benchmarks.measure import Result, table
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.files import write_file
from sinkinterp.pages.atlas import Atlas, atlas
from sinkinterp.pages.atlas_page import atlas_page

EARLIER = (
    "Peers, 12 layers x 12 heads, measured earlier and not in this run: CircuitsVis 1.43 attention_heads 32 MB at "
    "T=128 (3 s), 129 MB at T=256 (13 s); BertViz 1.4 model_view 64 MB (2 s), 258 MB (10 s). Both grow with T^2, and "
    "fetch their scripts from the network."
)
_OPEN_HEAD = """async ([layer, head]) => {
    const before = performance.now();
    await openHead(layer, head);
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    return performance.now() - before; }"""
_ZOOM_TO = """async ([from, to]) => {
    const before = performance.now(), old = $("map").dataset.tile;
    Plotly.relayout("map", { "xaxis.range": [0, to - from], "yaxis.range": [to, from] });
    while ($("map").dataset.tile === old) await new Promise((resolve) => setTimeout(resolve));
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    return performance.now() - before; }"""


def main(
    repeats: Annotated[int, typer.Option(min=1, help="How often each page is loaded.")] = 5,
    quick: Annotated[bool, typer.Option(help="A minute: small models and texts; no targets.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Print the table of figures."""
    console = Console()
    say(f"13 rows: about {'one minute' if quick else 'five minutes'} on two cores")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        parts = (_many_heads, _long_text)
        results = [told(result, quick) for part in parts for result in part(browser, Path(folder), quick, repeats)]
        caption = " ".join((NOISY, _protocol(browser, repeats)) if quick else (_protocol(browser, repeats),))
    console.print(table(results, caption, "What a page of attention maps costs"))
    if json_out is not None:
        write_file(json_out, {"protocol": caption, "rows": [asdict(result) for result in results]})


def told(result: Result, quick: bool) -> Result:
    """The result, told at once; of small sizes without its target."""
    result = replace(result, target=None, verdict="") if quick else result
    say(f"{result.what}: {result.figure:.4g} {result.unit} {result.verdict}".rstrip())
    return result


def _many_heads(browser: Browser, folder: Path, quick: bool, repeats: int) -> Iterator[Result]:
    layers, heads, length = (3, 2, 13) if quick else (48, 25, 1024)
    file, seconds = written_page(random_atlas(layers, heads, length, width=8), folder / "many.html")
    opened = [(layer, (7 * layer) % heads) for layer in range(0, layers, max(1, layers // 12))]
    name = f"{layers} x {heads} heads, T={length:,}"
    yield from _file_rows(name, file, seconds, most_mb=12)
    yield from _opening_rows(name, opening_times(browser, file, repeats), most_seconds=2)
    yield from _answer_rows(f"{name}: opening a head", answer_times(browser, file, _OPEN_HEAD, opened), most_ms=150)


def _long_text(browser: Browser, folder: Path, quick: bool, repeats: int) -> Iterator[Result]:
    length = 41 if quick else 16_384
    file, seconds = written_page(random_atlas(1, 2, length, width=64, chosen=[(0, 1)]), folder / "long.html")
    tiles = [(length * i // 10, length * (i + 3) // 10) for i in range(7)]
    name = f"one head, T={length:,}"
    yield from _file_rows(name, file, seconds, most_mb=4)
    yield from _opening_rows(name, opening_times(browser, file, repeats), most_seconds=1.5)
    yield from _answer_rows(f"{name}: zoom to a tile", answer_times(browser, file, _ZOOM_TO, tiles), most_ms=200)


def _file_rows(name: str, file: Path, seconds: float, most_mb: float) -> Iterator[Result]:
    yield row(f"{name}: size", file.stat().st_size / 1e6, "MB", most_mb)
    yield row(f"{name}: building the page, above measuring", seconds, "s", 5)


def _opening_rows(name: str, seconds: list[float], most_seconds: float) -> Iterator[Result]:
    first_picture, all_figures = seconds
    yield row(f"{name}: first picture", first_picture, "s", most_seconds)
    yield row(f"{name}: all figures answer", all_figures, "s", None)


def _answer_rows(name: str, times: list[float], most_ms: float) -> Iterator[Result]:
    yield row(f"{name}, median", median(times), "ms", most_ms)
    yield row(f"{name}, slowest", max(times), "ms", None)


def row(what: str, figure: float, unit: str, target: float | None) -> Result:
    """A figure beside its target: the most that it should be, if there is a promise."""
    return Result(what, figure, unit, target, "" if target is None else "met" if figure <= target else "missed")


def random_atlas(
    layers: int, heads: int, length: int, width: int, chosen: list[tuple[int, int]] | None = None
) -> Atlas:
    """Maps of a GPT-2 with random weights on random tokens; `width` is a head's."""
    torch.manual_seed(0)
    d_model = width * heads
    config = GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=d_model,
        n_positions=length,
        vocab_size=509,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=1.5 / d_model**0.5,
    )
    subject = HuggingFaceSubject(GPT2LMHeadModel(config).eval(), "GPT-2 with random weights")
    return atlas(subject, torch.randint(509, (1, length)), lambda token: f"token{token}", heads=chosen)


def written_page(contents: Atlas, file: Path) -> tuple[Path, float]:
    """Writes the page; returns its file and the seconds that it took to build."""
    start = time.perf_counter()
    file.write_text(atlas_page(contents), encoding="utf-8")
    return file, time.perf_counter() - start


def opening_times(browser: Browser, file: Path, repeats: int) -> list[float]:
    """Seconds from the request of the page to its first picture, and until every figure answers; medians."""
    script = "['first-picture', 'at-hand'].map((name) => performance.getEntriesByName(name)[0].startTime / 1000)"

    def once() -> list[float]:
        page = opened_page(browser, file)
        seconds: list[float] = page.evaluate(script)
        page.close()
        return seconds

    return [median(times) for times in zip(*(once() for _ in range(repeats)), strict=True)]


def answer_times(browser: Browser, file: Path, script: str, questions: list[tuple[int, int]]) -> list[float]:
    """Milliseconds that a page took to answer each question."""
    page = opened_page(browser, file)
    times = [float(page.evaluate(script, list(question))) for question in questions]
    page.close()
    return times


def opened_page(browser: Browser, file: Path) -> Page:
    """The page when everything is drawn."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    return page


def _chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"none of {', '.join(names)} is installed; install one to measure pages")
    return browser


def _protocol(browser: Browser, repeats: int) -> str:
    versions: dict[str, Any] = {"Chromium": browser.version} | {
        name: version(name) for name in ("sinkinterp", "plotly", "torch")
    }
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"Headless, 1,400 x 1,000 pixels; first picture: median of {repeats} loads. {listed}. {EARLIER}"


if __name__ == "__main__":
    typer.run(main)
