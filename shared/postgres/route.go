package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

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

// AccountRoute is a Route with the account it belongs to.
type AccountRoute struct {
	Account string
	Route
}

// Routes returns every route of a channel.
func (s *Store) Routes(ctx context.Context, channel harness.Channel) ([]AccountRoute, error) {
	rows, err := s.pool.Query(ctx, `SELECT account, agent_name, spec FROM channel_routes WHERE channel = $1 ORDER BY account`, channel)
	if err != nil {
		return nil, translate(err)
	}
	routes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (AccountRoute, error) {
		var r AccountRoute
		return r, row.Scan(&r.Account, &r.Agent, &r.Spec)
	})
	return routes, translate(err)
}
