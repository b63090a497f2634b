package stream_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/stream"
)

// turns is a session of n turns that has ended.
type turns int64

func (n turns) Session(context.Context) (view.StreamSession, error) {
	return view.StreamSession{Session: "ses_1", State: harness.SessionCompleted}, nil
}

func (n turns) Open(ctx context.Context, after postgres.StreamCursor) (stream.Opening, error) {
	s, err := n.Session(ctx)
	return stream.Opening{Session: s, After: postgres.StreamCursor{Session: "ses_1", Seq: after.Seq}}, err
}

func (n turns) Events(_ context.Context, after postgres.StreamCursor, limit int) ([]postgres.StreamEvent, error) {
	var page []postgres.StreamEvent
	for seq := after.Seq + 1; seq <= int64(n) && len(page) < limit; seq++ {
		page = append(page, postgres.StreamEvent{StreamCursor: postgres.StreamCursor{Session: "ses_1", Seq: seq}, Kind: postgres.StreamTurn, Text: "t"})
	}
	return page, nil
}

func (n turns) Output(context.Context, []postgres.OutputPlace, int) ([]postgres.OutputChunk, error) {
	return nil, nil
}

func (n turns) Sent(context.Context, []postgres.StreamEvent) error { return nil }

// connection remembers its write deadline.
type connection struct {
	*httptest.ResponseRecorder
	deadline time.Time
	set      int
}

func (c *connection) SetWriteDeadline(at time.Time) error {
	c.deadline = at
	c.set++
	return nil
}

// Pages follow one another to the end of an ended session, and the connection is
// left as it was.
func TestAnEndedSession(t *testing.T) {
	c := &connection{ResponseRecorder: httptest.NewRecorder()}
	s, err := stream.Open(t.Context(), c, turns(250), stream.Options{Follow: true, Life: time.Minute, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	body := c.Body.String()
	if strings.Count(body, "event: turn\n") != 250 || !strings.Contains(body, "id: ses_1/250\n") || !strings.HasSuffix(body, "event: end\ndata: {\"session\":\"ses_1\",\"state\":\"COMPLETED\"}\n\n") {
		t.Errorf("got %s", body)
	}
	if c.set == 0 || !c.deadline.IsZero() {
		t.Errorf("the deadline was set %d times and is %s", c.set, c.deadline)
	}
}

func TestCursors(t *testing.T) {
	place := postgres.StreamCursor{Session: "ses_1", Seq: 7}
	if got, ok := stream.ParseCursor(stream.CursorID(place)); !ok || got != place {
		t.Errorf("%+v %v", got, ok)
	}
	for _, bad := range []string{"", "7", "/7", "ses_1/", "ses_1/-1", "ses_1/x", "s\x00/1", "\xff/1", strings.Repeat("s", 201) + "/1"} {
		if _, ok := stream.ParseCursor(bad); ok {
			t.Errorf("%q is no cursor", bad)
		}
	}
}
