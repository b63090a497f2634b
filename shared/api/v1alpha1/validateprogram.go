package v1alpha1

import (
	"fmt"
	"regexp"

	"tuluat.ai/harness/shared/harness"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// program checks a server that is a program of the sandbox. Whether the harness is
// switched off is none of it: an operator may do that at any time.
func (c *check) program(path string, s MCPServer, h *Harness) {
	switch {
	case len(s.Command) == 0:
		c.fail(path, "needs url or command", "write one of them")
		return
	case s.URL != "":
		c.fail(path+".url", "is set beside command", "keep one of them")
	}
	c.texts(path+".command", s.Command, 64, 1024, "write it like [npx, -y, some-server]")
	if s.HeadersSecretRef != nil {
		c.fail(path+".headersSecretRef", "is of a server with a url", "remove it")
	}
	c.few(path+".env", len(s.Env), 64)
	seen := map[string]bool{}
	for i, v := range s.Env {
		at := fmt.Sprintf("%s.env[%d]", path, i)
		switch {
		case len(v.Name) > 128 || !variableName.MatchString(v.Name):
			c.fail(at+".name", fmt.Sprintf("is %q", v.Name), "use letters, digits and _, beginning with no digit")
		case seen[v.Name]:
			c.fail(at+".name", fmt.Sprintf("is %q, as in an earlier entry", v.Name), "name each once")
		}
		seen[v.Name] = true
		c.length(at+".value", v.Value, 4096, "keep it in a file of the sandbox's image")
	}
	if h == nil || h.Type != harness.HarnessCode && h.Type != harness.HarnessBoth {
		c.fail(path+".command", "runs in a sandbox, which this agent does not have", "add spec.harness of type CODE or BOTH")
	}
}
