package postgres

import (
	"context"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"tuluat.ai/harness/shared/harness"
)

// ErrLeaseLost says that somebody else has claimed the row since: whatever the
// caller wanted to write must not be written.
var ErrLeaseLost = &harness.Error{Kind: harness.Conflict, Message: "the lease was lost"}

// ErrNothingDue says that the row is leased by another or has nothing to do: a
// success for whoever delivered the event.
var ErrNothingDue = &harness.Error{Kind: harness.Conflict, Message: "nothing is due"}

// ErrLinked says that the conversation is open already and not linked to the same
// Temporal workflow: nothing is written.
var ErrLinked = &harness.Error{Kind: harness.Conflict, Message: "the conversation is open already and linked to another Temporal workflow, or to none"}

// ErrArchived says that what was asked for is in an object of the archive.
var ErrArchived = &harness.Error{Kind: harness.Conflict, Message: "it is in the archive"}

// translate turns an error of pgx into one of ours, here and nowhere else.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*harness.Error](err); ok {
		return err
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return harness.Wrap(harness.NotFound, err, "no such row")
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return translateServer(pg)
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return harness.Wrap(harness.Unavailable, err, "the database does not answer")
	}
	if _, ok := errors.AsType[net.Error](err); ok || pgconn.SafeToRetry(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return harness.Wrap(harness.Unavailable, err, "the database does not answer")
	}
	if _, ok := errors.AsType[pgx.ScanArgError](err); ok { // to ask again would not help
		return harness.Wrap(harness.Internal, err, "a row is not what this function takes it for")
	}
	// A connection that breaks mid-statement surfaces as io.ErrUnexpectedEOF or
	// "conn closed"; nothing of pgx's is a fault of the caller, so try again.
	return harness.Wrap(harness.Unavailable, err, "the database connection failed")
}

// translateServer maps SQLSTATE codes (PostgreSQL documentation, appendix A).
func translateServer(pg *pgconn.PgError) error {
	switch {
	case pg.Code == "TU001":
		return ErrLeaseLost
	case pg.Code == "TU002":
		return ErrLinked
	case pg.Code == "23505" || pg.Code == "23P01":
		return harness.Wrap(harness.Conflict, pg, "it exists already ("+pg.ConstraintName+")")
	case pg.Code[:2] == "23": // another integrity constraint: a rule of ours was broken
		return harness.Wrap(harness.Internal, pg, "a rule of the store was broken ("+pg.ConstraintName+")")
	case pg.Code[:2] == "08" || pg.Code[:2] == "53" || pg.Code[:2] == "57" || pg.Code[:2] == "40" || pg.Code == "55P03" || pg.Code == "0A000":
		return harness.Wrap(harness.Unavailable, pg, "the database cannot do it now")
	case pg.Code == "42P01" || pg.Code == "42703" || pg.Code == "42883":
		return harness.Wrap(harness.Unavailable, pg, "the database schema is older than this function: run the migrations")
	case pg.Code[:2] == "22":
		return harness.Wrap(harness.Invalid, pg, "a value cannot be stored")
	default:
		return harness.Wrap(harness.Internal, pg, "the database refused a statement")
	}
}
