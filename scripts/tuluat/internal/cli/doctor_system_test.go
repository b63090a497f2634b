package cli_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// said is an answer of the API.
type said struct {
	status int
	body   string
}

// well is what a system says that is well.
func well() map[string]said {
	return map[string]said{
		"version":     {200, `{"version":"x","api":"v1","client":"0.1.0"}`},
		"sweep":       {200, `{"completedAt":"2026-01-02T03:04:05Z","ageSeconds":31.5,"items":[{"name":"leaks","found":0,"done":0,"left":0}]}`},
		"deadletters": {200, `{"items":[]}`},
		"leaks":       {200, leaksJSON(`"known":3,"there":3`, time.Now(), "")},
		"channels":    {200, `{"items":[{"channel":"TELEGRAM","account":"helper_bot","agent":"coder","waiting":0,"failed":0,"unknown":0,"secrets":[{"name":"bot","key":"token","state":"AVAILABLE"}]}]}`},
	}
}

func leaksJSON(counts string, compared time.Time, reason string) string {
	return fmt.Sprintf(`{"items":[{"kind":"SANDBOX",%s,"comparedAt":%q,"reason":%q},{"kind":"ARCHIVE","known":0,"there":0,"leaked":0,"lost":0,"removed":0,"marked":0,"reason":"no bucket is configured (S3_BUCKET)"}]}`,
		counts, compared.UTC().Format(time.RFC3339), reason)
}

func TestDoctorOfTheSystem(t *testing.T) {
	for name, c := range map[string]struct {
		change     map[string]said
		agents     string
		code       int
		says, lack []string
	}{
		"well":                         {nil, "", 0, []string{"✓", "the API answers", "the sweep comes through", "no event is given up", "nothing leaks", "logs can be archived", "its Secrets are there", "its replies arrive"}, []string{"✗", "!"}},
		"the sweep is old":             {map[string]said{"sweep": {200, `{"ageSeconds":400,"items":[{"name":"leaks","found":2,"done":0,"left":2,"reason":"the API server does not answer"}]}`}}, "", 1, []string{"the last whole pass was 6m40s ago", "is the PingSource", "! ", "the API server does not answer"}, nil},
		"no pass":                      {map[string]said{"sweep": {200, `{"items":[]}`}}, "", 1, []string{"no whole pass yet"}, nil},
		"letters":                      {map[string]said{"deadletters": {200, `{"items":[{"id":1,"type":"t","state":"OPEN"},{"id":2,"type":"t","state":"OPEN"}]}`}}, "", 0, []string{"2 dead letters are open", "tuluat deadletter replay ID"}, []string{"✗"}},
		"leaks":                        {map[string]said{"leaks": {200, leaksJSON(`"leaked":2,"lost":1`, time.Now(), "")}}, "", 1, []string{"2 SANDBOX leaked, 1 SANDBOX lost", "tuluat doctor leaks"}, nil},
		"an old comparison":            {map[string]said{"leaks": {200, leaksJSON(`"leaked":0`, time.Now().Add(-4*time.Hour), "")}}, "", 0, []string{"the last comparison of SANDBOX is older than 3h0m0s"}, []string{"✗"}},
		"a retention without a bucket": {nil, "spec: {logs: {retentionDays: 7}}", 0, []string{"agents say how long their logs are kept: keeper", "object-store"}, []string{"✗"}},
		"a channel":                    {map[string]said{"channels": {200, `{"items":[{"channel":"TELEGRAM","account":"helper_bot","agent":"coder","failed":2,"unknown":1,"secrets":[{"name":"bot","key":"token","state":"NOT_FOUND"}]}]}`}}, "", 1, []string{"bot/token is NOT_FOUND", "2 replies could not be sent, and of 1 nobody knows"}, nil},
		"no right":                     {map[string]said{"leaks": {403, `{"detail":"may not"}`}}, "", 0, []string{"this caller may not look"}, []string{"✗"}},
		"an older API":                 {map[string]said{"leaks": {404, `{"detail":"there is no such path"}`}}, "", 1, []string{"is it of the version"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, answers := newFake(t), well()
			maps.Copy(answers, c.change)
			for path, a := range answers {
				f.say("GET /api/v1/"+path, a.status, a.body)
			}
			if c.agents != "" {
				f.agent("keeper", c.agents)
			}
			got := f.run("doctor")
			if got.code != c.code {
				t.Errorf("code %d, want %d: %+v", got.code, c.code, got)
			}
			for _, want := range c.says {
				if !strings.Contains(got.out, want) {
					t.Errorf("it lacks %q:\n%s", want, got.out)
				}
			}
			for _, bad := range c.lack {
				if strings.Contains(got.out, bad) {
					t.Errorf("it says %q:\n%s", bad, got.out)
				}
			}
			var checks []struct{ OK, Warns bool }
			if got := f.run("doctor", "-o", "json"); json.Unmarshal([]byte(got.out), &checks) != nil || len(checks) < 5 || got.code != c.code {
				t.Errorf("-o json: %+v", got)
			}
		})
	}
}

func TestDoctorLeaks(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/leaks", 200, `{"items":[{"kind":"VOLUME","known":4,"there":5,"leaked":1,"lost":0,"removed":2,"marked":0,"oldestAt":"2026-01-02T03:04:05Z","examples":["workspace-`+hostile+`"],"comparedAt":"2026-01-02T03:04:05Z","reason":"because `+hostile+`"},
		{"kind":"UPLOAD","known":0,"there":0,"leaked":0,"lost":0,"removed":0,"marked":0,"reason":"no bucket"}]}`)
	got := f.run("doctor", "leaks")
	lines := strings.Split(got.out, "\n")
	if got.code != 1 || len(strings.Fields(lines[0])) != 7 || !strings.HasPrefix(strings.Join(strings.Fields(lines[1]), " "), "VOLUME 4 5 1 0 ") || !strings.HasPrefix(strings.Join(strings.Fields(lines[2]), " "), "UPLOAD - - - -") ||
		!strings.Contains(got.out, "VOLUME: because ") || !strings.Contains(got.out, "VOLUME: as workspace-") || !strings.Contains(got.out, "UPLOAD: no bucket") ||
		!strings.Contains(got.errOut, "1 things are leaked or lost") || !strings.Contains(got.errOut, "VOLUME: the last comparison is older than") {
		t.Errorf("%+v", got)
	}
	var all []map[string]any
	if got := f.run("doctor", "leaks", "-o", "json"); json.Unmarshal([]byte(got.out), &all) != nil || len(all) != 2 || got.code != 1 {
		t.Errorf("%+v", got)
	}
	f = newFake(t)
	f.say("GET /api/v1/leaks", 200, leaksJSON(`"known":1,"there":1,"leaked":0,"lost":0,"removed":7`, time.Now(), ""))
	if got := f.run("doctor", "leaks"); got.code != 0 || got.errOut != "" {
		t.Errorf("nothing leaks: %+v", got)
	}
	if got := f.run("doctor", "leaks", "x"); got.code != 2 {
		t.Errorf("an argument: %+v", got)
	}
}
