package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/harness"
)

func TestChooseModel(t *testing.T) {
	for _, c := range []struct {
		env         string
		want        string
		wantStandIn bool
		wantErr     string
	}{
		{env: "", want: "openai " + standInName, wantStandIn: true},
		{env: "OPENAI_API_KEY=k", want: "openai " + defaultOpenAI},
		{env: "ANTHROPIC_API_KEY=k", want: "anthropic " + defaultAnthropic},
		{env: "OPENAI_API_KEY=k ANTHROPIC_API_KEY=k", want: "openai " + defaultOpenAI},
		{env: "OPENAI_API_KEY=k ANTHROPIC_API_KEY=k MODEL_PROVIDER=anthropic", want: "anthropic " + defaultAnthropic},
		{env: "OPENAI_BASE_URL=http://127.0.0.1:11434/v1 MODEL_NAME=qwen3", want: "openai qwen3"},
		{env: "OPENAI_BASE_URL=http://127.0.0.1:11434/v1", wantErr: "MODEL_NAME=qwen3"},
	} {
		env := map[string]string{}
		for _, pair := range strings.Fields(c.env) {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		got, err := chooseModel(func(name string) string { return env[name] })
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s: got %v", c.env, err)
			}
			continue
		}
		if err != nil || got.provider+" "+got.name != c.want || got.standIn != c.wantStandIn {
			t.Errorf("%s: got %+v, %v", c.env, got, err)
		}
	}
}

// The stand-in answers both providers, and only what is set becomes a Secret.
func TestStandInServesBothWires(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	m, err := chooseModel(func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	served, err := serveModel(&m, log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := served.close(); err != nil {
			t.Error(err)
		}
	}()
	secrets := m.secrets(nil)
	for _, url := range []string{secrets["model/openai-base-url"] + "/models", secrets["model/anthropic-base-url"] + "/v1/models"} {
		request, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+m.openaiKey)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s answered %d", url, response.StatusCode)
		}
	}
	real := model{provider: "openai", name: "m", openaiKey: "k"}.secrets(nil)
	if _, ok := real["model/openai-base-url"]; ok {
		t.Error("an empty base URL became a Secret's key")
	}
}

func TestChannelsHaveSecrets(t *testing.T) {
	agents, folder := t.TempDir(), t.TempDir()
	h := &channels{folder: agents, secrets: &secrets{folder: folder, fixed: map[string]string{}}}
	agent := func(name, secret string) {
		text := "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata:\n  name: " + name + "\nspec:\n  harness:\n    type: CHANNEL\n    channels:\n" +
			"      - type: WEBHOOK\n        name: " + name + "\n        secretRef: {name: " + secret + ", key: the.key}\n"
		if err := os.WriteFile(filepath.Join(agents, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	scan := func(want bool) {
		t.Helper()
		changed, err := h.scan()
		if err != nil || changed != want {
			t.Errorf("changed is %t, %v; want %t", changed, err, want)
		}
	}
	agent("coder", "coder-hook")
	agent("thief", "../outside")
	scan(true)
	scan(false)
	file := filepath.Join(folder, "coder-hook", "the.key")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	first := h.environment("webhook-ingest")["CODER_HOOK_THE_KEY"]
	if len(first) < 20 {
		t.Errorf("the secret is %q", first)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(folder), "outside")); err == nil {
		t.Error("a Secret's name left the folder")
	}
	agent("second", "second-hook")
	scan(true)
	if got := h.environment("webhook-ingest")["CODER_HOOK_THE_KEY"]; got != first {
		t.Error("a secret changed")
	}
}

// The API's token is made once, for nobody else's eyes, and one Service has it.
func TestManagementAPIHasAToken(t *testing.T) {
	set, err := manifest.Read(filepath.Join("..", "..", "..", "config", "functions"))
	if err != nil {
		t.Fatal(err)
	}
	s := &secrets{folder: t.TempDir(), fixed: map[string]string{}}
	first := ""
	for range 2 {
		a, err := openAPI(set, s)
		if err != nil || a == nil {
			t.Fatalf("%v, %v", a, err)
		}
		info, err := os.Stat(a.tokenFile)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%v, %v", info, err)
		}
		token, _ := s.read(apiToken.Name, apiToken.Key)
		if len(token) < 22 || first != "" && token != first {
			t.Errorf("the token is %q, and was %q", token, first)
		}
		first = token
		for _, service := range set.Services {
			env := a.environment(service.Function())
			if is := service.Name == "management-api"; is != (env["ACCESS"] == "static" && env["MANAGEMENT_TOKEN_FILE"] == a.tokenFile) || !is && len(env) > 0 {
				t.Errorf("%s gets %v", service.Name, env)
			}
		}
		if diff := cmp.Diff(map[string]string{"url": "http://h", "tokenFile": a.tokenFile}, a.known("http://h")); diff != "" {
			t.Error(diff)
		}
	}
	// The console's key stays, its code is another each time, and the file says whose it is.
	key, _ := s.read(consoleKey.Name, consoleKey.Key)
	codes := map[string]bool{}
	for range 2 {
		a, err := openAPI(set, s)
		if err != nil {
			t.Fatal(err)
		}
		codes[a.code] = true
		entry, err := os.ReadFile(a.entryFile)
		info, stat := os.Stat(a.entryFile)
		if err != nil || stat != nil || info.Mode().Perm() != 0o600 || string(entry) != a.code+"\n"+first+"\n" || a.console("http://h") != "http://h/console/enter?code="+a.code {
			t.Errorf("the code's file has %q, %v, %v", entry, err, stat)
		}
		if again, _ := s.read(consoleKey.Name, consoleKey.Key); again != key || len(key) < 22 {
			t.Errorf("the console's key is %q, and was %q", again, key)
		}
	}
	if len(codes) != 2 {
		t.Errorf("codes %v", codes)
	}
	if a, err := openAPI(&manifest.Set{}, s); a != nil || err != nil || a.environment("management-api") != nil {
		t.Errorf("without the Service: %v, %v", a, err)
	}
}

// The functions' role owns its database and is no superuser; every start makes
// the last password worthless.
func TestPrepareDatabase(t *testing.T) {
	dir := t.TempDir()
	server, err := localpg.Start(t.Context(), localpg.Options{Dir: dir, Throwaway: true, Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	first, err := prepareDatabase(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := prepareDatabase(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), second.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var super bool
	if err := conn.QueryRow(t.Context(), "SELECT rolsuper FROM pg_roles WHERE rolname = current_user").Scan(&super); err != nil || super {
		t.Errorf("superuser is %t, %v", super, err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE SCHEMA mine; CREATE TABLE public.t ()"); err != nil {
		t.Errorf("the owner may not make things: %v", err)
	}
	if old, err := pgx.Connect(t.Context(), first.Reveal()); err == nil {
		old.Close(context.Background())
		t.Error("the old password still works")
	}
}

func TestConsoleSaysAThingOnce(t *testing.T) {
	var out bytes.Buffer
	c := &console{out: &out}
	log := slog.New(c.handler(slog.DiscardHandler)).With("k", "v")
	c.functionError("agent-step", "agent-step: configuration: MODEL_NAME is not set")
	c.functionError("agent-step", "configuration: MODEL_NAME is not set")
	log.Warn("not for people")
	log.Error("lost", "err", "line one\nline two")
	want := "dev: agent-step: configuration: MODEL_NAME is not set\ndev: lost (err: line one; line two)\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// A secret whose file cannot be read for a moment stays what it was, and is not made anew.
func TestSecretsThatCannotBeRead(t *testing.T) {
	s := &secrets{folder: t.TempDir()}
	ref := harness.SecretRef{Name: "hook", Key: "secret"}
	if _, ok := s.read(ref.Name, ref.Key); ok {
		t.Error("a secret is there before it was made")
	}
	if err := s.ensure(ref, func() string { return "first" }); err != nil {
		t.Fatal(err)
	}
	if value, ok := s.read(ref.Name, ref.Key); !ok || value != "first" {
		t.Errorf("read %q, %t", value, ok)
	}
	if err := errors.Join(os.Remove(s.file(ref)), os.Mkdir(s.file(ref), 0o700)); err != nil { // a file that no read can read
		t.Fatal(err)
	}
	if err := s.ensure(ref, func() string { return "second" }); err != nil {
		t.Error(err)
	}
	if value, ok := s.read(ref.Name, ref.Key); !ok || value != "first" {
		t.Errorf("read %q, %t while the file cannot be read", value, ok)
	}
	if err := os.Remove(s.file(ref)); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.read(ref.Name, ref.Key); ok {
		t.Error("a secret is there after it was removed")
	}
	if err := os.Mkdir(s.file(ref), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.ensure(ref, func() string { return "third" }); err == nil {
		t.Error("what is there is replaced")
	}
}
