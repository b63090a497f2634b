package postgres

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A young store knocks until it is let in; an old one is told no at once; what no
// time mends is said at once to both.
func TestPatient(t *testing.T) {
	denied := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	unanswered := &net.DNSError{Err: "refused", IsTemporary: true}
	for _, c := range []struct {
		name   string
		born   time.Time
		dial   error // what the first two tries get
		lookup error
		dials  int
		looks  int
		in     bool
	}{
		{"young, kept in", time.Now(), denied, unanswered, 3, 3, true},
		{"old, kept in", time.Now().Add(-youth), denied, unanswered, 1, 1, false},
		{"young, another fault", time.Now(), syscall.EACCES, &net.DNSError{IsNotFound: true}, 1, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dials, looks := 0, 0
			config := &pgconn.Config{
				DialFunc: func(context.Context, string, string) (net.Conn, error) {
					if dials++; dials <= 2 {
						return nil, c.dial
					}
					return nil, nil
				},
				LookupFunc: func(context.Context, string) ([]string, error) {
					if looks++; looks <= 2 {
						return nil, c.lookup
					}
					return []string{"10.0.0.1"}, nil
				},
			}
			patient(config, c.born)
			_, err := config.DialFunc(t.Context(), "tcp", "10.0.0.1:5432")
			if dials != c.dials || (err == nil) != c.in || !c.in && !errors.Is(err, c.dial) {
				t.Errorf("dialled %d times: %v", dials, err)
			}
			_, err = config.LookupFunc(t.Context(), "postgres")
			if looks != c.looks || (err == nil) != c.in || !c.in && !errors.Is(err, c.lookup) {
				t.Errorf("looked up %d times: %v", looks, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := persist(ctx, time.Now(), refused, func() (int, error) { return 0, denied }); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody waits any more: %v", err)
	}
}
