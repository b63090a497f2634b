package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/mcp"
	"tuluat.ai/harness/shared/sandbox/stdio"
)

// This binary is the runner, and the servers that it runs, too.
const face = "TEST_FACE"

func TestMain(m *testing.M) {
	switch os.Getenv(face) {
	case "":
		os.Exit(m.Run())
	case "runner":
		os.Setenv(face, "a server says which")
		os.Exit(mcp.Main(os.Stdout, os.Stderr))
	case "sdk":
		serve()
	default:
		misbehave(os.Getenv(face))
	}
}

type said struct {
	Text string `json:"text"`
}

// serve is a server of the official SDK.
func serve() {
	s := sdk.NewServer(&sdk.Implementation{Name: "near", Version: "1"}, &sdk.ServerOptions{PageSize: 10})
	sdk.AddTool(s, &sdk.Tool{Name: "echo", Description: "Says it again."}, func(_ context.Context, _ *sdk.CallToolRequest, in said) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "you said " + in.Text}, &sdk.ImageContent{MIMEType: "image/png", Data: []byte("1234")}}}, nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "fail"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return nil, nil, fmt.Errorf("no luck")
	})
	sdk.AddTool(s, &sdk.Tool{Name: "env"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: os.Getenv("GIVEN") + "|" + os.Getenv(stdio.Variable)}}}, nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "ask"}, func(ctx context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		if err := r.Session.Ping(ctx, nil); err != nil {
			return nil, nil, err
		}
		_, err := r.Session.ListRoots(ctx, nil) //nolint:staticcheck // servers do
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint("refused: ", err != nil)}}}, nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "structured"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, said, error) {
		return &sdk.CallToolResult{}, said{"as JSON"}, nil
	})
	for i := range 40 {
		sdk.AddTool(s, &sdk.Tool{Name: fmt.Sprintf("tool%02d", i)}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{}, nil, nil
		})
	}
	fmt.Fprintln(os.Stderr, "near is up")
	_ = s.Run(context.Background(), &sdk.StdioTransport{})
}

// misbehave is a server that does what none should.
func misbehave(how string) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	answer := func(result string) {
		var m struct {
			ID json.RawMessage `json:"id"`
		}
		if json.Unmarshal(in.Bytes(), &m) == nil && len(m.ID) > 0 {
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
		}
	}
	if how == "ignores TERM" {
		signal.Ignore(syscall.SIGTERM)
	}
	if how == "ends at once" {
		os.Exit(9)
	}
	if how == "hangs" {
		time.Sleep(time.Hour)
	}
	if how == "endless noise" {
		for {
			fmt.Println("no message")
		}
	}
	for in.Scan() {
		if strings.Contains(in.Text(), `"initialize"`) {
			if how == "noise" {
				fmt.Println("Server is starting…\n\n{\"not\": \"one\"}\n[]")
			}
			answer(`{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
			continue
		}
		if !strings.Contains(in.Text(), `"tools/call"`) {
			continue
		}
		switch how {
		case "noise":
			answer(`{"content":[{"type":"text","text":"after noise"}]}`)
		case "50 MB":
			answer(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 50<<20) + `"}]}`)
		case "dies in the call":
			os.Exit(7)
		case "hangs in the call", "ignores TERM":
			time.Sleep(time.Hour)
		case "no result":
			answer(`"neither"`)
		case "forks":
			for _, own := range []bool{false, true} { // in the group, and out of it
				child := exec.Command("sleep", "3600")
				child.SysProcAttr = &syscall.SysProcAttr{Setsid: own}
				child.Stdout = os.Stdout // which holds the pipe open
				if err := child.Start(); err != nil {
					panic(err)
				}
				if err := os.WriteFile(filepath.Join(os.Getenv("PIDS"), strconv.Itoa(child.Process.Pid)), nil, 0o600); err != nil {
					panic(err)
				}
			}
			answer(`{"content":[{"type":"text","text":"forked"}]}`)
			os.Exit(0)
		}
	}
	if how == "ignores TERM" {
		time.Sleep(time.Hour)
	}
}

// run has the runner do r, as a shell in a sandbox would: by the command's text.
func run(t *testing.T, r stdio.Request, server string) (code int, stdout, stderr string, took time.Duration) {
	t.Helper()
	me, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if r.Command == nil {
		r.Command = []string{me}
	}
	if r.TimeoutMS == 0 {
		r.TimeoutMS = 20_000
	}
	if r.Env == nil {
		r.Env = map[string]string{}
	}
	r.Env[face] = server
	text := strings.Replace(r.Shell(), "/opt/tuluat/runner mcp", me, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", text)
	cmd.Env = append(os.Environ(), face+"=runner")
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	began := time.Now()
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), log.String(), time.Since(began)
}

func TestCallsOfTheSDKsServer(t *testing.T) {
	for name, c := range map[string]struct {
		tool, arguments string
		code            int
		want            string
	}{
		"a text and an image": {"echo", `{"text":"it's $(touch x) \"quoted\"\n"}`, 0, "you said it's $(touch x) \"quoted\"\n\n[An image, image/png, 4 bytes: it is not shown.]"},
		"it fails":            {"fail", `{}`, stdio.ExitToolFailed, "no luck"},
		"no arguments":        {"env", ``, 0, "a b|"},
		"structured":          {"structured", `{}`, 0, `{"text":"as JSON"}`},
		"it asks back":        {"ask", `{}`, 0, "refused: true"},
		"no such tool":        {"none", `{}`, stdio.ExitRefused, `unknown tool "none"`},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr, _ := run(t, stdio.Request{Tool: c.tool, Arguments: json.RawMessage(c.arguments), Env: map[string]string{"GIVEN": "a b"}}, "sdk")
			if code != c.code || stdout != c.want || !strings.Contains(stderr, "near is up") {
				t.Errorf("got %d, %q, stderr %q; want %d, %q", code, stdout, stderr, c.code, c.want)
			}
		})
	}
}

func TestTheListOfTheSDKsServer(t *testing.T) {
	for name, c := range map[string]struct {
		allowed []string
		want    int
	}{"all, in pages": {nil, 45}, "those allowed": {[]string{"echo", "other"}, 1}} {
		code, stdout, stderr, _ := run(t, stdio.Request{Allowed: c.allowed}, "sdk")
		var tools stdio.Tools
		if err := json.Unmarshal([]byte(stdout), &tools); code != 0 || err != nil || len(tools.Tools) != c.want {
			t.Fatalf("%s: %d, %v, %d tools, %s", name, code, err, len(tools.Tools), stderr)
		}
		echo := tools.Tools[slices.IndexFunc(tools.Tools, func(t stdio.Tool) bool { return t.Name == "echo" })]
		if echo.Name != "echo" || echo.Description != "Says it again." || !strings.Contains(string(echo.InputSchema), `"text"`) {
			t.Errorf("%s: %+v", name, echo)
		}
	}
}

func TestServersThatMisbehave(t *testing.T) {
	for how, c := range map[string]struct {
		command []string
		code    int
		want    string
		most    time.Duration
	}{
		"noise":             {nil, 0, "after noise", 10 * time.Second},
		"endless noise":     {nil, stdio.ExitNotRun, "it writes what is not of the Model Context Protocol", 10 * time.Second},
		"50 MB":             {nil, stdio.ExitTooLarge, "its answer is longer than 8 MiB", 15 * time.Second},
		"ends at once":      {nil, stdio.ExitNotRun, "exit status 9", 10 * time.Second},
		"hangs":             {nil, stdio.ExitNotRun, "it did not answer in time", 10 * time.Second},
		"hangs in the call": {nil, stdio.ExitNoResult, "it did not answer in time", 10 * time.Second},
		"ignores TERM":      {nil, stdio.ExitNoResult, "it did not answer in time", 12 * time.Second},
		"dies in the call":  {nil, stdio.ExitNoResult, "it ended before it answered: exit status 7", 10 * time.Second},
		"no result":         {nil, stdio.ExitNoResult, "it gave no answer that is of the Model Context Protocol", 10 * time.Second},
		"no program":        {[]string{"/no/such/program"}, stdio.ExitNotRun, `there is no program "/no/such/program" in the sandbox's image`, 10 * time.Second},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := stdio.Request{Command: c.command, Tool: "x", TimeoutMS: 3000}
			if c.code == 0 || c.code == stdio.ExitTooLarge {
				r.TimeoutMS = 20_000
			}
			code, stdout, stderr, took := run(t, r, how)
			if code != c.code || !strings.Contains(stdout, c.want) || len(stdout) > 1000 || took > c.most {
				t.Errorf("got %d, %.300q after %s, stderr %.500q; want %d, %q within %s", code, stdout, took, stderr, c.code, c.want, c.most)
			}
			if how == "noise" && !strings.Contains(stderr, "Server is starting") {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

// What a server leaves running ends with the call, whatever group it is in.
func TestAServerThatForksAndStays(t *testing.T) {
	pids := t.TempDir()
	code, stdout, stderr, took := run(t, stdio.Request{Tool: "x", Env: map[string]string{"PIDS": pids}}, "forks")
	if code != 0 || stdout != "forked" || took > 15*time.Second {
		t.Errorf("got %d, %q, %q after %s", code, stdout, stderr, took)
	}
	left, err := os.ReadDir(pids)
	if err != nil || len(left) != 2 {
		t.Fatalf("%v, %v", left, err)
	}
	for _, entry := range left {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d still runs", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// PID 1 ends a command by TERM, five seconds before KILL.
func TestItEndsWhenItIsAsked(t *testing.T) {
	me, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	value, err := json.Marshal(stdio.Request{Command: []string{me}, Env: map[string]string{face: "hangs in the call"}, Tool: "x", TimeoutMS: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(me)
	cmd.Env = append(os.Environ(), face+"=runner", stdio.Variable+"="+string(value))
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if took := time.Since(began); took > 5*time.Second || cmd.ProcessState.ExitCode() != stdio.ExitNoResult || out.String() != "it was ended" {
		t.Errorf("%s after %s, %q", cmd.ProcessState, took, out.String())
	}
}
