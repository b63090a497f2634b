package model_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if serverBinary.dir != "" {
			_ = os.RemoveAll(serverBinary.dir)
		}
		os.Exit(code)
	}))
}
