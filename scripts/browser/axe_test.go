//go:build browser

package browser_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"tuluat.ai/harness/scripts/internal/checkout"
)

// axeSource is axe-core, of the version in package.json.
var axeSource = sync.OnceValues(func() (string, error) {
	file := os.Getenv("AXE")
	if file == "" {
		root, err := checkout.Root()
		if err != nil {
			return "", err
		}
		file = filepath.Join(root, "bin", "axe", "node_modules", "axe-core", "axe.min.js")
	}
	text, err := os.ReadFile(file)
	return string(text) + "\n;true", err
})

// axe judges the page as it is now: nothing serious or critical may keep people
// who use it by keyboard, by ear or with little sight from using it. It is
// injected past the page's own policy, which lets no such script in.
func (b *tab) axe() {
	b.t.Helper()
	source, err := axeSource()
	if err != nil {
		b.t.Fatalf("axe-core is not there, `make test-browser` fetches it: %v", err)
	}
	eval[bool](b, source)
	found := eval[[]struct {
		ID, Impact, Help string
		Nodes            []string
	}](b, `axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations
		.filter((v) => v.impact === 'serious' || v.impact === 'critical')
		.map((v) => ({ID: v.id, Impact: v.impact, Help: v.help, Nodes: v.nodes.slice(0, 5).map((n) => n.target.join(' ') + ': ' + n.failureSummary.replace(/\s+/g, ' ').slice(0, 200))})))`)
	for _, v := range found {
		b.t.Errorf("axe: %s, %s: %s:\n  %s", v.Impact, v.ID, v.Help, strings.Join(v.Nodes, "\n  "))
	}
}
