package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// Listing is what a server of an agent's block offered when it was last asked.
type Listing struct {
	Server  string
	Digest  string          // of its settings then
	Offered json.RawMessage // the newest that arrived, as its block keeps it
	Listed  bool            // something has arrived
	Reason  string          // why nothing did the last time; empty when it did
	Fresh   bool            // the server need not be asked again yet
	TriedAt time.Time       // when it was last asked
}

// AgentsWithServers returns the agents in use that name MCP servers or peers, by
// name, as their revisions say.
func (s *Store) AgentsWithServers(ctx context.Context) ([]harness.Agent, error) {
	return list(ctx, s, `SELECT r.spec FROM agents a JOIN agent_revisions r USING (agent_name, revision)
		WHERE a.phase <> 'DELETED' AND (r.spec ? 'mcpServers' OR r.spec ? 'peers') ORDER BY a.agent_name`, nil, pgx.RowTo[harness.Agent])
}

// How long an answer is believed, and a failure.
const (
	listingFresh = "10 minutes"
	listingAgain = "30 seconds"
)

// Listings returns what is known of the servers of an agent's block, by name.
func (s *Store) Listings(ctx context.Context, agent harness.AgentName, block string) (map[string]Listing, error) {
	rows, err := s.pool.Query(ctx, `SELECT server_name, digest, offered, listed_at IS NOT NULL, reason,
			tried_at > now() - CASE WHEN reason = '' THEN interval '`+listingFresh+`' ELSE interval '`+listingAgain+`' END, tried_at
		FROM remote_servers WHERE agent_name = $1 AND block = $2`, agent, block)
	if err != nil {
		return nil, translate(err)
	}
	all := map[string]Listing{}
	err = each(func(row pgx.CollectableRow) error {
		var l Listing
		err := row.Scan(&l.Server, &l.Digest, &l.Offered, &l.Listed, &l.Reason, &l.Fresh, &l.TriedAt)
		all[l.Server] = l
		return err
	})(rows)
	return all, translate(err)
}

// PutListings stores what servers of an agent's block have answered: what they
// offer now, or with a Reason only that nothing came, which leaves what the same
// settings gave before. Servers of the block that are not in keep are forgotten.
func (s *Store) PutListings(ctx context.Context, agent harness.AgentName, block string, keep []string, listings ...Listing) error {
	b := &pgx.Batch{}
	b.Queue(`DELETE FROM remote_servers WHERE agent_name = $1 AND block = $2 AND server_name <> ALL ($3)`, agent, block, keep)
	for _, l := range listings { // in the order of keep, as everybody's
		b.Queue(`INSERT INTO remote_servers AS m (agent_name, block, server_name, digest, offered, listed_at, tried_at, reason)
			VALUES ($1, $2, $3, $4, COALESCE($5, '[]'::jsonb), CASE WHEN $6 = '' THEN now() END, now(), $6)
			ON CONFLICT (agent_name, block, server_name) DO UPDATE SET digest = EXCLUDED.digest, tried_at = EXCLUDED.tried_at, reason = EXCLUDED.reason,
				offered = CASE WHEN $6 <> '' AND m.digest = EXCLUDED.digest THEN m.offered ELSE EXCLUDED.offered END,
				listed_at = CASE WHEN $6 <> '' AND m.digest = EXCLUDED.digest THEN m.listed_at ELSE EXCLUDED.listed_at END`,
			agent, block, l.Server, l.Digest, l.Offered, l.Reason)
	}
	return again(func() error { return s.batch(ctx, b, nil) })
}
