package postgres

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Comparison is one of rows and objects of a kind, while it is under way: it may
// take several passes of the sweep.
type Comparison struct {
	view.Tally
	Next   string `json:"next,omitempty"`   // behind which object it goes on
	Reason string `json:"reason,omitempty"` // why something is left

	RestoredAt time.Time `json:"-"` // when the rows became those of an earlier moment; zero: never
}

// Comparing returns the comparison of the kind that is under way, or a new one if
// the last that came to its end is as old as every. due is false when it is not.
func (s *Store) Comparing(ctx context.Context, kind harness.ObjectKind, every time.Duration) (c Comparison, due bool, err error) {
	var progress []byte
	var restored *time.Time
	err = s.pool.QueryRow(ctx, `SELECT progress, restored_at, progress IS NOT NULL OR compared_at IS NULL OR compared_at <= now() - $2::interval FROM comparisons WHERE kind = $1`, kind, every).
		Scan(&progress, &restored, &due)
	if restored != nil {
		c.RestoredAt = *restored
	}
	if err != nil || progress == nil {
		return c, due, translate(err)
	}
	return c, due, json.Unmarshal(progress, &c)
}

// KeepComparing writes how far a comparison is.
func (s *Store) KeepComparing(ctx context.Context, kind harness.ObjectKind, c Comparison) error {
	text, err := json.Marshal(c)
	if err == nil {
		_, err = s.count(ctx, `UPDATE comparisons SET progress = $2, updated_at = now() WHERE kind = $1`, kind, string(text))
	}
	return err
}

// Compared writes what a whole comparison came to.
func (s *Store) Compared(ctx context.Context, kind harness.ObjectKind, c Comparison) error {
	text, err := json.Marshal(c.Tally)
	if err == nil {
		_, err = s.count(ctx, `UPDATE comparisons SET tally = $2, reason = $3, progress = NULL, compared_at = now(), updated_at = now() WHERE kind = $1`, kind, string(text), clip(c.Reason))
	}
	return err
}

// NotCompared writes why a comparison breaks off: one that is under way goes on
// where it was.
func (s *Store) NotCompared(ctx context.Context, kind harness.ObjectKind, reason string) error {
	_, err := s.count(ctx, `UPDATE comparisons SET reason = $2, updated_at = now() WHERE kind = $1`, kind, clip(reason))
	return err
}

// NeverCompared writes that nothing of these kinds can be compared here, and
// forgets what was before.
func (s *Store) NeverCompared(ctx context.Context, kinds []harness.ObjectKind, reason string) error {
	_, err := s.count(ctx, `UPDATE comparisons SET reason = $2, tally = '{}', progress = NULL, compared_at = NULL, updated_at = now()
		WHERE kind = ANY ($1) AND (reason <> $2 OR compared_at IS NOT NULL OR progress IS NOT NULL)`, kinds, clip(reason))
	return err
}

// ListLeaks returns what the last comparison of each kind came to, in the order of
// harness.ObjectKinds.
func (s *Store) ListLeaks(ctx context.Context) ([]view.Leaks, error) {
	return list(ctx, s, listLeaksSQL, []any{harness.ObjectKinds()}, readLeaks)
}

const listLeaksSQL = `SELECT kind, tally, compared_at, reason FROM comparisons ORDER BY array_position($1::text[], kind)`

func readLeaks(row pgx.CollectableRow) (view.Leaks, error) {
	var v view.Leaks
	var tally []byte
	if err := row.Scan(&v.Kind, &tally, &v.ComparedAt, &v.Reason); err != nil {
		return v, err
	}
	return v, json.Unmarshal(tally, &v.Tally)
}

// LastSweep returns how the last pass of the sweep went.
func (s *Store) LastSweep(ctx context.Context) (view.Sweep, error) {
	v := view.Sweep{Items: []view.SweepItem{}}
	var findings []byte
	err := s.pool.QueryRow(ctx, `SELECT completed_at, extract(epoch FROM now() - completed_at)::float8, (SELECT findings FROM sweep_reports ORDER BY sweep_report_id DESC LIMIT 1)
		FROM sweeps WHERE sweep_name = 'main'`).Scan(&v.CompletedAt, &v.AgeSeconds, &findings)
	if err != nil || findings == nil {
		return v, translate(err)
	}
	var of map[string]Finding
	if err := json.Unmarshal(findings, &of); err != nil {
		return v, harness.Wrap(harness.Internal, err, "the report of the sweep cannot be read")
	}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		f := of[name]
		v.Items = append(v.Items, view.SweepItem{Name: name, Found: f.Found, Done: f.Done, Left: f.Left, Reason: f.Error, Note: f.Note})
	}
	return v, nil
}
