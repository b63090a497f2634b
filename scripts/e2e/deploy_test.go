//go:build e2e

package e2e_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/scripts/internal/install"
)

// system is the product as it is deployed, and the way to it.
type system struct {
	settings settings
	cluster  *cluster
	figures  *figures
	home     string // the repository

	folder string // of the overlay
	begun  bool   // something may have been made

	outside  *outside
	ingress  *ingress
	carrier  *carrier
	database *tunnel
	rows     *pgxpool.Pool
	began    time.Time // by the database's clock

	accounts accounts
}

func newSystem(s settings, c *cluster) *system {
	return &system{settings: s, cluster: c, figures: &figures{}}
}

// The namespaces: three of the product, one for the world, one for the suites of
// the sandbox driver.
func (s *system) systems() string   { return s.settings.prefix + "system" }
func (s *system) sandboxes() string { return s.settings.prefix + "sandbox" }
func (s *system) agents() string    { return s.settings.prefix + "agents" }
func (s *system) world() string     { return s.settings.prefix + "outside" }
func (s *system) suites() string    { return s.settings.prefix + "suites" }

// accounts are what the world knows of us, and the product's Secrets too.
type accounts struct {
	Numbers  []numberAccount `json:"numbers"`
	Bots     []botAccount    `json:"bots"`
	ModelKey string          `json:"modelKey"`
	Bucket   string          `json:"bucket"`
}

type numberAccount struct {
	PhoneNumberID string `json:"phoneNumberId"`
	AppSecret     string `json:"appSecret"`
	AccessToken   string `json:"accessToken"`
	VerifyToken   string `json:"verifyToken"`
}

type botAccount struct {
	Username string `json:"username"`
	Token    string `json:"token"`
	Secret   string `json:"secret"`
}

// The accounts of the sample agent python-coder.
const (
	sampleAgent  = "python-coder"
	sampleNumber = "100000000000001"
	sampleBot    = "python_coder_bot"
	bucket       = "tuluat"
)

func makeAccounts() accounts {
	sum := sha256.Sum256([]byte(sampleBot))
	return accounts{
		Numbers:  []numberAccount{{sampleNumber, rand.Text(), rand.Text(), rand.Text()}},
		Bots:     []botAccount{{sampleBot, fmt.Sprintf("%d:AA%s", 7_000_000_000+int64(binary.BigEndian.Uint32(sum[:4])%900_000_000), rand.Text()), rand.Text()}},
		ModelKey: rand.Text(), Bucket: bucket,
	}
}

// step says what is being done, and how long it took.
func (s *system) step(name string, do func() error) error {
	fmt.Fprintf(os.Stderr, "e2e: %s\n", name)
	began := time.Now()
	err := do()
	if err == nil {
		s.figures.add("deploy", name, short(time.Since(began)), "")
	}
	return err
}

// deploy installs everything and returns when it can be talked to.
func (s *system) deploy(ctx context.Context) error {
	var err error
	if s.home, err = checkout.Root(); err != nil {
		return err
	}
	if s.settings.reuse {
		if err := s.recall(ctx); err != nil {
			return fmt.Errorf("E2E_REUSE=%s: %w", s.settings.prefix, err)
		}
	} else {
		s.accounts = makeAccounts()
	}
	if err := s.writeOverlay(); err != nil {
		return err
	}
	if !s.settings.reuse || s.settings.redeploy {
		s.begun = true
		if err := s.step("install "+s.settings.prefix+"*, images included", func() error { return install.Deploy(ctx, s.options()) }); err != nil {
			return err
		}
	}
	return s.step("find the ways in", func() error { return s.reach(ctx) })
}

// recall reads the accounts of a prefix that an earlier run has kept.
func (s *system) recall(ctx context.Context) error {
	secret, err := s.cluster.client.CoreV1().Secrets(s.world()).Get(ctx, "accounts", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return json.Unmarshal(secret.Data["accounts"], &s.accounts)
}

// options are those of the installer that `make deploy` uses.
func (s *system) options() install.Options {
	return install.Options{Overlay: s.folder, Root: s.home, Prefix: s.settings.prefix, Log: os.Stderr}
}

// writeOverlay writes the kustomization that is deployed: the product's own for a
// cluster without anything, and the addresses of the world.
func (s *system) writeOverlay() error {
	var err error
	if s.folder, err = os.MkdirTemp("", "tuluat-e2e-"); err != nil {
		return err
	}
	base, err := filepath.Rel(s.folder, filepath.Join(s.home, s.settings.overlay))
	if err != nil {
		return err
	}
	known, err := json.Marshal(s.accounts)
	if err != nil {
		return err
	}
	image, tag := splitImage(s.settings.postgres)
	text := strings.NewReplacer(
		"@BASE@", base, "@WORLD@", s.world(), "@MODELKEY@", s.accounts.ModelKey, "@BUCKET@", bucket,
		"@POSTGRES_NAME@", image, "@POSTGRES_TAG@", tag, "@STANDARD@", s.settings.standard, "@PYTHON@", s.settings.python,
	).Replace(kustomization)
	world := strings.NewReplacer("@WORLD@", s.world(), "@SUITES@", s.suites(), "@ACCOUNTS@", string(known)).Replace(worldYAML)
	return errors.Join(
		os.WriteFile(filepath.Join(s.folder, "kustomization.yaml"), []byte(text), 0o600),
		os.WriteFile(filepath.Join(s.folder, "world.yaml"), []byte(world), 0o600),
	)
}

// objects are those that were installed, without the digests of their images.
func (s *system) objects() ([]install.Object, error) {
	rendered, err := install.Render(s.folder)
	if err != nil {
		return nil, err
	}
	if rendered, err = install.Rename(rendered, s.settings.prefix); err != nil {
		return nil, err
	}
	return install.Objects(rendered)
}

// restore applies what belongs into one namespace to another, which may be the
// same.
func (s *system) restore(ctx context.Context, from, to string) error {
	objects, err := s.objects()
	if err != nil {
		return err
	}
	items := []any{}
	for _, o := range objects {
		metadata, _ := o.Content["metadata"].(map[string]any)
		switch {
		case o.Kind == "Namespace" && o.Name == from:
			metadata["name"] = to
		case o.Namespace == from:
			metadata["namespace"] = to
		default:
			continue
		}
		items = append(items, o.Content)
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return err
	}
	_, err = s.cluster.kubectl(ctx, string(text), "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

// splitImage takes a reference apart as kustomize wants it.
func splitImage(reference string) (name, tag string) {
	at := strings.LastIndex(reference, ":")
	if at < 0 || strings.Contains(reference[at:], "/") {
		return reference, "latest"
	}
	return reference[:at], reference[at+1:]
}

const kustomization = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - @BASE@
  - world.yaml
generatorOptions:
  disableNameSuffixHash: true
images:
  - name: docker.io/library/postgres
    newName: @POSTGRES_NAME@
    newTag: "@POSTGRES_TAG@"
secretGenerator:
  - name: model
    namespace: tuluat-system
    literals:
      - provider=openai
      - name=tuluat-stand-in
      - openai-base-url=http://world.@WORLD@.svc.cluster.local:8083/v1
      - openai-api-key=@MODELKEY@
  - name: object-store
    namespace: tuluat-system
    literals:
      - endpoint=http://world.@WORLD@.svc.cluster.local:8084
      - bucket=@BUCKET@
      - access-key-id=e2e
      - secret-access-key=e2e
patches:
  - patch: |-
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: sandbox-images, namespace: tuluat-system}
      data: {default: @STANDARD@, python: @PYTHON@}
  - target: {group: serving.knative.dev, kind: Service, name: whatsapp-ingest.*}
    patch: |-
      - op: add
        path: /spec/template/spec/containers/0/env/-
        value: {name: WHATSAPP_API_URL, value: "http://world.@WORLD@.svc.cluster.local:8081"}
  - target: {group: serving.knative.dev, kind: Service, name: telegram-ingest.*}
    patch: |-
      - op: add
        path: /spec/template/spec/containers/0/env/-
        value: {name: TELEGRAM_API_URL, value: "http://world.@WORLD@.svc.cluster.local:8082"}
`

const worldSelector = "app.kubernetes.io/name=world"

const worldYAML = `apiVersion: v1
kind: Namespace
metadata:
  name: @WORLD@
---
apiVersion: v1
kind: Namespace
metadata:
  name: @SUITES@
---
apiVersion: v1
kind: Secret
metadata:
  name: accounts
  namespace: @WORLD@
stringData:
  accounts: '@ACCOUNTS@'
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: world
  namespace: @WORLD@
spec:
  strategy: {type: Recreate}
  selector:
    matchLabels: {app.kubernetes.io/name: world}
  template:
    metadata:
      labels: {app.kubernetes.io/name: world}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 2
      containers:
        - name: world
          image: ko://tuluat.ai/harness/scripts/e2e/world
          env:
            - name: WORLD_ACCOUNTS
              valueFrom: {secretKeyRef: {name: accounts, key: accounts}}
          readinessProbe:
            httpGet: {path: /healthz, port: 8085}
            periodSeconds: 1
          resources:
            requests: {cpu: 20m, memory: 64Mi}
            limits: {memory: 256Mi}
---
apiVersion: v1
kind: Service
metadata:
  name: world
  namespace: @WORLD@
spec:
  selector: {app.kubernetes.io/name: world}
  ports:
    - {name: graph, port: 8081}
    - {name: bot, port: 8082}
    - {name: model, port: 8083}
    - {name: store, port: 8084}
    - {name: control, port: 8085}
`

// publicServices are those that people's messages and operators come in by.
var publicServices = []string{"whatsapp-ingest", "telegram-ingest", "webhook-ingest", "management-api"}

// reach opens the ways to what was deployed.
func (s *system) reach(ctx context.Context) error {
	s.ingress = &ingress{base: s.settings.ingress, hosts: map[string]string{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	for _, service := range publicServices {
		url, err := s.cluster.kubectl(ctx, "", "-n", s.systems(), "get", "services.serving.knative.dev", service, "-o", "jsonpath={.status.url}")
		if err != nil {
			return err
		}
		if s.ingress.hosts[service], err = hostOf(url); err != nil {
			return fmt.Errorf("Service %s: %w", service, err)
		}
	}
	if err := s.ingress.check(ctx); err != nil {
		return err
	}
	var err error
	if s.outside, err = reachOutside(s.cluster, s.world()); err != nil {
		return err
	}
	s.carrier = carry(s.outside, s.ingress)
	if s.database, err = newTunnel(s.cluster, s.systems(), "app.kubernetes.io/name=postgres", 5432); err != nil {
		return err
	}
	dsn, err := s.secret(ctx, s.systems(), "database", "migrate")
	if err != nil {
		return err
	}
	if s.rows, err = openRows(ctx, s.database, dsn); err != nil {
		return err
	}
	return s.rows.QueryRow(ctx, "SELECT now()").Scan(&s.began)
}

func (s *system) secret(ctx context.Context, namespace, name, key string) (string, error) {
	secret, err := s.cluster.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	value, ok := secret.Data[key]
	if !ok {
		return "", fmt.Errorf("the Secret %s has no key %s", name, key)
	}
	return string(value), nil
}

// remove takes everything away that deploy made.
func (s *system) remove() error {
	if s.rows != nil {
		s.rows.Close()
	}
	if s.database != nil {
		s.database.close()
	}
	if s.carrier != nil {
		s.carrier.close()
	}
	if s.outside != nil {
		s.outside.close()
	}
	defer func() { _ = os.RemoveAll(s.folder) }() // a few files below the system's own folder for such
	if s.settings.keep {
		fmt.Fprintf(os.Stderr, "e2e: kept: E2E_REUSE=%s runs the tests on it again\n", s.settings.prefix)
		return nil
	}
	if !s.begun {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return s.step("remove "+s.settings.prefix+"*", func() error { return install.Undeploy(ctx, s.options(), true) })
}

// tellTrouble prints what a person would look at first.
func (s *system) tellTrouble(w io.Writer) {
	if s.settings.prefix == "" || !s.begun && !s.settings.reuse {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, namespace := range []string{s.systems(), s.sandboxes(), s.agents(), s.world()} {
		for _, what := range []string{"pods", "services.serving.knative.dev", "events"} {
			args := []string{"-n", namespace, "get", what}
			if what == "events" {
				args = append(args, "--field-selector=type=Warning", "--sort-by=.lastTimestamp")
			}
			out, err := s.cluster.kubectl(ctx, "", args...)
			if err != nil || strings.TrimSpace(out) == "" {
				continue
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			fmt.Fprintf(w, "--- %s of %s\n%s\n", what, namespace, strings.Join(lines[max(0, len(lines)-25):], "\n"))
		}
	}
}
