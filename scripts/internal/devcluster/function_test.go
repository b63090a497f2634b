package devcluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain makes this test binary a function when the platform starts it as
// one, so that real processes are started, drained and killed.
func TestMain(m *testing.M) {
	if os.Getenv("K_SERVICE") != "" {
		os.Exit(function())
	}
	// Eventing's own package, to which the retry rule is compared, starts one for
	// the life of the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("knative.dev/eventing/pkg/kncloudevents.cleanupClientsMap"))
}

// function behaves as its variable BEHAVIOUR says and notes what happens to it
// in the file NOTES, a line each.
func function() int {
	behaviour := os.Getenv("BEHAVIOUR")
	note("start", map[string]string{
		"revision": os.Getenv("K_REVISION"), "configuration": os.Getenv("K_CONFIGURATION"), "metrics": os.Getenv("METRICS_PORT"),
		"broker": os.Getenv("BROKER_URL"), "secret": os.Getenv("TOKEN"), "folder": os.Getenv("FOLDER"),
		"other": os.Getenv("OTHER_URL"), "leak": os.Getenv("DEVCLUSTER_LEAK"),
	})
	switch behaviour {
	case "refuses to start":
		fmt.Fprintln(os.Stderr, "worker: configuration: MODEL_NAME is not set")
		return 1
	case "crashes once":
		if strings.Count(notes(os.Getenv("NOTES")), "start ") == 1 {
			return 1
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := &handler{behaviour: behaviour, stop: ctx.Done()}
	server := &http.Server{Addr: "127.0.0.1:" + os.Getenv("PORT"), Handler: f}
	done := make(chan error, 1)
	go func() { done <- server.ListenAndServe() }()
	select {
	case err := <-done:
		fmt.Fprintln(os.Stderr, err)
		return 1
	case <-ctx.Done():
	}
	note("term", nil)
	if behaviour == "ignores SIGTERM" {
		select {}
	}
	if err := server.Shutdown(context.Background()); err != nil {
		return 1
	}
	note("drained", nil)
	return 0
}

type handler struct {
	behaviour string
	stop      <-chan struct{}
	mu        sync.Mutex
	inside    int
	failures  map[string]int
}

func (f *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/readyz" {
		return
	}
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.inside++
	note("request", map[string]string{
		"path": r.URL.Path, "query": r.URL.RawQuery, "host": r.Host, "body": string(body), "inside": strconv.Itoa(f.inside),
		"id": r.Header.Get("Ce-Id"), "type": r.Header.Get("Ce-Type"), "name": r.Header.Get("Ce-Name"), "prefer": r.Header.Get("Prefer"),
		"errordest": r.Header.Get("Ce-Knativeerrordest"), "errorcode": r.Header.Get("Ce-Knativeerrorcode"), "errordata": r.Header.Get("Ce-Knativeerrordata"),
	})
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.inside--
	}()
	f.answer(w, r)
}

func (f *handler) answer(w http.ResponseWriter, r *http.Request) {
	mode, argument, _ := strings.Cut(f.behaviour, "=")
	switch mode {
	case "status":
		w.WriteHeader(number(argument))
		fmt.Fprint(w, "no good")
	case "fails first": // 503 for the first attempts at each event
		f.mu.Lock()
		if f.failures == nil {
			f.failures = map[string]int{}
		}
		f.failures[r.Header.Get("Ce-Id")]++
		failed := f.failures[r.Header.Get("Ce-Id")] <= number(argument)
		f.mu.Unlock()
		if failed {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	case "says OK":
		fmt.Fprint(w, "OK")
	case "replies":
		if r.Header.Get("Ce-Type") == "reply" {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		for name, value := range map[string]string{"Specversion": "1.0", "Id": "r1", "Source": "s", "Type": "reply"} {
			w.Header().Set("Ce-"+name, value)
		}
		w.WriteHeader(http.StatusOK)
	case "slow":
		timer := time.NewTimer(time.Duration(number(argument)) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
			w.WriteHeader(http.StatusAccepted)
		case <-r.Context().Done():
			note("cancelled", nil)
		}
	case "streams":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": hello\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-f.stop:
		}
	case "logs an error":
		fmt.Fprintln(os.Stderr, `{"level":"INFO","msg":"fine"}`)
		fmt.Fprintln(os.Stderr, `{"level":"ERROR","msg":"event failed","err":"the model's key was rejected","agent":"coder","session":"ses_1"}`)
		w.WriteHeader(http.StatusAccepted)
	case "dies":
		os.Exit(3)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func note(what string, fields map[string]string) {
	name := os.Getenv("NOTES")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	_, err = fmt.Fprintf(file, "%s %d %s\n", what, os.Getpid(), text)
	if err := errors.Join(err, file.Close()); err != nil {
		panic(err)
	}
}

func notes(file string) string {
	text, _ := os.ReadFile(file) // absent until the first note
	return string(text)
}
