package conformance

import (
	"encoding/json"
	"maps"
	"slices"
)

// Mutant is an expectation with one thing changed in each of its outcomes, so
// that a right system does not meet it.
type Mutant struct {
	What string // was changed in the first outcome
	Want Outcome
}

// Mutants returns want once for each thing that it says, with that changed. Its
// alternatives are changed too, each in one place, a different one every time.
func Mutants(want Outcome) []Mutant {
	first := changes(want, len(want.AlsoOK) == 0)
	mutants := make([]Mutant, 0, len(first))
	for i, change := range first {
		m := Mutant{What: change.what, Want: change.to}
		m.Want.AlsoOK = nil
		for k, also := range want.AlsoOK {
			others := changes(also, false)
			m.Want.AlsoOK = append(m.Want.AlsoOK, others[(i+k)%len(others)].to)
		}
		mutants = append(mutants, m)
	}
	return mutants
}

type change struct {
	what string
	to   Outcome
}

// What no system says.
const (
	noWord   = "what nobody has said"
	noStatus = 599
)

var noJSON = json.RawMessage(`"` + noWord + `"`)

// changes returns o with each thing that it says changed, one at a time. Less
// messages may be another right outcome, where there are several.
func changes(o Outcome, only bool) []change {
	var all []change
	add := func(what string, apply func(o *Outcome)) {
		changed := o
		changed.Messages = slices.Clone(o.Messages)
		apply(&changed)
		all = append(all, change{what, changed})
	}
	if o.HTTPStatus != 0 {
		add("http_status", func(o *Outcome) { o.HTTPStatus = noStatus })
	}
	if o.Outcome == "" && o.Chunks == nil && o.RequestContains == nil {
		add("messages: one more", func(o *Outcome) {
			o.Messages = append(o.Messages, Message{Channel: "API", ChannelUserID: noWord, Metadata: map[string]json.RawMessage{"messageId": noJSON}})
		})
	}
	for i := range o.Messages {
		if only {
			add("messages: one less", func(o *Outcome) { o.Messages = slices.Delete(o.Messages, i, i+1) })
		}
		changeMessage(o.Messages[i], func(what string, m Message) {
			add("messages: "+what, func(o *Outcome) { o.Messages[i] = m })
		})
	}
	if len(o.Messages) > 0 {
		for i := range o.MetadataAbsent {
			add("metadataAbsent", func(o *Outcome) { o.MetadataAbsent = replaced(o.MetadataAbsent, i, "messageId") })
		}
		for i := range o.MetadataOrText {
			add("metadataOrText", func(o *Outcome) { o.MetadataOrText = replaced(o.MetadataOrText, i, noWord) })
		}
	}
	for _, key := range slices.Sorted(maps.Keys(o.Recorded)) {
		add("recorded."+key, func(o *Outcome) { o.Recorded = with(o.Recorded, key, noJSON) })
	}
	if o.BodyExact != nil {
		add("body_exact", func(o *Outcome) { o.BodyExact = new(*o.BodyExact + "\n") })
	}
	if o.BodyExcludes != nil {
		add("body_excludes", func(o *Outcome) { o.BodyExcludes = new("") })
	}
	if o.ContentTypeNot != nil {
		add("content_type_not", func(o *Outcome) { o.ContentTypeNot = new("") })
	}
	if o.NextOffset != nil {
		add("next_offset", func(o *Outcome) { o.NextOffset = new(*o.NextOffset + 1) })
	}
	changeSending(o, add)
	return all
}

func changeMessage(m Message, add func(what string, m Message)) {
	changed := m
	changed.Channel = "API"
	add("channel", changed)
	changed = m
	changed.ChannelUserID, changed.ChannelUserIDAnyOf = noWord, nil
	add("channelUserId", changed)
	changed = m
	changed.Text, changed.TextAnyOf = new(noWord), nil
	add("text", changed)
	for i := range m.TextContains {
		changed = m
		changed.TextContains = replaced(m.TextContains, i, noWord)
		add("textContains", changed)
	}
	for i := range m.TextExcludes {
		changed = m
		changed.TextExcludes = replaced(m.TextExcludes, i, "")
		add("textExcludes", changed)
	}
	for _, key := range slices.Sorted(maps.Keys(m.Metadata)) {
		changed = m
		changed.Metadata = with(m.Metadata, key, noJSON)
		add("metadata."+key, changed)
	}
}

func changeSending(o Outcome, add func(string, func(*Outcome))) {
	if o.Outcome != "" {
		other := map[string]string{"fail": "retry", "retry": "fail", "resend": "fail"}[o.Outcome]
		add("outcome", func(o *Outcome) { o.Outcome = other })
	}
	if o.Retry != nil {
		add("retry", func(o *Outcome) { o.Retry = new(!*o.Retry) })
	}
	if o.AlertOperator != nil {
		add("alert_operator", func(o *Outcome) { o.AlertOperator = new(!*o.AlertOperator) })
	}
	if o.MinWait != nil {
		add("min_wait_s", func(o *Outcome) { o.MinWait = new(*o.MinWait + 1e6) })
	}
	if o.Scope != nil {
		add("scope", func(o *Outcome) { o.Scope = new("everybody") })
	}
	for _, key := range slices.Sorted(maps.Keys(o.Request)) {
		add("request."+key, func(o *Outcome) { o.Request = with(o.Request, key, noJSON) })
	}
	for _, key := range slices.Sorted(maps.Keys(o.RequestContains)) {
		add("request_contains."+key, func(o *Outcome) { o.RequestContains = with(o.RequestContains, key, noJSON) })
	}
	for i := range o.RequestLacks {
		for _, key := range slices.Sorted(maps.Keys(o.RequestContains)) {
			add("request_lacks", func(o *Outcome) { o.RequestLacks = replaced(o.RequestLacks, i, key) })
			break
		}
	}
	if o.Chunks != nil {
		add("chunks", func(o *Outcome) { o.Chunks = new(*o.Chunks + 1) })
	}
	if o.MaxUTF16Units != nil {
		add("max_utf16_units", func(o *Outcome) { o.MaxUTF16Units = new(1) })
	}
	if o.JoinedEqualsInput != nil {
		add("joined_equals_input", func(o *Outcome) { o.JoinedEqualsInput = new(!*o.JoinedEqualsInput) })
	}
	if o.NoLoneSurrogates != nil {
		add("no_lone_surrogates", func(o *Outcome) { o.NoLoneSurrogates = new(!*o.NoLoneSurrogates) })
	}
}

func replaced(list []string, i int, by string) []string {
	list = slices.Clone(list)
	list[i] = by
	return list
}

func with(m map[string]json.RawMessage, key string, value json.RawMessage) map[string]json.RawMessage {
	changed := map[string]json.RawMessage{key: value}
	for k, v := range m {
		if k != key {
			changed[k] = v
		}
	}
	return changed
}
