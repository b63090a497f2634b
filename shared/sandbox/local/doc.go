// Package local is the sandbox driver for one machine without a cluster. It is
// compiled in by the build tag "local" only, so that no production image can
// carry it.
//
// A sandbox is a bubblewrap process tree with its own user, pid, mount, ipc,
// uts, cgroup and network namespaces: an unprivileged uid, a read-only system,
// writable memory-backed /workspace, /tmp and /run, and no network. Its limits
// are a cgroup of its own, version 1 or 2. Like a Pod it outlives the process
// that started it.
//
// # What a crash leaves
//
// Everything of a sandbox is found by its name below one folder:
//
//	NAME/state.json   who it is; with a uid once it took commands
//	NAME/alive        locked by the sandbox itself for as long as any of it lives
//	NAME/ctl          the socket into it, which only this machine's side can open
//	NAME/log          what bubblewrap and PID 1 said
//
// The folder and the state are written before anything is started, and removed
// after everything is gone: a crash between any two lines leaves either nothing
// or a folder that Start repeats, Terminate removes and List shows. The lock on
// alive, which the kernel holds, is the proof of absence; process ids are used
// only together with their start time and the machine's boot id.
package local
