package postgres

import (
	"context"
	"fmt"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// LogMark is how far the log was complete when it was read. An entry is of the
// time at which it was written and is seen when its transaction commits, so it may
// come behind newer ones. Whoever follows the log reads, each time, what is since
// Settled of the mark before, and leaves out what they have had.
type LogMark struct {
	Settled time.Time // every entry of before was there; zero: nobody knows of any time

	// What Settled becomes: transactions of a greater number than Number write
	// entries of after At only.
	At     time.Time
	Number int64
}

// String is a LogMark as ParseLogMark takes it: letters, digits and dots.
func (m LogMark) String() string {
	var settled int64
	if !m.Settled.IsZero() {
		settled = m.Settled.UnixMicro()
	}
	return fmt.Sprintf("%d.%d.%d", settled, m.At.UnixMicro(), m.Number)
}

// ParseLogMark reads what String wrote; "" is the mark of who has read nothing.
// harness.Invalid: it is none.
func ParseLogMark(text string) (LogMark, error) {
	if text == "" {
		return LogMark{}, nil
	}
	var m LogMark
	var settled, at int64
	n, err := fmt.Sscanf(text, "%d.%d.%d", &settled, &at, &m.Number)
	if err != nil || n != 3 || settled < 0 || at < 0 || max(settled, at) > maxMark {
		return LogMark{}, harness.Errorf(harness.Invalid, "it is no mark of a log")
	}
	if m.At = time.UnixMicro(at).UTC(); settled > 0 {
		m.Settled = time.UnixMicro(settled).UTC()
	}
	if m.String() != text { // spaces, signs, zeros in front
		return LogMark{}, harness.Errorf(harness.Invalid, "it is no mark of a log")
	}
	return m, nil
}

// maxMark is the year 9999, in microseconds.
const maxMark = 253402300799999999

const (
	// markBack allows for a clock that was set.
	markBack = time.Second
	// markMost is how long a transaction is waited for: ours end within seconds, and
	// one of somebody else must not keep every follower reading the same for ever.
	markMost = 10 * time.Minute
)

// MarkLogs returns the mark of who reads the log right after, having read it with
// before last. Settled moves on when every transaction that could have written an
// older entry has ended.
func (s *Store) MarkLogs(ctx context.Context, before LogMark) (LogMark, error) {
	var now LogMark
	var oldest int64 // of the transactions that have not ended; all before it have
	// The time is from before the statement's snapshot, the number from after it.
	err := s.pool.QueryRow(ctx, `SELECT statement_timestamp(), pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint`).
		Scan(&now.At, &oldest, &now.Number)
	now.At = now.At.UTC()
	next := before
	switch {
	case err != nil:
		return LogMark{}, translate(err)
	case before.Number == 0:
		return now, nil
	case oldest >= before.Number:
		next = now
		next.Settled = before.At.Add(-markBack)
	}
	if most := now.At.Add(-markMost); next.Settled.Before(most) {
		next.Settled = most
	}
	return next, nil
}
