package telegram

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// PollStore is what the poller reads and writes. *postgres.Store is one.
type PollStore interface {
	ClaimPoll(ctx context.Context, channel harness.Channel, account string, lease postgres.Lease) (postgres.PollClaim, error)
	ExtendPoll(ctx context.Context, channel harness.Channel, account string, c postgres.PollClaim, lease postgres.Lease) error
	ReleasePoll(ctx context.Context, channel harness.Channel, account string, c postgres.PollClaim) error
	Accept(ctx context.Context, channel harness.Channel, in postgres.Inbound, traceparent string) ([]postgres.Accepted, []event.Event, error)
}

// Publisher announces what is committed.
type Publisher interface {
	PublishWithin(ctx context.Context, within time.Duration, events ...event.Event)
}

// PollerOptions are what a Poller needs.
type PollerOptions struct {
	Accounts Accounts
	Store    PollStore
	Events   Publisher
	Client   *Client
	Owner    string
	Log      *slog.Logger

	unit time.Duration // what waits are counted in; zero: a second
}

// The waits of a poller, in seconds. The lease outlives one long poll and what
// follows it.
const (
	lookAgain   = 5 // for bots that came or went, and for a claim that another holds
	pollWait    = 25
	pollLease   = 90
	firstWait   = 1
	tokenWait   = 60
	longestWait = 60
	wakesWait   = 2 // for the events of one answer to be published
)

// Poller asks for the updates of every bot whose transport is poll. Each bot has
// a lease, so that one poller asks for it, and a goroutine of its own: what is
// wrong with one bot stops no other.
type Poller struct {
	PollerOptions
	cancel context.CancelFunc
	ended  chan struct{}
}

// StartPoller polls until ctx ends or Close is called.
func StartPoller(ctx context.Context, o PollerOptions) *Poller {
	if o.unit == 0 {
		o.unit = time.Second
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &Poller{PollerOptions: o, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.run(ctx)
	}()
	return p
}

// Close ends polling, gives the leases back and waits for it.
func (p *Poller) Close() {
	p.cancel()
	<-p.ended
}

// worker polls for one bot.
type worker struct {
	account atomic.Pointer[channel.Account] // as it is now: secrets and rules change
	stop    context.CancelFunc
}

// run keeps a worker for every bot that is to be polled.
func (p *Poller) run(ctx context.Context) {
	var running sync.WaitGroup
	workers := map[string]*worker{}
	defer running.Wait()
	unread := false
	for wait := firstWait; p.sleep(ctx, wait); wait = lookAgain {
		all, err := p.Accounts.All(ctx)
		if err == nil {
			p.adjust(ctx, all, workers, &running)
		} else if !unread && ctx.Err() == nil {
			p.Log.Warn("the bots cannot be read; those known are polled on", "err", err)
		}
		unread = err != nil
	}
}

func (p *Poller) adjust(ctx context.Context, all map[string]*channel.Account, workers map[string]*worker, running *sync.WaitGroup) {
	for name, w := range workers {
		if a := all[name]; a == nil || a.Spec.Transport != harness.TransportPoll {
			w.stop()
			delete(workers, name)
		}
	}
	for name, a := range all {
		if a.Spec.Transport != harness.TransportPoll {
			continue
		}
		if w := workers[name]; w != nil {
			w.account.Store(a)
			continue
		}
		w := &worker{}
		w.account.Store(a)
		var own context.Context
		own, w.stop = context.WithCancel(ctx)
		workers[name] = w
		running.Go(func() {
			defer w.stop()
			b := &bot{Poller: p, worker: w, name: name, log: p.Log.With("bot", name)}
			b.run(own)
		})
	}
}

// sleep waits so many seconds; false says that ctx has ended.
func (p *Poller) sleep(ctx context.Context, seconds int) bool {
	timer := time.NewTimer(time.Duration(seconds) * p.unit)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *Poller) lease() postgres.Lease {
	return postgres.Lease{Owner: p.Owner, For: pollLease * time.Second}
}

// bot polls for one bot under its lease.
type bot struct {
	*Poller
	*worker
	name string
	log  *slog.Logger
	told string // what was last said to be wrong
}

func (b *bot) run(ctx context.Context) {
	for ctx.Err() == nil {
		claim, err := b.Store.ClaimPoll(ctx, harness.ChannelTelegram, b.name, b.lease())
		if err == nil {
			b.poll(ctx, claim)
		} else if !errors.Is(err, postgres.ErrNothingDue) && ctx.Err() == nil && b.first("CLAIM") {
			b.log.Warn("the bot's updates cannot be claimed", "err", err)
		}
		b.sleep(ctx, lookAgain)
	}
}

// releaseTime bounds the return of a lease when the process ends.
const releaseTime = 5 * time.Second

// poll asks for updates until ctx ends or the lease is lost.
func (b *bot) poll(ctx context.Context, claim postgres.PollClaim) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		if err := b.Store.ReleasePoll(ctx, harness.ChannelTelegram, b.name, claim); err != nil && !errors.Is(err, postgres.ErrLeaseLost) {
			b.log.Warn("the bot's lease was not given back; it runs out", "err", err)
		}
	}()
	wait := firstWait
	for ctx.Err() == nil {
		next, retry := claim.Next, 0
		err := b.Store.ExtendPoll(ctx, harness.ChannelTelegram, b.name, claim, b.lease())
		if err == nil {
			next, retry, err = b.once(ctx, claim)
		} else if !errors.Is(err, postgres.ErrLeaseLost) && ctx.Err() == nil && b.first("CLAIM") {
			b.log.Warn("the bot's lease cannot be extended", "err", err)
		}
		switch {
		case errors.Is(err, postgres.ErrLeaseLost) || ctx.Err() != nil:
			return
		case err != nil:
			retry = max(retry, wait)
			wait = min(2*wait, longestWait)
		default:
			wait, claim.Next, b.told = firstWait, next, ""
		}
		if retry > 0 {
			b.sleep(ctx, retry)
		}
	}
}

// errNotPolled says that nothing was stored; why has been told.
var errNotPolled = errors.New("no updates were stored")

// once asks for updates and stores what came, with how far it reaches. It
// returns the next offset and how many seconds to wait first.
func (b *bot) once(ctx context.Context, claim postgres.PollClaim) (next int64, wait int, err error) {
	account := b.account.Load()
	token := account.Key(channel.RoleBotToken)
	if token == "" {
		if b.first("TOKEN") {
			b.log.Error("the bot's token is not set")
		}
		return 0, tokenWait, errNotPolled
	}
	begin := time.Now()
	asked, cancel := context.WithTimeout(ctx, pollWait*time.Second+callTime)
	defer cancel()
	a, err := b.Client.call(asked, token, "getUpdates", map[string]any{
		"offset": claim.Next, "timeout": pollWait, "limit": 100, "allowed_updates": AllowedUpdates(),
	})
	if err != nil {
		if ctx.Err() == nil && b.first("LOST") {
			b.log.Warn("Telegram does not answer", "err", err)
		}
		return 0, 0, errNotPolled
	}
	if !a.ok {
		return 0, b.refused(account, a), errNotPolled
	}
	updates, err := readUpdates(account, a.result, claim.Next)
	if err != nil {
		if b.first("SHAPE") {
			b.log.Error("Telegram's answer to getUpdates cannot be read", "err", err)
		}
		return 0, 0, errNotPolled
	}
	if len(updates) == 0 {
		if time.Since(begin) < b.unit { // nobody held the request until something came
			wait = firstWait
		}
		return claim.Next, wait, nil
	}
	if err := b.keep(ctx, claim, updates); err != nil {
		if !errors.Is(err, postgres.ErrLeaseLost) && b.first("STORE") {
			b.log.Error("updates cannot be stored; they are asked for again", "err", err)
		}
		return 0, 0, err
	}
	if next = updates[len(updates)-1].next; next == claim.Next {
		// None of them says where it stands. What was stored has no effect twice.
		if b.first("STUCK") {
			b.log.Error("no update of an answer has an update_id; the same ones are asked for again")
		}
		return 0, 0, errNotPolled
	}
	return next, 0, nil
}

// keep stores updates and how far they reach in one transaction, begun ones even
// while the process ends. Where the store refuses what one of them says, they are
// stored one by one, and of that one only that it came: it must not stop those
// behind it.
func (b *bot) keep(ctx context.Context, claim postgres.PollClaim, updates []polled) error {
	all := postgres.Inbound{}
	for _, u := range updates {
		for _, a := range u.in.Arrivals { // who writes again takes replies again
			all.Blocks = slices.DeleteFunc(all.Blocks, func(b postgres.Block) bool { return b.Chat == a.Chat })
		}
		all.Arrivals, all.Notices = append(all.Arrivals, u.in.Arrivals...), append(all.Notices, u.in.Notices...)
		all.Renames, all.Blocks = append(all.Renames, u.in.Renames...), append(all.Blocks, u.in.Blocks...)
	}
	err := b.accept(ctx, claim, all, updates[len(updates)-1].next)
	if err == nil || passing(err) {
		return err
	}
	for _, u := range updates {
		err := b.accept(ctx, claim, u.in, u.next)
		if err != nil && !passing(err) {
			b.log.Error("an update cannot be stored and is passed", "update", u.id, "kind", string(harness.KindOf(err)), "err", err)
			err = b.accept(ctx, claim, postgres.Inbound{Notices: []postgres.Notice{{Account: b.name, ProviderID: u.id, Kind: harness.NoticeMalformed}}}, u.next)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// passing reports whether an error of the store is not about what is stored.
func passing(err error) bool {
	return harness.KindOf(err) == harness.Unavailable || errors.Is(err, postgres.ErrLeaseLost)
}

// acceptTime bounds one statement.
const acceptTime = 15 * time.Second

func (b *bot) accept(ctx context.Context, claim postgres.PollClaim, in postgres.Inbound, next int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTime)
	defer cancel()
	in.Offset = &postgres.PollOffset{Account: b.name, Token: claim.Token, Next: next}
	_, events, err := b.Store.Accept(ctx, harness.ChannelTelegram, in, "")
	if err != nil {
		return err
	}
	b.Events.PublishWithin(ctx, wakesWait*time.Second, events...)
	return nil
}

// refused says what to do about an answer that is not ok, and how long to wait.
func (b *bot) refused(account *channel.Account, a answer) (seconds int) {
	switch a.code {
	case http.StatusConflict:
		if b.first("CONFLICT") {
			b.log.Error("the bot's updates go elsewhere: a webhook is set (remove it with `tuluat telegram delete-webhook`, or give the channel transport: webhook) or another program polls this bot", "code", a.code)
		}
		return lookAgain
	case http.StatusTooManyRequests:
		if b.first("FLOOD") {
			b.log.Warn("Telegram asks to wait", "seconds", int(a.retryAfter/time.Second))
		}
		return int(a.retryAfter / time.Second)
	case http.StatusUnauthorized, http.StatusNotFound:
		ref := account.Spec.BotToken
		if b.first("TOKEN") {
			b.log.Error("Telegram refuses the bot's token: get the current one from @BotFather and store it in the agent's botTokenSecretRef",
				"agent", string(account.Agent), "secret", ref.Name, "key", ref.Key, "code", a.code)
		}
		return tokenWait
	}
	if b.first("REFUSED") {
		b.log.Warn("Telegram hands out no updates", "code", a.code, "err", a.said())
	}
	return 0
}

// first reports whether what is wrong has not been said since things were right:
// it is logged once.
func (b *bot) first(what string) bool {
	if b.told == what {
		return false
	}
	b.told = what
	return true
}

// polled is one update of an answer.
type polled struct {
	id   string
	in   postgres.Inbound
	next int64 // the offset behind it and those before it
}

// readUpdates reads each update of an answer by itself: one that cannot be read
// is recorded and passed, or it would come back for ever. offset is where the
// answer was asked from; what lies before it is no repeat: after a week without
// updates Telegram counts on from anywhere.
func readUpdates(account *channel.Account, result json.RawMessage, offset int64) ([]polled, error) {
	var texts []json.RawMessage
	if err := json.Unmarshal(result, &texts); err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "not a list of updates")
	}
	updates := make([]polled, len(texts))
	counted := false
	for i, text := range texts {
		value, err := decode(text)
		if err != nil {
			value = nil // nested too deeply
		}
		u := readUpdate(&updates[i].in, account, value, text)
		if id, ok := asObject(value).id("update_id"); ok && (!counted || id >= offset) {
			offset, counted = id+1, true
		}
		channel.Scrub(&updates[i].in, map[string]*channel.Account{account.Name: account})
		updates[i].id, updates[i].next = u.providerID(), offset
	}
	return updates, nil
}

// AllowedUpdates are the updates that the bot asks for: all that Parse has a use
// for. Telegram leaves out the reactions unless they are asked for.
func AllowedUpdates() []string {
	return []string{
		"message", "edited_message", "channel_post", "edited_channel_post", "business_connection", "business_message", "edited_business_message",
		"deleted_business_messages", "guest_message", "message_reaction", "callback_query", "my_chat_member",
	}
}
