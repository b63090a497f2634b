package model_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
)

// serverBinary is the deterministic model that development and every other
// test talk to. It is built once, from its own module, and run as a process:
// what fits here fits there.
var serverBinary struct {
	once sync.Once
	dir  string
	err  error
}

func buildServer() {
	dir, err := os.MkdirTemp("", "modelserver")
	if err != nil {
		serverBinary.err = err
		return
	}
	serverBinary.dir = dir
	build := exec.Command("go", "build", "-o", dir, "./internal/fake/modelserver")
	build.Dir = filepath.Join("..", "..", "..", "..", "scripts")
	if out, err := build.CombinedOutput(); err != nil {
		serverBinary.err = fmt.Errorf("building the model server: %w\n%s", err, out)
	}
}

func modelServer(t *testing.T, script string) string {
	t.Helper()
	if serverBinary.once.Do(buildServer); serverBinary.err != nil {
		t.Fatal(serverBinary.err)
	}
	args := []string{}
	if script != "" {
		file := filepath.Join(t.TempDir(), "script.yaml")
		if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-script", file)
	}
	binary := filepath.Join(serverBinary.dir, "modelserver")
	command := exec.Command(binary, args...)
	command.Stderr = t.Output()
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		if err := command.Wait(); err != nil {
			t.Errorf("the model server ended with %v", err)
		}
	})
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the model server did not say where it is: %v", err)
	}
	return "http://" + strings.TrimSpace(address)
}

// conversation talks as a step does, with a shell that answers each command
// with its own text.
type conversation struct {
	client *model.Client
	turns  []model.Turn
}

func (c *conversation) say(t *testing.T, text string) string {
	t.Helper()
	c.turns = append(c.turns, model.Turn{Role: model.RoleUser, Text: text})
	for range 5 {
		res, err := c.client.Complete(t.Context(), model.Request{
			Agent: harness.ModelSpec{MaxTokens: 300}, System: "Be brief.", Turns: c.turns, Tools: []model.Tool{shell}, IdempotencyKey: "ses_1/stp",
		})
		if err != nil {
			t.Fatal(err)
		}
		c.turns = append(c.turns, model.Turn{Role: model.RoleAssistant, Text: res.Text, Calls: res.Calls, Carry: res.Carry})
		if res.Stop == model.StopEnd {
			return res.Text
		}
		if res.Stop != model.StopToolCalls {
			t.Fatalf("stopped with %s", res.Stop)
		}
		results := model.Turn{Role: model.RoleTool}
		for _, call := range res.Calls {
			var arguments struct{ Command string }
			if call.Malformed != "" || json.Unmarshal([]byte(call.Arguments), &arguments) != nil || call.Name != harness.ToolExecuteShell {
				t.Fatalf("a call that cannot be run: %+v", call)
			}
			results.Results = append(results.Results, model.Result{CallID: call.ID, Name: call.Name, Text: "exit code 0\nran " + arguments.Command})
		}
		c.turns = append(c.turns, results)
	}
	t.Fatal("no end after five answers")
	return ""
}

func TestFitsTheDeterministicModel(t *testing.T) {
	url := modelServer(t, "")
	for _, provider := range providers {
		t.Run(string(provider), func(t *testing.T) {
			c := &conversation{client: newClient(t, provider, url, model.Limits{})}
			for _, exchange := range []struct{ say, hear string }{
				{"hello", "Hello"},
				{"run: echo a && echo b", "exit code 0\nran echo a && echo b"},
				{"run twice: date ;; uname", "Command 2:\nexit code 0\nran uname"},
				{"   ", "(no text)"},
				{"run: printf '\"quoted\" ü'", `ran printf '"quoted" ü'`},
				{"what did I say?", "2. run: echo a && echo b"},
				{"count", "You have sent 7 messages"},
				{"think: 0.01", "thought for 0.01"},
				{"sing", "sing"},
			} {
				if heard := c.say(t, exchange.say); !strings.Contains(heard, exchange.hear) {
					t.Errorf("%q: heard %q", exchange.say, heard)
				}
			}
		})
	}
	res, err := http.Get(url + "/requests")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var requests []struct{ Session, Refused, Wire string }
	if err := json.NewDecoder(res.Body).Decode(&requests); err != nil {
		t.Fatal(err)
	}
	if len(requests) != 2*(9+3) {
		t.Errorf("%d requests were recorded", len(requests))
	}
	for _, r := range requests {
		if r.Refused != "" || r.Session != "ses_1" {
			t.Errorf("%+v", r)
		}
	}
}

const misery = `
rules:
  - {match: {exact: broken}, respond: {calls: [{name: executeShell, arguments: '{"command": ls}'}]}}
  - {match: {exact: cut}, respond: {stop: length, calls: [{name: executeShell, arguments: '{"command": "rm -r'}]}}
  - {match: {exact: ids}, respond: {calls: [{name: executeShell, arguments: {command: a}, id: ""}, {name: executeShell, arguments: {command: b}, id: same}, {name: executeShell, arguments: {command: c}, id: same}]}}
  - {match: {exact: wait}, respond: {status: 429, headers: {Retry-After: "4"}}}
  - {match: {exact: wait until}, respond: {status: 429, headers: {Retry-After: date+30s}}}
  - {match: {exact: fail}, respond: {status: 500}}
  - {match: {exact: full}, respond: {status: 400, error: {code: context_length_exceeded}}}
  - {match: {exact: nothing}, respond: {body: ""}}
  - {match: {exact: cut off}, respond: {close: true}}
  - {match: {exact: cut midway}, respond: {close: true, body: '{"choi'}}
  - {match: {exact: hang}, respond: {hang: true}}
  - {match: {exact: hang midway}, respond: {hang: true, body: '{"choi'}}
  - {match: {exact: silence}, respond: {}}
`

func TestFitsTheScriptedFailures(t *testing.T) {
	url := modelServer(t, misery)
	for _, provider := range providers {
		client := newClient(t, provider, url, model.Limits{Header: 300 * time.Millisecond, IdleRead: 300 * time.Millisecond})
		ask := func(text string) (model.Response, error) {
			return client.Complete(t.Context(), model.Request{Turns: []model.Turn{{Role: model.RoleUser, Text: text}}, Tools: []model.Tool{shell}})
		}
		for text, want := range map[string]model.Reason{
			"wait": model.ReasonRateLimited, "wait until": model.ReasonRateLimited, "fail": model.ReasonOverloaded, "full": model.ReasonContextFull,
			"nothing": model.ReasonNotAnswer, "cut off": model.ReasonUnreachable, "cut midway": model.ReasonUnreachable,
			"hang": model.ReasonTimeout, "hang midway": model.ReasonTimeout, "silence": model.ReasonEmpty,
		} {
			_, err := ask(text)
			e, ok := errors.AsType[*model.Error](err)
			if !ok || e.Reason != want {
				t.Errorf("%s: %s: %v", provider, text, err)
				continue
			}
			switch {
			case text == "wait" && e.RetryAfter != 4*time.Second, text == "wait until" && (e.RetryAfter < 28*time.Second || e.RetryAfter > 30*time.Second):
				t.Errorf("%s: %s: again after %s", provider, text, e.RetryAfter)
			}
		}
		if res, err := ask("broken"); err != nil || res.Calls[0].Malformed == "" || res.Calls[0].Arguments != `{"command": ls}` {
			t.Errorf("%s: %+v, %v", provider, res, err)
		}
		if res, err := ask("cut"); err != nil || res.Stop != model.StopTruncated || !strings.Contains(res.Calls[0].Malformed, "cut off") {
			t.Errorf("%s: %+v, %v", provider, res, err)
		}
		res, err := ask("ids")
		if err != nil || len(res.Calls) != 3 || res.Calls[0].ID == "" || res.Calls[1].ID == res.Calls[2].ID {
			t.Errorf("%s: %+v, %v", provider, res, err)
		}
	}
}

// The clients here do not stream, others that talk to the deterministic model
// may: the official SDKs put its pieces together again.
func TestTheDeterministicModelStreams(t *testing.T) {
	url := modelServer(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}

	chat := openai.NewChatCompletionService(openaioption.WithBaseURL(url+"/v1/"), openaioption.WithHTTPClient(client))
	stream := chat.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model: "m", StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("run twice: echo one two ;; echo three")},
		Tools:    []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "executeShell"})},
	})
	whole := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		whole.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	calls := whole.Choices[0].Message.ToolCalls
	if len(calls) != 2 || calls[0].Function.Arguments != `{"command":"echo one two"}` || calls[1].ID == calls[0].ID ||
		whole.Choices[0].FinishReason != "tool_calls" || whole.Usage.PromptTokens == 0 {
		t.Errorf("%+v", whole.ChatCompletion)
	}

	messages := anthropic.NewMessageService(anthropicoption.WithBaseURL(url+"/"), anthropicoption.WithHTTPClient(client), anthropicoption.WithAPIKey("k"))
	events := messages.NewStreaming(ctx, anthropic.MessageNewParams{
		Model: "m", MaxTokens: 100,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("run: echo one two"))},
		Tools:    []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "executeShell", InputSchema: anthropic.ToolInputSchemaParam{Properties: map[string]any{}}}}},
	})
	message := anthropic.Message{}
	for events.Next() {
		if err := message.Accumulate(events.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := events.Err(); err != nil {
		t.Fatal(err)
	}
	if len(message.Content) != 1 || string(message.Content[0].Input) != `{"command":"echo one two"}` || message.StopReason != "tool_use" {
		t.Errorf("%+v", message)
	}
}
