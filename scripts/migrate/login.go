package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"tuluat.ai/harness/shared/harness"
)

// login is what one function connects as.
type login struct {
	function string
	user     string
	password harness.Secret
}

// role is the function's role, which the migrations make.
func (l login) role() string { return "tuluat_" + strings.ReplaceAll(l.function, "-", "_") }

// readLogins reads a file per function; names that begin with a dot are those of
// a mounted Secret's own. It reports every wrong file at once.
func readLogins(dir string) ([]login, error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, harness.Errorf(harness.Invalid, "LOGINS_DIR cannot be read: %v", err)
	}
	var logins []login
	var problems []error
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		l, err := readLogin(dir, entry.Name())
		if err == nil {
			for _, other := range logins {
				if other.user == l.user {
					err = fmt.Errorf("connects as %s, as %s does: every function has a login of its own", l.user, other.function)
				}
			}
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("the connection string of %s %w", entry.Name(), err))
			continue
		}
		logins = append(logins, l)
	}
	if len(problems) == 0 && len(logins) == 0 {
		return nil, harness.Errorf(harness.Invalid, "LOGINS_DIR has no file: it needs one per function, named like it, with its connection string")
	}
	return logins, errors.Join(problems...)
}

func readLogin(dir, function string) (login, error) {
	text, err := os.ReadFile(filepath.Join(dir, function))
	if err != nil {
		return login{}, fmt.Errorf("cannot be read: %w", err)
	}
	config, err := pgx.ParseConfig(strings.TrimSpace(string(text)))
	if err != nil { // its text would quote the string
		return login{}, errors.New("is not one of PostgreSQL")
	}
	printable := func(r rune) bool { return r > ' ' && r < 0x7f }
	if config.User == "" || config.Password == "" || strings.ContainsFunc(config.Password, func(r rune) bool { return !printable(r) }) {
		return login{}, errors.New("needs a user, and a password of printable ASCII")
	}
	return login{function: function, user: config.User, password: harness.Secret(config.Password)}, nil
}

// awaitServer returns once the server takes connections: in a first deployment it
// starts beside this Job. What no waiting mends is returned at once.
func awaitServer(ctx context.Context, dsn harness.Secret, wait time.Duration, log *slog.Logger) error {
	if wait <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		err := ping(ctx, dsn)
		if err == nil || harness.KindOf(err) == harness.Invalid {
			return err
		}
		log.Info("the database is not there yet", "err", err)
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

func ping(ctx context.Context, dsn harness.Secret) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(dsn.Reveal())
	if err != nil {
		return harness.Errorf(harness.Invalid, "the connection string is not one of PostgreSQL")
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err == nil {
		return conn.Close(ctx)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && !slices.Contains(unready, pg.Code) {
		return harness.Errorf(harness.Invalid, "the database refuses the connection: %s (%s)", pg.Message, pg.Code)
	}
	return harness.Errorf(harness.Unavailable, "no answer from %s:%d", config.Host, config.Port)
}

// PostgreSQL's error codes, appendix A.
var (
	unready  = []string{"57P03", "53300", "57P01", "57P02"} // starting up, full, shutting down
	repeated = []string{"23505", "42710", "XX000", "40P01"} // somebody else changed the same role just now
)

// lockLogins keeps migrators of one database apart. Roles belong to the server,
// so those of another database may still meet these: then it is tried again.
const lockLogins = "SELECT pg_advisory_xact_lock(hashtext('tuluat-logins'))"

// applyLogins makes each login, or sets its password, in one transaction. The
// server never sees a password, only what verifies it, so no log of its can
// show one.
func applyLogins(ctx context.Context, dsn harness.Secret, logins []login) error {
	conn, err := pgx.Connect(ctx, dsn.Reveal())
	if err != nil {
		return harness.Errorf(harness.Unavailable, "the logins: no connection")
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for attempt := 0; ; attempt++ {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, lockLogins); err != nil {
				return err
			}
			for _, l := range logins {
				if err := apply(ctx, tx, l); err != nil {
					return fmt.Errorf("the login %s of %s: %w", l.user, l.function, err)
				}
			}
			return nil
		})
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || attempt == 5 || !slices.Contains(repeated, pg.Code) {
			return err
		}
		select {
		case <-time.After(time.Duration(attempt+1) * 100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// apply leaves a login that may do what its function's role may and nothing else.
// One that may do more was not made for this: it is refused, not cut down.
func apply(ctx context.Context, tx pgx.Tx, l login) error {
	var exists, mighty, member bool
	var foreign []string
	err := tx.QueryRow(ctx, `
		SELECT r.oid IS NOT NULL, coalesce(r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls OR r.rolname = current_user, false),
		       EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid WHERE m.member = r.oid AND g.rolname = @role),
		       ARRAY(SELECT g.rolname::text FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid WHERE m.member = r.oid AND g.rolname <> @role)
		FROM (SELECT) one LEFT JOIN pg_roles r ON r.rolname = @login`,
		pgx.StrictNamedArgs{"login": l.user, "role": l.role()}).Scan(&exists, &mighty, &member, &foreign)
	if err != nil {
		return err
	}
	name, role := pgx.Identifier{l.user}.Sanitize(), pgx.Identifier{l.role()}.Sanitize()
	switch {
	case mighty:
		return harness.Errorf(harness.Invalid, "it may do more than a function may: choose a login that nothing else uses")
	case len(foreign) > 0:
		return harness.Errorf(harness.Invalid, "it is a member of %s too: choose a login that nothing else uses", strings.Join(foreign, ", "))
	}
	verifier, err := scramVerifier(l.password)
	if err != nil {
		return err
	}
	verb := "CREATE ROLE "
	if exists {
		verb = "ALTER ROLE "
	}
	statements := []string{verb + name + " LOGIN PASSWORD '" + verifier + "'"}
	if !member {
		statements = append(statements, "GRANT "+role+" TO "+name)
	}
	for _, set := range sessionLimits {
		statements = append(statements, "ALTER ROLE "+name+" SET "+set)
	}
	for _, sql := range statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return said(err, l)
		}
	}
	return nil
}

// sessionLimits are what a function asks for when it connects (shared/postgres),
// which a pooler between it and the server may not pass on.
var sessionLimits = []string{
	"statement_timeout = '15s'", "lock_timeout = '5s'", "idle_in_transaction_session_timeout = '20s'", "jit = off", "timezone = 'UTC'",
}

// said explains the failures that an operator can mend.
func said(err error, l login) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return err
	case pg.Code == "42501":
		return harness.Wrap(harness.Denied, err, "the migrating role may not make it: give it CREATEROLE, and ADMIN on "+l.role())
	case pg.Code == "42704":
		return harness.Wrap(harness.Invalid, err, "no migration makes the role "+l.role()+": is "+l.function+" a function of this release?")
	}
	return err
}
