// Package access knows who is calling the management API and what they may do.
//
// Everything that asks for a right names it as Kubernetes does, by verb and
// resource of the group tuluat.ai, so that Roles and RoleBindings of the agents
// namespace decide. Most of the resources exist nowhere but here: sessions,
// approvals, sandboxes, executions, logs, deadletters, channels, audits, and
// aiagents/features, which lets a caller switch features of an agent without
// letting them write the rest of it. config/access has the roles, and
// config/README.md the operations that each of them may call.
//
// Nothing is open by default. Who cannot be asked about, because the API server
// is away, is not let in.
package access
