package main

import (
	"tuluat.ai/harness/functions/agent-status/internal/cluster"
	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/resource"
)

// open returns where agents come from and, where they are resources, what shows
// their status.
func open(cfg config, env function.Env) (status.Source, status.Resources, error) {
	if cfg.Source == sourceFolder {
		return status.Folder{Path: cfg.AgentsDir, Limits: cfg.Limits}, nil, nil
	}
	server, err := resource.Config(env.Getenv)
	if err != nil {
		return nil, nil, err
	}
	agents, err := cluster.New(server, resource.Options{
		Namespace: cfg.AgentsNamespace, Limits: cfg.Limits, ImagesDir: cfg.ImagesDir, UserAgent: "tuluat-agent-status",
	})
	if err != nil {
		return nil, nil, err
	}
	env.OnExit(agents.Close)
	return agents, agents, nil
}
