package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/shared/harness"
)

// temporalFlags name the Temporal workflow that is told of a session's approvals.
type temporalFlags struct{ link harness.TemporalLink }

func (f *temporalFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.link.WorkflowID, "temporal-workflow-id", "", "the Temporal workflow that gets the signal ApprovalSignal when an approval of the session ends")
	cmd.Flags().StringVar(&f.link.Namespace, "temporal-namespace", "", "its namespace; without one, that of the installation")
	cmd.Flags().StringVar(&f.link.RunID, "temporal-run-id", "", "its run; without one, whichever is the current one then")
	before(cmd, func() error {
		if f.given() == nil {
			return nil
		}
		if f.link.WorkflowID == "" {
			return errors.New("--temporal-namespace and --temporal-run-id need --temporal-workflow-id")
		}
		if field, problem := f.link.Problem(); problem != "" {
			return fmt.Errorf("%s %s", map[string]string{
				"workflowId": "--temporal-workflow-id", "namespace": "--temporal-namespace", "runId": "--temporal-run-id",
			}[field], problem)
		}
		return nil
	})
}

// given is nil when no flag is.
func (f *temporalFlags) given() *harness.TemporalLink {
	if f.link == (harness.TemporalLink{}) {
		return nil
	}
	return &f.link
}

func temporalText(l *harness.TemporalLink) string {
	if l == nil {
		return ""
	}
	text := l.WorkflowID
	if l.Namespace != "" {
		text = l.Namespace + "/" + text
	}
	if l.RunID != "" {
		text += " run " + l.RunID
	}
	return text
}
