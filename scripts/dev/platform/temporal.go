package main

import (
	"path/filepath"

	"tuluat.ai/harness/scripts/internal/manifest"
)

// temporal is the Temporal server of a person who has one; there is none on this
// machine by itself.
type temporal struct{ values map[string]string }

// temporalKeys are the keys of the Secret that a cluster has, and the variables
// that stand for them.
var temporalKeys = map[string]string{
	"address": "TEMPORAL_ADDRESS", "namespace": "TEMPORAL_NAMESPACE", "api-key": "TEMPORAL_API_KEY", "tls": "TEMPORAL_TLS",
	"tls-server-name": "TEMPORAL_TLS_SERVER_NAME", "tls-server-ca": "TEMPORAL_TLS_SERVER_CA_CERT_DATA",
	"tls-client-cert": "TEMPORAL_TLS_CLIENT_CERT_DATA", "tls-client-key": "TEMPORAL_TLS_CLIENT_KEY_DATA",
}

func chooseTemporal(getenv func(string) string) temporal {
	t := temporal{values: map[string]string{}}
	for key, variable := range temporalKeys {
		if value := getenv(variable); value != "" {
			t.values["temporal/"+key] = value
		}
	}
	return t
}

func (t temporal) there() bool { return t.values["temporal/address"] != "" }

// wiring lists the folders whose YAML says what runs.
func (t temporal) wiring(root string) []string {
	folders := []string{filepath.Join(root, "config", "functions"), filepath.Join(root, "eventing")}
	if t.there() {
		folders = append(folders, filepath.Join(root, "config", "components", "temporal-bridge"))
	}
	return folders
}

// environment is what the component's patches give to other functions.
func (t temporal) environment(set *manifest.Set, function string) map[string]string {
	env := map[string]string{}
	for _, service := range set.Services {
		switch {
		case service.Function() != "temporal-bridge":
		case function == "management-api":
			env["TEMPORAL_BRIDGE"] = "true"
		case function == "reaper-cron":
			env["MORE_SINKS"] = "ai.tuluat.approval.decided.v1=http://" + service.Host() + "/events"
		}
	}
	return env
}
