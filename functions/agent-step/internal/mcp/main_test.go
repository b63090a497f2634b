package mcp_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Nothing of a call outlives it, however the server behaves. What is ignored are
// the connections of the test's own database and servers.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}
