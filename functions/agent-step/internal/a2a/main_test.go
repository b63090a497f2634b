package a2a_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Nothing of a call outlives it, however the peer behaves.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}
