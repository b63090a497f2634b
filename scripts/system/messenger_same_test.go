//go:build system

package system_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/manifest"
)

var (
	flagUpdates = flag.Int("updates", 5, "updates per provider that two processes get at once")
	flagPosts   = flag.Int("posts", 50, "times that each of these is posted")
)

// started is a process of a function that the test runs itself, beside the
// platform's.
type started struct {
	url    string
	began  time.Time
	cmd    *exec.Cmd
	exited chan struct{}
	end    func()
}

// launch starts a process of a Service, with the environment that the platform
// gives it and more. It ends with the test.
func (w *world) launch(service string, more map[string]string) *started {
	w.t.Helper()
	var spec *manifest.Service
	for _, s := range w.set.Services {
		if s.Name == service {
			spec = s
		}
	}
	if spec == nil {
		w.t.Fatalf("there is no Service %s", service)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	port := listener.Addr().(*net.TCPAddr).Port
	w.must(listener.Close())
	bin := programDir(w.t)
	values := map[string]string{}
	for _, v := range spec.Env() {
		if v.ValueFrom == nil {
			values[v.Name] = v.Value
		}
	}
	values["BROKER_URL"] = w.cluster.BrokerURL("tuluat-system", "default")
	for _, set := range []map[string]string{w.env(spec, bin), more, {"PORT": fmt.Sprint(port), "METRICS_PORT": "0", "BIND_ADDRESS": "127.0.0.1"}} {
		for name, value := range set {
			values[name] = value
		}
	}
	log, err := os.OpenFile(filepath.Join(w.logDir(), service+"-launched.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	w.must(err)
	cmd := exec.Command(filepath.Join(bin, path.Base(spec.ImportPath())))
	for name, value := range values {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &started{url: fmt.Sprintf("http://127.0.0.1:%d", port), began: time.Now(), cmd: cmd, exited: make(chan struct{})}
	w.must(cmd.Start())
	go func() { // ends with the process, which end always ends
		_ = cmd.Wait() // how it ended is of no interest
		_ = log.Close()
		close(p.exited)
	}()
	p.end = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-p.exited:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-p.exited
		}
	})
	w.t.Cleanup(p.end)
	return p
}

// awaitReady returns when p says that it takes requests.
func (p *started) awaitReady(ctx context.Context, client *http.Client) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/readyz", nil)
		if err != nil {
			return err
		}
		if response, err := client.Do(request); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("the process ended: %s", p.cmd.ProcessState)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// client returns one that many may use at once.
func (w *world) client() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.MaxIdleConnsPerHost = nil, 128
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// letter is one webhook as its provider wrote it.
type letter struct {
	header http.Header
	body   []byte
}

func (l letter) post(ctx context.Context, client *http.Client, url string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(l.body))
	if err != nil {
		return 0, err
	}
	request.Header = l.header.Clone()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// catcher takes webhooks in place of a function and keeps those that a person's
// words are in.
type catcher struct {
	url string

	mu   sync.Mutex
	kept []letter
}

func newCatcher(w *world) *catcher {
	c := &catcher{}
	c.url = w.serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the provider tries again
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kept = append(c.kept, letter{r.Header.Clone(), body})
	}))
	return c
}

func (c *catcher) with(words string) (letter, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.kept {
		if bytes.Contains(l.body, []byte(words)) {
			return l, true
		}
	}
	return letter{}, false
}

// TestSameUpdateAtTwoProcesses posts every update many times at the same moment
// to two processes of the public side: it is one message, one turn and one reply.
func TestSameUpdateAtTwoProcesses(t *testing.T) {
	w := newWorld(t, plan{people: &crowd{}})
	caught := newCatcher(w)
	w.people.hook(caught.url)
	client := w.client()
	for _, p := range w.people.phones() {
		service, hook := "whatsapp-ingest", whatsappPath
		if p.channel() == "TELEGRAM" {
			service, hook = "telegram-ingest", telegramPath
		}
		var urls []string
		for range 2 {
			process := w.launch(service, nil)
			w.must(process.awaitReady(t.Context(), client))
			urls = append(urls, process.url+hook)
		}
		chat := p.join("Ada")
		for i := range *flagUpdates {
			words := fmt.Sprintf("note %s-%d", strings.ToLower(p.channel()), i)
			began := time.Now()
			p.say(chat, words)
			var update letter
			w.await(time.Minute, "the provider has posted", func() (bool, string) {
				var ok bool
				update, ok = caught.with(words)
				return ok, words
			})
			spread, statuses := w.postAtOnce(client, update, urls, *flagPosts)
			w.await(2*time.Minute, "the update is answered", func() (bool, string) { return len(answers(p.lines(chat))) > i, words })
			replied := time.Since(began)
			if left := w.awaitRest(time.Minute); left != "" {
				t.Fatalf("the system did not come to rest: %s", left)
			}
			w.assertOnce(p, chat, words, i+1)
			t.Logf("%s %q: %d posts to 2 processes within %s, answered %v; the reply %s after it was said, at rest after %s",
				p.channel(), words, *flagPosts, spread.Round(10*time.Microsecond), statuses, replied.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		}
	}
}

// postAtOnce posts an update n times, by turns to each of urls, and returns how
// far apart the first and the last began and how they were answered.
func (w *world) postAtOnce(client *http.Client, update letter, urls []string, n int) (time.Duration, map[int]int) {
	w.t.Helper()
	begins, codes := make([]time.Time, n), make([]int, n)
	fire := make(chan struct{})
	var aimed, posting sync.WaitGroup
	aimed.Add(n)
	for i := range n {
		posting.Go(func() {
			aimed.Done()
			<-fire
			begins[i] = time.Now()
			status, err := update.post(w.t.Context(), client, urls[i%len(urls)])
			if err != nil {
				w.t.Error(err)
			}
			codes[i] = status
		})
	}
	aimed.Wait()
	close(fire)
	posting.Wait()
	first, last, statuses := begins[0], begins[0], map[int]int{}
	for i := range n {
		if begins[i].Before(first) {
			first = begins[i]
		}
		if begins[i].After(last) {
			last = begins[i]
		}
		statuses[codes[i]]++
	}
	if statuses[http.StatusOK] != n {
		w.t.Errorf("of %d posts %d were answered 200: %v", n, statuses[http.StatusOK], statuses)
	}
	return last.Sub(first), statuses
}

// assertOnce: words are one row, one turn, and of the replies to the chat one.
func (w *world) assertOnce(p phone, chat, words string, replies int) {
	w.t.Helper()
	for what, sql := range map[string]string{
		"messages":      "SELECT count(*)::text FROM messages WHERE direction = 'INBOUND' AND text = $1",
		"inbox rows":    "SELECT count(*)::text FROM inbox i JOIN messages m ON m.provider_id = i.provider_id WHERE m.text = $1",
		"model's turns": "SELECT count(*)::text FROM steps s JOIN messages m USING (message_id) WHERE m.text = $1",
		"reply rows":    "SELECT count(*)::text FROM replies r JOIN messages o USING (message_id) JOIN messages m ON m.message_id = o.in_reply_to WHERE m.text = $1",
	} {
		if n := w.strings(sql, words); n[0] != "1" {
			w.t.Errorf("%s %q: %s %s", p.channel(), words, n[0], what)
		}
	}
	asked := 0
	for _, r := range w.model.Requests() {
		if strings.Contains(r.UserText, words) && p.channel() == channelOf(w, r.Session) {
			asked++
		}
	}
	if asked != 1 {
		w.t.Errorf("%s %q: the model was asked %d times", p.channel(), words, asked)
	}
	shown := answers(p.lines(chat))
	if len(shown) != replies || !strings.Contains(shown[len(shown)-1].Text, words) {
		w.t.Errorf("%s %q: %d replies stand in the chat, want %d", p.channel(), words, len(shown), replies)
	}
}

func channelOf(w *world, session string) string {
	w.t.Helper()
	found := w.strings("SELECT channel FROM sessions WHERE session_id = $1", session)
	if len(found) == 0 {
		return ""
	}
	return found[0]
}
