package channel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// memory is an object store without a network.
type memory struct {
	mu    sync.Mutex
	files map[string][]byte
	err   error
}

func (m *memory) Put(_ context.Context, key string, body io.Reader, size int64, _ string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	data, err := io.ReadAll(body)
	if err != nil || int64(len(data)) != size {
		return fmt.Errorf("%d bytes of %d: %w", len(data), size, err)
	}
	m.files[key] = data
	return nil
}

func (m *memory) Get(_ context.Context, key string) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return io.NopCloser(bytes.NewReader(m.files[key])), int64(len(m.files[key])), nil
}

// provider hands out what each test says, by the file's id there.
type provider struct {
	mu    sync.Mutex
	asked []string
	hand  func(a postgres.Attachment) (io.Reader, harness.Attachment, error)
}

func (p *provider) Download(_ context.Context, account *channel.Account, a postgres.Attachment) (io.ReadCloser, harness.Attachment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, a.ProviderID+"@"+account.Name)
	body, said, err := p.hand(a)
	if err != nil {
		return nil, said, err
	}
	return io.NopCloser(body), said, nil
}

type anyAccount struct{}

func (anyAccount) Of(_ context.Context, name string, agent harness.AgentName, spec harness.ChannelSpec) (*channel.Account, error) {
	return &channel.Account{Name: name, Agent: agent, Spec: spec}, nil
}

type mediaBench struct {
	*testing.T
	store    *postgres.Store
	objects  *memory
	provider *provider
	options  channel.MediaOptions
	session  harness.SessionID
	events   []event.Event
}

// newMediaBench is a conversation whose message came with the files, all wanted.
func newMediaBench(t *testing.T, files ...harness.Attachment) *mediaBench {
	t.Helper()
	b := &mediaBench{T: t, store: postgrestest.New(t), objects: &memory{files: map[string][]byte{}}}
	b.provider = &provider{hand: func(a postgres.Attachment) (io.Reader, harness.Attachment, error) {
		return strings.NewReader("bytes of " + a.ProviderID), harness.Attachment{Bytes: int64(len("bytes of " + a.ProviderID)), MimeType: "image/jpeg"}, nil
	}}
	b.sql(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`)
	b.sql(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, '{"name": "coder"}')`)
	b.sql(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('TELEGRAM', 'bot', 'coder', '{"account": "bot"}', true)`)
	accepted, _, err := b.store.Accept(context.Background(), harness.ChannelTelegram, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: "bot", ProviderID: "u", Chat: "7", Address: "7", Message: harness.Message{ChannelUserID: "7", Text: "look"}, Attachments: files,
	}}}, "")
	if err != nil {
		t.Fatal(err)
	}
	b.session = accepted[0].Session
	b.sql(`UPDATE attachments SET state = 'REQUESTED', due_at = now()`)
	b.options = channel.MediaOptions{
		Channel: harness.ChannelTelegram, Store: b.store, Objects: b.objects, Downloader: b.provider, Accounts: anyAccount{},
		Publish: func(_ context.Context, events ...event.Event) { b.events = append(b.events, events...) },
		Log:     slog.New(slog.DiscardHandler), Lease: postgres.Lease{Owner: "test", For: time.Minute}, MaxBytes: 1 << 20,
	}
	return b
}

func (b *mediaBench) sql(sql string, args ...any) {
	b.Helper()
	if _, err := b.store.Pool().Exec(context.Background(), sql, args...); err != nil {
		b.Fatal(err)
	}
}

func (b *mediaBench) deliver() {
	b.Helper()
	e := event.Event{Type: event.MediaRequested, Session: b.session, Channel: harness.ChannelTelegram, Payload: event.Payload{Session: b.session}}
	if err := channel.NewMedia(b.options).Requested(context.Background(), e); err != nil {
		b.Fatal(err)
	}
}

// rows are the files as people read them.
func (b *mediaBench) rows() []string {
	b.Helper()
	rows, err := b.store.Pool().Query(context.Background(), `SELECT concat_ws(' ', provider_id, state, size_bytes, mime_type, attempts, due_at > now(), NULLIF('(' || reason || ')', '()')) FROM attachments ORDER BY provider_id`)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			b.Fatal(err)
		}
		all = append(all, text)
	}
	return all
}

func image(id string, size int64) harness.Attachment {
	return harness.Attachment{Kind: harness.AttachmentImage, ProviderID: id, Bytes: size, MimeType: "image/png"}
}

func TestFilesAreFetched(t *testing.T) {
	b := newMediaBench(t, image("a", 0), image("b", 5))
	b.deliver()
	before := postgrestest.Dump(t, b.store, "attachments", "executions", "outbox")
	b.deliver()
	if diff := cmp.Diff(before, postgrestest.Dump(t, b.store, "attachments", "executions", "outbox")); diff != "" {
		t.Errorf("a repeat changed:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a STORED 10 image/jpeg 1", "b STORED 10 image/jpeg 1"}, b.rows()); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	var id, key string
	if err := b.store.Pool().QueryRow(context.Background(), `SELECT attachment_id, object_key FROM attachments WHERE provider_id = 'a'`).Scan(&id, &key); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("media/%s/%s", b.session, id); key != want || string(b.objects.files[key]) != "bytes of a" {
		t.Errorf("key %q holds %q", key, b.objects.files[key])
	}
	if len(b.provider.asked) != 2 || !strings.HasSuffix(b.provider.asked[0], "@bot") {
		t.Errorf("asked %v", b.provider.asked)
	}
}

// endless sends more than it has announced, and never stops.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestFilesThatCannotBeHad(t *testing.T) {
	said := func(n int64) harness.Attachment { return harness.Attachment{Bytes: n} }
	for name, c := range map[string]struct {
		file   harness.Attachment
		hand   func(postgres.Attachment) (io.Reader, harness.Attachment, error)
		change func(*mediaBench)
		want   string
	}{
		"announced too large": {file: image("a", 2<<20), want: "a FAILED 2097152 image/png 1 (it has 2097152 bytes, more than the 1048576 that are taken)"},
		"said too large": {hand: func(postgres.Attachment) (io.Reader, harness.Attachment, error) {
			return endless{}, said(100 << 20), nil
		}, want: "a FAILED 0 image/png 1 (it has 104857600 bytes, more than the 1048576 that are taken)"},
		"lies and never ends": {hand: func(postgres.Attachment) (io.Reader, harness.Attachment, error) { return endless{}, said(10), nil }, want: "a FAILED 0 image/png 1 (it is larger than the 1048576 bytes that are taken)"},
		"too short": {hand: func(postgres.Attachment) (io.Reader, harness.Attachment, error) {
			return strings.NewReader("abc"), said(10), nil
		}, want: "a REQUESTED 0 image/png 1 t (the provider said that the file has 10 bytes and sent 3)"},
		"gone": {hand: func(postgres.Attachment) (io.Reader, harness.Attachment, error) {
			return nil, said(0), harness.Errorf(harness.NotFound, "the provider has deleted it")
		}, want: "a FAILED 0 image/png 1 (the provider has deleted it)"},
		"down": {hand: func(postgres.Attachment) (io.Reader, harness.Attachment, error) {
			return nil, said(0), harness.Errorf(harness.Unavailable, "not now")
		}, want: "a REQUESTED 0 image/png 1 t (not now)"},
		"a fault of ours": {hand: func(postgres.Attachment) (io.Reader, harness.Attachment, error) {
			return nil, said(0), errors.New("https://api/bot-token-secret")
		}, want: "a FAILED 0 image/png 1 (internal error)"},
		"store down":   {change: func(b *mediaBench) { b.objects.err = harness.Errorf(harness.Unavailable, "the store is down") }, want: "a REQUESTED 0 image/png 1 t (the store is down)"},
		"no store":     {change: func(b *mediaBench) { b.options.Objects = nil }, want: "a FAILED 0 image/png 1 (this system keeps no files: it has no object store)"},
		"account gone": {change: func(b *mediaBench) { b.sql(`DELETE FROM channel_routes`) }, want: "a FAILED 0 image/png 1 (the agent no longer has the account that the file came to)"},
		"the last try": {hand: func(postgres.Attachment) (io.Reader, harness.Attachment, error) {
			return nil, said(0), harness.Errorf(harness.Unavailable, "not now")
		}, change: func(b *mediaBench) { b.sql(`UPDATE attachments SET attempts = 5`) }, want: "a FAILED 0 image/png 6 (not now)"},
		"tries that died": {change: func(b *mediaBench) { b.sql(`UPDATE attachments SET attempts = 6`) }, want: "a FAILED 0 image/png 7 (it could not be fetched in 6 attempts)"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.file.ProviderID == "" {
				c.file = image("a", 0)
			}
			b := newMediaBench(t, c.file)
			if c.hand != nil {
				b.provider.hand = c.hand
			}
			if c.change != nil {
				c.change(b)
			}
			b.deliver()
			if diff := cmp.Diff([]string{c.want}, b.rows()); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
}

// Whoever lost the lease while it downloaded writes nothing.
func TestALostLeaseWritesNothing(t *testing.T) {
	b := newMediaBench(t, image("a", 0))
	b.provider.hand = func(a postgres.Attachment) (io.Reader, harness.Attachment, error) {
		b.sql(`UPDATE attachments SET lease_token = lease_token + 1, lease_owner = 'other'`)
		return strings.NewReader("x"), harness.Attachment{}, nil
	}
	b.deliver()
	if got := b.rows(); !cmp.Equal(got, []string{"a REQUESTED 0 image/png 1 f"}) {
		t.Errorf("rows %v", got)
	}
}

func TestEventsOfOthers(t *testing.T) {
	b := newMediaBench(t, image("a", 0))
	for _, e := range []event.Event{{Channel: harness.ChannelTelegram}, {Channel: harness.ChannelWhatsApp, Payload: event.Payload{Session: b.session}}} {
		if err := channel.NewMedia(b.options).Requested(context.Background(), e); harness.KindOf(err) != harness.Invalid {
			t.Errorf("%+v: %v", e, err)
		}
	}
}
