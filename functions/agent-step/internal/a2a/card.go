package a2a

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/a2aproject/a2a-go/a2a"

	"tuluat.ai/harness/shared/harness"
)

const (
	maxCard        = 1 << 20 // bytes that are read of a card
	maxDescription = 1024    // bytes that are kept of its description
	maxURL         = 2048    // bytes
)

// card is what is kept of a peer's agent card.
type card struct {
	URL         string `json:"url"` // where it takes messages, on the host that the agent's author named
	Description string `json:"description,omitempty"`
}

// said is what is read of a card. Whatever else it says, such as how callers prove
// who they are, cannot make it unreadable.
type said struct {
	URL                  string                `json:"url"`
	PreferredTransport   a2a.TransportProtocol `json:"preferredTransport"`
	AdditionalInterfaces []a2a.AgentInterface  `json:"additionalInterfaces"`
	Description          string                `json:"description"`
}

// card asks a peer for its card. The error's message says why there is none that can
// be used, in words of our own.
func (p *Peers) card(ctx context.Context, agent harness.AgentName, peer harness.Peer) (card, error) {
	w, err := p.open(ctx, agent, peer)
	if err != nil {
		return card{}, err
	}
	from, err := url.Parse(peer.URL)
	if err != nil { // its text holds the url
		return card{}, harness.Errorf(harness.Invalid, "its url is no address")
	}
	at := from
	if !strings.HasSuffix(from.Path, ".json") {
		at = from.JoinPath(".well-known", "agent-card.json")
	}
	text, err := w.do(ctx, http.MethodGet, at.String(), nil, maxCard)
	if err != nil {
		return card{}, err
	}
	var found said
	if err := json.Unmarshal(text, &found); err != nil {
		return card{}, harness.Errorf(harness.Unavailable, "what is at its url is no agent card")
	}
	address, err := endpoint(from, found)
	if err != nil {
		return card{}, err
	}
	return card{URL: address, Description: cut(harness.CleanText(harness.Redact(found.Description, w.secrets)), maxDescription)}, nil
}

// endpoint is where a card says that messages are sent by JSON-RPC. It is on the host
// of from: the headers of the agent are for that one.
func endpoint(from *url.URL, c said) (string, error) {
	interfaces := append([]a2a.AgentInterface{{URL: c.URL, Transport: c.PreferredTransport}}, c.AdditionalInterfaces...)
	elsewhere := false
	for i, one := range interfaces {
		if one.URL == "" || one.Transport != a2a.TransportProtocolJSONRPC && (i > 0 || one.Transport != "") {
			continue
		}
		to, err := url.Parse(one.URL)
		if err == nil && len(one.URL) <= maxURL && to.User == nil && to.Scheme == from.Scheme && hostPort(to) == hostPort(from) {
			to.Fragment = ""
			return to.String(), nil
		}
		elsewhere = true
	}
	if elsewhere {
		return "", harness.Errorf(harness.Denied, "its card has an address of another scheme or host than its url, and headers are for that one only: write the address of the right host into url")
	}
	return "", harness.Errorf(harness.Invalid, "its card has no address for JSON-RPC (transport JSONRPC, protocol 0.3), which is what is spoken here")
}

// hostPort is the host of u with its port, also where that is the scheme's.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return strings.ToLower(u.Hostname()) + " " + port
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
