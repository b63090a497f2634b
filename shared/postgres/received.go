package postgres

import (
	"context"
	"encoding/json"

	"tuluat.ai/harness/shared/harness"
)

// Received is an inbound message as its channel's function looks at it again.
type Received struct {
	Message       harness.MessageID
	State         harness.MessageState
	Session       harness.Session
	Address       string // where replies go now
	ProviderID    string
	ChannelUserID string
	Metadata      json.RawMessage
	Spec          *harness.ChannelSpec // nil: the agent has this account no more
}

// Received returns an inbound message. harness.NotFound: there is none.
func (s *Store) Received(ctx context.Context, id harness.MessageID) (*Received, error) {
	m := &Received{}
	err := s.pool.QueryRow(ctx, `
		SELECT m.message_id, m.state, m.provider_id, m.channel_user_id, m.metadata,
		       s.session_id, s.agent_name, s.channel, s.account, s.chat, s.state, COALESCE(c.address, s.chat), r.spec
		FROM messages m JOIN sessions s USING (session_id)
		LEFT JOIN chats c ON c.channel = s.channel AND c.account = s.account AND c.chat = s.chat
		LEFT JOIN channel_routes r ON r.channel = s.channel AND r.account = s.account AND r.agent_name = s.agent_name
		WHERE m.message_id = $1 AND m.direction = 'INBOUND'`, id).
		Scan(&m.Message, &m.State, &m.ProviderID, &m.ChannelUserID, &m.Metadata,
			&m.Session.ID, &m.Session.Agent, &m.Session.Channel, &m.Session.Account, &m.Session.Chat, &m.Session.State, &m.Address, &m.Spec)
	return m, translate(err)
}
