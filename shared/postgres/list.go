package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Lists of things with typed ids are ordered by id, newest first: an id begins
// with the time at which its process made it, so that a list is in the order of
// creation up to the difference between two machines' clocks, and the primary
// key is its index. Entries of logs and of the audit are ordered by the
// database's time.
//
// Neither is the order in which rows are committed: one whose transaction began
// early, or whose process has a slow clock, may come behind a page that was read
// already, and is then on none of that walk, as everything newer than its begin.
// The next walk has it. Nobody follows such a list by its newest row: messages,
// session events and the timeline are numbered under their session's lock, and
// the log has marks.

// clockSkew is how far the clock of a process may be from the database's before
// a list that is bounded by time leaves something out.
const clockSkew = 10 * time.Minute

// query collects the conditions of one list. Only what is asked for is in its
// text, so that every shape of it has a plan of its own.
type query struct {
	where []string
	args  []any
}

// arg adds an argument and returns its place in the text.
func (q *query) arg(value any) string {
	q.args = append(q.args, value)
	return fmt.Sprintf("$%d", len(q.args))
}

// equal adds a condition, unless nothing is asked for.
func (q *query) equal(column, value string) {
	if value != "" {
		q.and(column + " = " + q.arg(value))
	}
}

func (q *query) and(condition string) { q.where = append(q.where, condition) }

// behind begins the list after a place.
func (q *query) behind(column string, after view.Place) {
	if after.ID != "" {
		q.and(column + " < " + q.arg(after.ID))
	}
}

// between bounds a list of ids with the prefix by when their rows were made:
// exactly by created, roughly by id, which says where to begin and to stop.
func (q *query) between(id, created, prefix string, since, until time.Time) {
	if !since.IsZero() {
		q.and(id + " >= " + q.arg(harness.IDFloor(prefix, since.Add(-clockSkew))))
		q.and(created + " >= " + q.arg(since))
	}
	if !until.IsZero() {
		q.and(id + " < " + q.arg(harness.IDFloor(prefix, until.Add(clockSkew))))
		q.and(created + " < " + q.arg(until))
	}
}

// in adds that column is one of the states. They are part of the text, so that
// the planner sees which partial index holds them; known keeps them to ours.
func in[S ~string](q *query, column string, states []S, known func(S) bool) error {
	list, err := quoted(states, known)
	if err == nil && list != "" {
		q.and(column + " IN (" + list + ")")
	}
	return err
}

// once is each of the states once, in order.
func once[S ~string](states []S) []S { return slices.Compact(slices.Sorted(slices.Values(states))) }

func quoted[S ~string](states []S, known func(S) bool) (string, error) {
	var all []string
	for _, state := range once(states) {
		if !known(state) {
			return "", harness.Errorf(harness.Invalid, "%q is no state of these", string(state))
		}
		all = append(all, "'"+string(state)+"'")
	}
	return strings.Join(all, ", "), nil
}

// sql is the conditions joined, true when there is none.
func (q *query) sql() string {
	if len(q.where) == 0 {
		return "true"
	}
	return strings.Join(q.where, " AND ")
}

// list runs a list's statement. It is planned with its arguments every time: the
// plan that is best on average is bad for a state or an agent with few rows.
func list[T any](ctx context.Context, s *Store, sql string, args []any, read pgx.RowToFunc[T]) ([]T, error) {
	rows, err := s.pool.Query(ctx, sql, append([]any{pgx.QueryExecModeCacheDescribe}, args...)...)
	if err != nil {
		return nil, translate(err)
	}
	items, err := pgx.CollectRows(rows, read)
	return items, translate(err)
}

// one is list of the only row. harness.NotFound: there is none.
func one[T any](ctx context.Context, s *Store, what, sql string, args []any, read pgx.RowToFunc[T]) (T, error) {
	var none T
	found, err := list(ctx, s, sql, args, read)
	if err != nil {
		return none, err
	}
	if len(found) == 0 {
		return none, harness.Errorf(harness.NotFound, "there is no such %s", what)
	}
	return found[0], nil
}
