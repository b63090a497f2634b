// Package postgres is the store: rows are the queue, events only wake. Each
// word has a file. Exported methods own their transaction, most of them one
// round trip (a data-modifying statement, or a batch, which PostgreSQL runs as
// one transaction); none holds a transaction over a network call.
//
// A claim takes a row's lease and raises its fencing token; every later write
// of the claim carries the token and fails with ErrLeaseLost when somebody else
// has claimed since. All clocks are the database's.
package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"tuluat.ai/harness/shared/harness"
)

// Store is the system's memory. It is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	now  func() time.Time // for ids only; rows are stamped by the database
}

// Options bound a Store.
type Options struct {
	MaxConns int32 // connections of this process; default 4
	Now      func() time.Time

	// KeepPlans has the server plan each statement once per connection, whatever its
	// values are (plan_cache_mode). It is for functions that find rows by their keys:
	// to plan a claim anew costs more than to run it. Lists with filters need theirs anew.
	KeepPlans bool
}

// statementTimeout is the server's own limit on one statement: it ends a
// statement without tearing the connection down, which a cancelled context does.
const statementTimeout = "15000" // milliseconds

// Open returns a Store for dsn. It opens no connection: the database may be
// down, and the first use tries. Behind PgBouncer in transaction mode put
// default_query_exec_mode=exec into dsn.
func Open(dsn harness.Secret, o Options) (*Store, error) {
	config, err := pgxpool.ParseConfig(dsn.Reveal())
	if err != nil {
		// The parser's error quotes the DSN; a person gets the words only.
		return nil, harness.Errorf(harness.Invalid, "DATABASE_URL is not a PostgreSQL connection string")
	}
	config.MaxConns = o.MaxConns
	if config.MaxConns == 0 {
		config.MaxConns = 4
	}
	config.MinConns = 0
	config.MaxConnIdleTime = 30 * time.Second
	config.MaxConnLifetime = 10 * time.Minute
	config.MaxConnLifetimeJitter = time.Minute
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	patient(&config.ConnConfig.Config, time.Now())
	params := map[string]string{
		"statement_timeout": statementTimeout, "lock_timeout": "5000",
		"idle_in_transaction_session_timeout": "20000", "timezone": "UTC", "application_name": "tuluat",
		// Compiling a statement costs more than any of ours takes: a quarter of a
		// second where a large request made it look expensive.
		"jit": "off",
	}
	if o.KeepPlans {
		params["plan_cache_mode"] = "force_generic_plan"
	}
	for name, value := range params {
		if _, set := config.ConnConfig.RuntimeParams[name]; !set {
			config.ConnConfig.RuntimeParams[name] = value
		}
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, harness.Errorf(harness.Invalid, "DATABASE_URL is not usable")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{pool: pool, now: o.Now}, nil
}

// Close closes every connection.
func (s *Store) Close() { s.pool.Close() }

// Pool is for tests and tools that read rows no method returns.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// again runs do, which runs one transaction, up to three times when PostgreSQL
// ends it to break a deadlock: it was rolled back as a whole. Those who store
// what a provider said and those who send replies meet on the same chats in
// orders that nobody can foresee.
func again(do func() error) error {
	err := do()
	for range 2 {
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != deadlockDetected {
			return err
		}
		err = do()
	}
	return err
}

// deadlockDetected is of PostgreSQL's error codes, appendix A.
const deadlockDetected = "40P01"

// batch runs b as one transaction in one round trip. read, if not nil, takes
// the results in order.
func (s *Store) batch(ctx context.Context, b *pgx.Batch, read func(pgx.BatchResults) error) error {
	results := s.pool.SendBatch(ctx, b)
	var err error
	if read != nil {
		err = read(results)
	}
	return translate(errors.Join(err, results.Close()))
}
