package figures

import (
	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/harness"
)

// Every metric. Labels are agents, their guardrails and models, and closed sets.
var (
	up          = describe("tuluat_figures_up", "1: the figures below are those of the database; 0: they could not be read and are not there.")
	readSeconds = describe("tuluat_figures_read_seconds", "How long the last read of the figures took.")

	runs             = describe("tuluat_agent_runs_total", "Turns of an agent and workflow runs that ended, by how.", "agent", "state")
	guardrailBlocks  = describe("tuluat_agent_guardrail_blocks_total", "What guardrails found, or could not judge, by the action that it led to.", "agent", "stage", "guardrail", "action")
	podsActive       = describe("tuluat_sandbox_pods_active", "Sandboxes that are not gone.", "agent")
	sessions         = describe("tuluat_sessions", "Sessions that there are.", "agent", "state")
	sessionsRetrying = describe("tuluat_sessions_retrying", "Sessions whose model gave no answer and that wait to ask again.", "agent")
	messagesWaiting  = describe("tuluat_messages_waiting", "Messages that nobody has begun to answer; 10000: that many or more.")
	messageAge       = describe("tuluat_message_oldest_seconds", "Age of the oldest message that nobody has begun to answer; 0: there is none.")
	replies          = describe("tuluat_replies", "Parts of outbound messages.", "state")
	approvals        = describe("tuluat_approvals_total", "Questions to humans that ended.", "agent", "state")
	approvalsWaiting = describe("tuluat_approvals_waiting", "Questions that no human has answered.", "agent")
	approvalAge      = describe("tuluat_approval_oldest_seconds", "Age of the oldest question that no human has answered; 0: there is none.")
	executions       = describe("tuluat_executions_total", "Commands that ended, by outcome.", "agent", "state")
	sandboxStart     = describe("tuluat_sandbox_start_seconds", "From a sandbox's row to its first use.", "agent")
	tokens           = describe("tuluat_model_tokens_total", "Tokens; other: of lost answers and guardrails.", "agent", "model", "direction")
	cost             = describe("tuluat_model_cost_total", "Money, in the platform's currency unit, by the prices that it is told.", "agent", "model")
	modelFailures    = describe("tuluat_model_failures_total", "Questions to a model that got no answer.", "agent", "model")
	sweepAge         = describe("tuluat_sweep_age_seconds", "Time since the end of the last full pass of the sweep; +Inf: there was none.")
	sweepFindings    = describe("tuluat_sweep_findings", "What the last pass of the sweep came to, by item.", "item", "outcome")
	sweepFailed      = describe("tuluat_sweep_item_failed", "1: the item failed in the last pass, in part or whole.", "item")
	leaks            = describe("tuluat_leaks", "Sandbox objects that no row knew, and rows whose object was gone, as the last pass of the sweep found them. It removes what it finds.", "kind")
	outboxSize       = describe("tuluat_outbox_size", "Announcements that nobody has acted on yet; 10000: that many or more.")
	outboxAge        = describe("tuluat_outbox_oldest_seconds", "Age of the oldest of them; 0: there is none.")
	letters          = describe("tuluat_dead_letters", "Events that the broker gave up on; 10000: that many or more.", "state")
	letterAge        = describe("tuluat_dead_letter_oldest_seconds", "Age of the oldest that is OPEN; 0: there is none.")

	leaked        = describe("tuluat_leaked_objects", "Objects without a live owner that the last comparison of rows with what exists has left.", "kind")
	lost          = describe("tuluat_lost_objects", "Rows without their object that the last comparison has left.", "kind")
	comparisonAge = describe("tuluat_leak_comparison_age_seconds", "Time since the end of the last whole comparison of the kind; not there where nothing was ever compared.", "kind")
	archiveLag    = describe("tuluat_log_archive_lag_seconds", "How long the oldest day of log entries could have been archived that is not; 0: all are.")
	archiving     = describe("tuluat_log_archives_pending", "Objects of the archive that are on their way; 10000: that many or more.")
	archivesAge   = describe("tuluat_log_archive_pending_oldest_seconds", "Age of the oldest of them; 0: there is none.")
)

var (
	descriptions []*prometheus.Desc
	labelCount   = map[*prometheus.Desc]int{}
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	descriptions, labelCount[d] = append(descriptions, d), len(labels)
	return d
}

// valueType says of a series of counts whether it may go down.
func valueType(d *prometheus.Desc) prometheus.ValueType {
	if d == sessions || d == replies {
		return prometheus.GaugeValue
	}
	return prometheus.CounterValue
}

// startBounds are those of the database's trigger; a test compares them.
var startBounds = []float64{0.25, 0.5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120}

// States that what is counted may have.
var (
	executionStates = []harness.ExecutionState{
		harness.ExecutionCompleted, harness.ExecutionFailed, harness.ExecutionTimedOut, harness.ExecutionOutOfMemory, harness.ExecutionDiskLimit,
		harness.ExecutionSandboxGone, harness.ExecutionCancelled, harness.ExecutionUnknown,
	}
	approvalStates = []harness.ApprovalState{harness.ApprovalApproved, harness.ApprovalRejected, harness.ApprovalExpired, harness.ApprovalCancelled}
	replyStates    = []harness.ReplyState{harness.ReplyPlanned, harness.ReplySent, harness.ReplyDelivered, harness.ReplyRead, harness.ReplyFailed, harness.ReplyUnknown}
)
