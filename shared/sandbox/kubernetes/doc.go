// Package kubernetes is the sandbox driver for a cluster: every sandbox is one
// Pod in one namespace, named by its row and never used twice.
//
// # What a crash leaves
//
// The Pod is created before anything that belongs to it, and all of that names
// it as its owner, so what is left is a Pod: Start goes on with it, Terminate
// removes it, List shows it, and its active deadline ends it if nobody comes.
// Volumes that outlive Pods carry the id of their session and stay as long as
// that is open: the sweep removes them after it, by the rows that their starts wrote.
//
// # What is believed
//
// A Pod's state comes from the API server and may be late by a second or two.
// An exec that ends is never proof of anything: that is the runner's trailer.
// The end of a stream and the end of its Pod are watched at the same time, since
// execs may freeze when their Pod goes.
//
// # What its role needs
//
// In the namespace of sandboxes: pods get, list, watch, create, delete; pods/exec
// get and create (which of them depends on the cluster's version and the
// transport); networkpolicies create; persistentvolumeclaims create and get;
// events list, for the words of a start that takes too long. A process that only
// removes sandboxes needs pods get, list, watch and delete, and
// persistentvolumeclaims and networkpolicies list and delete.
package kubernetes
