package main

import (
	"time"

	"tuluat.ai/harness/functions/agent-status/internal/cluster"
	"tuluat.ai/harness/functions/agent-status/internal/image"
	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/resource"
	"tuluat.ai/harness/shared/secret/source"
)

// open returns where agents come from and, where they are resources, what shows
// their status.
func open(cfg config, env function.Env, store *postgres.Store) (status.Source, status.Resources, error) {
	secrets, err := source.Open(cfg.Secrets, time.Now)
	if err != nil {
		return nil, nil, err
	}
	puller := image.NewPuller(cfg.AllowPrivate, cfg.PlainHTTP)
	env.OnExit(puller.Close)
	skills := &image.Skills{Puller: puller, Store: store, Secrets: secrets}
	images := func() status.SkillImages { return skills.Begin() }
	if cfg.Source == sourceFolder {
		return status.Folder{Path: cfg.AgentsDir, Limits: cfg.Limits, Images: images}, nil, nil
	}
	server, err := resource.Config(env.Getenv)
	if err != nil {
		return nil, nil, err
	}
	agents, err := cluster.New(server, resource.Options{
		Namespace: cfg.AgentsNamespace, Limits: cfg.Limits, ImagesDir: cfg.ImagesDir, UserAgent: "tuluat-agent-status",
	}, images)
	if err != nil {
		return nil, nil, err
	}
	env.OnExit(agents.Close)
	return agents, agents, nil
}
