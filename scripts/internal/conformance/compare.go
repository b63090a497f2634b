package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// longestAnswer is how long a provider's request may take.
const longestAnswer = time.Second

// Compare says what of o is not as the case wants it: nothing if one of its
// outcomes fits. The differences are those from the first outcome.
func Compare(c *Case, want Outcome, o *Observed) []string {
	always := slices.Clone(o.Faults)
	for _, a := range o.Answers {
		always = append(always, checkAnswer(c, a)...)
	}
	for _, m := range o.Messages {
		always = append(always, checkMessage(m)...)
	}
	if o.Wakes != nil {
		always = append(always, checkWakes(o)...)
	}
	first := differences(c, want, o)
	if len(first) == 0 {
		return always
	}
	for _, also := range want.AlsoOK {
		if len(differences(c, also, o)) == 0 {
			return always
		}
	}
	return append(first, always...)
}

// checkAnswer checks what holds for every answer.
func checkAnswer(c *Case, a Answer) (faults []string) {
	if a.Status >= 500 || a.Status == 0 {
		faults = append(faults, fmt.Sprintf("answered %d", a.Status))
	}
	if a.Took > longestAnswer {
		faults = append(faults, fmt.Sprintf("answered after %s", a.Took.Round(time.Millisecond)))
	}
	if c.Kind() == kindTelegram {
		var answer map[string]json.RawMessage
		if json.Unmarshal([]byte(a.Body), &answer) == nil && answer["method"] != nil {
			faults = append(faults, "the answer has a key method: Telegram runs it")
		}
	}
	return faults
}

// checkMessage checks what holds for every message.
func checkMessage(m Stored) (faults []string) {
	if strings.TrimSpace(m.Text) == "" {
		faults = append(faults, fmt.Sprintf("message %s has no text", m.messageID()))
	}
	if !utf8.ValidString(m.Text) {
		faults = append(faults, fmt.Sprintf("message %s is no UTF-8", m.messageID()))
	}
	return faults
}

// checkWakes checks that exactly the sessions with messages were announced.
func checkWakes(o *Observed) (faults []string) {
	written := map[string]bool{}
	for _, m := range o.Messages {
		written[m.Session] = true
	}
	for _, session := range slices.Sorted(maps.Keys(written)) {
		if !slices.Contains(o.Wakes, session) {
			faults = append(faults, "no message.received for "+session)
		}
	}
	for _, session := range o.Wakes {
		if !written[session] {
			faults = append(faults, "message.received for a session without a message: "+session)
		}
	}
	return faults
}

// differences compares o with one outcome.
func differences(c *Case, want Outcome, o *Observed) []string {
	if c.Kind() == kindOut {
		return compareSending(want, o)
	}
	var d differ
	for i, a := range o.Answers {
		d.answer(c, want, i, a)
	}
	d.messages(want, o)
	if want.Recorded != nil && !recorded(want.Recorded, o.Records) {
		d.add("recorded", "%s is in no notice, reply or chat", compact(want.Recorded))
	}
	if want.NextOffset != nil && o.NextOffset != *want.NextOffset {
		d.add("next_offset", "%d, want %d", o.NextOffset, *want.NextOffset)
	}
	return d
}

// differ collects differences.
type differ []string

func (d *differ) add(what, format string, args ...any) {
	*d = append(*d, what+": "+fmt.Sprintf(format, args...))
}

func (d *differ) answer(c *Case, want Outcome, i int, a Answer) {
	exact := c.Kind() == kindWhatsApp || want.HTTPStatus != 200
	if (exact && a.Status != want.HTTPStatus) || (!exact && a.Status/100 != 2) {
		d.add("http_status", "request %d: %d, want %d", i+1, a.Status, want.HTTPStatus)
	}
	if want.BodyExact != nil && a.Body != *want.BodyExact {
		d.add("body_exact", "%.80q, want %.80q", a.Body, *want.BodyExact)
	}
	if want.BodyExcludes != nil && strings.Contains(a.Body, *want.BodyExcludes) {
		d.add("body_excludes", "the answer repeats %q", *want.BodyExcludes)
	}
	if want.ContentTypeNot != nil && (strings.HasPrefix(a.ContentType, *want.ContentTypeNot) || a.ContentType == "" || !a.NoSniff) {
		d.add("content_type_not", "%q, nosniff %t", a.ContentType, a.NoSniff)
	}
}

// messages pairs the expected with the stored by their ids, else by their places.
func (d *differ) messages(want Outcome, o *Observed) {
	left := make([]int, len(o.Messages))
	for i := range left {
		left[i] = i
	}
	order := map[string]int{} // the last place taken of each session
	for _, expected := range want.Messages {
		id := scalarOf(expected.Metadata["messageId"])
		at := slices.IndexFunc(left, func(i int) bool { return id == "" || o.Messages[i].messageID() == id })
		if at < 0 {
			d.add("messages", "there is none with the id %q", id)
			continue
		}
		i := left[at]
		left = slices.Delete(left, at, at+1)
		got := o.Messages[i]
		if last, known := order[got.Session]; known && i < last {
			d.add("messages", "%s is out of order", got.messageID())
		}
		order[got.Session] = i
		d.message(want, expected, got)
	}
	for _, i := range left {
		d.add("messages", "one too many: %s %q", o.Messages[i].messageID(), clip(o.Messages[i].Text))
	}
}

func (d *differ) message(want Outcome, expected Message, got Stored) {
	id := got.messageID()
	if got.Channel != expected.Channel {
		d.add(id+" channel", "%s, want %s", got.Channel, expected.Channel)
	}
	if got.ChannelUserID != expected.ChannelUserID && !slices.Contains(expected.ChannelUserIDAnyOf, got.ChannelUserID) {
		d.add(id+" channelUserId", "%q, want %q", got.ChannelUserID, expected.ChannelUserID)
	}
	if expected.Text != nil && got.Text != *expected.Text && !slices.Contains(expected.TextAnyOf, got.Text) {
		d.add(id+" text", "%q, want %q", clip(got.Text), clip(*expected.Text))
	}
	for _, part := range expected.TextContains {
		if !strings.Contains(got.Text, part) {
			d.add(id+" text", "%q lacks %q", clip(got.Text), part)
		}
	}
	for _, part := range expected.TextExcludes {
		if strings.Contains(got.Text, part) {
			d.add(id+" text", "%q has %q", clip(got.Text), part)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(expected.Metadata)) {
		if has, wanted := scalar(got.Metadata[key]), scalarOf(expected.Metadata[key]); has != wanted {
			d.add(id+" metadata."+key, "%q, want %q", has, wanted)
		}
	}
	for _, key := range want.MetadataAbsent {
		if has := scalar(got.Metadata[key]); has != "" {
			d.add(id+" metadata."+key, "%q, want none", has)
		}
	}
	for _, word := range want.MetadataOrText {
		if !strings.Contains(got.Text, word) && !strings.Contains(scalar(got.Metadata), word) {
			d.add(id, "%q is neither in its text nor in its metadata", word)
		}
	}
}

// recorded reports whether one record holds all that is wanted, under whatever
// names.
func recorded(want map[string]json.RawMessage, records []map[string]string) bool {
	return slices.ContainsFunc(records, func(record map[string]string) bool {
		for _, raw := range want {
			wanted := scalarOf(raw)
			if !slices.Contains(slices.Collect(maps.Values(record)), wanted) {
				return false
			}
		}
		return true
	})
}

func compareSending(want Outcome, o *Observed) []string {
	var d differ
	r := o.Reply
	if r == nil {
		return []string{"reply: none was planned"}
	}
	d.outcome(want, o)
	if want.Retry != nil && r.Open != *want.Retry {
		d.add("retry", "%t (state %s), want %t", r.Open, r.State, *want.Retry)
	}
	if want.MinWait != nil && (!r.Open || r.Wait < *want.MinWait) {
		d.add("min_wait_s", "%.1f, want %g at least", r.Wait, *want.MinWait)
	}
	if want.Scope != nil && (r.OtherServed == nil || *r.OtherServed != (*want.Scope == scopeUser)) {
		d.add("scope", "replies to others are served: %s", pointed(r.OtherServed))
	}
	if want.AlertOperator != nil && (!o.Watched || (len(o.Errors) > 0) != *want.AlertOperator) {
		d.add("alert_operator", "%d ERROR lines in the log, log read: %t", len(o.Errors), o.Watched)
	}
	if want.RequestContains != nil || want.RequestLacks != nil {
		d.firstRequest(want, o)
	}
	d.chunks(want, o)
	return d
}

func pointed(b *bool) string {
	if b == nil {
		return "not tried"
	}
	return fmt.Sprint(*b)
}

func (d *differ) outcome(want Outcome, o *Observed) {
	r := o.Reply
	switch want.Outcome {
	case "fail":
		if r.State != "FAILED" || r.Open || len(o.Requests) != 1 {
			d.add("outcome", "%s (%s) after %d requests, want FAILED after 1", r.State, clip(r.Reason), len(o.Requests))
		}
	case "retry":
		if r.State != "PLANNED" || len(o.Requests) != 1 {
			d.add("outcome", "%s (%s) after %d requests, want PLANNED after 1", r.State, clip(r.Reason), len(o.Requests))
		}
	case "resend":
		if r.State != "SENT" || len(o.Requests) != 2 {
			d.add("outcome", "%s (%s) after %d requests, want SENT after 2", r.State, clip(r.Reason), len(o.Requests))
			return
		}
		again := o.Requests[1].Body
		if mode := scalar(again["parse_mode"]); mode != "" {
			d.add("request", "the second has parse_mode %s", mode)
		}
		if diff := subset(want.Request, again); diff != "" {
			d.add("request", "the second: %s", diff)
		}
	}
}

func (d *differ) firstRequest(want Outcome, o *Observed) {
	if len(o.Requests) == 0 {
		d.add("request_contains", "nothing was sent (%s %s)", o.Reply.State, clip(o.Reply.Reason))
		return
	}
	body := o.Requests[0].Body
	if diff := subset(want.RequestContains, body); diff != "" {
		d.add("request_contains", "%s", diff)
	}
	for _, key := range want.RequestLacks {
		if _, has := body[key]; has {
			d.add("request_lacks", "it has %s", key)
		}
	}
}

func (d *differ) chunks(want Outcome, o *Observed) {
	if want.Chunks != nil && len(o.Requests) != *want.Chunks {
		d.add("chunks", "%d, want %d (%s %s)", len(o.Requests), *want.Chunks, o.Reply.State, clip(o.Reply.Reason))
	}
	if want.Chunks != nil && o.Reply.Open {
		d.add("chunks", "a part is still open")
	}
	joined, lone := "", false
	for i, r := range o.Requests {
		text := spoken(r.Body)
		joined += text
		lone = lone || strings.ContainsRune(text, utf8.RuneError)
		if units := utf16Len(text); want.MaxUTF16Units != nil && units > *want.MaxUTF16Units {
			d.add("max_utf16_units", "request %d has %d, want %d at most", i+1, units, *want.MaxUTF16Units)
		}
	}
	if want.JoinedEqualsInput != nil && (joined == o.Reply.Text) != *want.JoinedEqualsInput {
		d.add("joined_equals_input", "%d bytes were sent of %d", len(joined), len(o.Reply.Text))
	}
	if want.NoLoneSurrogates != nil && lone == *want.NoLoneSurrogates {
		d.add("no_lone_surrogates", "%t, want %t", !lone, *want.NoLoneSurrogates)
	}
}

var tag = regexp.MustCompile(`<[^>]*>`)

// spoken is the text of a request as a person reads it.
func spoken(body map[string]any) string {
	if inner, ok := body["text"].(map[string]any); ok {
		return scalar(inner["body"])
	}
	text := scalar(body["text"])
	if scalar(body["parse_mode"]) == "HTML" {
		text = html.UnescapeString(tag.ReplaceAllString(text, ""))
	}
	return text
}

func utf16Len(s string) int {
	n := 0
	for _, r := range s {
		n++
		if r > 0xFFFF {
			n++
		}
	}
	return n
}

// subset says what of want is not in got.
func subset(want map[string]json.RawMessage, got map[string]any) string {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		var inner map[string]json.RawMessage
		if json.Unmarshal(want[key], &inner) == nil && inner != nil {
			has, _ := got[key].(map[string]any)
			if diff := subset(inner, has); diff != "" {
				return key + "." + diff
			}
			continue
		}
		if has, wanted := scalar(got[key]), scalarOf(want[key]); has != wanted {
			return fmt.Sprintf("%s is %q, want %q", key, clip(has), wanted)
		}
	}
	return ""
}

// decode reads JSON with exact numbers.
func decode(raw []byte) (any, error) {
	var v any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	err := decoder.Decode(&v)
	return v, err
}

func compact(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// clip shortens s for a table.
func clip(s string) string {
	const most = 120
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}
