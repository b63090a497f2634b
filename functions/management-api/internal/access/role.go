package access

import "slices"

// Roles that are shipped: config/access has them as ClusterRoles named
// tuluat-ROLE, a static token names one of them.
const (
	RoleViewer   = "viewer"
	RoleOperator = "operator"
	RoleApprover = "approver"
	RoleAdmin    = "admin"
)

// Roles returns all of them.
func Roles() []string { return []string{RoleViewer, RoleOperator, RoleApprover, RoleAdmin} }

// grant is a rule of a role.
type grant struct{ resources, verbs []string }

// roleRights are the rules of a shipped role, nil for any other name. They are
// those of config/access, which a test compares.
func roleRights(role string) []grant {
	viewer := []grant{
		{[]string{Agents, Workflows, Sessions, Approvals}, []string{Get, List, Watch}},
		{[]string{Sandboxes, Executions, DeadLetters}, []string{Get, List}},
		{[]string{Logs, Channels, Leaks}, []string{List}},
	}
	operator := append(slices.Clone(viewer),
		grant{[]string{AgentFeatures}, []string{Patch}},
		grant{[]string{Agents}, []string{Halt}},
		grant{[]string{Sessions}, []string{Create, Update, Cancel, Takeover}},
		grant{[]string{Sandboxes}, []string{Delete, Exec}},
		grant{[]string{DeadLetters}, []string{Replay, Delete}},
		grant{[]string{Channels}, []string{Update}},
	)
	switch role {
	case RoleViewer:
		return viewer
	case RoleOperator:
		return operator
	case RoleApprover:
		return []grant{
			{[]string{Agents, Sessions, Approvals}, []string{Get, List, Watch}},
			{[]string{Approvals}, []string{Decide}},
		}
	case RoleAdmin:
		return append(slices.Clone(operator),
			grant{[]string{Agents, Workflows}, []string{Create, Update, Patch, Delete}},
			grant{[]string{Approvals}, []string{Decide}},
			grant{[]string{Audits, Archives}, []string{List}},
			grant{[]string{People}, []string{List, Forget}},
		)
	}
	return nil
}

func allows(rules []grant, r Right) bool {
	return slices.ContainsFunc(rules, func(g grant) bool {
		return slices.Contains(g.resources, r.Resource) && slices.Contains(g.verbs, r.Verb)
	})
}
