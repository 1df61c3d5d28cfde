# Everything a fresh clone needs: `make report` to see the product, `make test` to trust it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SAMPLE := sample_traces/fsdp2
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: report test fuzz lint format samples benchmark clean

report: $(VENV)/.installed
	$(BIN)/tracelens analyze $(SAMPLE) -o report.html --force

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# SEED=1234 repeats a run, REPLAY=events-1234 one round of it.
COUNT ?= 10000
fuzz: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --count $(COUNT) \
		$(if $(SEED),--seed $(SEED)) $(if $(REPLAY),--replay $(REPLAY))

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# DeepSpeed compiles nothing at install time (DS_BUILD_OPS=0) and finds torch in the same venv.
samples: $(VENV)/.installed-dev
	$(PIP) torch==2.13.0 setuptools wheel ninja packaging
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation deepspeed==0.19.8
	$(BIN)/python sample_traces/record/record_all.py

benchmark: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/measure.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# A new entry point needs a new install, hence the dependency on pyproject.toml.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) report.html tracelens-report dist build
