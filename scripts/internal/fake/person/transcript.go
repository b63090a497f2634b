package person

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Ticks is how far a message has come.
type Ticks string

// The ticks a phone shows.
const (
	Sent      Ticks = "sent"
	Delivered Ticks = "delivered"
	Read      Ticks = "read"
	Failed    Ticks = "failed"
)

var order = map[Ticks]int{Sent: 1, Delivered: 2, Read: 3, Failed: 4}

// Line is one message of a chat, as a phone shows it.
type Line struct {
	Seq     int64     `json:"seq"`     // place in the transcript
	Changed int64     `json:"changed"` // when it was last touched: ticks, an edit, a reaction
	At      time.Time `json:"at"`
	Account string    `json:"account"` // our side
	Chat    string    `json:"chat"`
	ID      string    `json:"id"`             // the provider's
	From    string    `json:"from,omitempty"` // the person; empty: our side
	Name    string    `json:"name,omitempty"` // the person's
	Kind    string    `json:"kind"`           // text, choices, template, image, document, ...
	Text    string    `json:"text,omitempty"` // as a phone shows it, without marks
	Source  string    `json:"source,omitempty"`
	Choices []Choice  `json:"choices,omitempty"`
	File    *File     `json:"file,omitempty"`
	ReplyTo string    `json:"replyTo,omitempty"`
	Thread  string    `json:"thread,omitempty"` // topic
	Marks   string    `json:"marks,omitempty"`  // reactions
	Opaque  string    `json:"opaque,omitempty"` // what the sender gave along
	Ticks   Ticks     `json:"ticks,omitempty"`
	Why     string    `json:"why,omitempty"` // it failed
	Edited  bool      `json:"edited,omitempty"`
	Gone    bool      `json:"gone,omitempty"` // taken back
}

// Choice is a button or a row of a list.
type Choice struct {
	ID          string `json:"id"`
	Title       string `json:"title"`
	Description string `json:"description,omitempty"`
}

// File is a file of a Line.
type File struct {
	ID       string `json:"id"`
	Name     string `json:"name,omitempty"`
	MimeType string `json:"mimeType"`
	Bytes    int64  `json:"bytes"`
}

type place struct{ account, chat string }

// Transcript is what stands in all chats.
type Transcript struct {
	mu      sync.Mutex
	seq     int64
	chats   map[place][]*Line
	byID    map[place]*Line // chat is the message's id: unique per account and chat is enough
	typing  map[place]time.Time
	changed chan struct{}
}

const keepLines = 5000 // per chat

// NewTranscript returns one with these lines.
func NewTranscript(lines []Line) *Transcript {
	t := &Transcript{chats: map[place][]*Line{}, byID: map[place]*Line{}, typing: map[place]time.Time{}, changed: make(chan struct{})}
	for _, l := range lines {
		t.seq = max(t.seq, l.Changed)
		t.put(&l)
	}
	return t
}

func (t *Transcript) put(l *Line) {
	p := place{l.Account, l.Chat}
	t.chats[p] = append(t.chats[p], l)
	t.byID[place{l.Account, l.Chat + "\x00" + l.ID}] = l
	if old := t.chats[p]; len(old) > 2*keepLines {
		for _, gone := range old[:len(old)-keepLines] {
			delete(t.byID, place{l.Account, l.Chat + "\x00" + gone.ID})
		}
		t.chats[p] = append(old[:0:0], old[len(old)-keepLines:]...)
	}
}

func (t *Transcript) touch(l *Line) {
	t.seq++
	l.Changed = t.seq
	close(t.changed)
	t.changed = make(chan struct{})
}

// Add writes l down and returns it with its place.
func (t *Transcript) Add(l Line) Line {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.touch(&l)
	l.Seq = l.Changed
	t.put(&l)
	if l.From == "" {
		delete(t.typing, place{l.Account, l.Chat})
	}
	return l
}

// Change lets f change the line id of chat. It reports whether there is one.
func (t *Transcript) Change(account, chat, id string, f func(*Line)) (Line, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.byID[place{account, chat + "\x00" + id}]
	if l == nil {
		return Line{}, false
	}
	f(l)
	t.touch(l)
	return *l, true
}

// Tick moves the ticks of a line forward, never back.
func (t *Transcript) Tick(account, chat, id string, to Ticks, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.byID[place{account, chat + "\x00" + id}]; l != nil && order[to] > order[l.Ticks] {
		l.Ticks, l.Why = to, why
		t.touch(l)
	}
}

// Find returns the line id of chat.
func (t *Transcript) Find(account, chat, id string) (Line, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.byID[place{account, chat + "\x00" + id}]; l != nil {
		return *l, true
	}
	return Line{}, false
}

// Last returns the newest line of chat that is wanted.
func (t *Transcript) Last(account, chat string, wanted func(Line) bool) (Line, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := t.chats[place{account, chat}]
	for i := len(lines) - 1; i >= 0; i-- {
		if wanted(*lines[i]) {
			return *lines[i], true
		}
	}
	return Line{}, false
}

// Move gives the chat from the name to.
func (t *Transcript) Move(account, from, to string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := t.chats[place{account, from}]
	delete(t.chats, place{account, from})
	for _, l := range lines {
		delete(t.byID, place{account, from + "\x00" + l.ID})
		l.Chat = to
		t.put(l)
	}
}

// Typing shows until then that our side writes.
func (t *Transcript) Typing(account, chat string, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.typing[place{account, chat}] = until
	close(t.changed)
	t.changed = make(chan struct{})
}

// TypingUntil returns when the sign goes away; zero: it does not show.
func (t *Transcript) TypingUntil(account, chat string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.typing[place{account, chat}]
}

// Lines returns what was added or changed in chat after a place, in the order of
// the chat, and the place up to which that is all.
func (t *Transcript) Lines(account, chat string, after int64) ([]Line, int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lines(account, chat, after)
}

func (t *Transcript) lines(account, chat string, after int64) ([]Line, int64) {
	if after > t.seq {
		after = 0 // a place of a run that was killed before it was kept
	}
	lines := []Line{}
	for _, l := range t.chats[place{account, chat}] {
		if l.Changed > after {
			lines = append(lines, *l)
		}
	}
	return lines, t.seq
}

// Wait is Lines, but waits until there is something.
func (t *Transcript) Wait(ctx context.Context, account, chat string, after int64) ([]Line, int64) {
	for {
		t.mu.Lock()
		lines, at := t.lines(account, chat, after)
		changed := t.changed
		t.mu.Unlock()
		if len(lines) > 0 {
			return lines, at
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return lines, at
		}
	}
}

// Since returns what was added or changed after a place in all chats of account
// and in those that have no account, in the order it was written, and the place
// up to which that is all.
func (t *Transcript) Since(account string, after int64) ([]Line, int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []Line{}
	for p := range t.chats {
		if p.account == account || p.account == "" {
			lines, _ := t.lines(p.account, p.chat, after)
			all = append(all, lines...)
		}
	}
	slices.SortFunc(all, func(a, b Line) int { return cmp.Compare(a.Seq, b.Seq) })
	return all, t.seq
}

// Heads returns the newest line of each chat of account, and of those that have
// no account, that was touched after a place. In no order.
func (t *Transcript) Heads(account string, after int64) []Line {
	t.mu.Lock()
	defer t.mu.Unlock()
	if after > t.seq {
		after = 0 // as in lines
	}
	heads := []Line{}
	for p, lines := range t.chats {
		if p.account != account && p.account != "" || len(lines) == 0 {
			continue
		}
		if head := lines[len(lines)-1]; head.Changed > after {
			heads = append(heads, *head)
		}
	}
	return heads
}

// Changed is closed at the next change: of a line, or of who types. Taken before
// a look, nothing is missed after it.
func (t *Transcript) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// Version is another number after every change.
func (t *Transcript) Version() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seq
}

// Chats lists the chats of account, or of all with account "", in no order.
func (t *Transcript) Chats(account string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	chats := []string{}
	for p := range t.chats {
		if account == "" || p.account == account {
			chats = append(chats, p.chat)
		}
	}
	return chats
}

// All returns every line, chat by chat.
func (t *Transcript) All() []Line {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Line
	for _, lines := range t.chats {
		for _, l := range lines {
			all = append(all, *l)
		}
	}
	return all
}
