package main

import (
	"context"
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// secretWord is in every password and may be in nothing that is printed.
const secretWord = "secret-word"

var functions = []string{"webhook-ingest", "whatsapp-ingest", "telegram-ingest", "agent-step", "sandbox-exec", "reaper-cron", "agent-status", "dead-letter", "management-api", "temporal-bridge"}

// logins is a folder of connection strings, whose roles go when the test ends.
type logins struct {
	t    *testing.T
	dsn  *url.URL
	dir  string
	name func(function string) string // of its login: roles are the whole server's
}

func newLogins(t *testing.T, dsn harness.Secret) *logins {
	t.Helper()
	u, err := url.Parse(dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	l := &logins{t: t, dsn: u, dir: t.TempDir()}
	l.name = func(function string) string { return strings.TrimPrefix(u.Path, "/") + "_" + function }
	for _, function := range functions {
		l.write(function, l.name(function), secretWord+"-"+function)
	}
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), dsn.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		for _, function := range functions {
			if _, err := conn.Exec(context.Background(), "DROP ROLE IF EXISTS "+pgx.Identifier{l.name(function)}.Sanitize()); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

func (l *logins) write(function, user, password string) {
	l.t.Helper()
	u := *l.dsn
	u.User = url.UserPassword(user, password)
	if err := os.WriteFile(filepath.Join(l.dir, function), []byte(u.String()+"\n"), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *logins) run() error {
	return run(context.Background(), func(name string) string {
		return map[string]string{"DATABASE_URL": l.dsn.String(), "LOGINS_DIR": l.dir}[name]
	})
}

// check compares the logins with what they must be: a member of one role, no
// more, with the password of its file.
func (l *logins) check(conn *pgx.Conn) {
	l.t.Helper()
	for _, function := range functions {
		var super, create, login bool
		var roles []string
		var stored string
		err := conn.QueryRow(context.Background(), `
			SELECT rolsuper, rolcreaterole OR rolcreatedb, rolcanlogin, rolpassword,
			       ARRAY(SELECT g.rolname::text FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid WHERE m.member = a.oid)
			FROM pg_authid a WHERE rolname = $1`, l.name(function)).Scan(&super, &create, &login, &stored, &roles)
		if err != nil {
			l.t.Errorf("%s: %v", function, err)
			continue
		}
		if super || create || !login || len(roles) != 1 || roles[0] != "tuluat_"+strings.ReplaceAll(function, "-", "_") {
			l.t.Errorf("%s: super %v, may create %v, may log in %v, member of %v", function, super, create, login, roles)
		}
		text, err := os.ReadFile(filepath.Join(l.dir, function))
		if err != nil {
			l.t.Fatal(err)
		}
		u, err := url.Parse(strings.TrimSpace(string(text)))
		if err != nil {
			l.t.Fatal(err)
		}
		password, _ := u.User.Password()
		if !matches(l.t, stored, password) {
			l.t.Errorf("%s: its stored verifier is not of its password", function)
		}
	}
}

// matches reports whether the server's verifier is that of the password.
func matches(t *testing.T, stored, password string) bool {
	t.Helper()
	encoded, _, ok := strings.Cut(strings.TrimPrefix(stored, "SCRAM-SHA-256$4096:"), "$")
	salt, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil {
		t.Fatalf("%q is no SCRAM verifier", stored)
	}
	ours, err := scramWith(harness.Secret(password), salt)
	if err != nil {
		t.Fatal(err)
	}
	return ours == stored
}

// The server's own verifier of a password is ours.
func TestVerifierIsPostgres(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), postgrestest.Empty(t).Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var stored string
	if _, err := tx.Exec(t.Context(), `SET LOCAL password_encryption = 'scram-sha-256'; CREATE ROLE tuluat_verifier_test PASSWORD 'p4ss''w(rd'`); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), `SELECT rolpassword FROM pg_authid WHERE rolname = 'tuluat_verifier_test'`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if !matches(t, stored, "p4ss'w(rd") || matches(t, stored, "another") {
		t.Errorf("the server stores %s", stored)
	}
}

func TestNewPasswordsAndLimitsTakeHold(t *testing.T) {
	dsn := postgrestest.Empty(t)
	l := newLogins(t, dsn)
	if err := l.run(); err != nil {
		t.Fatal(err)
	}
	l.write("agent-step", l.name("agent-step"), "another")
	if err := l.run(); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	l.check(conn)
	// As a pooler connects: without the settings a function asks for.
	u := *l.dsn
	u.User = url.UserPassword(l.name("agent-step"), "another")
	own, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close(context.Background())
	var timeout string
	var reads, writes bool
	err = own.QueryRow(t.Context(), `SELECT current_setting('statement_timeout'), has_table_privilege('steps', 'INSERT'), has_table_privilege('agents', 'INSERT')`).Scan(&timeout, &reads, &writes)
	if err != nil || timeout != "15s" || !reads || writes {
		t.Errorf("statement_timeout %s, may write steps %v and agents %v, %v", timeout, reads, writes, err)
	}
}

func TestWrongLoginsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*logins)
		want    string
	}{
		"no URL": {func(l *logins) {
			if err := os.WriteFile(filepath.Join(l.dir, "agent-step"), []byte("post gres://"+secretWord+"@"), 0o600); err != nil {
				l.t.Fatal(err)
			}
		}, "agent-step is not one of PostgreSQL"},
		"no password":            {func(l *logins) { l.write("agent-step", "u", "") }, "agent-step needs a user, and a password"},
		"a password of any text": {func(l *logins) { l.write("agent-step", "u", secretWord+"é") }, "agent-step needs a user, and a password of printable ASCII"},
		"two share one":          {func(l *logins) { l.write("agent-step", l.name("agent-status"), secretWord) }, "as agent-status does"},
		"the owner's":            {func(l *logins) { l.write("agent-step", l.dsn.User.Username(), secretWord) }, "may do more than a function may"},
		"another function's":     {func(l *logins) { l.write("webhook-ingest", l.name("agent-step"), secretWord); l.remove("agent-step") }, "member of tuluat_agent_step too"},
		"no such function":       {func(l *logins) { l.write("agent-stop", l.name("agent-stop"), secretWord) }, "no migration makes the role tuluat_agent_stop"},
		"no file":                {func(l *logins) { l.remove(functions...) }, "has no file"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLogins(t, postgrestest.Empty(t))
			if name == "another function's" {
				if err := l.run(); err != nil {
					t.Fatal(err)
				}
			}
			c.prepare(l)
			if err := l.run(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secretWord) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

func (l *logins) remove(functions ...string) {
	for _, function := range functions {
		if err := os.Remove(filepath.Join(l.dir, function)); err != nil {
			l.t.Fatal(err)
		}
	}
}
