package main

import (
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/a2a"
	"tuluat.ai/harness/functions/agent-step/internal/guard"
	"tuluat.ai/harness/functions/agent-step/internal/mcp"
	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/skill"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret/source"
)

// addBlocks gives steps what agents may have beside a model and a sandbox: each
// block of AiAgent that is worked here has its line.
func addBlocks(o *step.Options, cfg config, store *postgres.Store, client *model.Client, env function.Env) error {
	secrets, err := source.Open(cfg.Secrets, time.Now)
	if err != nil {
		return err
	}
	servers := mcp.New(mcp.Options{Store: store, Secrets: secrets, Log: env.Log, AllowPrivate: cfg.AllowPrivate})
	env.OnExit(servers.Close)
	peers := a2a.New(a2a.Options{Store: store, Secrets: secrets, Log: env.Log, AllowPrivate: cfg.AllowPrivate})
	env.OnExit(peers.Close)
	guards := guard.New(guard.Options{Model: client, Secrets: secrets, AllowPrivate: cfg.AllowPrivate, Known: cfg.secrets()})
	env.OnExit(guards.Close)
	if cfg.Archive.Enabled() {
		objects, err := archive.Open(cfg.Archive)
		if err != nil {
			return err
		}
		env.OnExit(objects.Close)
		o.Objects = objects
	}
	// The name loadSkill is its own: no tool that comes later has it.
	o.Tools, o.Checks, o.Guard = []step.Tools{skill.Skills{Store: store}, servers, peers}, mcp.Checks{Store: store, Secrets: secrets}, guards
	return nil
}
