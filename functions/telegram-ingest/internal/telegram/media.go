package telegram

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// maxDownload is the largest file that Telegram hands out to a bot.
const maxDownload = 20 << 20

// Downloader fetches the files that people send.
type Downloader struct {
	client *Client
	limit  int64
}

// NewDownloader fetches by client files of up to limit bytes, 20 MiB at most.
func NewDownloader(client *Client, limit int64) *Downloader {
	return &Downloader{client: client, limit: min(limit, maxDownload)}
}

// Download asks where the file is, which is good for an hour, and opens it. Where
// it is holds the bot's token: it is kept nowhere.
func (d *Downloader) Download(ctx context.Context, account *channel.Account, a postgres.Attachment) (io.ReadCloser, harness.Attachment, error) {
	known := a.Attachment
	token := account.Key(channel.RoleBotToken)
	if token == "" {
		return nil, known, harness.Errorf(harness.Unavailable, "the bot's token is not set")
	}
	if err := d.check(known.Bytes); err != nil {
		return nil, known, err
	}
	where, size, err := d.find(ctx, token, known.ProviderID)
	if err != nil {
		return nil, known, err
	}
	if size > 0 {
		known.Bytes = size
	}
	if err := d.check(known.Bytes); err != nil {
		return nil, known, err
	}
	if known.FileName == "" {
		known.FileName = harness.SafeFileName(where)
	}
	if known.MimeType == "" {
		known.MimeType = mime.TypeByExtension(path.Ext(where))
	}
	body, err := d.open(ctx, token, where)
	if err != nil {
		return nil, known, err
	}
	return &limited{body: body, left: d.limit, limit: d.limit, token: token}, known, nil
}

func (d *Downloader) check(size int64) error {
	if size > d.limit {
		return tooLarge(d.limit)
	}
	return nil
}

func tooLarge(limit int64) error {
	return harness.Errorf(harness.Exhausted, "the file is larger than the %d MB that can be fetched from Telegram; ask for a smaller one", limit>>20)
}

// find returns the path of a file at Telegram, and its size where that is told.
func (d *Downloader) find(ctx context.Context, token harness.Secret, fileID string) (string, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	a, err := d.client.call(ctx, token, "getFile", map[string]any{"file_id": fileID})
	if err != nil {
		return "", 0, harness.Wrap(harness.Unavailable, err, "Telegram does not answer")
	}
	switch {
	case a.ok:
	case a.code == http.StatusTooManyRequests || a.code >= http.StatusInternalServerError:
		return "", 0, harness.Errorf(harness.Unavailable, "%s", a.said())
	case a.code == http.StatusUnauthorized || a.code == http.StatusNotFound:
		return "", 0, harness.Errorf(harness.Denied, "Telegram refuses the bot's token")
	default:
		return "", 0, harness.Errorf(harness.NotFound, "Telegram does not hand out the file: %s", a.said())
	}
	value, err := decode(a.result)
	if err != nil {
		return "", 0, harness.Errorf(harness.Unavailable, "Telegram's answer to getFile cannot be read")
	}
	file := asObject(value)
	where := file.raw("file_path")
	if where == "" || strings.HasPrefix(where, "/") || path.Clean(where) != where || strings.HasPrefix(where, "../") {
		return "", 0, harness.Errorf(harness.NotFound, "Telegram does not say where the file is")
	}
	return where, file.int("file_size"), nil
}

func (d *Downloader) open(ctx context.Context, token harness.Secret, where string) (io.ReadCloser, error) {
	parts := strings.Split(where, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.client.base+"/file/bot"+token.Reveal()+"/"+strings.Join(parts, "/"), nil)
	if err != nil {
		return nil, harness.Errorf(harness.Internal, "the file's address cannot be made")
	}
	request.Header.Set("User-Agent", "tuluat-harness")
	response, err := d.client.http.Do(request)
	if err != nil {
		return nil, harness.Wrap(harness.Unavailable, hide(err, token), "the file cannot be fetched from Telegram")
	}
	if response.StatusCode != http.StatusOK {
		closed := response.Body.Close()
		return nil, harness.Wrap(harness.Unavailable, errors.Join(fmt.Errorf("status %d", response.StatusCode), closed), "the file cannot be fetched from Telegram")
	}
	return response.Body, nil
}

// limited reads a file whose length nobody has promised.
type limited struct {
	body        io.ReadCloser
	left, limit int64
	token       harness.Secret
}

func (l *limited) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.body.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, tooLarge(l.limit)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = harness.Wrap(harness.Unavailable, hide(err, l.token), "the file broke off")
	}
	return n, err
}

func (l *limited) Close() error { return l.body.Close() }
