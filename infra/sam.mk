# Building and checking the application for AWS. The SAM command line has an environment of its own.
SAM := SAM_CLI_TELEMETRY=0 .venv-sam/bin/sam
RUNTIME ?= python3.13
ARCHITECTURE ?= arm64

# $(call sam-build,runtime,architecture,folder): core/Makefile and functions/Makefile do the work.
sam-build = RUNTIME=$1 ARCHITECTURE=$2 BACKEND=$(or $(BACKEND),redis) PYTHON="$(abspath $(BIN)/python)" $(SAM) build \
	--template-file template.yaml --build-dir $3 --parameter-overrides Runtime=$1 Architecture=$2

.PHONY: build check-target artifacts lint-templates

# What template.yaml allows; `sam build` would say it late and at length.
RUNTIMES := python3.11 python3.12 python3.13 python3.14
ARCHITECTURES := arm64 x86_64
check-target:
	@$(if $(filter $(RUNTIMES),$(RUNTIME)),:,echo "mayflymq: RUNTIME is '$(RUNTIME)', and must be one of: $(RUNTIMES)" >&2; exit 2)
	@$(if $(filter $(ARCHITECTURES),$(ARCHITECTURE)),:,echo "mayflymq: ARCHITECTURE is '$(ARCHITECTURE)', and must be one of: $(ARCHITECTURES)" >&2; exit 2)

build: check-target .venv/package.stamp .venv-sam/deps.stamp ## build what `sam deploy` deploys (RUNTIME=python3.13 ARCHITECTURE=arm64)
	$(call sam-build,$(RUNTIME),$(ARCHITECTURE),.aws-sam/build)

# What the tests look at: the default, which any host can build, and what runs on this one under the emulator.
HOST_TARGET := $(shell $(PYTHON) -c 'import platform, sys; print(f"python3.{sys.version_info[1]}", \
	{"aarch64": "arm64"}.get(platform.machine(), platform.machine()), sep="-")' 2>/dev/null)
artifacts: $(patsubst %,build/sam/%/build/template.yaml,python3.13-arm64 $(HOST_TARGET))

build/sam/%/build/template.yaml: $(shell find core functions -type f -not -name '*.pyc') template.yaml infra/sam.mk \
		| .venv/package.stamp .venv-sam/deps.stamp
	@echo "building the functions for $*"
	@mkdir -p build/sam/$*
	@$(call sam-build,$(firstword $(subst -, ,$*)),$(lastword $(subst -, ,$*)),$(@D)) >build/sam/$*/log 2>&1 \
		|| { cat build/sam/$*/log >&2; exit 1; }

lint-templates: .venv-sam/deps.stamp
	$(SAM) validate --lint --region us-east-1
	.venv-sam/bin/cfn-lint template.yaml
