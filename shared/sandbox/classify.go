package sandbox

import (
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

// killedCode is what a shell exits with when SIGKILL ended what it ran.
const killedCode = 128 + 9

// classify turns a proved status and the sandbox's books from before and after
// into a result. An end by itself with exit code 0 stands, whatever the books
// say; an end that was a failure is explained by them.
func classify(st trailer.Status, before, after Condition) Result {
	res := Result{
		ExitCode: st.ExitCode, Signal: st.Signal, Message: st.Message, Started: st.Started,
		StdoutBytes: st.StdoutBytes, StderrBytes: st.StderrBytes, StdoutTail: st.StdoutTail, StderrTail: st.StderrTail, Outbound: st.Outbound,
		Duration: time.Duration(st.DurationMS) * time.Millisecond,
	}
	outOfMemory := memoryKilled(st, before, after)
	switch st.State {
	case trailer.Failed:
		res.State, res.Reason = harness.ExecutionFailed, ReasonNotStarted
		if st.NoProgram {
			res.Reason = ReasonNoProgram
		}
		return res
	case trailer.TimedOut:
		res.State, res.Reason = harness.ExecutionTimedOut, ReasonDeadline
		return res
	case trailer.Cancelled:
		res.State, res.Reason = harness.ExecutionCancelled, ReasonCancelled
		return res
	case trailer.Ended:
		res.State, res.Reason = harness.ExecutionSandboxGone, ReasonSandboxEnding
		if after.Evicted {
			res.State, res.Reason, res.Message = harness.ExecutionDiskLimit, ReasonEvicted, after.Reason
		}
		return res
	}
	switch {
	case st.ExitCode != nil && *st.ExitCode == 0:
		res.State = harness.ExecutionCompleted
		if outOfMemory {
			res.Reason, res.Message = ReasonMemory, "the memory limit ended a process of it"
		}
	case after.Evicted:
		res.State, res.Reason, res.Message = harness.ExecutionDiskLimit, ReasonEvicted, after.Reason
	case outOfMemory:
		res.State, res.Reason = harness.ExecutionOutOfMemory, ReasonMemory
	case st.Signal == "SIGXFSZ" || st.DiskFull && !st.DiskWasFull:
		res.State, res.Reason = harness.ExecutionDiskLimit, ReasonDisk
	default:
		res.State = harness.ExecutionFailed
		switch {
		case st.DiskFull: // an earlier command filled it; this one may have failed for another reason
			res.Reason, res.Message = ReasonDisk, "the sandbox's disk was already full"
		case st.Signal != "":
			res.Reason = ReasonSignal
		}
	}
	return res
}

// booksMatter reports whether classify asks the books from after the command at
// all: they explain an end that was a failure, and change no other.
func booksMatter(st trailer.Status) bool {
	return st.State == trailer.Ended || st.State == trailer.Exited && (st.ExitCode == nil || *st.ExitCode != 0)
}

// memoryKilled reports whether the memory limit ended a process of this
// command. The runner's own count is exact; without it a kill that nobody of us
// sent and a count that rose must do.
func memoryKilled(st trailer.Status, before, after Condition) bool {
	if st.OOMKills != nil {
		return *st.OOMKills > 0
	}
	killed := st.Signal == "SIGKILL" || st.ExitCode != nil && *st.ExitCode == killedCode
	return killed && after.OOMKills > before.OOMKills
}

// classifyGone is for a sandbox that disappeared with the command's outcome.
func classifyGone(started bool, before, after Condition) Result {
	res := Result{State: harness.ExecutionSandboxGone, Reason: ReasonSandboxGone, Started: started, Message: after.Reason}
	switch {
	case after.Evicted:
		res.State, res.Reason = harness.ExecutionDiskLimit, ReasonEvicted
	case after.OOMKills > before.OOMKills:
		res.State, res.Reason = harness.ExecutionOutOfMemory, ReasonMemory
	}
	if !started { // it may have begun, or not: the sandbox took the answer with it
		res.State = harness.ExecutionUnknown
	}
	return res
}
