package reap

import (
	"context"
	"time"
)

const (
	partitionDays = 14                  // log partitions made ahead: two weeks without a sweep lose nothing
	inboxTime     = 30 * 24 * time.Hour // longer than any provider repeats an update
	noticeTime    = 30 * 24 * time.Hour
	reportTime    = 7 * 24 * time.Hour
	draftTime     = 24 * time.Hour // longer than any turn
)

// completeIdle ends conversations that nobody has written to for their idle time.
func (r *Reaper) completeIdle(ctx context.Context, b *box) error {
	return b.rows(func(limit int) (int, error) { return r.Store.CompleteIdle(ctx, limit) })
}

func (r *Reaper) createPartitions(ctx context.Context, b *box) error {
	made, err := r.Store.CreateLogPartitions(ctx, partitionDays)
	b.count(made, made)
	return err
}

func (r *Reaper) deleteInbox(ctx context.Context, b *box) error {
	return b.rows(func(limit int) (int, error) { return r.Store.DeleteOldInbox(ctx, inboxTime, limit) })
}

func (r *Reaper) deleteNotices(ctx context.Context, b *box) error {
	return b.rows(func(limit int) (int, error) { return r.Store.DeleteOldNotices(ctx, noticeTime, limit) })
}

func (r *Reaper) deleteReports(ctx context.Context, b *box) error {
	return b.rows(func(limit int) (int, error) { return r.Store.DeleteOldReports(ctx, reportTime, limit) })
}

func (r *Reaper) deleteDrafts(ctx context.Context, b *box) error {
	return b.rows(func(limit int) (int, error) { return r.Store.DeleteOldDrafts(ctx, draftTime, limit) })
}

// foldFigures adds what changed to what has been counted.
func (r *Reaper) foldFigures(ctx context.Context, b *box) error {
	return b.rows(func(limit int) (int, error) { return r.Store.FoldFigures(ctx, limit) })
}
