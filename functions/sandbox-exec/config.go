package main

import (
	"fmt"
	"time"

	"tuluat.ai/harness/functions/sandbox-exec/internal/execute"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/driver"
)

type config struct {
	databaseURL   harness.Secret
	databaseConns int32
	brokerURL     string
	lease         time.Duration // of an execution; extended while a request works on it
	budget        time.Duration // of one request
	maxOutput     int           // bytes stored of each stream
	sandbox       driver.Options
	archive       archive.Options // of files; without a bucket none come in or go out
}

// maxBudget leaves a request time to store an outcome within the shell's own
// deadline for an event.
const maxBudget = 200 * time.Second

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		databaseURL:   harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		databaseConns: int32(c.Int("DATABASE_MAX_CONNS", 4, 1)),
		brokerURL:     c.Required("BROKER_URL", "where events are published"),
		lease:         c.Duration("LEASE", time.Minute),
		budget:        c.Duration("REQUEST_BUDGET", maxBudget),
		maxOutput:     c.Int("MAX_OUTPUT_BYTES", int(sandbox.DefaultMaxOutput), 1),
		sandbox:       driver.ReadStart(c),
		archive:       archive.Read(c),
	}
	if cfg.budget > maxBudget {
		c.Problem("REQUEST_BUDGET", fmt.Sprintf("is over %s, the longest a request may take", maxBudget))
	}
	return cfg, c.Err()
}

// openArchive returns the object store, nil when there is none.
func openArchive(o archive.Options, env function.Env) (execute.Objects, error) {
	if !o.Enabled() {
		return nil, nil
	}
	store, err := archive.Open(o)
	if err != nil {
		return nil, err // and not a typed nil
	}
	env.OnExit(store.Close)
	return store, nil
}
