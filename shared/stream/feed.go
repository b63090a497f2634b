package stream

import (
	"context"
	"net/http"
	"time"
)

// FeedSource is where a feed comes from: events of no one session.
type FeedSource interface {
	// Next returns what comes behind the last it has returned; more: at once.
	Next(ctx context.Context) (events []FeedEvent, more bool, err error)
}

// FeedEvent is one event of a feed. A reader that comes back with ID gets what
// comes behind it.
type FeedEvent struct {
	ID, Name string
	Data     any
}

// feedTime is how often a feed asks its source.
const feedTime = time.Second

// Feed sends the head of the answer and what source has, and, to who follows,
// what comes, until ctx ends, its life is over or the process drains. An error
// says that the reader is gone or that the store failed; o.After is not used.
func Feed(ctx context.Context, w http.ResponseWriter, source FeedSource, o Options) error {
	s := &Stream{Options: o, w: w}
	s.head()
	ctx, cancel := context.WithTimeout(ctx, s.Life)
	defer cancel()
	err := s.feed(ctx, source)
	if err == nil {
		err = deadline(http.NewResponseController(w), time.Time{})
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Stream) feed(ctx context.Context, source FeedSource) error {
	ticker := time.NewTicker(feedTime)
	defer ticker.Stop()
	for {
		events, more, err := source.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			if err := s.buffer.event(e.ID, e.Name, e.Data); err != nil {
				return err
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
		if more {
			continue
		}
		if !s.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Drain:
			return nil
		case <-ticker.C:
		}
	}
}
