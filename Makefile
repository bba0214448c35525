PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PINNED := $(BIN)/pip install --disable-pip-version-check --quiet --require-hashes --no-deps --no-build-isolation --requirement

.PHONY: demo test test-ray figures families models docs notebooks clean
export HF_HUB_DISABLE_TELEMETRY := 1

demo: $(INSTALLED)  ## train the three twins, measure them, move the sink, draw figures/demo.html
	$(BIN)/sinkinterp demo

figures: $(INSTALLED)  ## draw every view from the checkpoints that ship: figures/gallery.html and its pictures
	$(BIN)/sinkinterp gallery

families: $(INSTALLED)  ## say which architectures of transformers can be measured: docs/families.md
	$(BIN)/python -m tools.families --markdown docs/families.md

models: $(INSTALLED)  ## download and convert four pretrained models, or those of MODELS="gemma3-270m smollm2"
	$(BIN)/python -m models $(MODELS)

test: $(INSTALLED)  ## lint, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

docs: $(INSTALLED)  ## build the site: build/docs/index.html
	$(PINNED) requirements/docs.txt
	$(BIN)/python -m sphinx --builder html --quiet --fail-on-warning --keep-going docs build/docs

notebooks: $(INSTALLED)  ## run the notebooks and keep their output
	$(BIN)/python docs/notebooks/run.py

test-ray: $(INSTALLED)  ## install Ray, and test studies on a local cluster of two nodes
	$(PINNED) requirements/ray.txt
	$(BIN)/pytest -n 0 tests/runs/test_workers.py

$(INSTALLED): pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sinkinterp needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PINNED) requirements/build.txt  # before what it builds
	$(PINNED) requirements/dev.txt
	if $(BIN)/python -c 'from importlib.metadata import requires as r; exit("nvidia" not in str(r("torch")))'; then $(PINNED) requirements/cuda.txt; fi
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --no-index --editable .
	touch $@

clean:
	rm -rf .venv
