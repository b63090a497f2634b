package mcp

import (
	"context"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

// CheckStore is what Checks reads and writes.
type CheckStore interface {
	AgentsWithServers(ctx context.Context) ([]harness.Agent, error)
	StoreSecretChecks(ctx context.Context, function string, checks []harness.SecretCheck) (changed int, err error)
}

// Checks finds out whether the Secrets that agents name for their servers and peers
// can be used, and stores that for their status: all agents every time, so that one run
// that was missed is made up for by the next.
type Checks struct {
	Store   CheckStore
	Secrets secret.Source
}

// AgentStatusChanged checks because an agent changed, or may have.
// harness.Unavailable: the source of secrets does not answer, and what was found
// before stands.
func (c Checks) AgentStatusChanged(ctx context.Context, _ event.Event) error {
	agents, err := c.Store.AgentsWithServers(ctx)
	if err != nil {
		return err
	}
	var checks []harness.SecretCheck
	for _, agent := range agents {
		for _, ref := range agent.ServerSecrets() {
			check, err := c.Secrets.Check(ctx, agent.Name, ref)
			if err != nil {
				return err
			}
			checks = append(checks, check)
		}
	}
	_, err = c.Store.StoreSecretChecks(ctx, "agent-step", checks)
	return err
}
