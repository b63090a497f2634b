// Package conformance runs a folder of channel cases against running functions:
// each case says what a provider or a caller sends, byte for byte, and what has
// to come of it, as rows, events, log lines and requests to the provider. The
// format of the folder is in testdata/channels/README.md.
package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Case is one case of a folder.
type Case struct {
	Name    string
	Body    []byte // exact
	Request Request
	Expect  Outcome
}

// Request says how a body is sent.
type Request struct {
	Method            string            `json:"method"`          // default POST
	QueryFromBody     bool              `json:"query_from_body"` // the body is the query, as a flat object
	Sign              string            `json:"sign"`            // literal: the headers as given; none; default: right
	Headers           map[string]string `json:"headers"`
	Repeat            int               `json:"repeat"`          // how often in all; default once
	ConcurrentLast    int               `json:"concurrent_last"` // the last so many at the same moment
	Sequence          bool              `json:"sequence"`        // the body is an array: one request each
	PadWithSpacesTo   int               `json:"pad_with_spaces_to"`
	ConfiguredNumbers []string          `json:"configured_numbers"` // default: the first
	Mode              string            `json:"mode"`               // getUpdates: the body is the provider's answer
	Status            int               `json:"status"`             // of that answer
}

// Outcome is one right outcome of a case. Fields that are absent are not
// compared.
type Outcome struct {
	HTTPStatus     int                        `json:"http_status"`
	Messages       []Message                  `json:"messages"`
	AlsoOK         []Outcome                  `json:"also_ok"`
	Recorded       map[string]json.RawMessage `json:"recorded"`
	BodyExact      *string                    `json:"body_exact"`
	BodyExcludes   *string                    `json:"body_excludes"`
	ContentTypeNot *string                    `json:"content_type_not"`
	NextOffset     *int64                     `json:"next_offset"`
	MetadataAbsent []string                   `json:"metadataAbsent"` // of every message
	MetadataOrText []string                   `json:"metadataOrText"` // of every message
	Note           string                     `json:"note"`

	// Of sending.
	Outcome           string                     `json:"outcome"` // fail, retry or resend
	Retry             *bool                      `json:"retry"`
	AlertOperator     *bool                      `json:"alert_operator"`
	MinWait           *float64                   `json:"min_wait_s"`
	Scope             *string                    `json:"scope"` // "this user": others are served meanwhile
	Request           map[string]json.RawMessage `json:"request"`
	RequestContains   map[string]json.RawMessage `json:"request_contains"`
	RequestLacks      []string                   `json:"request_lacks"`
	Chunks            *int                       `json:"chunks"`
	MaxUTF16Units     *int                       `json:"max_utf16_units"`
	JoinedEqualsInput *bool                      `json:"joined_equals_input"`
	NoLoneSurrogates  *bool                      `json:"no_lone_surrogates"`
}

// Message is a message as a case expects it.
type Message struct {
	Channel            string                     `json:"channel"`
	ChannelUserID      string                     `json:"channelUserId"`
	ChannelUserIDAnyOf []string                   `json:"channelUserIdAnyOf"`
	Text               *string                    `json:"text"` // nil: any wording but none at all
	TextAnyOf          []string                   `json:"textAnyOf"`
	TextContains       []string                   `json:"textContains"`
	TextExcludes       []string                   `json:"textExcludes"`
	Metadata           map[string]json.RawMessage `json:"metadata"`
}

// Sending is the body of a case about sending.
type Sending struct {
	Channel string `json:"channel"`
	Reply   struct {
		ChannelUserID string `json:"channelUserId"`
		Text          string `json:"text"`
		TextRepeat    struct {
			Unit  string `json:"unit"`
			Times int    `json:"times"`
		} `json:"text_repeat"`
	} `json:"reply"`
	OriginalText string         `json:"original_text"`
	Request      map[string]any `json:"request"` // that met the response; for people
	Response     *struct {
		Status int             `json:"status"`
		Body   json.RawMessage `json:"body"`
	} `json:"response"`
}

// The kinds of a case, by the first part of its name.
const (
	kindWhatsApp = "wa"
	kindTelegram = "tg"
	kindWebhook  = "hook"
	kindOut      = "out"
)

// Kind is the part of the name before the first dash.
func (c *Case) Kind() string {
	kind, _, _ := strings.Cut(c.Name, "-")
	return kind
}

const (
	expectSuffix  = ".expect.json"
	requestSuffix = ".request.json"
)

// Load reads the cases of a folder in the order of their names. It refuses what
// it does not understand: a case must not be half checked.
func Load(folder string) ([]Case, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var cases []Case
	var problems []error
	for _, path := range paths {
		if strings.HasSuffix(path, expectSuffix) || strings.HasSuffix(path, requestSuffix) {
			body := strings.TrimSuffix(strings.TrimSuffix(path, expectSuffix), requestSuffix) + ".json"
			if _, err := os.Stat(body); err != nil {
				problems = append(problems, fmt.Errorf("%s belongs to no body", filepath.Base(path)))
			}
			continue
		}
		c, err := loadCase(path)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		cases = append(cases, c)
	}
	if len(paths) == 0 {
		problems = append(problems, fmt.Errorf("there are no cases in %s", folder))
	}
	return cases, errors.Join(problems...)
}

func loadCase(path string) (Case, error) {
	base := strings.TrimSuffix(path, ".json")
	c := Case{Name: filepath.Base(base)}
	var err error
	if c.Body, err = os.ReadFile(path); err != nil {
		return c, err
	}
	if err := readStrict(base+expectSuffix, &c.Expect); err != nil {
		return c, err
	}
	if err := readStrict(base+requestSuffix, &c.Request); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	return c, c.check()
}

// check says what the engine could not do with the case.
func (c *Case) check() error {
	switch c.Kind() {
	case kindWhatsApp, kindTelegram, kindWebhook:
		if c.Expect.HTTPStatus == 0 && c.Request.Mode == "" {
			return fmt.Errorf("%s expects no http_status", c.Name)
		}
	case kindOut:
		sending, err := c.sending()
		if err != nil {
			return err
		}
		if sending.Channel != "WHATSAPP" && sending.Channel != "TELEGRAM" {
			return fmt.Errorf("%s sends on the channel %q", c.Name, sending.Channel)
		}
		switch c.Expect.Outcome {
		case "", "fail", "retry", "resend":
		default:
			return fmt.Errorf("%s: outcome is %q", c.Name, c.Expect.Outcome)
		}
		if c.Expect.Scope != nil && *c.Expect.Scope != scopeUser {
			return fmt.Errorf("%s: scope is %q", c.Name, *c.Expect.Scope)
		}
	default:
		return fmt.Errorf("%s: the name begins with none of wa-, tg-, hook-, out-", c.Name)
	}
	switch r := c.Request; {
	case r.Sign != "" && r.Sign != "literal" && r.Sign != "none":
		return fmt.Errorf("%s: sign is %q", c.Name, r.Sign)
	case r.Mode != "" && (r.Mode != modeGetUpdates || c.Kind() != kindTelegram):
		return fmt.Errorf("%s: mode is %q", c.Name, r.Mode)
	case r.ConcurrentLast > max(r.Repeat, 1):
		return fmt.Errorf("%s: more requests at once than there are", c.Name)
	}
	if c.Request.Sequence {
		if _, err := c.bodies(); err != nil {
			return err
		}
	}
	return nil
}

const (
	modeGetUpdates = "getUpdates"
	scopeUser      = "this user"
)

// sending reads the body of a case about sending.
func (c *Case) sending() (Sending, error) {
	var s Sending
	decoder := json.NewDecoder(bytes.NewReader(c.Body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return s, fmt.Errorf("%s: %w", c.Name, err)
	}
	return s, nil
}

// text is what the reply says.
func (s *Sending) text() string {
	switch {
	case s.OriginalText != "":
		return s.OriginalText
	case s.Reply.TextRepeat.Times > 0:
		return strings.Repeat(s.Reply.TextRepeat.Unit, s.Reply.TextRepeat.Times)
	case s.Reply.Text != "":
		return s.Reply.Text
	}
	return "an answer"
}

// bodies returns the bodies of the case's requests, each to be sent in turn.
func (c *Case) bodies() ([][]byte, error) {
	if c.Request.Sequence {
		var elements []json.RawMessage
		if err := json.Unmarshal(c.Body, &elements); err != nil {
			return nil, fmt.Errorf("%s is no array of requests: %w", c.Name, err)
		}
		bodies := make([][]byte, len(elements))
		for i, element := range elements {
			bodies[i] = element
		}
		return bodies, nil
	}
	body := c.Body
	if pad := c.Request.PadWithSpacesTo - len(body); pad > 0 {
		body = append(slices.Clone(body), bytes.Repeat([]byte(" "), pad)...)
	}
	return slices.Repeat([][]byte{body}, max(c.Request.Repeat, 1)), nil
}

func readStrict(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
