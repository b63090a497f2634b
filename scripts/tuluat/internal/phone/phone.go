// Package phone plays one person on a fake messenger, over the fake's own API.
package phone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/shared/harness"
)

// Phone is a person's.
type Phone struct {
	base    string
	channel harness.Channel
	account string // whom they write to
	person  string
	http    *http.Client
}

// Dialled reports whether text is a phone number as people write it.
func Dialled(text string) bool { return dialled.MatchString(text) }

var dialled = regexp.MustCompile(`^\+?[0-9][0-9 ().-]{4,24}$`)

// Pick picks up a phone: the person is added to the fake at base if need be. id is a
// phone number for WhatsApp, a user id for Telegram.
func Pick(ctx context.Context, base string, channel harness.Channel, account, id, name string) (*Phone, error) {
	p := &Phone{base: strings.TrimSuffix(base, "/"), channel: channel, account: account, person: id, http: &http.Client{}}
	if channel == harness.ChannelWhatsApp {
		if !Dialled(id) {
			return nil, harness.Errorf(harness.Invalid, "a person on WhatsApp is a phone number in digits, not %q", id)
		}
		known := graph.Person{}
		if err := p.call(ctx, http.MethodPost, "people", graph.Person{Phone: id, Name: name}, &known); err != nil {
			return nil, err
		}
		p.person = known.ID
		return p, nil
	}
	user, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, harness.Errorf(harness.Invalid, "a Telegram user's id is a number, not %q", id)
	}
	var known []botapi.Person
	if err := p.call(ctx, http.MethodGet, "people", nil, &known); err != nil {
		return nil, err
	}
	for _, k := range known {
		if k.ID == user {
			return p, nil
		}
	}
	return p, p.call(ctx, http.MethodPost, "people", botapi.Person{ID: user, FirstName: name}, nil)
}

// Say writes text and returns the place of it in the chat.
func (p *Phone) Say(ctx context.Context, text string) (int64, error) {
	return p.do(ctx, graph.Say{Text: text}, botapi.Say{Text: text})
}

// Press taps a choice: its place from 1, its title or its id, of the newest
// message that has any.
func (p *Phone) Press(ctx context.Context, choice string) (int64, error) {
	return p.do(ctx, graph.Say{Press: choice}, botapi.Say{Press: choice})
}

// Send hands over a file with a caption, which may be empty.
func (p *Phone) Send(ctx context.Context, f File, caption string) (int64, error) {
	return p.do(ctx, graph.Say{Text: caption, File: &graph.Upload{Name: f.Name, MimeType: f.MimeType, Data: f.Data}},
		botapi.Say{Text: caption, Files: []botapi.Upload{{Name: f.Name, MimeType: f.MimeType, Data: f.Data}}})
}

// File is one from this machine.
type File struct {
	Name, MimeType string
	Data           []byte
}

// ReadFile reads a file to be sent. Its kind goes by its name, else by what it begins with.
func ReadFile(path string) (File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return File{}, err
	}
	kind := mime.TypeByExtension(filepath.Ext(path))
	if kind == "" {
		kind = http.DetectContentType(data)
	}
	kind, _, err = mime.ParseMediaType(kind)
	return File{Name: filepath.Base(path), MimeType: kind, Data: data}, err
}

func (p *Phone) do(ctx context.Context, w graph.Say, t botapi.Say) (int64, error) {
	var say any
	if p.channel == harness.ChannelWhatsApp {
		w.Number, w.From = p.account, p.person
		say = w
	} else {
		t.Bot = p.account
		t.From, _ = strconv.ParseInt(p.person, 10, 64) // Pick has read it
		say = t
	}
	var lines []person.Line
	if err := p.call(ctx, http.MethodPost, "say", say, &lines); err != nil {
		return 0, err
	}
	if len(lines) == 0 {
		return 0, errors.New("the fake has taken nothing")
	}
	return lines[len(lines)-1].Changed, nil
}

// Page is a stretch of the chat.
type Page = graph.Page

// Read returns what was added or changed after a place, and waits so long until
// there is something.
func (p *Phone) Read(ctx context.Context, after int64, wait time.Duration) (Page, error) {
	var page Page
	query := url.Values{"account": {p.account}, "after": {strconv.FormatInt(after, 10)}, "wait": {wait.String()}}
	return page, p.call(ctx, http.MethodGet, "chats/"+url.PathEscape(p.person)+"?"+query.Encode(), nil, &page)
}

// FileURL is where a file of the chat can be seen.
func (p *Phone) FileURL(id string) string { return p.base + "/_fake/files/" + url.PathEscape(id) }

const answerTime = 90 * time.Second // longer than the longest Read

func (p *Phone) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTime, fmt.Errorf("no answer within %s", answerTime))
	defer cancel()
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, p.base+"/_fake/"+path, body)
	if err != nil {
		return err
	}
	response, err := p.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		var refused struct{ Error string }
		// Something else than a fake may answer there; the status is enough.
		_ = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&refused)
		return fmt.Errorf("the fake answered %d: %s", response.StatusCode, refused.Error)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(io.LimitReader(response.Body, 64<<20)).Decode(out)
}
