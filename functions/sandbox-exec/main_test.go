package main

import (
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
)

func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func TestConfigReportsEveryProblem(t *testing.T) {
	_, err := parseConfig(env(map[string]string{
		"SANDBOX_DRIVER": "local", "LEASE": "soon", "REQUEST_BUDGET": "10m", "MAX_OUTPUT_BYTES": "-1", "DATABASE_MAX_CONNS": "none",
		"S3_BUCKET": "files", "S3_ENDPOINT": "nowhere",
	}))
	if harness.KindOf(err) != harness.Invalid {
		t.Fatalf("error %v", err)
	}
	functiontest.Complains(t, err,
		"DATABASE_URL ", "DATABASE_MAX_CONNS ", "BROKER_URL ", "LEASE ", "REQUEST_BUDGET ", "MAX_OUTPUT_BYTES ", "SANDBOX_LOCAL_DIR ", "SANDBOX_LOCAL_RUNNER ",
		"S3_ENDPOINT ", "AWS_ACCESS_KEY_ID ", "AWS_SECRET_ACCESS_KEY ")
}

func TestConfigOfPodsIsNeeded(t *testing.T) {
	_, err := parseConfig(env(map[string]string{"SANDBOX_NETWORK_CHECK": "no"}))
	functiontest.Complains(t, err, "DATABASE_URL ", "BROKER_URL ", "SANDBOX_RUNNER_IMAGE ", "SANDBOX_IMAGES_DIR ", "SANDBOX_NETWORK_CHECK ")
}

// pods is all that is needed for sandboxes that are Pods, but for the cluster.
func pods() map[string]string {
	return map[string]string{
		"PORT": "0", "METRICS_PORT": "0", "DATABASE_URL": "postgres://u:hidden@h/d", "BROKER_URL": "http://broker",
		"SANDBOX_RUNNER_IMAGE": "registry/runner:1", "SANDBOX_IMAGES_DIR": "/images",
	}
}

func TestConfigDefaults(t *testing.T) {
	cfg, err := parseConfig(env(pods()))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.lease != time.Minute || cfg.budget != 200*time.Second || cfg.maxOutput != 1<<20 || cfg.sandbox.Driver != "kubernetes" || cfg.archive.Enabled() {
		t.Errorf("defaults %+v", cfg)
	}
}

func TestPodsNeedACluster(t *testing.T) {
	err := function.Run(t.Context(), "sandbox-exec", env(pods()), t.Output(), build, nil)
	if err == nil || !strings.Contains(err.Error(), "SANDBOX_DRIVER") || !strings.Contains(err.Error(), "KUBECONFIG") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("without a cluster: %v", err)
	}
}
