package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/hook"
	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
)

// sent is what send prints with -o json.
type sent struct {
	hook.Receipt
	Reply     *string          `json:"text,omitempty"` // with --wait
	Choices   []harness.Choice `json:"choices,omitempty"`
	ToolCalls []toolCall       `json:"toolCalls,omitempty"`
}

type toolCall struct {
	Name      string                 `json:"name"`
	Arguments string                 `json:"arguments"`
	State     string                 `json:"state"`
	Result    string                 `json:"result"`
	Execution harness.ExecutionState `json:"executionState,omitempty"`
	ExitCode  *int                   `json:"exitCode,omitempty"`
}

func newSend(sys System) *cobra.Command {
	t := &target{sys: sys}
	var wait bool
	var output string
	cmd := &cobra.Command{
		Use:   "send AGENT TEXT...",
		Short: "Send one message to an agent",
		Args:  cobra.MinimumNArgs(2),
		PreRunE: func(*cobra.Command, []string) error {
			if output != "text" && output != "json" {
				return errors.New("-o must be text or json")
			}
			return nil
		},
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for the answer and print it")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.RunE = running(func(cmd *cobra.Command, args []string) error {
		if err := t.resolve(args[0]); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		c := &conversation{target: t}
		if wait {
			var err error
			if c, err = join(ctx, t, func(error) {}); err != nil {
				return err
			}
			defer func() { cancel(); <-c.ended }()
		}
		s := newScreen(sys.Stdout, sys.Stderr, false)
		result, err := send(ctx, c, strings.Join(args[1:], " "), wait, s)
		if err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(sys.Stdout).Encode(result)
		}
		if result.Reply != nil {
			s.answer(*result.Reply)
			s.offer(result.Choices)
			return nil
		}
		_, err = fmt.Fprintf(sys.Stdout, "message %s is taken in session %s\n", result.Message, result.Session)
		return err
	})
	return cmd
}

func send(ctx context.Context, c *conversation, text string, wait bool, s *screen) (sent, error) {
	receipt, err := c.say(ctx, text)
	if err != nil || !wait {
		return sent{Receipt: receipt}, err
	}
	result := sent{Receipt: receipt}
	ours := false // the turn of our message runs
	arguments := map[harness.ToolCallID]string{}
	reply, err := c.await(ctx, receipt.Message, func(e sse.Event) {
		switch e.Name {
		case "turn":
			ours = e.Message == receipt.Message
		case "tool_call":
			arguments[e.ToolCall] = e.Arguments
		case "tool_result":
			if ours {
				call := toolCall{Name: e.ToolName, Arguments: arguments[e.ToolCall], State: e.State, Result: e.Result}
				if e.Execution != nil {
					call.Execution, call.ExitCode = e.Execution.State, e.Execution.ExitCode
				}
				result.ToolCalls = append(result.ToolCalls, call)
			}
		}
		s.show(e)
	})
	result.Reply, result.Choices = &reply.Text, reply.Choices
	return result, err
}
