# Two commands do everything on a fresh machine: `make lab` shows the product, `make test` tests it.
.PHONY: lab test check setup tools fuzz

lab: setup
	.venv/bin/mx-lab run

test: setup
	scripts/test

check: setup
	scripts/check

tools:
	scripts/tools

setup:
	@scripts/setup

fuzz: setup
	scripts/fuzz
