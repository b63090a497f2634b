package postgres

import "github.com/jackc/pgx/v5"

// Summary is what models see in the place of a session's messages up to the number
// UpTo, and of all that came of them.
type Summary struct {
	UpTo   int64
	Text   string // empty: there is nothing in their place
	Reason string // why messages are left out that are not in Text; empty: none is
}

// summary is written once for each message that it goes up to: a repeat says the same.
func (w *stepWriter) summary() {
	if s := w.c.Summary; s != nil {
		w.Queue(`INSERT INTO summaries (session_id, up_to, text, reason) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, w.c.Claim.ID, s.UpTo, s.Text, s.Reason)
	}
}

const summarySQL = `SELECT up_to, text, reason FROM summaries WHERE session_id = $1 ORDER BY up_to DESC LIMIT 1`

func readSummary(row pgx.CollectableRow) (Summary, error) {
	var s Summary
	err := row.Scan(&s.UpTo, &s.Text, &s.Reason)
	return s, err
}
