# The verbs of this repository. A person and .ci/run use the same ones.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

# What to test: `make test PKG=./shared/postgres/... ARGS='-run Lease -v'`.
PKG ?= work
ARGS ?=

# What `make deploy` puts on a cluster, and whether `make undeploy` keeps data.
OVERLAY ?= config/overlays/kind
PURGE ?=

# Every main package that an image or a person runs. Wildcards, so that a new
# function needs no line here.
mains := $(patsubst %/main.go,%,$(wildcard functions/*/main.go functions/*/runner/main.go))
modules = $(patsubst %/go.mod,%,$(wildcard shared/go.mod functions/*/go.mod scripts/go.mod))

# A cold build is silent for minutes; this counts packages and lets all else pass.
progress = { awk '/^[^ \#:]+$$/ { if (++n % 50 == 0) { print "  compiled " n " packages"; fflush() } next } { print; fflush() }' >&2; }

# Loads every package with all tests, so that go.work.sum has what that needs.
every-package = go list -deps -test -tags local,system,e2e,browser,clusterbench,profile work >/dev/null

.PHONY: help
help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: dev
dev: ## start the whole system on this machine, without any account, key, cluster or Docker
	@scripts/setup.sh
	@echo 'dev: compiling the development runner (half a minute the first time)' >&2
	@CGO_ENABLED=0 go build -buildvcs=false -o bin/ ./scripts/dev && exec bin/dev $(ARGS)

.PHONY: build
build: ## build the functions and the CLI into bin/
	@CGO_ENABLED=0 go build -v -buildvcs=false -o bin/ $(addprefix ./,$(mains)) ./scripts/tuluat |& $(progress)
	@ls -1 bin

.PHONY: test
test: ## run the tests with the race detector on a real Postgres; PKG= and ARGS= narrow it
	@scripts/setup.sh test
	@echo 'compiling with the race detector' >&2
	@go list -tags local -f '{{if ne .Name "main"}}{{.ImportPath}}{{end}}' $(PKG) | CGO_ENABLED=1 xargs -r go build -v -race -tags local |& $(progress)
	@CGO_ENABLED=1 go run ./scripts/testdb -- go test -race -timeout 30m -tags local $(PKG) $(ARGS)

# A module of its own: what a Temporal server requires lifts no version under a
# function. Without the race detector, with which the server would be compiled
# another time; the bridge's own tests have it. Nor with vet, which would look at
# every package of the server for the sake of these few files.
.PHONY: test-temporal
test-temporal: export CGO_ENABLED = 0
test-temporal:
	@echo 'compiling a Temporal server (some minutes, once)' >&2
	@cd scripts/temporal && export GOWORK=off; go list -deps -test -f '{{if and .DepOnly (not (or .Standard .ForTest (eq .Name "main")))}}{{.ImportPath}}{{end}}' . | xargs go build -v |& $(progress)
	@go run ./scripts/testdb -- env -C scripts/temporal GOWORK=off go test -vet=off -count=1 $(ARGS) .

# A module of its own too: Prometheus requires what every cloud requires.
.PHONY: test-rules
test-rules: ## test the rules and dashboards of config/components/monitoring with Prometheus' own tool (some minutes to compile, once)
	@cd scripts/promtool && export GOWORK=off CGO_ENABLED=0; go build -v -o /dev/null github.com/prometheus/prometheus/cmd/promtool |& $(progress); go tool promtool --version >/dev/null; go test -vet=off -count=1 $(ARGS) .

# The server is built in a module of its own, with what it needs of clouds.
.PHONY: test-s3
test-s3: ## test the archive against a real S3 server, versitygw
	@mkdir -p bin && env -C scripts/versitygw GOWORK=off CGO_ENABLED=0 go build -o $(CURDIR)/bin/versitygw github.com/versity/versitygw/cmd/versitygw
	@VERSITYGW=$(CURDIR)/bin/versitygw go run ./scripts/testdb -- go test -count=1 -tags versitygw -run Versity ./functions/reaper-cron/internal/reap $(ARGS)

# The TypeScript reference server comes from npm, at the versions of scripts/mcp.
.PHONY: test-mcp
test-mcp: ## test MCP against the TypeScript reference server (needs Node.js 20 and npm)
	@command -v node npm >/dev/null || { echo 'test-mcp: node and npm are not on this machine: install Node.js 20 or newer' >&2; exit 1; }
	@mkdir -p bin/mcp && cp scripts/mcp/package.json scripts/mcp/package-lock.json bin/mcp/ && npm ci --prefix bin/mcp --ignore-scripts --no-audit --no-fund
	@MCP_SERVER_EVERYTHING=$(CURDIR)/bin/mcp/node_modules/@modelcontextprotocol/server-everything/dist/index.js \
		go run ./scripts/testdb -- go test -count=1 -tags mcp -run Reference ./functions/agent-step/internal/mcp ./functions/sandbox-exec/runner/internal/mcp $(ARGS)

# axe-core, which judges pages, comes from npm, at the version of scripts/browser.
.PHONY: test-browser
test-browser: ## test the phone, the tour and the console in a real Chromium (needs npm); screenshots are in build/screens
	@scripts/setup.sh browser
	@mkdir -p bin/axe && cp scripts/browser/package.json scripts/browser/package-lock.json bin/axe/ && npm ci --prefix bin/axe --ignore-scripts --no-audit --no-fund
	@AXE=$(CURDIR)/bin/axe/node_modules/axe-core/axe.min.js CGO_ENABLED=0 go test -count=1 -tags browser -timeout 60m -v ./scripts/browser $(ARGS)

.PHONY: system
system: ## run the long journeys: every function, killed and cut off at random (tag system)
	@scripts/setup.sh test
	@go test -count=1 -tags local,system -timeout 60m -v ./scripts/system/... $(ARGS)

.PHONY: e2e
e2e: ## test the whole system on the Kubernetes cluster of KUBECONFIG (with Knative); see scripts/e2e/README.md
	@go test -count=1 -tags e2e -timeout 60m -v ./scripts/e2e $(ARGS)

.PHONY: bench
bench: ## measure one machine: ingest, turns at 1 to 1,000 sessions at once, sandboxes, an idle hour, growth
	@scripts/setup.sh
	@go run -tags local ./scripts/bench $(ARGS)

.PHONY: bench-cluster
bench-cluster: ## measure on the cluster of KUBECONFIG, beside hello-world, bare Pods and raw exec (half an hour); see scripts/e2e/README.md
	@go test -count=1 -tags e2e,clusterbench -timeout 90m -run '^TestBench$$' -v ./scripts/e2e $(ARGS)

.PHONY: bench-data
bench-data: ## measure every list of the API on a million sessions and ten million log entries (half an hour, 12 GB of disk)
	@scripts/setup.sh
	@go run -tags local ./scripts/benchdata $(ARGS)

.PHONY: migrate
migrate: ## bring the database of DATABASE_URL to the newest schema
	@go run ./scripts/migrate $(ARGS)

.PHONY: deploy
deploy: ## put the system on the cluster of KUBECONFIG; OVERLAY=config/overlays/kind KO_DOCKER_REPO=
	@go run ./scripts/deploy -overlay $(OVERLAY) $(ARGS)

.PHONY: undeploy
undeploy: ## take it away again; PURGE=1 also its data
	@go run ./scripts/deploy -overlay $(OVERLAY) -remove $(if $(PURGE),-purge) $(ARGS)

.PHONY: sample-secrets
sample-secrets: ## make up the values that `kubectl apply -k config/samples` reads
	@go run ./scripts/deploy -sample-secrets

.PHONY: sync
sync: ## give every module the same versions: go work sync, then tidy
	@go work sync
	@for m in $(modules); do echo "tidy $$m" >&2; (cd $$m && go mod tidy); done
	@go work sync
	@$(every-package)
	@go run ./scripts/modsync

# The CustomResourceDefinitions come from shared/api/v1alpha1 and its comments.
crds = bin/controller-gen crd:allowDangerousTypes=true paths=./shared/api/v1alpha1/crd output:crd:dir=

.PHONY: generate
generate: bin/controller-gen ## write config/crd from the types in shared/api, and the API's OpenAPI document from both
	@$(crds)config/crd
	@cd functions/management-api && go run ./internal/apidoc schemas && go run ./internal/apidoc document

.PHONY: lint
lint: bin/golangci-lint ## run the linters of .golangci.yaml over every module
	@bin/golangci-lint run $(ARGS) $(patsubst %,./%/...,$(modules))

.PHONY: verify
verify: verify-format verify-modules verify-generate verify-vet verify-images ## check what review should not have to: format, modules, generated files, vet, builds as images do them

.PHONY: verify-format
verify-format: bin/gofumpt
	@echo 'verify: format' >&2
	@bad=$$(bin/gofumpt -l functions scripts shared); \
	if [[ $$bad ]]; then echo "not formatted: run bin/gofumpt -w" $$bad >&2; exit 1; fi

# go commands mend go.work.sum as they go, so the check is that they found nothing to mend.
.PHONY: verify-modules
verify-modules:
	@echo 'verify: modules' >&2
	@go run ./scripts/modsync
	@for m in $(modules); do (cd $$m && go mod tidy -diff) || { echo "$$m/go.mod: not tidy: run \`make sync\`" >&2; exit 1; }; done
	@before=$$(sha256sum go.work.sum); $(every-package); \
	[[ $$before == $$(sha256sum go.work.sum) ]] || { echo 'go.work.sum: lacked lines, which are there now: commit it' >&2; exit 1; }

.PHONY: verify-generate
verify-generate: bin/controller-gen
	@echo 'verify: generated files' >&2
	@fresh=$$(mktemp -d); trap 'rm -r "$$fresh"' EXIT; cp config/crd/kustomization.yaml "$$fresh"; $(crds)"$$fresh"; \
	diff -ru config/crd "$$fresh" || { echo 'config/crd: not what the types say: run `make generate`' >&2; exit 1; }
	@cd functions/management-api && go run ./internal/apidoc check || { echo 'functions/management-api: run `make generate`' >&2; exit 1; }

.PHONY: verify-vet
verify-vet:
	@echo 'verify: vet' >&2
	@go vet work
	@go vet -tags local,system,e2e,browser,clusterbench,profile work

# As ko builds an image: without go.work, C and the tags of development.
.PHONY: verify-images
verify-images:
	@echo 'verify: builds without go.work' >&2
	@for m in $(mains); do out=$$PWD/build/$$(tr / - <<<"$$m"); \
	(cd $$m && GOWORK=off CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags='-s -w' -o "$$out" .); \
	printf '  %-32s %5.1f MB\n' "$$m" "$$(($$(stat -c %s "$$out") / 10000))e-2"; done

.PHONY: clean
clean: ## remove what was built; the state of `make dev` in .tuluat/ stays
	@rm -rf bin build

# The tools have a module of their own and are built without go.work, so that
# what they require never lifts a version under a function.
bin/gofumpt: scripts/tools/go.mod scripts/tools/go.sum
	@cd scripts/tools && GOWORK=off CGO_ENABLED=0 go build -buildvcs=false -o ../../bin/ mvdan.cc/gofumpt
	@touch $@

bin/controller-gen: scripts/tools/generate/go.mod scripts/tools/generate/go.sum
	@cd scripts/tools/generate && GOWORK=off CGO_ENABLED=0 go build -buildvcs=false -o ../../../bin/ sigs.k8s.io/controller-tools/cmd/controller-gen
	@touch $@

bin/golangci-lint: scripts/tools/go.mod scripts/tools/go.sum
	@echo 'building golangci-lint (some minutes, once)' >&2
	@cd scripts/tools && GOWORK=off CGO_ENABLED=0 go build -v -buildvcs=false -o ../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint |& $(progress)
	@touch $@
