// Package kubetest is a Kubernetes API server for tests. It keeps Pods and the
// few other objects a sandbox needs, has watches, pages and preconditions, and
// carries exec over WebSocket and SPDY; and it fails exactly as it is told, for
// what a healthy cluster will not show.
//
// # How a test speaks to it
//
//   - [Server.On] answers requests in another way than a healthy server would:
//     an error, late, after the work was done, with a cut connection.
//   - [Server.Lives] scripts what becomes of the next Pods; [Server.Change] lets
//     something happen to one of them now.
//   - [Server.Exec] says what an exec prints and how its stream ends.
//   - [Server.Requests], [Server.Count] and [Server.Await] tell what was asked.
//
// A Pod can also be real: see [Machine], which runs the Pod's own command line in
// namespaces of this machine, so that its execs reach a real runner.
//
// # What it does not do
//
// It knows no authentication, no defaults and no validation but that of names and
// labels, and admits whatever it is not told to refuse.
package kubetest
