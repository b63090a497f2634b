package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"

	"tuluat.ai/harness/shared/postgres"
)

const (
	memoryPages  = 1000 // of a list in each round, at most
	memoryGrowth = 1.3  // the most that it may hold after the last round, to what it held after the first
)

// memory prints what the function itself holds after each round over every list
// of its REST API, page by page, and fails where rounds make it larger. On
// systems without /proc it says that it cannot tell.
func memory(ctx context.Context, s *postgres.Store, dsn string, o options) (err error) {
	if o.rounds == 0 {
		return nil
	}
	if _, err := os.Stat("/proc/self/status"); err != nil {
		say("this system does not say what a process holds: the function's memory is not measured")
		return nil
	}
	say("measuring the function's memory, %d rounds over every list", o.rounds)
	api, err := beginAPI(ctx, o.dir, append(os.Environ(), "DATABASE_URL="+dsn, "BROKER_URL=http://127.0.0.1:1"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.end()) }()
	paths, err := listPaths(ctx, s)
	if err != nil {
		return err
	}
	var first, last int64
	for round := range o.rounds {
		pages := 0
		for _, path := range paths {
			n, err := api.walk(ctx, path)
			if err != nil {
				return err
			}
			pages += n
		}
		if last, err = api.held("VmRSS"); err != nil {
			return err
		}
		if round == 0 {
			first = last
		}
		fmt.Printf("management-api after round %d, %d pages: %.1f MiB\n", round+1, pages, float64(last)/(1<<20))
	}
	if float64(last) > memoryGrowth*float64(first) {
		return fmt.Errorf("the function holds %d bytes after the last round and %d after the first: it grows with what it reads", last, first)
	}
	return nil
}

// listPaths is every list of the REST API, with the session, agent and sandbox
// of most rows where one is named.
func listPaths(ctx context.Context, s *postgres.Store) ([]string, error) {
	var session, sandbox string
	if err := s.Pool().QueryRow(ctx, `SELECT (SELECT session_id FROM large), (SELECT sandbox_id FROM sandboxes ORDER BY sandbox_id DESC LIMIT 1)`).Scan(&session, &sandbox); err != nil {
		return nil, err
	}
	agent := string(agentOf(0))
	return []string{
		"/sessions", "/sessions?channel=API", "/sessions?status=FAILED", "/sessions/" + session + "/messages", "/sessions/" + session + "/timeline",
		"/agents/" + agent + "/logs", "/agents/" + agent + "/sandboxes", "/logs", "/logs?level=ERROR", "/executions", "/sandboxes", "/sandboxes/" + sandbox + "/executions",
		"/approvals", "/deadletters", "/audit",
	}, nil
}

// walk reads a list to its end, or memoryPages of it, and returns how many pages.
func (p *process) walk(ctx context.Context, path string) (pages int, err error) {
	query := url.Values{"limit": {strconv.Itoa(pageRows)}}
	for pages < memoryPages {
		l, err := p.list(ctx, path, query)
		if err != nil {
			return pages, fmt.Errorf("%s, page %d: %w", path, pages+1, err)
		}
		if pages++; l.Next == "" {
			break
		}
		query.Set("after", l.Next)
	}
	return pages, nil
}
