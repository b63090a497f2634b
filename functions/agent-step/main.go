// Command agent-step works sessions: it claims one, asks the model or hands out
// what the model asked for, commits, and wakes whoever is next.
package main

import (
	"context"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/functions/agent-step/internal/workflow"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
)

func main() { function.Main("agent-step", build) }

// build wires the function. It does no network I/O.
func build(_ context.Context, env function.Env) (*function.Function, error) {
	cfg, err := parseConfig(env.Getenv)
	if err != nil {
		return nil, err
	}
	store, err := postgres.Open(cfg.DatabaseURL, postgres.Options{KeepPlans: true})
	if err != nil {
		return nil, err
	}
	env.OnExit(store.Close)
	publisher, err := function.NewPublisher(cfg.BrokerURL, env.Log, time.Now)
	if err != nil {
		return nil, err
	}
	env.OnExit(publisher.Close)
	client, err := model.New(cfg.Model)
	if err != nil {
		return nil, err
	}
	env.OnExit(client.Close)
	runs := workflow.New(workflow.Options{Store: store, Log: env.Log, Secrets: cfg.secrets(), Now: time.Now})
	options := step.Options{
		Store: store, Model: client, Runs: runs, Publish: publisher.Publish, Log: env.Log, Secrets: cfg.secrets(),
		Lease: postgres.Lease{Owner: env.Owner(), For: cfg.Lease}, ContextTokens: cfg.ContextTokens, Prices: cfg.Prices, ModelName: cfg.Model.Name, ModelProvider: cfg.Model.Provider,
	}
	if err := addBlocks(&options, cfg, store, client, env); err != nil {
		return nil, err
	}
	s := step.New(options)
	return &function.Function{Events: map[event.Type]function.EventFunc{
		event.MessageReceived:    s.Session,
		event.SessionDue:         s.Session,
		event.ExecutionFinished:  s.Session,
		event.ApprovalDecided:    s.Session,
		event.AgentStatusChanged: s.AgentStatusChanged,
	}}, nil
}
