package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Reservation is what is held of the budgets of a day until a step's commit.
type Reservation struct {
	Day    time.Time
	User   string // subject of USER_DAY; empty: that has no budget
	Amount harness.Spending
}

// BudgetOverrun is a budget that has no room.
type BudgetOverrun struct {
	Scope                 harness.BudgetScope
	Kind                  harness.BudgetKind
	Limit, Used, Reserved int64
	Day                   time.Time
}

// UserSubject is how budgets know a person on a channel with an agent.
func UserSubject(agent harness.AgentName, channel harness.Channel, channelUserID string) string {
	return string(agent) + " " + string(channel) + " " + channelUserID
}

// Reserve holds want of every budget of a day that b sets, by the clock of the
// database, or of none: then it returns the one without room. Of want.Time it may
// hold less, as much as there is. What humans have granted of the day is added to
// the limits of b. Those who race never hold and use more together
// than a budget has. What nobody gives back, because a process died, counts as
// spent.
func (s *Store) Reserve(ctx context.Context, agent harness.AgentName, user string, b harness.Budget, want harness.Spending) (Reservation, *BudgetOverrun, error) {
	return s.reserve(ctx, agent, user, b, want, false)
}

// ReserveWhole is Reserve that holds all of want.Time, or nothing.
func (s *Store) ReserveWhole(ctx context.Context, agent harness.AgentName, user string, b harness.Budget, want harness.Spending) (Reservation, *BudgetOverrun, error) {
	return s.reserve(ctx, agent, user, b, want, true)
}

func (s *Store) reserve(ctx context.Context, agent harness.AgentName, user string, b harness.Budget, want harness.Spending, whole bool) (Reservation, *BudgetOverrun, error) {
	r := Reservation{Amount: want}
	var scopes, subjects []string
	var most []int64
	for _, of := range []struct {
		scope   harness.BudgetScope
		subject string
		limits  *harness.BudgetLimits
	}{{harness.ScopeAgentDay, string(agent), b.PerAgentDay}, {harness.ScopeUserDay, user, b.PerUserDay}} {
		if of.limits != nil || of.scope == harness.ScopeAgentDay { // of the agent it is held in any case, so that its usage is whole
			scopes, subjects, most = append(scopes, string(of.scope)), append(subjects, of.subject), append(most, of.limits.Values()...)
		}
		if of.limits != nil && of.scope == harness.ScopeUserDay {
			r.User = user
		}
	}
	var millis int64
	var scope *harness.BudgetScope
	var kind *harness.BudgetKind
	var used, reserved, limit *int64
	err := s.pool.QueryRow(ctx, `SELECT on_day, granted, over_scope, over_kind, over_used, over_reserved, over_limit FROM reserve_budget($1, $2, $3, $4, $5)`,
		scopes, subjects, most, want.Values(), whole).Scan(&r.Day, &millis, &scope, &kind, &used, &reserved, &limit)
	if err != nil {
		return r, nil, translate(err)
	}
	if scope != nil {
		return r, &BudgetOverrun{Scope: *scope, Kind: *kind - 1, Limit: *limit, Used: *used, Reserved: *reserved, Day: r.Day}, nil
	}
	r.Amount.Time = time.Duration(millis) * time.Millisecond
	return r, nil, nil
}

func (x *NewExecution) reserved() []any {
	if x.Reserved == nil {
		return []any{0, nil, ""}
	}
	return []any{x.Reserved.Amount.ExecutionTime.Milliseconds(), x.Reserved.Day, x.Reserved.User}
}

// spentSQL adds amounts $17 to what a session, and its turn, have used.
const spentSQL = `used_steps = used_steps + ($17::bigint[])[1], used_tool_calls = used_tool_calls + ($17::bigint[])[2],
				used_millis = used_millis + ($17::bigint[])[3], used_tokens = used_tokens + ($17::bigint[])[4], used_cost = used_cost + ($17::bigint[])[5],
				turn_cost = CASE WHEN $6 THEN 0 ELSE turn_cost END + ($17::bigint[])[5],
				turn_execution_millis = CASE WHEN $6 THEN 0 ELSE turn_execution_millis END`

// settleSQL adds to the days of budgets what was used: settlements $18. The
// agent's day is first, as everywhere.
const settleSQL = `INSERT INTO budget_usage AS b (scope, subject, day, used_steps, used_tool_calls, used_millis, used_tokens, used_cost, blocked_at)
			SELECT x.scope, x.subject, COALESCE(x.day, (now() AT TIME ZONE 'UTC')::date), x.used[1], x.used[2], x.used[3], x.used[4], x.used[5], CASE WHEN $2 = 'BLOCKED' THEN now() END
			FROM jsonb_to_recordset($18::jsonb) AS x (scope text, subject text, day date, used bigint[]) ORDER BY x.scope, x.day
			ON CONFLICT (scope, subject, day) DO UPDATE SET used_steps = b.used_steps + EXCLUDED.used_steps, used_tool_calls = b.used_tool_calls + EXCLUDED.used_tool_calls,
				used_millis = b.used_millis + EXCLUDED.used_millis, used_tokens = b.used_tokens + EXCLUDED.used_tokens, used_cost = b.used_cost + EXCLUDED.used_cost,
				blocked_at = COALESCE(EXCLUDED.blocked_at, b.blocked_at)`

// settlement is one row of settleSQL.
type settlement struct {
	Scope   harness.BudgetScope `json:"scope"`
	Subject string              `json:"subject"`
	Day     *string             `json:"day"` // nil: today
	Used    []int64             `json:"used"`
}

// settlements are what the day of the agent, and that of a person who has a
// budget, have to count. A step that asked no model costs nothing.
func (c StepCommit) settlements() []settlement {
	all := []settlement{}
	if c.Spent == (harness.Spending{}) && c.State != harness.SessionBlocked {
		return all
	}
	agent := settlement{Scope: harness.ScopeAgentDay, Subject: string(c.Claim.Session.Agent), Used: c.Spent.Values()}
	if len(c.Reserved) == 0 {
		return append(all, agent)
	}
	first := c.Reserved[0]
	day := first.Day.Format(time.DateOnly)
	agent.Day = &day
	all = append(all, agent)
	if first.User != "" {
		all = append(all, settlement{Scope: harness.ScopeUserDay, Subject: first.User, Day: &day, Used: agent.Used})
	}
	return all
}

// release gives back what was reserved.
func (w *stepWriter) release() {
	for _, r := range w.c.Reserved {
		w.Queue(releaseSQL, harness.ScopeAgentDay, string(w.c.Claim.Session.Agent), r.Day, r.Amount.Values())
		if r.User != "" {
			w.Queue(releaseSQL, harness.ScopeUserDay, r.User, r.Day, r.Amount.Values())
		}
	}
}

const releaseSQL = `UPDATE budget_usage SET reserved_steps = reserved_steps - ($4::bigint[])[1], reserved_tool_calls = reserved_tool_calls - ($4::bigint[])[2],
	reserved_millis = reserved_millis - ($4::bigint[])[3], reserved_tokens = reserved_tokens - ($4::bigint[])[4],
	reserved_cost = reserved_cost - ($4::bigint[])[5], reserved_execution_millis = reserved_execution_millis - ($4::bigint[])[6]
	WHERE scope = $1 AND subject = $2 AND day = $3`

// ListUsage returns what an agent has used on each day since the given one, by
// UTC, newest first, at most limit days. Days without use have none.
func (s *Store) ListUsage(ctx context.Context, agent harness.AgentName, since time.Time, limit int) ([]view.Usage, error) {
	return list(ctx, s, `SELECT day, ARRAY[used_steps, used_tool_calls, used_millis, used_tokens, used_cost, used_execution_millis],
			ARRAY[reserved_steps, reserved_tool_calls, reserved_millis, reserved_tokens, reserved_cost, reserved_execution_millis]
		FROM budget_usage WHERE scope = 'AGENT_DAY' AND subject = $1 AND day >= $2::date ORDER BY day DESC LIMIT $3`,
		[]any{agent, since.UTC().Format(time.DateOnly), limit}, func(row pgx.CollectableRow) (view.Usage, error) {
			var day time.Time
			var used, reserved []int64
			if err := row.Scan(&day, &used, &reserved); err != nil {
				return view.Usage{}, err
			}
			v := view.Usage{Day: day.Format(time.DateOnly), Spent: view.SpentOf(harness.Spent(used))}
			if held := view.SpentOf(harness.Spent(reserved)); held != view.SpentOf(harness.Spending{}) {
				v.Reserved = &held
			}
			return v, nil
		})
}
