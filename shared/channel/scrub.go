package channel

import (
	"strings"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// pairingMark stands where a pairing code was.
const pairingMark = "[pairing code]"

// Scrub takes the pairing codes of accounts out of everything that would be
// stored: a code may stand in a caption, a quote, an edit, a message that is
// refused. It is a secret that people type, and goes into no row.
func Scrub(in *postgres.Inbound, accounts map[string]*Account) {
	var pairs []string
	for _, account := range accounts {
		if account.Spec.Senders.Policy != harness.SendersPairing {
			continue
		}
		for _, code := range account.Keys[RolePairingCode] {
			if code != "" {
				pairs = append(pairs, code.Reveal(), pairingMark)
			}
		}
	}
	if len(pairs) == 0 {
		return
	}
	codes := strings.NewReplacer(pairs...)
	for i := range in.Arrivals {
		a := &in.Arrivals[i]
		a.Message.Text = codes.Replace(a.Message.Text)
		scrubValue(codes, a.Message.Metadata)
		for k := range a.Attachments {
			a.Attachments[k].FileName = codes.Replace(a.Attachments[k].FileName)
		}
	}
	for i := range in.Notices {
		scrubValue(codes, in.Notices[i].Data)
	}
}

// scrubValue replaces in the texts of value, in place where it is a map or list.
func scrubValue(codes *strings.Replacer, value any) any {
	switch v := value.(type) {
	case string:
		return codes.Replace(v)
	case []string:
		for i := range v {
			v[i] = codes.Replace(v[i])
		}
	case []any:
		for i := range v {
			v[i] = scrubValue(codes, v[i])
		}
	case map[string]string:
		for key := range v {
			v[key] = codes.Replace(v[key])
		}
	case map[string]any:
		for key := range v {
			v[key] = scrubValue(codes, v[key])
		}
	}
	return value
}
