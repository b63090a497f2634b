package v1alpha1_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"tuluat.ai/harness/shared/api/v1alpha1"
)

// cpu is the time that this process has computed: the machine may be busy.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Whatever a file says, what is wrong with one document of it is told in little
// time and little space.
func TestProblemsAreBounded(t *testing.T) {
	const size = 1 << 20
	small := bounded(size / 8)
	for name, body := range bounded(size) {
		t.Run(name, func(t *testing.T) {
			began := cpu(t)
			documents, err := v1alpha1.Read([]byte(body))
			var text string
			if err != nil {
				text = err.Error()
			}
			for _, d := range documents {
				problems := d.Validate(v1alpha1.DefaultLimits())
				if text += problems.Error(); len(problems) == 0 || len(problems) > v1alpha1.MaxProblems+1 {
					t.Errorf("%d problems", len(problems))
				}
				if len(problems) > v1alpha1.MaxProblems && !strings.Contains(problems[v1alpha1.MaxProblems].What, "more problems") {
					t.Errorf("ends with %v", problems[v1alpha1.MaxProblems])
				}
			}
			if _, err := v1alpha1.Parse([]byte(body)); err != nil && len(err.Error()) > 100_000 {
				t.Errorf("Parse: %d bytes", len(err.Error()))
			}
			took := cpu(t) - began
			t.Logf("%d bytes: %d bytes of problems in %s", len(body), len(text), took)
			if text == "" || len(text) > 100_000 || !utf8.ValidString(text) {
				t.Errorf("%d bytes (%.200s)", len(text), text)
			}
			if took < 2*time.Second { // too short to be told from the machine's noise
				return
			}
			began = cpu(t)
			if documents, err := v1alpha1.Read([]byte(small[name])); err == nil {
				for _, d := range documents {
					_ = d.Validate(v1alpha1.DefaultLimits()).Error()
				}
			}
			_, _ = v1alpha1.Parse([]byte(small[name]))
			if eighth := cpu(t) - began; took > 24*eighth { // a square would take 64 times as long
				t.Errorf("%d bytes take %s, and an eighth of them %s", len(body), took, eighth)
			}
		})
	}
}

// bounded are documents of about size bytes that are full of problems.
func bounded(size int) map[string]string {
	fill := func(each func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < size-1000; i++ {
			b.WriteString(each(i))
		}
		return b.String()
	}
	long := strings.Repeat("ü\U0001F642", 33_000)
	return map[string]string{
		"unknown fields":      head + "spec:\n" + fill(func(i int) string { return fmt.Sprintf("  x%d: 1\n", i) }),
		"duplicates":          head + "spec:\n" + fill(func(int) string { return "  a: 1\n" }),
		"duplicates below":    head + "  labels:\n" + fill(func(int) string { return "    a: 1\n" }),
		"a long field":        head + "spec:\n  " + strings.Repeat("a", size-200) + ": 1\n",
		"fields below a long": head + "  labels:\n    \"" + long + "\": {" + strings.Repeat("a: 1, ", 1000) + "}\n",
		"long fields":         head + "spec: {" + fill(func(i int) string { return fmt.Sprintf("\"%d%s\": 1, ", i, long[:600]) }) + "}\n",
		"long texts":          head + "spec: {harness: {type: BOTH, channels: [" + fill(func(int) string { return `{type: "` + long[:600] + `"}, ` }) + "]}}\n",
		"a long kind":         "apiVersion: tuluat.ai/v1alpha1\nkind: \"" + long + "\"\n",
		"a long name":         strings.Replace(head, "name: a", "name: \""+long+"\"", 1),
		"not texts":           head + "spec: {harness: {type: CODE, sandbox: {command: [" + fill(func(int) string { return "1, " }) + "]}}}\n",
		"empty texts":         head + "spec: {harness: {type: CODE, sandbox: {command: [" + fill(func(int) string { return `"", ` }) + "]}}}\n",
		"ports":               head + "spec: {harness: {type: CODE, sandbox: {egress: allowlist, egressAllow: [{cidr: 1.1.1.1/32, ports: [" + fill(func(i int) string { return fmt.Sprint(i%65535+1, ", ") }) + "]}]}}}\n",
		"patterns":            head + "spec: {approvals: {enabled: false, policy: pattern, patterns: [" + fill(func(int) string { return `'\pL(', ` }) + "]}}\n",
		"a long pattern":      head + "spec: {approvals: {enabled: false, policy: pattern, patterns: ['" + fill(func(int) string { return `\pL` }) + "']}}\n",
		"deep":                head + "spec: {x: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}\n",
		"edges":               strings.Replace(head, "AiAgent", "AiWorkflow", 1) + "spec: {edges: [" + fill(func(int) string { return "{}, " }) + "]}\n",
		"an unknown alias":    head + "spec: *" + strings.Repeat("a", 100_000) + "\n",
	}
}
