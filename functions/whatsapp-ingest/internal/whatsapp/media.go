package whatsapp

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Download opens a file that came with a message. The provider is first asked
// for an address, which opens the file for five minutes and is never logged; one
// that is gone is asked for once more.
func (g *Graph) Download(ctx context.Context, account *channel.Account, a postgres.Attachment) (io.ReadCloser, harness.Attachment, error) {
	known := a.Attachment
	if account.Key(channel.RoleAccessToken) == "" {
		return nil, known, harness.Errorf(harness.Denied, "the number has no access token: files cannot be fetched")
	}
	for attempt := 1; ; attempt++ {
		address, found, err := g.locate(ctx, account, known)
		if err != nil {
			return nil, known, err
		}
		response, err := g.get(ctx, account, address)
		if err != nil {
			return nil, found, harness.Wrap(harness.Unavailable, err, "WhatsApp's file server does not answer")
		}
		if response.StatusCode == http.StatusOK {
			if response.ContentLength > g.MaxMedia {
				_ = response.Body.Close()
				return nil, found, g.tooLarge()
			}
			if found.Bytes == 0 && response.ContentLength > 0 {
				found.Bytes = response.ContentLength
			}
			return &bounded{ReadCloser: response.Body, left: g.MaxMedia, over: g.tooLarge()}, found, nil
		}
		_ = response.Body.Close()
		if response.StatusCode == http.StatusNotFound && attempt == 1 {
			continue
		}
		kind := reply{status: response.StatusCode}.errorKind()
		return nil, found, harness.Errorf(kind, "WhatsApp's file server answered %d", response.StatusCode)
	}
}

func (g *Graph) tooLarge() error {
	return harness.Errorf(harness.Exhausted, "the file is larger than the %d bytes that are fetched", g.MaxMedia)
}

// locate asks for the file's address and what is known of it.
func (g *Graph) locate(ctx context.Context, account *channel.Account, known harness.Attachment) (*url.URL, harness.Attachment, error) {
	// With the number given, a file of another number is refused.
	text := g.address(known.ProviderID) + "?phone_number_id=" + url.QueryEscape(account.Name)
	target, err := url.Parse(text)
	if err != nil || known.ProviderID == "" {
		return nil, known, harness.Errorf(harness.Invalid, "the file has no usable id")
	}
	response, err := g.get(ctx, account, target)
	if err != nil {
		return nil, known, harness.Wrap(harness.Unavailable, err, "WhatsApp does not say where the file is")
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, known, harness.Wrap(harness.Unavailable, withoutURL(err), "WhatsApp does not say where the file is")
	}
	r := reply{status: response.StatusCode, body: body}
	if r.status != http.StatusOK {
		return nil, known, g.missing(account, r)
	}
	if !valid(string(body)) {
		return nil, known, harness.Errorf(harness.Unavailable, "WhatsApp does not say where the file is")
	}
	said := whole(body)
	if size, err := strconv.ParseInt(said.get("file_size").scalar(), 10, 64); err == nil && size > 0 {
		known.Bytes = size
	}
	if known.Bytes > g.MaxMedia {
		return nil, known, g.tooLarge()
	}
	if mimeType := line(said.get("mime_type").text(), maxWord); mimeType != "" {
		known.MimeType = mimeType
	}
	address, err := url.Parse(said.get("url").text())
	if err != nil || address.Host == "" || !g.safe(address) {
		return nil, known, harness.Errorf(harness.Unavailable, "WhatsApp gave no usable address of the file")
	}
	return address, known, nil
}

// missing judges the refusal of an address.
func (g *Graph) missing(account *channel.Account, r reply) error {
	f := r.fault()
	switch judge(r, f) {
	case again, slower, pair:
		return harness.Errorf(harness.Unavailable, "WhatsApp does not say where the file is: %s", refusal(r, f))
	case operator:
		g.Log.Error("WhatsApp refuses a number until its account is mended", "account", account.Name, "agent", string(account.Agent),
			"code", f.code, "subcode", f.subcode, "status", r.status, "do", advice(f))
		return harness.Errorf(harness.Denied, "WhatsApp does not hand out files to this number now")
	}
	return harness.Errorf(harness.NotFound, "WhatsApp does not have the file any more: it keeps files for 7 days")
}

// safe reports whether the token may go to an address: only encrypted, but for
// the one host that is configured.
func (g *Graph) safe(address *url.URL) bool {
	base, err := url.Parse(g.BaseURL)
	return err == nil && (address.Scheme == "https" || address.Scheme == base.Scheme && address.Host == base.Host)
}

const maxRedirects = 5

// get follows redirects itself: the token goes to no host but the first.
func (g *Graph) get(ctx context.Context, account *channel.Account, target *url.URL) (*http.Response, error) {
	first := target.Host
	for range maxRedirects {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
		if err != nil {
			return nil, withoutURL(err)
		}
		g.authorize(request, account)
		if target.Host != first {
			request.Header.Del("Authorization")
		}
		response, err := g.client.Do(request)
		if err != nil {
			return nil, withoutURL(err)
		}
		location := response.Header.Get("Location")
		if response.StatusCode/100 != 3 || location == "" {
			return response, nil
		}
		_ = response.Body.Close()
		next, err := target.Parse(location)
		if err != nil || next.Host == "" || !g.safe(next) {
			return nil, harness.Errorf(harness.Unavailable, "redirected to an address that is not used")
		}
		target = next
	}
	return nil, harness.Errorf(harness.Unavailable, "redirected more than %d times", maxRedirects)
}

// bounded fails a body that is longer than was said.
type bounded struct {
	io.ReadCloser
	left int64
	over error
}

func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, b.over
	}
	return n, err
}
