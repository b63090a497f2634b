package tour

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// agent is what the tour calls itself, so that it does not take its own requests
// for somebody's.
const agent = "tuluat-tour"

// execution and approval are those of the management API.
type execution struct {
	ID        string    `json:"id"`
	Session   string    `json:"session"`
	Sandbox   string    `json:"sandbox"`
	State     string    `json:"state"`
	Command   string    `json:"command"`
	StartedAt time.Time `json:"startedAt"`
	EndedAt   time.Time `json:"endedAt"`
}

func (e execution) took() time.Duration { return e.EndedAt.Sub(e.StartedAt).Round(time.Millisecond) }

type approval struct {
	ID      string `json:"id"`
	Session string `json:"session"`
	State   string `json:"state"`
	Title   string `json:"title"`
	Input   struct {
		Arguments json.RawMessage `json:"arguments"`
	} `json:"input"`
	DecidedBy  string    `json:"decidedBy"`
	DecidedVia string    `json:"decidedVia"`
	DecidedAt  time.Time `json:"decidedAt"`
}

func (a *approval) decided() bool { return a != nil && a.State != pending }

// chats looks for a message that the agent's side has taken, and for the answer.
func (f *facts) chats(m Messenger) {
	lines := m.Lines()
	if lines == nil || f.message != nil && f.reply != nil && f.execution != nil {
		return
	}
	all, _ := lines.Since(m.Account, f.whatsapp)
	f.message, f.reply = nil, nil
	for _, l := range all {
		switch {
		case l.Seq <= f.whatsapp: // older, and touched since
		case l.From != "" && f.message == nil && l.Text != "" && (l.Ticks == person.Delivered || l.Ticks == person.Read):
			f.message = &l
		case l.From == "" && f.message != nil && l.Chat == f.message.Chat && l.Ticks != person.Failed:
			f.reply = &l
		}
	}
}

// records asks the management API for what is not known yet.
func (t *Tour) records(ctx context.Context, f *facts) error {
	since := url.QueryEscape(f.begun.UTC().Format(time.RFC3339Nano))
	if f.execution == nil && f.message != nil {
		var page struct{ Items []execution }
		if err := t.ask(ctx, "/api/v1/executions?status=COMPLETED&agent="+t.options.WhatsApp.Agent+"&since="+since, &page); err != nil {
			return err
		}
		if len(page.Items) > 0 {
			f.execution = &page.Items[len(page.Items)-1]
		}
	}
	if !f.approval.decided() {
		var page struct{ Items []approval }
		if err := t.ask(ctx, "/api/v1/approvals?agent="+t.options.Telegram.Agent+"&since="+since, &page); err != nil {
			return err
		}
		for _, a := range page.Items {
			if f.approval = &a; a.decided() {
				break
			}
		}
	}
	if f.approval.decided() && f.entry == "" {
		var page struct{ Items []struct{ Message string } }
		if err := t.ask(ctx, "/api/v1/agents/"+t.options.Telegram.Agent+"/logs?session="+url.QueryEscape(f.approval.Session)+"&since="+since, &page); err != nil {
			return err
		}
		for _, entry := range page.Items {
			if strings.Contains(entry.Message, f.approval.DecidedBy) {
				f.entry = entry.Message
			}
		}
	}
	return nil
}

// pending is an approval's state before it is decided.
const pending = "PENDING"

func (t *Tour) ask(ctx context.Context, path string, into any) error {
	tokens, err := os.ReadFile(t.options.TokenFile)
	if err != nil {
		return err
	}
	token, _, _ := strings.Cut(string(tokens), "\n") // the first may do everything
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, t.options.URL+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	request.Header.Set("User-Agent", agent)
	response, err := t.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", path, response.Status)
	}
	return json.Unmarshal(text, into)
}
