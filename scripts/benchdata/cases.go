package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// of makes a page of a list from its rows.
func of[T any](rows []T, limit int, place func(T) view.Place) page[view.Place] {
	p := page[view.Place]{rows: len(rows), end: len(rows) < limit}
	if len(rows) > 0 {
		p.next = place(rows[len(rows)-1])
	}
	return p
}

func agentOf(run int) harness.AgentName {
	return harness.AgentName(fmt.Sprintf("agent-%02d", run*7%39))
}

const rareAgent = harness.AgentName("agent-39")

// casesOf lists every list with each of its filters, and those together that
// people use together.
func casesOf(ctx context.Context, s *postgres.Store) ([]listCase, error) {
	var large harness.SessionID
	var sessions, logged []harness.SessionID
	var sandboxes []harness.SandboxID
	if err := s.Pool().QueryRow(ctx, `SELECT (SELECT session_id FROM large),
		(SELECT array_agg(session_id) FROM (SELECT session_id FROM made WHERE n % 2000 = 0 LIMIT 500) s),
		(SELECT array_agg(sandbox_id) FROM (SELECT sandbox_id FROM sandboxes LIMIT 500) b),
		(SELECT array_agg(session_id) FROM (SELECT session_id FROM agent_execution_logs TABLESAMPLE SYSTEM (0.1) LIMIT 500) l)`).Scan(&large, &sessions, &sandboxes, &logged); err != nil {
		return nil, err
	}
	now := time.Now()
	all := sessionCases(s, now)
	all = append(all, insideCases(s, large, sessions)...)
	all = append(all, workCases(s, now, sessions, sandboxes)...)
	all = append(all, logCases(s, now, logged)...)
	return append(all, restCases(s, now)...), nil
}

func sessionCases(s *postgres.Store, now time.Time) []listCase {
	var all []listCase
	add := func(what string, filter func(run int) postgres.SessionFilter) {
		all = append(all, ask[view.Place]{"sessions " + what, s, func(ctx context.Context, run int, after view.Place, limit int) (page[view.Place], error) {
			rows, err := s.ListSessions(ctx, filter(run), after, limit)
			return of(rows, limit, func(v view.Session) view.Place { return view.Place{At: v.CreatedAt, ID: string(v.ID)} }), err
		}})
	}
	add("", func(int) postgres.SessionFilter { return postgres.SessionFilter{} })
	add("agent", func(run int) postgres.SessionFilter { return postgres.SessionFilter{Agent: agentOf(run)} })
	add("agent with few", func(int) postgres.SessionFilter { return postgres.SessionFilter{Agent: rareAgent} })
	for _, state := range harness.SessionStates() {
		add("status="+string(state), func(int) postgres.SessionFilter {
			return postgres.SessionFilter{States: []harness.SessionState{state}}
		})
		add("agent status="+string(state), func(run int) postgres.SessionFilter {
			return postgres.SessionFilter{Agent: agentOf(run), States: []harness.SessionState{state}}
		})
	}
	add("status=FAILED,BLOCKED,RUNNING", func(int) postgres.SessionFilter {
		return postgres.SessionFilter{States: []harness.SessionState{harness.SessionFailed, harness.SessionBlocked, harness.SessionRunning}}
	})
	for _, channel := range []harness.Channel{harness.ChannelAPI, harness.ChannelWhatsApp, harness.ChannelTelegram, harness.ChannelWebhook} {
		add("channel="+string(channel), func(int) postgres.SessionFilter { return postgres.SessionFilter{Channel: channel} })
	}
	add("agent channel=WHATSAPP status=FAILED", func(run int) postgres.SessionFilter {
		return postgres.SessionFilter{Agent: agentOf(run), Channel: harness.ChannelWhatsApp, States: []harness.SessionState{harness.SessionFailed}}
	})
	add("channelUserId", func(run int) postgres.SessionFilter {
		return postgres.SessionFilter{ChannelUserID: fmt.Sprint("person-", run*5)}
	})
	add("channelUserId of 50,000 sessions", func(int) postgres.SessionFilter { return postgres.SessionFilter{ChannelUserID: "person-busy"} })
	add("since a day", func(int) postgres.SessionFilter { return postgres.SessionFilter{Since: now.Add(-24 * time.Hour)} })
	add("until 60 days ago", func(int) postgres.SessionFilter {
		return postgres.SessionFilter{Until: now.Add(-60 * 24 * time.Hour)}
	})
	add("agent, of one hour a month ago", func(run int) postgres.SessionFilter {
		return postgres.SessionFilter{Agent: agentOf(run), Since: now.Add(-721 * time.Hour), Until: now.Add(-720 * time.Hour)}
	})
	return all
}

func insideCases(s *postgres.Store, large harness.SessionID, sessions []harness.SessionID) []listCase {
	one := func(run int) harness.SessionID { return sessions[run%len(sessions)] }
	var all []listCase
	for _, c := range []struct {
		what string
		of   func(int) harness.SessionID
	}{{"", one}, {" of 25,000 turns", func(int) harness.SessionID { return large }}} {
		all = append(all, ask[int64]{"messages of a session" + c.what, s, func(ctx context.Context, run int, after int64, limit int) (page[int64], error) {
			rows, err := s.ListMessages(ctx, c.of(run), after, limit)
			p := page[int64]{rows: len(rows), end: len(rows) < limit}
			if len(rows) > 0 {
				p.next = rows[len(rows)-1].Seq
			}
			return p, err
		}}, ask[int64]{"events of a session" + c.what, s, func(ctx context.Context, run int, after int64, limit int) (page[int64], error) {
			rows, err := s.SessionEvents(ctx, c.of(run), after, limit)
			p := page[int64]{rows: len(rows), end: len(rows) < limit}
			if len(rows) > 0 {
				p.next = rows[len(rows)-1].Seq
			}
			return p, err
		}}, ask[view.Place]{"timeline of a session" + c.what, s, func(ctx context.Context, run int, after view.Place, limit int) (page[view.Place], error) {
			rows, next, err := s.Timeline(ctx, c.of(run), after, limit)
			return page[view.Place]{next: next, rows: len(rows), end: next.ID == ""}, err
		}}, ask[view.Place]{"timeline of a session, newest first" + c.what, s, func(ctx context.Context, run int, before view.Place, limit int) (page[view.Place], error) {
			rows, next, err := s.NewestTimeline(ctx, c.of(run), before, limit)
			return page[view.Place]{next: next, rows: len(rows), end: next.ID == ""}, err
		}})
	}
	return all
}

func workCases(s *postgres.Store, now time.Time, sessions []harness.SessionID, sandboxes []harness.SandboxID) []listCase {
	var all []listCase
	execution := func(what string, filter func(run int) postgres.ExecutionFilter) {
		all = append(all, ask[view.Place]{"executions " + what, s, func(ctx context.Context, run int, after view.Place, limit int) (page[view.Place], error) {
			rows, err := s.ListExecutions(ctx, filter(run), after, limit)
			return of(rows, limit, func(v view.Execution) view.Place { return view.Place{At: v.CreatedAt, ID: string(v.ID)} }), err
		}})
	}
	execution("", func(int) postgres.ExecutionFilter { return postgres.ExecutionFilter{} })
	execution("agent", func(run int) postgres.ExecutionFilter { return postgres.ExecutionFilter{Agent: agentOf(run)} })
	execution("session", func(run int) postgres.ExecutionFilter {
		return postgres.ExecutionFilter{Session: sessions[run%len(sessions)]}
	})
	execution("sandbox", func(run int) postgres.ExecutionFilter {
		return postgres.ExecutionFilter{Sandbox: sandboxes[run%len(sandboxes)]}
	})
	for _, state := range []harness.ExecutionState{harness.ExecutionPending, harness.ExecutionRunning, harness.ExecutionCompleted, harness.ExecutionFailed, harness.ExecutionUnknown, harness.ExecutionDiskLimit} {
		execution("status="+string(state), func(int) postgres.ExecutionFilter {
			return postgres.ExecutionFilter{States: []harness.ExecutionState{state}}
		})
	}
	execution("agent status=UNKNOWN", func(run int) postgres.ExecutionFilter {
		return postgres.ExecutionFilter{Agent: agentOf(run), States: []harness.ExecutionState{harness.ExecutionUnknown}}
	})
	execution("since a day", func(int) postgres.ExecutionFilter { return postgres.ExecutionFilter{Since: now.Add(-24 * time.Hour)} })
	sandbox := func(what string, filter func(run int) postgres.SandboxFilter) {
		all = append(all, ask[view.Place]{"sandboxes " + what, s, func(ctx context.Context, run int, after view.Place, limit int) (page[view.Place], error) {
			rows, err := s.ListSandboxes(ctx, filter(run), after, limit)
			return of(rows, limit, func(v view.Sandbox) view.Place { return view.Place{At: v.CreatedAt, ID: string(v.ID)} }), err
		}})
	}
	sandbox("", func(int) postgres.SandboxFilter { return postgres.SandboxFilter{} })
	sandbox("agent", func(run int) postgres.SandboxFilter { return postgres.SandboxFilter{Agent: agentOf(run)} })
	sandbox("session", func(run int) postgres.SandboxFilter {
		return postgres.SandboxFilter{Session: sessions[run%len(sessions)]}
	})
	sandbox("status=READY", func(int) postgres.SandboxFilter {
		return postgres.SandboxFilter{States: []harness.SandboxState{harness.SandboxReady}}
	})
	sandbox("agent status=GONE", func(run int) postgres.SandboxFilter {
		return postgres.SandboxFilter{Agent: agentOf(run), States: []harness.SandboxState{harness.SandboxGone}}
	})
	return all
}

func logCases(s *postgres.Store, now time.Time, logged []harness.SessionID) []listCase {
	var all []listCase
	add := func(what string, filter func(run int) postgres.LogFilter) {
		all = append(all, ask[view.Place]{"logs " + what, s, func(ctx context.Context, run int, after view.Place, limit int) (page[view.Place], error) {
			rows, next, err := s.ListLogs(ctx, filter(run), after, limit)
			return page[view.Place]{next: next, rows: len(rows), end: next.ID == ""}, err
		}})
	}
	add("", func(int) postgres.LogFilter { return postgres.LogFilter{} })
	add("agent", func(run int) postgres.LogFilter { return postgres.LogFilter{Agent: agentOf(run)} })
	add("agent with few", func(int) postgres.LogFilter { return postgres.LogFilter{Agent: rareAgent} })
	add("session", func(run int) postgres.LogFilter { return postgres.LogFilter{Session: logged[run%len(logged)]} })
	for _, level := range []harness.Level{harness.LevelError, harness.LevelWarn, harness.LevelInfo, harness.LevelDebug} {
		add("level="+string(level), func(int) postgres.LogFilter { return postgres.LogFilter{Levels: []harness.Level{level}} })
		add("agent level="+string(level), func(run int) postgres.LogFilter {
			return postgres.LogFilter{Agent: agentOf(run), Levels: []harness.Level{level}}
		})
	}
	add("text of most", func(int) postgres.LogFilter { return postgres.LogFilter{Text: "COMPLETED"} })
	add("text of one in 100,000", func(int) postgres.LogFilter { return postgres.LogFilter{Text: "Zanzibar"} })
	add("agent text of few", func(run int) postgres.LogFilter { return postgres.LogFilter{Agent: agentOf(run), Text: "Zanzibar"} })
	add("agent level=ERROR text of none", func(run int) postgres.LogFilter {
		return postgres.LogFilter{Agent: agentOf(run), Levels: []harness.Level{harness.LevelError}, Text: "nowhere"}
	})
	add("level=ERROR text of none", func(int) postgres.LogFilter {
		return postgres.LogFilter{Levels: []harness.Level{harness.LevelError}, Text: "nowhere"}
	})
	add("since an hour", func(int) postgres.LogFilter { return postgres.LogFilter{Since: now.Add(-time.Hour)} })
	add("agent, of one hour 20 days ago", func(run int) postgres.LogFilter {
		return postgres.LogFilter{Agent: agentOf(run), Since: now.Add(-481 * time.Hour), Until: now.Add(-480 * time.Hour)}
	})
	return all
}

func restCases(s *postgres.Store, now time.Time) []listCase {
	var all []listCase
	approval := func(what string, filter func(run int) postgres.ApprovalFilter) {
		all = append(all, ask[view.Place]{"approvals " + what, s, func(ctx context.Context, run int, after view.Place, limit int) (page[view.Place], error) {
			rows, err := s.ListApprovals(ctx, filter(run), after, limit)
			return of(rows, limit, func(v view.Approval) view.Place { return view.Place{At: v.RequestedAt, ID: string(v.ID)} }), err
		}})
	}
	approval("", func(int) postgres.ApprovalFilter { return postgres.ApprovalFilter{} })
	approval("status=PENDING", func(int) postgres.ApprovalFilter {
		return postgres.ApprovalFilter{States: []harness.ApprovalState{harness.ApprovalPending}}
	})
	approval("agent", func(run int) postgres.ApprovalFilter { return postgres.ApprovalFilter{Agent: agentOf(run)} })
	approval("agent status=PENDING", func(run int) postgres.ApprovalFilter {
		return postgres.ApprovalFilter{Agent: agentOf(run), States: []harness.ApprovalState{harness.ApprovalPending}}
	})
	letter := func(what string, f postgres.DeadLetterFilter) {
		all = append(all, ask[view.Place]{"dead letters " + what, s, func(ctx context.Context, _ int, after view.Place, limit int) (page[view.Place], error) {
			rows, err := s.ListDeadLetters(ctx, f, after, limit)
			return of(rows, limit, func(v view.DeadLetter) view.Place {
				return view.Place{At: v.ReceivedAt, ID: strconv.FormatInt(v.ID, 10)}
			}), err
		}})
	}
	letter("", postgres.DeadLetterFilter{})
	letter("status=OPEN", postgres.DeadLetterFilter{States: []postgres.DeadLetterState{postgres.DeadLetterOpen}})
	letter("status=REPLAYED (none)", postgres.DeadLetterFilter{States: []postgres.DeadLetterState{postgres.DeadLetterReplayed}})
	letter("type", postgres.DeadLetterFilter{Type: "ai.tuluat.session.due.v1"})
	audit := func(what string, f postgres.AuditFilter) {
		all = append(all, ask[view.Place]{"audit " + what, s, func(ctx context.Context, _ int, after view.Place, limit int) (page[view.Place], error) {
			rows, err := s.ListAudit(ctx, f, after, limit)
			return of(rows, limit, func(v view.AuditEntry) view.Place {
				return view.Place{At: v.CreatedAt, ID: strconv.FormatInt(v.ID, 10)}
			}), err
		}})
	}
	audit("", postgres.AuditFilter{})
	audit("actor", postgres.AuditFilter{Actor: "person-3"})
	audit("actor with few", postgres.AuditFilter{Actor: "rare"})
	audit("object since a day", postgres.AuditFilter{Object: "agent-03", Since: now.Add(-24 * time.Hour)})
	return append(all, ask[string]{"channels", s, func(ctx context.Context, _ int, after string, limit int) (page[string], error) {
		rows, err := s.ListChannels(ctx, after, limit)
		p := page[string]{rows: len(rows), end: len(rows) < limit}
		if len(rows) > 0 {
			p.next = string(rows[len(rows)-1].Channel) + "/" + rows[len(rows)-1].Account
		}
		return p, err
	}}, ask[string]{"agents, how they stand", s, func(ctx context.Context, _ int, _ string, _ int) (page[string], error) {
		rows, err := s.AgentRows(ctx)
		return page[string]{rows: len(rows), end: true}, err
	}})
}
