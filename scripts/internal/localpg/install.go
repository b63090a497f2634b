package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// MinVersion is the oldest PostgreSQL major version the schema works on.
const MinVersion = 15

// ErrMissing says that no usable PostgreSQL server is installed. Its text tells
// a person what to run.
var ErrMissing = errors.New("PostgreSQL server programs (initdb, postgres) of version 15 or newer were not found; install them with:\n\n    " + InstallCommand + "\n")

// InstallCommand installs a server without starting one, on Debian and Ubuntu.
const InstallCommand = "sudo apt-get install -y postgresql"

// Install is a set of PostgreSQL server programs.
type Install struct {
	Bin     string // folder that holds initdb and postgres
	Version int    // major version
}

// Find returns the newest usable install of the folders where distributions put
// them, the folder POSTGRES_BIN names, and the one on PATH. It returns ErrMissing if there is none.
func Find() (Install, error) {
	folders, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return Install{}, err
	}
	for _, pattern := range []string{"/usr/pgsql-*/bin", "/usr/libexec/postgresql*", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			return Install{}, err
		}
		folders = append(folders, more...)
	}
	if bin := os.Getenv("POSTGRES_BIN"); bin != "" {
		folders = append(folders, bin)
	}
	if onPath, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(onPath); err == nil {
			folders = append(folders, filepath.Dir(real))
		}
	}
	return newest(folders)
}

func newest(folders []string) (Install, error) {
	var found []Install
	var old []int
	for _, folder := range folders {
		version, err := versionOf(folder)
		switch {
		case err != nil:
		case version < MinVersion:
			old = append(old, version)
		default:
			found = append(found, Install{Bin: folder, Version: version})
		}
	}
	if len(found) == 0 {
		if len(old) > 0 {
			return Install{}, fmt.Errorf("only PostgreSQL %d is installed: %w", slices.Max(old), ErrMissing)
		}
		return Install{}, ErrMissing
	}
	return slices.MaxFunc(found, func(a, b Install) int { return a.Version - b.Version }), nil
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func versionOf(folder string) (int, error) {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(folder, program)); err != nil {
			return 0, err
		}
	}
	out, err := exec.Command(filepath.Join(folder, "postgres"), "--version").Output()
	if err != nil {
		return 0, err
	}
	match := versionText.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("%s: version not understood: %q", folder, out)
	}
	return strconv.Atoi(string(match[1]))
}
