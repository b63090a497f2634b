package postgres

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// MCPListing is what an MCP server of an agent offered when it was last asked.
type MCPListing struct {
	Server string
	Digest string          // of its settings then
	Tools  json.RawMessage // of the newest list that arrived
	Listed bool            // one has
	Reason string          // why none arrived the last time; empty when one did
	Fresh  bool            // the server need not be asked again yet
}

// AgentsWithServers returns the agents in use that name MCP servers, by name, as
// their revisions say.
func (s *Store) AgentsWithServers(ctx context.Context) ([]harness.Agent, error) {
	return list(ctx, s, `SELECT r.spec FROM agents a JOIN agent_revisions r USING (agent_name, revision)
		WHERE a.phase <> 'DELETED' AND r.spec ? 'mcpServers' ORDER BY a.agent_name`, nil, pgx.RowTo[harness.Agent])
}

// How long an answer is believed, and a failure.
const (
	mcpFresh = "10 minutes"
	mcpAgain = "30 seconds"
)

// MCPListings returns what is known of an agent's MCP servers, by name.
func (s *Store) MCPListings(ctx context.Context, agent harness.AgentName) (map[string]MCPListing, error) {
	rows, err := s.pool.Query(ctx, `SELECT server_name, digest, tools, listed_at IS NOT NULL, reason,
			tried_at > now() - CASE WHEN reason = '' THEN interval '`+mcpFresh+`' ELSE interval '`+mcpAgain+`' END
		FROM mcp_servers WHERE agent_name = $1`, agent)
	if err != nil {
		return nil, translate(err)
	}
	all := map[string]MCPListing{}
	err = each(func(row pgx.CollectableRow) error {
		var l MCPListing
		err := row.Scan(&l.Server, &l.Digest, &l.Tools, &l.Listed, &l.Reason, &l.Fresh)
		all[l.Server] = l
		return err
	})(rows)
	return all, translate(err)
}

// PutMCPListings stores what servers of an agent have answered: a new list, or
// with a Reason only that none came, which leaves the list of the same settings.
// Servers that are not in keep are forgotten.
func (s *Store) PutMCPListings(ctx context.Context, agent harness.AgentName, keep []string, listings ...MCPListing) error {
	b := &pgx.Batch{}
	b.Queue(`DELETE FROM mcp_servers WHERE agent_name = $1 AND server_name <> ALL ($2)`, agent, keep)
	for _, l := range listings { // in the order of keep, as everybody's
		b.Queue(`INSERT INTO mcp_servers AS m (agent_name, server_name, digest, tools, listed_at, tried_at, reason)
			VALUES ($1, $2, $3, COALESCE($4, '[]'::jsonb), CASE WHEN $5 = '' THEN now() END, now(), $5)
			ON CONFLICT (agent_name, server_name) DO UPDATE SET digest = EXCLUDED.digest, tried_at = EXCLUDED.tried_at, reason = EXCLUDED.reason,
				tools = CASE WHEN $5 <> '' AND m.digest = EXCLUDED.digest THEN m.tools ELSE EXCLUDED.tools END,
				listed_at = CASE WHEN $5 <> '' AND m.digest = EXCLUDED.digest THEN m.listed_at ELSE EXCLUDED.listed_at END`,
			agent, l.Server, l.Digest, l.Tools, l.Reason)
	}
	return again(func() error { return s.batch(ctx, b, nil) })
}
