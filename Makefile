# Each target sets up what it needs in .venv, also as the first command on a fresh clone (Python 3.11+, pip and make).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo quick test slow check format docs bench soak clean chromium

help:
	@echo "make demo    train three tasks on the built-in sample data (a few minutes) and try the model"
	@echo "make quick   a fast subset of the tests, for use while writing code (about a minute)"
	@echo "make test    all tests but the slow ones (about eleven minutes)"
	@echo "make slow    the slow tests: long simulations, and runs killed a hundred times and at every file access"
	@echo "make check   ruff, mypy and the import rules"
	@echo "make format  format the code with ruff"
	@echo "make docs    build the documentation site into site/"
	@echo "make bench   run the CPU benchmarks"
	@echo "make soak    a server under requests of all kinds for an hour, every answer checked"
	@echo "make clean   remove .venv, build, dist and site"

.venv/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	@touch .venv/.core $@

demo: .venv/.core
	@rm -rf runs/demo
	$(BIN)/polytask train recipes/quickstart.yaml --run runs/demo
	@echo
	@echo "Three predictions on texts that are not in the data:"
	$(BIN)/polytask predict runs/demo --task opinion --text "The battery died within a week and nobody answered my emails."
	$(BIN)/polytask predict runs/demo --task question --text "How can I stop my bread from going stale so quickly?" --text2 "What keeps a loaf fresh for longer?"
	$(BIN)/polytask predict runs/demo --task similarity --text "A cyclist is fixing a flat tyre by the road." --text2 "Someone repairs a bicycle wheel at the roadside."
	@echo
	@echo "The report: runs/demo/report.html"

# The browser tests need Chromium: installed where that can be done, else they are skipped and say so.
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no Chromium, and it cannot be installed here: the browser tests will be skipped"

test: .venv/.dev chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

QUICK := $(addprefix tests/,adapters disk encoders heads losses optim policies recipe regularizers samplers tasks text \
  test_imports.py test_seeds.py test_stream.py)
quick: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal $(QUICK)

slow: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow
	OMP_NUM_THREADS=1 POLYTASK_SLOW_TESTS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/faults

check: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py

format: .venv/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site: site/index.html (to search it: $(BIN)/python -m http.server --directory site)"

bench: .venv/.dev
	$(BIN)/python benchmarks/cpu_step.py
	$(BIN)/python benchmarks/mixed_tasks.py
	$(BIN)/python benchmarks/kills.py
	$(BIN)/python benchmarks/inference.py
	$(BIN)/python benchmarks/data.py speed
	$(BIN)/python benchmarks/serving.py compare
	$(BIN)/python benchmarks/serving.py overload

soak: .venv/.dev
	$(BIN)/python benchmarks/serving.py soak

clean:
	rm -rf .venv build dist site
