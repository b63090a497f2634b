package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3bolt"

	"tuluat.ai/harness/scripts/internal/devcluster"
	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/driver"
)

const database = "tuluat"

// system is everything that runs.
type system struct {
	cfg   config
	state *state
	out   *console

	set      *manifest.Set
	webhooks map[string]webhook // by agent
	secrets  map[string]string  // hook secrets by variable
	driver   sandbox.Driver
	pg       *localpg.Server
	servers  []*http.Server // model and S3
	serving  sync.WaitGroup
	compiled atomic.Int64
}

// prepare starts and builds what the cluster stands on. What takes long runs
// side by side; what can be wrong in YAML is found first.
func (s *system) prepare(ctx context.Context) error {
	var err error
	if s.set, err = manifest.Read(filepath.Join(s.cfg.repository, "config", "functions"), filepath.Join(s.cfg.repository, "eventing")); err != nil {
		return err
	}
	if err := s.readHooks(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed [2]error
	var both sync.WaitGroup
	for i, job := range []func(context.Context) error{
		func(ctx context.Context) error { return s.build(ctx, s.set) },
		s.startDatabase,
	} {
		both.Go(func() {
			if failed[i] = job(ctx); failed[i] != nil {
				cancel()
			}
		})
	}
	both.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		return err
	}
	if err := s.sandboxes(); err != nil {
		return err
	}
	if err := s.startModel(); err != nil {
		return err
	}
	return s.startS3()
}

// run plays the platform until ctx ends.
func (s *system) run(ctx context.Context) error {
	log, err := os.OpenFile(s.state.path("logs", "platform.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cluster, err := devcluster.New(devcluster.Options{
		Manifest: s.set, Binary: s.binary, Secret: s.state.secret, AgentsDir: s.cfg.agents, LogDir: s.state.path("logs"),
		ConfigMap: func(name string) (string, bool) { return s.cfg.agents, name == "agents" },
		Env:       s.environment, Gateway: s.cfg.address, Log: slog.New(slog.NewJSONHandler(log, nil)),
		OnError: func(service, line string) { s.out.say("%s: %s", service, line) },
	})
	if err != nil {
		return err
	}
	defer cluster.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- cluster.Run(ctx) }()
	if err := s.announce(ctx, cluster); err != nil {
		cancel()
		return errors.Join(err, <-ended)
	}
	select {
	case err := <-ended:
		return err
	case <-s.pg.Exited():
		cancel()
		<-ended
		return fmt.Errorf("Postgres has ended by itself: see %s", s.state.path("logs", "postgres.log"))
	}
}

// announce waits until the agents of the folder are in the store, tells the CLI
// where everything is, and prints the one line.
func (s *system) announce(ctx context.Context, cluster *devcluster.Cluster) error {
	if err := s.agentsReady(ctx); err != nil {
		return err
	}
	if err := s.state.writeHandle(handle{URL: cluster.GatewayURL(), AgentsDir: s.cfg.agents, Webhooks: s.webhooks}); err != nil {
		return err
	}
	s.out.say("ready at %s. Talk to an agent: go run ./scripts/tuluat chat python-coder", cluster.GatewayURL())
	return nil
}

// agentsTime is how long the folder's agents may take to be in the store.
const agentsTime = 60 * time.Second

func (s *system) agentsReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, agentsTime, errors.New("agent-status has not read the agents' folder in time: see its log"))
	defer cancel()
	conn, err := pgx.Connect(ctx, s.pg.DSN(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		var known int
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM channel_routes`).Scan(&known); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if known >= min(1, len(s.webhooks)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// readHooks generates a secret per webhook of the folder's agents. What is
// wrong with an agent is agent-status' to say; here it has no hook.
func (s *system) readHooks() error {
	files, err := filepath.Glob(filepath.Join(s.cfg.agents, "*.yaml"))
	if err != nil {
		return err
	}
	s.webhooks, s.secrets = map[string]webhook{}, map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		agents, err := v1alpha1.Parse(text)
		if err != nil {
			s.out.say("%s: %v", filepath.Base(file), err)
		}
		for _, a := range agents {
			for _, channel := range a.Agent().Harness.Channels {
				if channel.Type != harness.ChannelWebhook {
					continue
				}
				ref := channel.Secret
				if err := s.state.ensureSecret(ref.Name, ref.Key); err != nil {
					return err
				}
				variable := strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(ref.Name + "_" + ref.Key))
				s.secrets[variable], _ = s.state.secret(ref.Name, ref.Key)
				s.webhooks[a.Metadata.Name] = webhook{Hook: channel.Account, SecretFile: s.state.secretFile(ref.Name, ref.Key)}
			}
		}
	}
	return nil
}

// sandboxes makes the driver by which sandboxes are ended at the end; the
// functions have their own.
func (s *system) sandboxes() error {
	if err := os.MkdirAll(s.state.sandboxDir(), 0o711); err != nil {
		return err
	}
	d, err := driver.New(s.driverOptions(), slog.New(slog.DiscardHandler))
	if err == nil {
		s.driver = d
	}
	return err
}

func (s *system) driverOptions() driver.Options {
	return driver.Options{Driver: driver.Local, LocalDir: s.state.sandboxDir(), LocalRunner: s.binary(runnerPackage)}
}

// environment is what differs from the cluster: the local sandbox driver, hook
// secrets, and callbacks to this machine.
func (s *system) environment(service *manifest.Service) map[string]string {
	switch service.Function() {
	case "webhook-ingest":
		env := map[string]string{"CALLBACK_ALLOW_PRIVATE": "true"}
		for name, value := range s.secrets {
			env[name] = value
		}
		return env
	case "sandbox-exec", "reaper-cron":
		o := s.driverOptions()
		return map[string]string{"SANDBOX_DRIVER": o.Driver, "SANDBOX_LOCAL_DIR": o.LocalDir, "SANDBOX_LOCAL_RUNNER": o.LocalRunner}
	}
	return nil
}

func (s *system) startDatabase(ctx context.Context) error {
	s.out.say("starting Postgres in %s", s.state.path("postgres"))
	pg, err := localpg.Start(ctx, localpg.Options{Dir: s.state.path("postgres"), Log: s.state.path("logs", "postgres.log")})
	if err != nil {
		return err
	}
	s.pg = pg
	conn, err := pgx.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, database).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+database); err != nil {
			return err
		}
	}
	dsn := harness.Secret(pg.DSN(database))
	if err := postgres.Migrate(ctx, dsn, slog.New(slog.DiscardHandler)); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	return s.state.setSecret("database", "url", dsn.Reveal())
}

// startModel makes the Secret of the model: the configured one, else the
// deterministic stand-in on a port of its own.
func (s *system) startModel() error {
	m := s.cfg.model
	if m.provider == "" {
		url, err := s.serve(fake.NewModel(fake.ModelOptions{}))
		if err != nil {
			return err
		}
		m = modelConfig{provider: string(harness.ProviderOpenAI), name: "deterministic", openAIBaseURL: url + "/v1", openAIKey: "no-key-needed"}
		s.out.say("model: a deterministic stand-in; set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL for a real one")
	} else {
		s.out.say("model: %s (%s)", m.name, m.provider)
	}
	for key, value := range map[string]string{
		"provider": m.provider, "name": m.name, "openai-base-url": m.openAIBaseURL, "openai-api-key": m.openAIKey.Reveal(),
		"anthropic-base-url": m.anthropicBaseURL, "anthropic-api-key": m.anthropicKey.Reveal(),
	} {
		if err := s.state.setSecret("model", key, value); err != nil {
			return err
		}
	}
	return nil
}

// startS3 serves the archive's bucket from one file.
func (s *system) startS3() error {
	backend, err := s3bolt.NewFile(s.state.path("s3.db"))
	if err != nil {
		return fmt.Errorf("S3 server: %w", err)
	}
	url, err := s.serve(gofakes3.New(backend, gofakes3.WithAutoBucket(true)).Server())
	if err != nil {
		return err
	}
	return s.state.setSecret("archive", "endpoint", url)
}

// serve serves h on a free loopback port until stop.
func (s *system) serve(h http.Handler) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	s.servers = append(s.servers, server)
	s.serving.Go(func() { _ = server.Serve(l) }) // it ends by Close
	return "http://" + l.Addr().String(), nil
}

// stopTime bounds the end of the sandboxes.
const stopTime = 20 * time.Second

// stop ends what run left: sandboxes, servers, and Postgres last.
func (s *system) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	err := s.endSandboxes(ctx)
	for _, server := range s.servers {
		err = errors.Join(err, server.Close())
	}
	s.serving.Wait()
	if s.pg != nil {
		err = errors.Join(err, s.pg.Stop())
	}
	return err
}

func (s *system) endSandboxes(ctx context.Context) error {
	if s.driver == nil {
		return nil
	}
	found, err := s.driver.List(ctx)
	for _, f := range found {
		err = errors.Join(err, s.driver.Terminate(ctx, sandbox.Sandbox{Name: f.Name, UID: f.UID}))
	}
	return err
}
