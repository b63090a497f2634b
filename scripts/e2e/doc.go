// Package e2e tests the whole system on a real Kubernetes cluster with Knative:
// it deploys everything under a throw-away prefix, talks to agents as people do,
// breaks things, measures, and removes what it made. Its files carry the build
// tag "e2e":
//
//	make e2e
//	make e2e ARGS='-run Journeys/(chat|pod)'
//
// KUBECONFIG names the cluster; a cluster that is missing is an error, never a
// skip. README.md lists what else can be set.
//
// Only the world outside is played, by one Pod (scripts/e2e/world). The functions
// are built as releases are, and know nothing of these tests.
package e2e
