//go:build browser

package browser_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/scripts/internal/localport"
)

// dev is the system that all tests look at.
var dev *system

// system is what `make dev` runs, from outside.
type system struct {
	home    string
	process *exec.Cmd // nil: somebody else's
	log     *os.File

	URL    string `json:"url"`
	Tour   string `json:"tour"`
	Fakes  struct{ WhatsApp, Telegram string }
	API    struct{ URL, TokenFile string }
	token  string
	viewer string // the token of somebody who may only look
}

// patience is how long the system may take to build and to start. A machine that
// has compiled nothing yet needs most of it.
const patience = 15 * time.Minute

func startSystem(home string) (*system, error) {
	s := &system{home: home}
	if home == "" {
		if err := s.start(); err != nil {
			return nil, errors.Join(err, s.end(true, err))
		}
	}
	text, err := os.ReadFile(filepath.Join(s.home, "dev.json"))
	if err != nil {
		return nil, fmt.Errorf("no system runs on %s: %w", s.home, err)
	}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, err
	}
	tokens, err := os.ReadFile(s.API.TokenFile)
	s.token, _, _ = strings.Cut(string(tokens), "\n")
	return s, err
}

// start runs the front of `make dev` until it says ready.
func (s *system) start() error {
	root, err := checkout.Root()
	if err != nil {
		return err
	}
	if s.home, err = os.MkdirTemp("", "tuluat-browser-"); err != nil {
		return err
	}
	if err := os.Chmod(s.home, 0o711); err != nil { // sandboxes run as another user
		return err
	}
	front := filepath.Join(s.home, "dev")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", front, "./scripts/dev")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	port, err := localport.Free()
	if err != nil {
		return err
	}
	s.viewer = rand.Text() // beside the first token, whose holder may do everything
	file := filepath.Join(s.home, "secrets", "management-api", "token")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(rand.Text()+"\n"+s.viewer+" vera viewer\n"), 0o600)); err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(s.home, "dev.log")); err != nil {
		return err
	}
	s.process = exec.Command(front)
	s.process.Dir = root
	agents := filepath.Join(s.home, "agents") // of its own: tests change them
	if err := os.CopyFS(agents, os.DirFS(filepath.Join(root, "config", "samples"))); err != nil {
		return err
	}
	s.process.Env = append(os.Environ(), "TULUAT_HOME="+s.home, "TULUAT_AGENTS="+agents, "TULUAT_PORT="+strconv.Itoa(port))
	for _, variable := range []string{"OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "WHATSAPP_API_URL", "TELEGRAM_API_URL"} {
		s.process.Env = append(s.process.Env, variable+"=") // everything is played
	}
	said, out, err := os.Pipe()
	if err != nil {
		return err
	}
	s.process.Stdout, s.process.Stderr = out, out
	if err := s.process.Start(); err != nil {
		return errors.Join(err, said.Close(), out.Close())
	}
	if err := out.Close(); err != nil {
		return err
	}
	ready := make(chan bool, 1)
	go func() { // ends with the process
		defer said.Close()
		lines := bufio.NewScanner(said)
		for lines.Scan() {
			fmt.Fprintln(s.log, lines.Text())
			if strings.Contains(lines.Text(), "ready at http") {
				ready <- true
			}
		}
		close(ready)
	}()
	select {
	case <-time.After(patience):
		return fmt.Errorf("the system is not ready after %s", patience)
	case ok := <-ready:
		if !ok {
			return errors.New("the system has ended before it was ready")
		}
		return nil
	}
}

// end stops the system, and keeps its folder where something went wrong.
func (s *system) end(failed bool, err error) error {
	if s.process == nil || s.process.Process == nil {
		return err
	}
	_ = s.process.Process.Signal(syscall.SIGTERM) // it may have ended
	ended := make(chan error, 1)
	go func() { ended <- s.process.Wait() }()
	select {
	case end := <-ended:
		err = errors.Join(err, end)
	case <-time.After(time.Minute):
		err = errors.Join(err, errors.New("the system does not stop"), s.process.Process.Kill())
	}
	err = errors.Join(err, s.log.Close())
	if failed || err != nil {
		fmt.Fprintf(os.Stderr, "browser: logs and state are kept in %s\n", s.home)
		return err
	}
	return os.RemoveAll(s.home)
}

// call asks the management API, as a person's script does, and reads the answer
// into out.
func (s *system) call(t testing.TB, method, path string, in, out any) int {
	t.Helper()
	return ask(t, method, s.URL+path, "Bearer "+s.token, in, out)
}

func ask(t testing.TB, method, url, authorization string, in, out any) int {
	t.Helper()
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if out != nil && response.StatusCode/100 == 2 {
		if err := json.Unmarshal(text, out); err != nil {
			t.Fatalf("%s %s: %v: %.200s", method, url, err, text)
		}
	}
	if response.StatusCode/100 != 2 {
		t.Logf("%s %s: %d %.300s", method, url, response.StatusCode, text)
	}
	return response.StatusCode
}

// play does something as a person of a fake messenger.
func play(t testing.TB, fake, path string, in, out any) {
	t.Helper()
	if status := ask(t, http.MethodPost, fake+"/_fake/"+path, "", in, out); status != http.StatusOK {
		t.Fatalf("%s: got %d, want 200", path, status)
	}
}

// await asks until done says yes.
func await(t testing.TB, within time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !done(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s not: %s", within, what)
		}
	}
}
