package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

const messageColumns = `m.message_id, m.session_id, m.seq, m.direction, m.state, m.channel_user_id, m.text, m.metadata, COALESCE(m.in_reply_to, ''), m.author, m.created_at`

func readMessage(row pgx.CollectableRow) (view.Message, error) {
	var v view.Message
	err := row.Scan(&v.ID, &v.Session, &v.Seq, &v.Direction, &v.State, &v.ChannelUserID, &v.Text, &v.Metadata, &v.InReplyTo, &v.Author, &v.CreatedAt)
	return v, err
}

// GetMessage returns one message, without its parts and files.
func (s *Store) GetMessage(ctx context.Context, id harness.MessageID) (view.Message, error) {
	return one(ctx, s, "message", `SELECT `+messageColumns+` FROM messages m WHERE m.message_id = $1`, []any{id}, readMessage)
}

// ListMessages returns up to limit messages of a session behind number afterSeq,
// oldest first. Numbers are given under the session's lock: what is committed later
// has a greater one. A session that does not exist has none.
func (s *Store) ListMessages(ctx context.Context, session harness.SessionID, afterSeq int64, limit int) ([]view.Message, error) {
	messages, err := list(ctx, s, `SELECT `+messageColumns+` FROM messages m WHERE m.session_id = $1 AND m.seq > $2 ORDER BY m.seq LIMIT $3`,
		[]any{session, afterSeq, limit}, readMessage)
	if err != nil {
		return nil, err
	}
	return messages, s.withParts(ctx, messages)
}

// withParts adds to each message its replies and its files, in one round trip.
func (s *Store) withParts(ctx context.Context, messages []view.Message) error {
	if len(messages) == 0 {
		return nil
	}
	ids := make([]string, len(messages))
	at := make(map[harness.MessageID]*view.Message, len(messages))
	for i := range messages {
		ids[i] = string(messages[i].ID)
		at[messages[i].ID] = &messages[i]
	}
	b := &pgx.Batch{}
	b.Queue(`SELECT message_id, reply_id, part, state, reason, provider_id FROM replies WHERE message_id = ANY ($1) ORDER BY message_id, part`, ids).
		Query(func(rows pgx.Rows) error {
			var id harness.MessageID
			var p view.ReplyPart
			_, err := pgx.ForEachRow(rows, []any{&id, &p.ID, &p.Part, &p.State, &p.Reason, &p.ProviderID}, func() error {
				at[id].Parts = append(at[id].Parts, p)
				return nil
			})
			return err
		})
	b.Queue(`SELECT message_id, attachment_id, file_name, mime_type, size_bytes, state FROM attachments WHERE message_id = ANY ($1) ORDER BY created_at, attachment_id`, ids).
		Query(func(rows pgx.Rows) error {
			var id harness.MessageID
			var a view.Attachment
			_, err := pgx.ForEachRow(rows, []any{&id, &a.ID, &a.FileName, &a.MIMEType, &a.SizeBytes, &a.State}, func() error {
				at[id].Attachments = append(at[id].Attachments, a)
				return nil
			})
			return err
		})
	return s.batch(ctx, b, nil)
}
