package whatsapp

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// TestOutCases compares what is sent, and what is made of answers.
func TestOutCases(t *testing.T) {
	paths, err := filepath.Glob("testdata/cases/out-*.expect.json")
	if err != nil || len(paths) != 5 {
		t.Fatalf("%d cases, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var given struct {
				Response struct {
					Status int
					Body   json.RawMessage
				}
				Reply *struct{ ChannelUserID, Text string }
			}
			var want struct {
				Outcome  string
				MinWait  int            `json:"min_wait_s"`
				Alert    bool           `json:"alert_operator"`
				Contains map[string]any `json:"request_contains"`
				Lacks    []string       `json:"request_lacks"`
				Chunks   *int
			}
			decode(t, read(t, path), &want)
			decode(t, read(t, strings.Replace(path, ".expect", "", 1)), &given)
			p := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
				if given.Response.Status != 0 {
					w.WriteHeader(given.Response.Status)
				}
				_, _ = w.Write(given.Response.Body)
			})
			if want.Chunks != nil {
				if parts := p.graph.Split(given.Reply.Text); len(parts) != *want.Chunks {
					t.Errorf("parts %q", parts)
				}
				return
			}
			o := p.send(account(nil), claim(func(c *postgres.ReplyClaim) {
				if given.Reply != nil {
					c.Address, c.Text = given.Reply.ChannelUserID, given.Reply.Text
				}
			}))
			switch want.Outcome {
			case "fail":
				if o.State != harness.ReplyFailed || o.Retry != 0 || strings.Contains(p.logs.String(), "level=ERROR") != want.Alert {
					t.Errorf("%+v, log %q", o, p.logs)
				}
			case "retry":
				if wait := time.Duration(want.MinWait) * time.Second; o.State != harness.ReplyPlanned || o.Retry < wait || o.Hold < wait {
					t.Errorf("%+v", o)
				}
			default:
				var sent map[string]any
				decode(t, p.calls()[0].body, &sent)
				for _, name := range want.Lacks {
					if _, found := sent[name]; found {
						t.Errorf("%s is in %v", name, sent)
					}
				}
				for name, v := range want.Contains {
					got := sent[name]
					if body, ok := got.(map[string]any); ok {
						delete(body, "preview_url") // the case asks for a subset
					}
					if diff := cmp.Diff(v, got); diff != "" {
						t.Error(name, diff)
					}
				}
			}
		})
	}
}
