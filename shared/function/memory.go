package function

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// gcPercent lets the heap grow to five times what is live before it is collected:
// a function's live heap is a few MB in a pod of hundreds, and collecting it at
// Go's default takes a fifth of the CPU of a busy ingest function.
const gcPercent = 400

// memoryShare is how much of the container's memory the heap may take before the
// collector works harder, in place of gcPercent.
const memoryShare = 0.8

// limitFiles say how much memory the container has (cgroup v2, v1).
var limitFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// tuneMemory trades memory that the pod has for CPU. GOGC and GOMEMLIMIT, which
// the runtime reads itself, win.
func tuneMemory(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if limit := containerMemory(limitFiles); getenv("GOMEMLIMIT") == "" && limit > 0 {
		debug.SetMemoryLimit(int64(float64(limit) * memoryShare))
	}
}

// containerMemory is the first limit that files give, 0 if there is none.
func containerMemory(files []string) int64 {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// v2 says max where there is none; v1 says more than any machine has.
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit > 0 && limit < math.MaxInt64/2 {
			return limit
		}
	}
	return 0
}
