package channel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// MediaStore is what Media needs of *postgres.Store.
type MediaStore interface {
	ClaimMedia(ctx context.Context, session harness.SessionID, lease postgres.Lease) (*postgres.MediaClaim, error)
	ExtendMedia(ctx context.Context, c *postgres.MediaClaim, lease postgres.Lease) error
	MarkMedia(ctx context.Context, c *postgres.MediaClaim, o postgres.MediaOutcome) ([]event.Event, error)
}

// MediaOptions are everything a Media depends on.
type MediaOptions struct {
	Channel    harness.Channel
	Store      MediaStore
	Objects    Objects // nil: no file is kept, and agents are told so
	Downloader Downloader
	Accounts   AccountSource
	Publish    func(ctx context.Context, events ...event.Event)
	Log        *slog.Logger
	Lease      postgres.Lease
	MaxBytes   int64 // of one file; it is held in memory
}

const (
	mediaAttempts = 6               // tries to fetch one file
	mediaTime     = 2 * time.Minute // for one of them
	mediaAtOnce   = 4               // files in memory
)

// Media fetches the files of a channel when commands need them: claim, download,
// keep, mark. A crash at any line leaves the file leased; its lease runs out and
// it is fetched again, to the same key.
type Media struct {
	MediaOptions
	room chan struct{}
}

// NewMedia returns a Media.
func NewMedia(o MediaOptions) *Media {
	return &Media{MediaOptions: o, room: make(chan struct{}, mediaAtOnce)}
}

// Requested fetches the files of the session that e names, one after the other,
// until none is due.
func (m *Media) Requested(ctx context.Context, e event.Event) error {
	if e.Payload.Session == "" || e.Channel != m.Channel {
		return harness.Errorf(harness.Invalid, "media.requested must name a session of the channel %s", m.Channel)
	}
	for ctx.Err() == nil {
		c, err := m.Store.ClaimMedia(ctx, e.Payload.Session, m.Lease)
		if errors.Is(err, postgres.ErrNothingDue) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := m.one(ctx, c); err != nil {
			return err
		}
	}
	return harness.Wrap(harness.Unavailable, context.Cause(ctx), "files are left to be fetched")
}

// one fetches a claimed file and writes what came of it.
func (m *Media) one(ctx context.Context, c *postgres.MediaClaim) error {
	var o postgres.MediaOutcome
	err := postgres.Keep(ctx, m.Lease.For,
		func(ctx context.Context) error { return m.Store.ExtendMedia(ctx, c, m.Lease) },
		func(ctx context.Context) (err error) {
			o, err = m.fetch(ctx, c)
			if errors.Is(context.Cause(ctx), postgres.ErrLeaseLost) {
				return postgres.ErrLeaseLost
			}
			return err
		})
	if errors.Is(err, postgres.ErrLeaseLost) {
		return nil // whoever has it now does the rest
	}
	if err != nil {
		o = failed(c, err)
		m.Log.Warn("file not fetched", "attachment", string(c.ID), "session", string(c.Session), "agent", string(c.Agent), "attempt", c.Attempts, "state", string(o.State), "err", err)
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), markTime, errors.New("commit deadline"))
	defer cancel()
	events, err := m.Store.MarkMedia(ctx, c, o)
	if errors.Is(err, postgres.ErrLeaseLost) {
		return nil
	}
	if err != nil {
		return err
	}
	m.Publish(ctx, events...)
	return nil
}

// failed is the outcome of an attempt that ended with err.
func failed(c *postgres.MediaClaim, err error) postgres.MediaOutcome {
	o := postgres.MediaOutcome{State: harness.AttachmentFailed, Reason: harness.MessageOf(err)}
	if harness.KindOf(err) == harness.Unavailable && c.Attempts < mediaAttempts {
		o.State, o.Retry = harness.AttachmentRequested, time.Second<<min(c.Attempts, 6)
	}
	return o
}

// fetch brings a file from the provider to the object store.
func (m *Media) fetch(ctx context.Context, c *postgres.MediaClaim) (postgres.MediaOutcome, error) {
	none := postgres.MediaOutcome{}
	switch {
	case c.Attempts > mediaAttempts: // its last attempts never came to an end
		return none, harness.Errorf(harness.Internal, "it could not be fetched in %d attempts", mediaAttempts)
	case m.Objects == nil:
		return none, harness.Errorf(harness.Denied, "this system keeps no files: it has no object store")
	case c.Spec == nil:
		return none, harness.Errorf(harness.NotFound, "the agent no longer has the account that the file came to")
	case c.Bytes > m.MaxBytes:
		return none, m.tooLarge(c.Bytes)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, mediaTime, errors.New("deadline of a download"))
	defer cancel()
	account, err := m.Accounts.Of(ctx, c.Account, c.Agent, *c.Spec)
	if err != nil {
		return none, err
	}
	select {
	case m.room <- struct{}{}:
		defer func() { <-m.room }()
	case <-ctx.Done():
		return none, harness.Wrap(harness.Unavailable, context.Cause(ctx), "too many files are fetched at once")
	}
	said, data, err := m.download(ctx, account, c.Attachment)
	if err != nil {
		return none, err
	}
	key := "media/" + string(c.Session) + "/" + string(c.ID)
	if err := m.Objects.Put(ctx, key, bytes.NewReader(data), int64(len(data)), said.MimeType); err != nil {
		return none, err
	}
	sum := sha256.Sum256(data)
	return postgres.MediaOutcome{
		State: harness.AttachmentStored, ObjectKey: key, Digest: hex.EncodeToString(sum[:]), Bytes: int64(len(data)),
		FileName: said.FileName, MimeType: said.MimeType,
	}, nil
}

// download reads a file whole. A provider that sends another number of bytes
// than it has said broke off, or lies.
func (m *Media) download(ctx context.Context, account *Account, a postgres.Attachment) (harness.Attachment, []byte, error) {
	body, said, err := m.Downloader.Download(ctx, account, a)
	if err != nil {
		return said, nil, err
	}
	defer body.Close()
	if said.Bytes > m.MaxBytes {
		return said, nil, m.tooLarge(said.Bytes)
	}
	data, err := io.ReadAll(io.LimitReader(body, m.MaxBytes+1))
	got := int64(len(data))
	switch {
	case got > m.MaxBytes:
		return said, nil, m.tooLarge(0)
	case err != nil:
		return said, nil, harness.Wrap(harness.Unavailable, err, "the file broke off")
	case said.Bytes > 0 && got != said.Bytes:
		return said, nil, harness.Errorf(harness.Unavailable, "the provider said that the file has %d bytes and sent %d", said.Bytes, got)
	}
	if said.MimeType == "" {
		said.MimeType = a.MimeType
	}
	return said, data, nil
}

func (m *Media) tooLarge(size int64) error {
	text := fmt.Sprintf("it is larger than the %d bytes that are taken", m.MaxBytes)
	if size > 0 {
		text = fmt.Sprintf("it has %d bytes, more than the %d that are taken", size, m.MaxBytes)
	}
	return harness.Errorf(harness.Invalid, "%s", text)
}
