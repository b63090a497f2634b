package postgres

import (
	"context"

	"tuluat.ai/harness/shared/harness"
)

// Route is who answers on one account of a channel, and how.
type Route struct {
	Agent harness.AgentName
	Spec  harness.ChannelSpec
}

// Route returns the route of an account. harness.NotFound: no agent has it.
func (s *Store) Route(ctx context.Context, channel harness.Channel, account string) (Route, error) {
	var r Route
	err := s.pool.QueryRow(ctx, `SELECT agent_name, spec FROM channel_routes WHERE channel = $1 AND account = $2`, channel, account).Scan(&r.Agent, &r.Spec)
	return r, translate(err)
}
