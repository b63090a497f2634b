package api_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// archived puts entries into an object of the archive, as the sweep does, and
// takes them out of Postgres.
func (w *world) archived(agent harness.AgentName, day time.Time, number int, entries []view.LogEntry) string {
	w.T.Helper()
	ctx := w.T.Context()
	object, err := part.NewEntries()
	if err != nil {
		w.T.Fatal(err)
	}
	slices.SortFunc(entries, newest)
	var ids []int64
	for _, v := range entries {
		if full, err := object.Add(v); full || err != nil {
			w.T.Fatal(full, err)
		}
		ids = append(ids, v.ID)
	}
	data, sum, err := object.Close()
	if err != nil {
		w.T.Fatal(err)
	}
	a := postgres.LogArchive{
		LogDay: postgres.LogDay{Agent: agent, Day: day}, Part: number, SHA256: sum.SHA256, Size: sum.Size, Entries: object.Count,
		Oldest: postgres.LogPlace{At: object.Oldest.CreatedAt, ID: object.Oldest.ID}, Newest: postgres.LogPlace{At: object.Newest.CreatedAt, ID: object.Newest.ID},
	}
	a.Key = part.EntriesKey(agent, day, number, sum)
	var sessions []harness.SessionID
	for id := range object.Sessions {
		sessions = append(sessions, id)
	}
	if err := w.Store.PlanLogArchive(ctx, a, sessions); err != nil {
		w.T.Fatal(err)
	}
	w.bucket.Set(a.Key, data)
	w.Exec(`UPDATE log_archives SET state = 'VERIFIED' WHERE object_key = $1`, a.Key)
	w.Exec(`DELETE FROM agent_execution_logs WHERE log_id = ANY ($1)`, ids)
	return a.Key
}

func newest(a, b view.LogEntry) int {
	if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
		return c
	}
	return int(b.ID - a.ID)
}

// spread writes n entries of two agents over days from the given one on, and moves
// those of some days and agents to the archive: what Postgres has is not only what
// is newer. It returns all, newest first.
func (w *world) spread(n int, from time.Time) []view.LogEntry {
	w.T.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		w.Exec(`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) VALUES ($1, $2, '', $3, $4, $5)`,
			[]string{"coder", "spare"}[random.IntN(2)], fmt.Sprintf("ses_%d", random.IntN(5)), []string{"DEBUG", "INFO", "WARN", "ERROR"}[random.IntN(4)],
			fmt.Sprintf("entry %d %s", i, []string{"Plain", "100% ÄPFEL", "under_score"}[random.IntN(3)]),
			from.Add(time.Duration(random.IntN(4*24*60))*time.Minute)) // some at the same moment
	}
	w.Exec(`SELECT create_log_partitions(1)`)
	rows, err := w.Store.Pool().Query(w.T.Context(), `SELECT log_id, agent_name, session_id, level, message, created_at FROM agent_execution_logs`)
	if err != nil {
		w.T.Fatal(err)
	}
	defer rows.Close()
	var all []view.LogEntry
	of := map[string][]view.LogEntry{}
	for rows.Next() {
		var v view.LogEntry
		if err := rows.Scan(&v.ID, &v.Agent, &v.Session, &v.Level, &v.Message, &v.CreatedAt); err != nil {
			w.T.Fatal(err)
		}
		all = append(all, v)
		day := int(v.CreatedAt.Sub(from) / (24 * time.Hour))
		if v.Agent == "coder" && day < 3 || v.Agent == "spare" && day < 2 {
			key := fmt.Sprintf("%s %d %d", v.Agent, day, random.IntN(2)) // two parts, one inside of the other
			of[key] = append(of[key], v)
		}
	}
	rows.Close()
	for key, entries := range of {
		var agent string
		var day, number int
		if _, err := fmt.Sscan(key, &agent, &day, &number); err != nil {
			w.T.Fatal(err)
		}
		w.archived(harness.AgentName(agent), from.AddDate(0, 0, day), number+1, entries)
	}
	slices.SortFunc(all, newest)
	return all
}

func ids(entries []view.LogEntry) []int64 {
	var all []int64
	for _, v := range entries {
		all = append(all, v.ID)
	}
	return all
}

type logList struct {
	Items []view.LogEntry `json:"items"`
	Next  string          `json:"next"`
}

// walk reads a list to its end by pages.
func (w *world) walk(query string, limit int) []view.LogEntry {
	w.T.Helper()
	var all []view.LogEntry
	for after, n := "", 0; ; n++ {
		page := decode[logList](w.T, w.get(fmt.Sprintf("/logs?limit=%d%s%s", limit, query, after)), http.StatusOK)
		all = append(all, page.Items...)
		if page.Next == "" {
			return all
		}
		if after = "&after=" + page.Next; n > 2000 {
			w.T.Fatal("the list does not end")
		}
	}
}

// One cursor goes over what Postgres has and what the archive has: with every
// filter, each entry once, in order.
func TestLogsOfPostgresAndTheArchive(t *testing.T) {
	w := newWorld(t)
	from := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -40)
	all := w.spread(400, from)
	since, until := from.Add(30*time.Hour), from.Add(70*time.Hour)
	for query, want := range map[string]func(view.LogEntry) bool{
		"":                         func(view.LogEntry) bool { return true },
		"&agent=coder":             func(v view.LogEntry) bool { return v.Agent == "coder" },
		"&agent=spare&level=ERROR": func(v view.LogEntry) bool { return v.Agent == "spare" && v.Level == "ERROR" },
		"&session=ses_3":           func(v view.LogEntry) bool { return v.Session == "ses_3" },
		"&level=WARN&level=ERROR":  func(v view.LogEntry) bool { return v.Level == "WARN" || v.Level == "ERROR" },
		"&text=%C3%A4pfel":         func(v view.LogEntry) bool { return strings.Contains(v.Message, "ÄPFEL") },
		"&text=100%25":             func(v view.LogEntry) bool { return strings.Contains(v.Message, "100%") },
		"&text=r_s&session=ses_1":  func(v view.LogEntry) bool { return strings.Contains(v.Message, "r_s") && v.Session == "ses_1" },
		"&since=" + stamp(since):   func(v view.LogEntry) bool { return !v.CreatedAt.Before(since) },
		"&until=" + stamp(until):   func(v view.LogEntry) bool { return v.CreatedAt.Before(until) },
		"&agent=nobody":            func(view.LogEntry) bool { return false },
		"&session=ses_4&until=" + stamp(until) + "&since=" + stamp(since): func(v view.LogEntry) bool {
			return v.Session == "ses_4" && v.CreatedAt.Before(until) && !v.CreatedAt.Before(since)
		},
	} {
		var wanted []view.LogEntry
		for _, v := range all {
			if want(v) {
				wanted = append(wanted, v)
			}
		}
		for _, limit := range []int{1, 7, 200} {
			if limit == 1 && len(wanted) > 150 {
				continue
			}
			if diff := cmp.Diff(ids(wanted), ids(w.walk(query, limit))); diff != "" {
				t.Errorf("%s by %d: %s", query, limit, diff)
			}
		}
		a := w.get("/logs/export?" + strings.TrimPrefix(query, "&"))
		if a.status != http.StatusOK || a.header.Get("Content-Type") != "application/x-ndjson" {
			t.Fatalf("export %s: %s", query, a)
		}
		var exported []view.LogEntry
		for line := range strings.Lines(a.body) {
			var v view.LogEntry
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatal(err)
			}
			exported = append(exported, v)
		}
		if diff := cmp.Diff(ids(wanted), ids(exported)); diff != "" {
			t.Errorf("export %s: %s", query, diff)
		}
	}
}

func stamp(at time.Time) string { return at.Format(time.RFC3339) }

// An object that is missing or changed is said, with its key, and not passed over;
// the check of the archive finds it, and what nobody knows.
func TestTheArchiveIsChecked(t *testing.T) {
	w := newWorld(t)
	w.spread(60, time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -40))
	check := func() (findings []view.ArchiveFinding, checked int) {
		t.Helper()
		for after := ""; ; {
			out := decode[view.ArchiveCheck](t, w.get("/logs/archive?limit=3"+after), http.StatusOK)
			findings, checked = append(findings, out.Findings...), checked+out.Checked
			if out.Next == "" {
				return findings, checked
			}
			after = "&after=" + out.Next
		}
	}
	keys := w.bucket.Keys()
	if findings, checked := check(); len(findings) != 0 || checked != len(keys) || checked < 8 {
		t.Fatalf("%d of %d: %v", checked, len(keys), findings)
	}
	flipped := w.bucket.Object(keys[1])
	flipped[len(flipped)/3] ^= 4
	w.bucket.Set(keys[1], flipped)
	w.bucket.Set(keys[3], nil)
	w.bucket.Set(part.Prefix+"entries/0", []byte("who is this?"))
	w.bucket.Set("media/other", []byte("not of the archive"))
	w.Exec(`INSERT INTO log_archives (object_key, kind, agent_name, state, digest, size_bytes, day, part, first_at, first_log_id, last_at, last_log_id)
		VALUES ('logs/v1/on-its-way', 'ENTRIES', 'coder', 'PENDING', '', 0, '2020-01-01', 1, now(), 1, now(), 1)`)
	findings, _ := check()
	got := map[string]view.ArchiveProblem{}
	for _, f := range findings {
		got[f.Key] = f.Problem
	}
	want := map[string]view.ArchiveProblem{keys[1]: view.ArchiveChanged, keys[3]: view.ArchiveMissing, part.Prefix + "entries/0": view.ArchiveUnknown}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, key := range []string{keys[1], keys[3]} {
		if a := w.get("/logs/export"); a.status != http.StatusInternalServerError || !strings.Contains(a.body, keys[1]) && !strings.Contains(a.body, keys[3]) {
			t.Errorf("%s: %s", key, a)
		}
	}
	for _, role := range []string{access.RoleViewer, access.RoleOperator, access.RoleApprover} {
		if a := w.do(request{method: http.MethodGet, path: "/api/v1/logs/archive", role: role}); a.status != http.StatusForbidden {
			t.Errorf("%s: %s", role, a)
		}
	}
}

// What was printed is read from the archive as from Postgres.
func TestOutputOfTheArchive(t *testing.T) {
	w := newWorld(t)
	r := w.rows()
	text := strings.Repeat("0123456789abcdef", 4000)
	w.Exec(`UPDATE executions SET stdout_bytes = $2 WHERE execution_id = $1`, r.execution, len(text))
	w.Exec(`DELETE FROM execution_output`)
	w.Exec(`INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES ($1, 'stdout', 0, $2)`, r.execution, []byte(text))
	data, sum, err := part.Compressed([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	a := postgres.OutputArchive{Key: part.OutputKey(r.execution, "stdout", 0, sum), Agent: "coder", Execution: r.execution, Stream: "stdout", End: int64(len(text)), SHA256: sum.SHA256, Size: sum.Size}
	w.bucket.Set(a.Key, data)
	for _, err := range []error{w.Store.PlanOutputArchive(t.Context(), a), w.Store.ArchivePut(t.Context(), a.Key), w.Store.OutputArchiveVerified(t.Context(), a.Key), w.Store.OutputArchived(t.Context(), r.execution)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	read, offset := "", int64(0)
	for range 100 {
		o := decode[view.Output](t, w.get(fmt.Sprintf("/executions/%s/output?offset=%d&max=5001", r.execution, offset)), http.StatusOK)
		if o.Offset != offset || o.Total != int64(len(text)) {
			t.Fatalf("at %d: %+v", offset, o)
		}
		read += string(o.Data)
		if offset = o.Next; o.Ended {
			break
		}
	}
	if read != text {
		t.Errorf("%d bytes, want %d", len(read), len(text))
	}
}
