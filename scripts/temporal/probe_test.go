package temporal_test

import (
	"testing"

	"go.temporal.io/server/temporaltest"
)

func TestProbe(t *testing.T) {
	s := temporaltest.NewServer(temporaltest.WithT(t))
	t.Log(s.GetFrontendHostPort())
}
