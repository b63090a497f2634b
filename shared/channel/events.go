package channel

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// EventsOptions are what the events side of a provider's channel needs.
type EventsOptions struct {
	Channel    harness.Channel
	Store      *postgres.Store
	Accounts   AccountSource
	Checks     *Checks
	Transport  Transport
	Presence   Presence
	Downloader Downloader
	Drafter    Drafter // nil: nobody sees an answer before it is written
	Objects    Objects // nil: no file is kept, and agents are told so
	MaxMedia   int64   // bytes of one file that comes in
	Events     *function.Publisher
	Owner      string // of leases
	Log        *slog.Logger
	Metrics    prometheus.Registerer
	Drain      <-chan struct{} // closed when the process is to end
}

// mediaLease is how long a file may be fetched before another looks at it; it is
// extended meanwhile.
const mediaLease = 30 * time.Second

// Events returns what the events side of a channel hears: replies to send,
// drafts to show, messages whose senders are shown a sign, files to fetch, agents whose Secrets are
// to be checked.
func Events(o EventsOptions) map[event.Type]function.EventFunc {
	sender := NewSender(SenderOptions{
		Channel: o.Channel, Store: o.Store, Accounts: o.Accounts, Transport: o.Transport, Owner: o.Owner, Log: o.Log, Metrics: o.Metrics, Drain: o.Drain,
	})
	acks := NewAcks(AcksOptions{Channel: o.Channel, Store: o.Store, Accounts: o.Accounts, Presence: o.Presence, Log: o.Log, Drain: o.Drain})
	media := NewMedia(MediaOptions{
		Channel: o.Channel, Store: o.Store, Objects: o.Objects, Downloader: o.Downloader, Accounts: o.Accounts, Publish: o.Events.Publish,
		Log: o.Log, Lease: postgres.Lease{Owner: o.Owner, For: mediaLease}, MaxBytes: o.MaxMedia,
	})
	hears := map[event.Type]function.EventFunc{
		event.MessageReply: sender.Reply, event.MessageReceived: acks.Received, event.MediaRequested: media.Requested,
		event.AgentStatusChanged: o.Checks.AgentStatusChanged,
	}
	if o.Drafter != nil {
		hears[event.MessageDraft] = NewDrafts(DraftsOptions{
			Channel: o.Channel, Store: o.Store, Accounts: o.Accounts, Drafter: o.Drafter, Reply: sender.Reply, Owner: o.Owner, Log: o.Log,
		}).Draft
	}
	return hears
}
