//go:build profile

package function

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// profile writes what the process does on its CPUs to a file of CPU_PROFILE_DIR,
// where that is set. Only scripts/bench builds functions with this tag.
func profile(env Env) error {
	dir := env.Getenv("CPU_PROFILE_DIR")
	if dir == "" {
		return nil
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", env.Name, os.Getpid())))
	if err != nil {
		return fmt.Errorf("CPU_PROFILE_DIR: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	env.OnExit(func() {
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			env.Log.Error("the CPU profile is not complete", "err", err)
		}
	})
	return nil
}
