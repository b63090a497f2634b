package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/trace"
)

// Config says which models a Client can ask.
type Config struct {
	Provider harness.Provider // for agents that name none
	Name     string           // for agents that name none; a model of Provider

	OpenAIBaseURL    string // empty: OpenAI itself; without a path, /v1 is meant
	OpenAIKey        harness.Secret
	AnthropicBaseURL string // empty: Anthropic itself; with or without /v1
	AnthropicKey     harness.Secret

	HTTPClient *http.Client     // nil: one of its own; redirects are never followed
	Now        func() time.Time // nil: time.Now
	Limits     Limits
}

// Limits bound one call. Zero fields take the values of DefaultLimits.
type Limits struct {
	Header        time.Duration // until the answer begins; it begins when the model is done
	IdleRead      time.Duration // between two pieces of the answer
	Total         time.Duration
	ResponseBytes int64 // after decompression
}

// DefaultLimits stay below the 200 seconds after which the process would be
// stopped from outside, so that a late answer is an error with a row.
func DefaultLimits() Limits {
	return Limits{Header: 170 * time.Second, IdleRead: 20 * time.Second, Total: 180 * time.Second, ResponseBytes: 8 << 20}
}

const (
	openAIHome    = "https://api.openai.com/v1"
	anthropicHome = "https://api.anthropic.com"

	// defaultMaxTokens is for a spec that has not been through validation;
	// Anthropic requires a figure.
	defaultMaxTokens = 4096
)

// wire is one provider's form of a call. It returns with x.err set when the
// exchange itself failed.
type wire interface {
	complete(ctx context.Context, x *exchange, name string, req Request) (Response, error)
}

// Client asks models. It is safe for concurrent use and makes no connection
// before the first call.
type Client struct {
	config Config
	wires  map[harness.Provider]wire
	http   *http.Client
}

// New returns a client for the providers that c has a key or an address for.
// It fails when the default provider is none of them or an address is not
// usable, with every problem at once, by variable name.
func New(c Config) (*Client, error) {
	defaults := DefaultLimits()
	c.Limits.Header = cmp.Or(c.Limits.Header, defaults.Header)
	c.Limits.IdleRead = cmp.Or(c.Limits.IdleRead, defaults.IdleRead)
	c.Limits.Total = cmp.Or(c.Limits.Total, defaults.Total)
	c.Limits.ResponseBytes = cmp.Or(c.Limits.ResponseBytes, defaults.ResponseBytes)
	if c.Now == nil {
		c.Now = time.Now
	}
	client := &Client{config: c, wires: map[harness.Provider]wire{}, http: httpClient(c.HTTPClient)}

	var problems []error
	openAIURL, err := baseURL("OPENAI_BASE_URL", c.OpenAIBaseURL, openAIHome)
	problems = append(problems, err)
	anthropicURL, err := baseURL("ANTHROPIC_BASE_URL", c.AnthropicBaseURL, anthropicHome)
	problems = append(problems, err)
	if openAIURL != nil && (c.OpenAIKey != "" || c.OpenAIBaseURL != "") {
		client.wires[harness.ProviderOpenAI] = newOpenAI(openAIURL, c.OpenAIKey, client.http)
	}
	if anthropicURL != nil && (c.AnthropicKey != "" || c.AnthropicBaseURL != "") {
		client.wires[harness.ProviderAnthropic] = newAnthropic(anthropicURL, c.AnthropicKey, client.http, c.Limits.Total)
	}
	if c.Name == "" {
		problems = append(problems, errors.New("MODEL_NAME is not set"))
	}
	switch n := variables(c.Provider); {
	case n == (names{}):
		problems = append(problems, fmt.Errorf("MODEL_PROVIDER is %q: want %s or %s", c.Provider, harness.ProviderOpenAI, harness.ProviderAnthropic))
	case client.wires[c.Provider] == nil && errors.Join(problems...) == nil:
		problems = append(problems, fmt.Errorf("MODEL_PROVIDER is %s, but neither %s nor %s is set", c.Provider, n.key, n.baseURL))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return client, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Complete asks once. The error is an *Error.
func (c *Client) Complete(ctx context.Context, req Request) (response Response, err error) {
	provider, name, err := c.choose(req.Agent)
	if err != nil {
		return Response{}, err
	}
	if req.Turns, err = paired(req.Turns); err != nil {
		return Response{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.config.Limits.Total, errTotal)
	defer cancel()
	ctx, end := trace.Start(ctx, "model", "gen_ai.provider.name", string(provider), "gen_ai.request.model", name)
	defer func() {
		trace.Count(ctx, "gen_ai.usage.input_tokens", response.Usage.InputTokens)
		trace.Count(ctx, "gen_ai.usage.output_tokens", response.Usage.OutputTokens)
		end(err)
	}()
	x := &exchange{limits: c.config.Limits, names: variables(provider), model: name, redact: c.redact, now: c.config.Now, partial: req.Partial}
	res, err := c.wires[provider].complete(ctx, x, name, req)
	switch {
	case x.err != nil:
		return Response{}, x.err
	case err != nil && x.body != nil:
		return Response{}, x.notAnAnswer()
	case err != nil:
		return Response{}, &Error{Kind: harness.Internal, Reason: ReasonNotAccepted, Message: "the question to the model could not be written", Err: errors.New(c.redact(err.Error()))}
	}
	if strings.TrimSpace(harness.CleanText(res.Text)) == "" && len(res.Calls) == 0 && (res.Stop == StopEnd || res.Stop == StopToolCalls) {
		return Response{}, &Error{Kind: harness.Unavailable, Reason: ReasonEmpty, Status: x.status, Message: "the model answered nothing"}
	}
	settleIDs(req.Turns, res.Calls, c.config.Now())
	for i := range res.Calls {
		res.Calls[i].Malformed = malformed(res.Calls[i].Arguments)
	}
	if res.Usage.InputTokens == 0 && res.Usage.OutputTokens == 0 {
		res.Usage = Usage{InputTokens: req.EstimatedTokens(), OutputTokens: int64(len(x.body))/bytesPerToken + 1, Estimated: true}
	}
	return res, nil
}

// choose finds the provider and model of an agent.
func (c *Client) choose(spec harness.ModelSpec) (harness.Provider, string, error) {
	provider, name := spec.Provider, spec.Name
	if provider == "" {
		provider = c.config.Provider
	}
	if name == "" && provider == c.config.Provider {
		name = c.config.Name
	}
	unconfigured := func(format string, args ...any) error {
		return &Error{Kind: harness.Invalid, Reason: ReasonUnconfigured, Message: fmt.Sprintf(format, args...)}
	}
	n := variables(provider)
	switch {
	case n == (names{}):
		return "", "", unconfigured("the agent's model provider %q is not known", provider)
	case c.wires[provider] == nil:
		return "", "", unconfigured("the agent's model provider is %s, but neither %s nor %s is set", provider, n.key, n.baseURL)
	case name == "":
		return "", "", unconfigured("the agent names the model provider %s, but no model", provider)
	}
	return provider, name, nil
}

// redact cuts the keys out of text. A key too short to be told from ordinary
// words costs the whole text.
func (c *Client) redact(text string) string {
	for _, key := range []harness.Secret{c.config.OpenAIKey, c.config.AnthropicKey} {
		switch value := key.Reveal(); {
		case value == "" || !strings.Contains(text, value):
		case len(value) < 8:
			return key.String()
		default:
			text = strings.ReplaceAll(text, value, key.String())
		}
	}
	return text
}

func variables(p harness.Provider) names {
	switch p {
	case harness.ProviderOpenAI:
		return names{key: "OPENAI_API_KEY", baseURL: "OPENAI_BASE_URL"}
	case harness.ProviderAnthropic:
		return names{key: "ANTHROPIC_API_KEY", baseURL: "ANTHROPIC_BASE_URL"}
	}
	return names{}
}

func baseURL(variable, value, home string) (*url.URL, error) {
	if value == "" {
		value = home
	}
	u, err := url.Parse(value)
	switch {
	case err != nil: // its text quotes the value, which may hold a password
		return nil, fmt.Errorf("%s is not a URL", variable)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, fmt.Errorf("%s is not an http or https URL", variable)
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, fmt.Errorf("%s must be a plain address: a key belongs in its own variable", variable)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

// httpClient returns given, or a client of our own, that follows no redirect:
// a redirected POST would carry the key to an address nobody configured.
func httpClient(given *http.Client) *http.Client {
	client := &http.Client{}
	if given != nil {
		*client = *given
	} else {
		client.Transport = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			ForceAttemptHTTP2:   true,
			MaxIdleConns:        16,
			MaxIdleConnsPerHost: 8, // as many steps as a pod works at once ask one provider
			IdleConnTimeout:     60 * time.Second,
		}
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}
