// Package sandbox runs commands in isolated, short-lived places: one Pod, or
// one local sandbox on a machine without a cluster. A Driver knows how a place
// is made, reached and removed; Exec, the same for every driver, knows what may
// be believed about a command.
//
// # What is proof
//
// PID 1 of every sandbox is the runner. It starts a command at most once per
// execution id, holds the outcome in its own memory, and seals it with a nonce
// that the sandboxed user never sees. Exec believes an outcome only with that
// seal: first from the end of the stream, else by asking again. What nobody can
// prove is UNKNOWN, never COMPLETED.
package sandbox

import (
	"context"
	"errors"
	"io"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Sandbox names one sandbox and says what it is made of. Its row exists before
// it does; UID is empty until Start has returned it.
type Sandbox struct {
	ID        harness.SandboxID
	Name      string // lower-case letters, digits and "-", at most 63; never used twice
	UID       string // the object's identity, as Start returned it
	Agent     harness.AgentName
	Session   harness.SessionID
	Spec      harness.SandboxSpec
	ExpiresAt time.Time // hard end; the sandbox ends itself then even if nobody comes
}

// Driver makes, reaches and removes sandboxes. Every method may be called from
// several goroutines and processes at once, and again after a crash at any
// point: the name alone finds what is there.
type Driver interface {
	// Start makes the sandbox and returns its uid once it takes commands. It is
	// idempotent by name: starting one that exists with the same ID returns its
	// uid. A failure is a Failure and leaves nothing behind, or what Terminate
	// and List find by name.
	Start(ctx context.Context, sb Sandbox) (uid string, err error)

	// Stream runs the runner with argv against the sandbox and copies its
	// streams until it ends: the only transport. A nil error says only that the
	// stream ended; what the command did is in the trailer. ErrGone means that
	// the sandbox with this UID no longer exists; any other error is a fault of
	// the transport and leaves the outcome unproved. Writers must not block.
	Stream(ctx context.Context, sb Sandbox, argv []string, stdin io.Reader, stdout, stderr io.Writer) error

	// Inspect says how the sandbox with this UID stands.
	Inspect(ctx context.Context, sb Sandbox) (Condition, error)

	// Terminate removes the sandbox and returns nil only when it is proved
	// absent; Unavailable when that could not be proved in time. With a UID it
	// leaves another sandbox of the same name alone.
	Terminate(ctx context.Context, sb Sandbox) error

	// List returns every sandbox object of ours, dead or alive, for the sweep
	// that looks for leaks.
	List(ctx context.Context) ([]Found, error)
}

// Condition is how a sandbox stands, from the platform's own books.
type Condition struct {
	Exists   bool   // it is there and takes commands
	OOMKills int    // processes its memory limit has ended since its start, as far as the platform counts them
	Evicted  bool   // the platform ended it for the disk it used
	Reason   string // the platform's words when it no longer exists
}

// Found is one sandbox object that exists.
type Found struct {
	Name      string
	UID       string // empty when its start never finished
	CreatedAt time.Time
	EndedAt   time.Time // since when it takes no commands any more; zero: it does, or nobody looked
}

// Bookkeeper is a Driver that says more of its books than a Driver must.
type Bookkeeper interface {
	// CountsOnlyTheEnd reports that Condition.OOMKills is zero for every sandbox
	// that exists, so that nobody needs to read it before a command.
	CountsOnlyTheEnd() bool
}

// Keeper is a Driver that makes more than sandboxes: volumes that outlive them and
// policies that belong to one.
type Keeper interface {
	// VolumeOf names the volume that Start makes for sb, or finds; "": none. It has
	// its row before Start is called.
	VolumeOf(sb Sandbox) string

	// Objects returns every object of ours of the kind, VOLUME or NETWORK_POLICY.
	Objects(ctx context.Context, kind harness.ObjectKind) ([]Object, error)

	// Remove asks for the removal of one; nil says that it goes, or is not there
	// (any more). A volume that a sandbox uses stays until that is gone.
	Remove(ctx context.Context, kind harness.ObjectKind, o Object) error
}

// Object is an object beside sandboxes that exists.
type Object struct {
	Name, UID string
	Agent     harness.AgentName // as its maker wrote it there
	Session   harness.SessionID // whose it is; of a VOLUME empty when nobody can say
	CreatedAt time.Time
	Going     bool // it is being removed already
}

// The errors callers tell apart.
var (
	// ErrGone: the sandbox with this UID does not exist (any more).
	ErrGone = errors.New("the sandbox is gone")

	// ErrStillRunning: the caller's time is over and the command goes on, or
	// its end could not be proved yet. Call Exec again with the same id, nonce
	// and the offsets reached.
	ErrStillRunning = errors.New("the command is still running")

	// ErrBusy: another command runs in this sandbox; nothing was started.
	ErrBusy = errors.New("the sandbox runs another command")
)

// Reason says why a sandbox could not be started or a command ended, in a word
// for machines.
type Reason string

// The reasons.
const (
	ReasonMissingTool   Reason = "MISSING_TOOL"     // the machine lacks a program the driver needs
	ReasonRefused       Reason = "NAMESPACES"       // the kernel refuses the isolation the driver needs
	ReasonTaken         Reason = "NAME_TAKEN"       // the name belongs to another sandbox
	ReasonEnded         Reason = "ENDED"            // it was started before and has ended since
	ReasonStartFailed   Reason = "START_FAILED"     // it did not come up
	ReasonStartTimeout  Reason = "START_TIMEOUT"    // it did not come up in time
	ReasonCapacity      Reason = "CAPACITY"         // the platform has no room now
	ReasonImage         Reason = "IMAGE"            // the image cannot be had
	ReasonSpec          Reason = "SPEC"             // the platform refuses the spec
	ReasonNetwork       Reason = "NETWORK_OPEN"     // its network is not shut as it must be; it never took a command
	ReasonNotStarted    Reason = "NOT_STARTED"      // the command could not be started; nothing ran
	ReasonNoProgram     Reason = "NO_PROGRAM"       // its program is not there or cannot be executed; nothing ran
	ReasonTooLong       Reason = "COMMAND_TOO_LONG" // longer than a command line may be; nothing ran
	ReasonSignal        Reason = "SIGNAL"           // a signal nobody of us sent ended it
	ReasonDeadline      Reason = "DEADLINE"         // its own deadline ended it
	ReasonCancelled     Reason = "CANCELLED"        // someone ended it
	ReasonMemory        Reason = "MEMORY_LIMIT"     // the memory limit ended it, or a part of it
	ReasonDisk          Reason = "DISK_FULL"        // the disk limit ended it, or was already reached
	ReasonEvicted       Reason = "EVICTED"          // the platform evicted the sandbox
	ReasonSandboxGone   Reason = "SANDBOX_GONE"     // the sandbox disappeared
	ReasonSandboxEnding Reason = "SANDBOX_ENDING"   // the sandbox reached its end of life
	ReasonUnproved      Reason = "UNPROVED"         // the sandbox does not answer; nobody can say
)

// Failure is why a sandbox could not be had. Err is a harness.Error, whose kind
// says whether trying again helps and whose message is for people.
type Failure struct {
	Reason Reason
	Err    error
}

func (f *Failure) Error() string { return string(f.Reason) + ": " + f.Err.Error() }

func (f *Failure) Unwrap() error { return f.Err }

// Fail returns a Failure with a harness.Error of kind k. The cause may be nil.
func Fail(k harness.Kind, reason Reason, message string, cause error) error {
	return &Failure{Reason: reason, Err: &harness.Error{Kind: k, Message: message, Err: cause}}
}

// ReasonOf returns the reason of err, or "" when it has none.
func ReasonOf(err error) Reason {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Reason
	}
	return ""
}

// Request is one command for Exec. The same ID and Nonce on every call for one
// execution; the runner starts it on the first and only attaches on the others.
type Request struct {
	ID           harness.ExecutionID
	Nonce        string            // unguessable, kept with the execution's row, never shown to the sandbox
	Command      []string          // argv
	Env          map[string]string // added to the sandbox's own
	Timeout      time.Duration     // of the command; the runner enforces it
	MaxOutput    int64             // bytes kept per stream; the rest is counted; 0 means DefaultMaxOutput
	StdoutOffset int64             // bytes of stdout the caller already has
	StderrOffset int64
}

// DefaultMaxOutput is how many bytes of each stream are kept when a Request
// does not say.
const DefaultMaxOutput int64 = 1 << 20

// TailBytes is how much of a stream's end is kept when it printed more than
// MaxOutput.
const TailBytes = 8 << 10

// Sink takes output as it arrives: bytes of "stdout" or "stderr" from the given
// offset of that stream, each byte once and in order per stream. It is called
// from the goroutine that called Exec and may be slow. data is valid during the
// call only. A character may be split between two calls.
type Sink func(stream string, offset int64, data []byte)

// Result is what became of a command; its state is final.
type Result struct {
	State       harness.ExecutionState
	ExitCode    *int   // nil when nobody knows or a signal ended it
	Signal      string // as in SIGKILL; empty unless a signal ended it
	Reason      Reason
	Message     string // for people; empty when the state says it all
	StdoutBytes int64  // what it printed, kept or not
	StderrBytes int64
	StdoutTail  []byte // the end of stdout when it printed more than MaxOutput
	StderrTail  []byte
	Incomplete  bool // output that the sandbox kept could not be read
	Started     bool // proved to have begun; false with UNKNOWN means nobody knows
	Outbound    bool // there is a folder of files to be sent out: see Collect
	Duration    time.Duration
}
