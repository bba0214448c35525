PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# uv is faster; pip also reads its own configuration, of which uv gets the folders of wheels
OPTIONS := --quiet --require-hashes --no-deps --no-build-isolation
PIP := $(BIN)/pip install --disable-pip-version-check $(OPTIONS)
UV := $(BIN)/uv pip install --python $(BIN)/python $(OPTIONS)
pinned = $(UV) --requirement $(1) || $(PIP) --requirement $(1)
TORCH := --extra-index-url https://download.pytorch.org/whl/cpu
# make GPU=1 and make CPU=1 choose the build of torch by hand
CPU_BUILD = $(if $(GPU),,$(or $(CPU),$(shell command -v nvidia-smi >/dev/null || echo yes)))
comma := ,
space := $(subst ,, )
export UV_FIND_LINKS ?= $(subst $(space),$(comma),$(PIP_FIND_LINKS))
unexport BROWSER

.PHONY: demo test test-ray test-lowest test-beside browser figures families models docs notebooks clean
export HF_HUB_DISABLE_TELEMETRY := 1

demo: $(INSTALLED)  ## train the three twins, measure them, move the sink, draw figures/demo.html
	$(BIN)/sinkinterp demo --force

figures: $(INSTALLED)  ## draw the book, and all pictures of the documents
	$(BIN)/python -m experiments.book.model_pictures
	$(BIN)/python -m experiments.book --pictures

families: $(INSTALLED)  ## say which architectures of transformers can be measured: docs/families.md
	$(BIN)/python -m tools.families --markdown docs/families.md

models: $(INSTALLED)  ## download and convert four pretrained models, or those of MODELS="gemma3-270m smollm2"
	$(BIN)/python -m models $(MODELS)

test: $(INSTALLED) $(if $(filter 1,$(BROWSER)),browser)  ## lint, types, quick tests; ALL=1: every test; BROWSER=1: none of a page is skipped
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest $(if $(filter 1,$(ALL)),,--quick) $(if $(filter 1,$(BROWSER)),--browser)

browser:  ## install Chromium from the system's packages, unless a browser is there
	@for name in chromium chromium-browser google-chrome; do command -v $$name && exit; done; \
	echo "installs Chromium with apt-get (about a minute)"; \
	root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	for try in 1 2 3; do $$root apt-get update -q && $$root apt-get install -qy chromium && exit; sleep 5; done; \
	echo "Chromium could not be installed: install it by hand"; exit 1

docs: $(INSTALLED)  ## build the site: build/docs/index.html
	$(call pinned,requirements/docs.txt)
	$(BIN)/python -m sphinx --builder html --quiet --fail-on-warning --keep-going docs build/docs

notebooks: $(INSTALLED)  ## run the notebooks and keep their output
	$(BIN)/python docs/notebooks/run.py

test-ray: $(INSTALLED)  ## install Ray, and test studies on a local cluster of two nodes
	$(call pinned,requirements/ray.txt)
	$(BIN)/pytest -n 0 tests/runs/test_workers.py

test-lowest: $(INSTALLED)  ## the tests with the oldest packages that pyproject.toml admits, in build/lowest; their own warnings are not errors
	$(BIN)/uv venv --quiet --seed --clear --python $(BIN)/python build/lowest
	$(BIN)/uv pip install --quiet --python build/lowest/bin/python --resolution lowest-direct --editable '.[dev]'
	build/lowest/bin/pytest -W default

BESIDE := tests/test_beside.py $(addprefix tests/,attention interventions lm metrics report)
test-beside: $(INSTALLED)  ## tests in one environment with SAELens and kvpress, on the transformers that kvpress admits, in build/beside
	$(BIN)/uv venv --quiet --seed --clear --python $(BIN)/python build/beside
	$(BIN)/uv pip install --quiet --python build/beside/bin/python --editable '.[export,nnsight]' torch==2.13.0 sae-lens kvpress \
		beartype hypothesis ipykernel pytest pytest-timeout pytest-xdist
	build/beside/bin/pytest -W default --quick -k 'not lens' $(BESIDE)

$(INSTALLED): pyproject.toml $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sinkinterp needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "makes .venv (10 s)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --requirement requirements/lock.txt || echo "there is no uv for this machine: pip takes three times as long"
	@$(call pinned,requirements/build.txt)  # before what it builds
	@if [ "$(CPU_BUILD)" ]; then \
		echo "installs the CPU build of torch (190 MB, 15 s; make GPU=1 for the other)"; \
		$(UV) --requirement requirements/cpu.txt 2>/dev/null \
		|| UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=5 $(UV) $(TORCH) --requirement requirements/cpu.txt 2>/dev/null \
		|| $(PIP) --retries 0 --timeout 5 $(TORCH) --requirement requirements/cpu.txt 2>/dev/null; \
		$(BIN)/python -c 'from importlib.metadata import version; version("torch")' 2>/dev/null \
		|| echo "found none for this machine; the usual build comes next, on Linux that of GPUs (1.5 GB)"; fi
	@echo "installs the other packages (30 s to 3 minutes)"
	@$(call pinned,requirements/dev.txt)
	@if $(BIN)/python -c 'from importlib.metadata import requires as r; exit("nvidia" not in str(r("torch")))'; then \
		echo "installs CUDA for torch (1 GB; 1 to 5 minutes)"; $(call pinned,requirements/cuda.txt); fi
	@$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --no-index --editable .
	@touch $@

clean:
	rm -rf .venv
