package postgres

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Pod is refused everything in its first moments where the agent that enforces
// network policies has yet to learn of it: a second at most, as seen with
// kube-router. Nobody who woke a function by a request should be told of that, so
// what is refused in a store's youth is tried again.
const (
	youth  = 3 * time.Second
	redial = 50 * time.Millisecond
)

// patient gives config's connections that patience. Afterwards a refusal is one
// at once, as whoever waits for a database that is down must be told.
func patient(config *pgconn.Config, born time.Time) {
	dial, lookup := config.DialFunc, config.LookupFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		return persist(ctx, born, refused, func() (net.Conn, error) { return dial(ctx, network, address) })
	}
	config.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		return persist(ctx, born, unresolved, func() ([]string, error) { return lookup(ctx, host) })
	}
}

// persist calls do until it does not fail by what passes, the store is no longer
// young, or ctx ends.
func persist[T any](ctx context.Context, born time.Time, passes func(error) bool, do func() (T, error)) (T, error) {
	for {
		got, err := do()
		if err == nil || !passes(err) || time.Since(born) >= youth {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, err
		case <-time.After(redial):
		}
	}
}

func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// unresolved reports that nobody answered for a name; that there is no such name
// is an answer.
func unresolved(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && !dns.IsNotFound
}
