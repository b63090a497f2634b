package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// Attachment is a file that came with a message or that a command made.
type Attachment struct {
	harness.Attachment
	ID        harness.AttachmentID
	Session   harness.SessionID
	Agent     harness.AgentName
	Channel   harness.Channel
	Account   string
	State     harness.AttachmentState
	Path      string // below /workspace
	ObjectKey string // when STORED
	Reason    string
	Token     int64 // of the claim, while it is fetched
	Attempts  int   // this one included
}

// MediaClaim is a file that its channel's function is to fetch. Whoever holds it
// writes with Token.
type MediaClaim struct {
	Attachment
	Spec        *harness.ChannelSpec // nil: the agent has this account no more
	TraceParent string
}

// MediaOutcome is what one attempt to fetch a file came to. STORED needs
// ObjectKey, Digest and Bytes; FAILED and REQUESTED (again after Retry) a Reason
// for people. What the provider knows of the file by now replaces what it said
// at first, where it is not empty.
type MediaOutcome struct {
	State              harness.AttachmentState
	ObjectKey, Digest  string
	Bytes              int64
	FileName, MimeType string
	Reason             string
	Retry              time.Duration
}

const mediaRequestedID = "media.requested:"

// mediaSubject is what an announcement of files to fetch is about: a session's
// files are fetched by one who hears it.
func mediaSubject(session harness.SessionID) string { return "media:" + string(session) }

// attachmentColumns are those of an Attachment, of aliases a and s (its session).
const attachmentColumns = `a.kind, a.provider_id, a.file_name, a.mime_type, a.size_bytes, a.attachment_id, a.session_id,
	s.agent_name, s.channel, s.account, a.state, a.path, a.object_key, a.reason, a.lease_token, a.attempts`

func (a *Attachment) targets() []any {
	return []any{
		&a.Kind, &a.ProviderID, &a.FileName, &a.MimeType, &a.Bytes, &a.ID, &a.Session,
		&a.Agent, &a.Channel, &a.Account, &a.State, &a.Path, &a.ObjectKey, &a.Reason, &a.Token, &a.Attempts,
	}
}

// claimMediaSQL deletes the announcement whatever it finds: who hears it takes
// one file after the other, and what is not due yet has its own due time.
const claimMediaSQL = `
WITH next AS (
    SELECT attachment_id FROM attachments
    WHERE session_id = $1 AND state = 'REQUESTED' AND due_at <= now() AND (lease_until IS NULL OR lease_until < now())
    ORDER BY created_at, attachment_id LIMIT 1 FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE attachments a SET lease_owner = $2, lease_token = a.lease_token + 1, lease_until = now() + $3::interval, attempts = a.attempts + 1
    FROM next WHERE a.attachment_id = next.attachment_id RETURNING a.*
), heard AS (
    DELETE FROM outbox WHERE subject = $4
)
SELECT ` + attachmentColumns + `, r.spec, s.traceparent
FROM claimed a JOIN sessions s USING (session_id)
LEFT JOIN channel_routes r ON r.channel = s.channel AND r.account = s.account AND r.agent_name = s.agent_name`

// ClaimMedia takes the lease of the session's oldest file that is to be fetched.
// ErrNothingDue: there is none, or others fetch them all.
func (s *Store) ClaimMedia(ctx context.Context, session harness.SessionID, lease Lease) (*MediaClaim, error) {
	c := &MediaClaim{}
	err := s.pool.QueryRow(ctx, claimMediaSQL, session, lease.Owner, lease.For, mediaSubject(session)).
		Scan(append(c.targets(), &c.Spec, &c.TraceParent)...)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return nil, ErrNothingDue
	}
	return c, err
}

// ExtendMedia moves the end of the claim on. ErrLeaseLost when it is no longer ours.
func (s *Store) ExtendMedia(ctx context.Context, c *MediaClaim, lease Lease) error {
	return s.oneRow(ctx, `UPDATE attachments SET lease_until = now() + $3::interval
		WHERE attachment_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL`, c.ID, c.Token, lease.For)
}

// lockSessionSQL orders those who wait for a session's files and those who bring
// them: neither decides on what the other is about to change.
const lockSessionSQL = `SELECT 1 FROM sessions WHERE session_id = $1 FOR NO KEY UPDATE`

// MarkMedia writes what an attempt came to. When no file of the session is to be
// fetched any more, its commands that wait are due at once; it returns the
// events to publish. ErrLeaseLost: somebody else has claimed the file since;
// nothing is written.
func (s *Store) MarkMedia(ctx context.Context, c *MediaClaim, o MediaOutcome) ([]event.Event, error) {
	var events []event.Event
	ours := false
	b := &pgx.Batch{}
	b.Queue(lockSessionSQL, c.Session)
	// updated_at is when the state changed last: waiting is measured from it.
	b.Queue(`UPDATE attachments SET state = $3, reason = $4, object_key = $5, digest = $6, size_bytes = CASE WHEN $7 > 0 THEN $7 ELSE size_bytes END,
			file_name = COALESCE(NULLIF($8, ''), file_name), mime_type = COALESCE(NULLIF($9, ''), mime_type),
			due_at = CASE WHEN $3 = 'REQUESTED' THEN now() + $10::interval END, updated_at = CASE WHEN $3 = 'REQUESTED' THEN updated_at ELSE now() END,
			lease_owner = NULL, lease_until = NULL
		WHERE attachment_id = $1 AND lease_token = $2 AND lease_owner IS NOT NULL AND state = 'REQUESTED' RETURNING true`,
		c.ID, c.Token, string(o.State), harness.CleanText(o.Reason), o.ObjectKey, o.Digest, o.Bytes, harness.CleanText(o.FileName), harness.CleanText(o.MimeType), o.Retry).
		Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&ours}, func() error { return nil })
			return err
		})
	b.Queue(`WITH woken AS (
			UPDATE executions e SET due_at = now()
			WHERE e.session_id = $1 AND e.state = 'PENDING' AND e.lease_owner IS NULL AND e.due_at > now()
			  AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.session_id = $1 AND a.state = 'REQUESTED')
			RETURNING e.execution_id, e.session_id, e.agent_name, e.lease_token, e.seq
		) SELECT w.execution_id, w.session_id, w.agent_name, w.lease_token, s.traceparent FROM woken w JOIN sessions s USING (session_id) ORDER BY w.seq`, c.Session).
		Query(collectRequested(&events))
	b.Queue(`UPDATE sessions s SET due_at = now()
		WHERE session_id = $1 AND state = 'RUNNING' AND lease_owner IS NULL AND retry_at IS NULL AND due_at > now()
		  AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.session_id = $1 AND a.state = 'REQUESTED')
		RETURNING agent_name, lease_token`, c.Session).Query(each(func(row pgx.CollectableRow) error {
		var agent harness.AgentName
		var token int64
		err := row.Scan(&agent, &token)
		events = append(events, sessionDue(c.Session, agent, fmt.Sprintf("%d:files", token)).Event)
		return err
	}))
	if err := s.batch(ctx, b, nil); err != nil {
		return nil, err
	}
	if !ours {
		return nil, ErrLeaseLost // waking the commands that wait is right nevertheless
	}
	return events, nil
}

// fetch asks for those images of the turn's message that nobody has needed yet.
func (w *stepWriter) fetch() {
	if !w.c.Fetch {
		return
	}
	claim := w.c.Claim
	w.Queue(`WITH asked AS (
			UPDATE attachments SET state = 'REQUESTED', due_at = now(), updated_at = now()
			WHERE session_id = $1 AND message_id = $4 AND direction = 'INBOUND' AND kind = 'IMAGE' AND state = 'OFFERED' RETURNING attachment_id
		), first AS (
			SELECT min(attachment_id) AS attachment_id FROM asked HAVING count(*) > 0
		), told AS (
			INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
			SELECT '`+mediaRequestedID+`' || first.attachment_id, $2, $3, s.session_id, s.agent_name, s.channel,
			       jsonb_build_object('session', s.session_id), s.traceparent, now() + interval '`+announceAgain+`'
			FROM first, sessions s WHERE s.session_id = $1 ON CONFLICT (event_id) DO NOTHING
		) SELECT first.attachment_id, s.session_id, s.agent_name, s.channel, s.traceparent FROM first, sessions s WHERE s.session_id = $1`,
		claim.ID, event.MediaRequested, mediaSubject(claim.ID), claim.Turns[len(claim.Turns)-1].Message).Query(func(rows pgx.Rows) error {
		asked, err := pgx.CollectRows(rows, readMediaRequested)
		w.announced = append(w.announced, asked...)
		return err
	})
}

// MediaDue returns the announcement of up to limit sessions with files to fetch
// that are due, held by nobody, and not announced by an outbox row any more.
func (s *Store) MediaDue(ctx context.Context, limit int) ([]event.Event, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT d.attachment_id, d.session_id, s.agent_name, s.channel, s.traceparent
		FROM (SELECT DISTINCT ON (session_id) attachment_id, session_id, due_at FROM attachments
			WHERE state = 'REQUESTED' AND due_at <= now() AND (lease_until IS NULL OR lease_until < now()) ORDER BY session_id, due_at) d
		JOIN sessions s USING (session_id)
		WHERE NOT EXISTS (SELECT 1 FROM outbox o WHERE o.subject = 'media:' || d.session_id)
		ORDER BY d.due_at LIMIT $1`, limit)
	if err != nil {
		return nil, translate(err)
	}
	due, err := pgx.CollectRows(rows, readMediaRequested)
	return due, translate(err)
}

// readMediaRequested reads a row of attachment, session, agent, channel and
// traceparent.
func readMediaRequested(row pgx.CollectableRow) (event.Event, error) {
	e := event.Event{Type: event.MediaRequested}
	var id harness.AttachmentID
	err := row.Scan(&id, &e.Session, &e.Agent, &e.Channel, &e.TraceParent)
	e.ID, e.Payload.Session = mediaRequestedID+string(id), e.Session
	return e, err
}

// InboundFiles is how many files of a conversation its commands find, the newest.
const InboundFiles = 20

// inboundSQL are the files that commands of session $1 find.
const inboundSQL = `(SELECT * FROM attachments WHERE session_id = $1 AND direction = 'INBOUND' ORDER BY created_at DESC, attachment_id DESC LIMIT 20)`

// MediaWait is how long a command waits for files.
type MediaWait struct {
	Look     time.Duration // the next look, if nobody says before that they are there
	Patience time.Duration // since a file was first asked for
}

// AwaitMedia asks for those files of the conversation that nobody has needed
// yet, in one round trip. When some are on their way, the claim is given back
// and waits is true: the execution is due when they are there, or after the
// wait. It returns the events to publish.
func (s *Store) AwaitMedia(ctx context.Context, c *ExecutionClaim, wait MediaWait) (waits bool, events []event.Event, err error) {
	e := executionRequested(c.ID, c.Session, c.Agent, c.Token, c.TraceParent)
	b := &pgx.Batch{}
	b.Queue(lockSessionSQL, c.Session)
	b.Queue(`SELECT fence_execution($1, $2)`, c.ID, c.Token)
	b.Queue(`WITH asked AS (
			UPDATE attachments a SET state = 'REQUESTED', due_at = now(), updated_at = now() FROM `+inboundSQL+` w
			WHERE a.attachment_id = w.attachment_id AND a.state = 'OFFERED' RETURNING a.attachment_id
		), first AS (
			SELECT min(attachment_id) AS attachment_id FROM asked HAVING count(*) > 0
		), told AS (
			INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, traceparent, due_at)
			SELECT '`+mediaRequestedID+`' || first.attachment_id, $2, $3, s.session_id, s.agent_name, s.channel,
			       jsonb_build_object('session', s.session_id), s.traceparent, now() + interval '`+announceAgain+`'
			FROM first, sessions s WHERE s.session_id = $1 ON CONFLICT (event_id) DO NOTHING
		) SELECT first.attachment_id, s.session_id, s.agent_name, s.channel, s.traceparent FROM first, sessions s WHERE s.session_id = $1`,
		c.Session, event.MediaRequested, mediaSubject(c.Session)).Query(func(rows pgx.Rows) (err error) {
		events, err = pgx.CollectRows(rows, readMediaRequested)
		return err
	})
	b.Queue(`WITH until AS (
			SELECT least(now() + $2::interval, max(w.updated_at) + $3::interval) AS due_at FROM `+inboundSQL+` w
			WHERE w.state = 'REQUESTED' AND w.updated_at > now() - $3::interval HAVING count(*) > 0
		), released AS (
			UPDATE executions e SET lease_owner = NULL, lease_until = NULL, due_at = until.due_at, attempts = 0
			FROM until WHERE e.execution_id = $4 AND e.ended_at IS NULL RETURNING e.due_at
		), told AS (
			INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, traceparent, due_at)
			SELECT $5, $6, $4, $1, $7, $8, $9, due_at FROM released ON CONFLICT (event_id) DO NOTHING
		) SELECT EXISTS (SELECT 1 FROM released)`,
		c.Session, wait.Look, wait.Patience, c.ID, e.ID, e.Type, e.Agent, e.Payload, e.TraceParent).
		QueryRow(func(row pgx.Row) error { return row.Scan(&waits) })
	if err := s.batch(ctx, b, nil); err != nil {
		return false, nil, err
	}
	return waits, events, nil
}

// LackingFile is a file of a conversation that a sandbox does not have.
type LackingFile struct {
	Attachment
	Digest  string // SHA-256 of the stored bytes, in hex
	Current bool   // it came with the message that is being answered
}

// LackingFiles returns those files of the claim's conversation that the sandbox
// does not have, the oldest first, in whatever state.
func (s *Store) LackingFiles(ctx context.Context, c *ExecutionClaim, sandbox harness.SandboxID) ([]LackingFile, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT `+attachmentColumns+`, a.digest, COALESCE((SELECT m.state = 'RUNNING' FROM messages m WHERE m.message_id = a.message_id), false)
		FROM `+inboundSQL+` a JOIN sessions s USING (session_id)
		WHERE NOT EXISTS (SELECT 1 FROM attachment_placements p WHERE p.attachment_id = a.attachment_id AND p.sandbox_id = $2)
		ORDER BY a.created_at, a.attachment_id`, c.Session, sandbox)
	if err != nil {
		return nil, translate(err)
	}
	files, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (LackingFile, error) {
		var f LackingFile
		return f, row.Scan(append(f.targets(), &f.Digest, &f.Current)...)
	})
	return files, translate(err)
}

// PlaceFile records that the sandbox has the file.
func (s *Store) PlaceFile(ctx context.Context, sandbox harness.SandboxID, id harness.AttachmentID) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO attachment_placements (sandbox_id, attachment_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, sandbox, id)
	return translate(err)
}

// MadeFile is a file that a command made, stored under its key.
type MadeFile struct {
	harness.Attachment
	Path              string // below /workspace
	ObjectKey, Digest string
}

// StoreMadeFiles records files that the claim's command made; they wait for the
// turn's answer. A path that is recorded already has no effect. ErrLeaseLost:
// nothing is written.
func (s *Store) StoreMadeFiles(ctx context.Context, c *ExecutionClaim, files []MadeFile) error {
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_execution($1, $2)`, c.ID, c.Token)
	for _, f := range files {
		b.Queue(`INSERT INTO attachments (attachment_id, session_id, execution_id, direction, kind, file_name, mime_type, size_bytes, path, state, object_key, digest)
			VALUES ($1, $2, $3, 'OUTBOUND', $4, $5, $6, $7, $8, 'STORED', $9, $10)
			ON CONFLICT (execution_id, path) WHERE execution_id IS NOT NULL DO NOTHING`,
			harness.NewAttachmentID(s.now()), c.Session, c.ID, f.Kind, harness.CleanText(f.FileName), f.MimeType, f.Bytes, harness.CleanText(f.Path), f.ObjectKey, f.Digest)
		// From here on the attachment is its row. One that has no effect has none.
		b.Queue(`DELETE FROM outside_objects o WHERE o.kind = 'FILE' AND o.object_name = $1 AND `+hasFile, f.ObjectKey)
	}
	return s.batch(ctx, b, nil)
}
