package workflow

import (
	"fmt"
	"regexp"
	"slices"
	"time"
	_ "time/tzdata" // images have none

	"github.com/robfig/cron/v3"

	"tuluat.ai/harness/shared/harness"
)

func (c *checker) ids() {
	seen := map[string]bool{}
	for i, n := range c.workflow.Nodes {
		if seen[n.ID] {
			c.fail(at("nodes", i, "id"), fmt.Sprintf("is %q, as in an earlier entry", n.ID), "name each once")
		}
		seen[n.ID] = true
	}
	if len(c.workflow.Nodes) > 0 && Agent(c.workflow) == "" {
		c.fail("nodes", "have none of type AGENT or SHELL that is reached, so there is no agent that a run could belong to", "add one")
	}
}

func (c *checker) limits() {
	if n := c.workflow.MaxVisits; n < 1 || n > MaxVisits {
		c.fail("maxVisits", fmt.Sprintf("is %d", n), fmt.Sprintf("use 1 to %d, or leave it out for %d", MaxVisits, DefaultMaxVisits))
	}
	for i, n := range c.workflow.Nodes {
		if n.Join != "" && n.Join != JoinAny && n.Join != JoinAll {
			c.fail(at("nodes", i, "join"), fmt.Sprintf("is %q", n.Join), "use any or all")
		}
		if n.TimeoutSeconds != 0 && n.Type == harness.NodeEnd {
			c.fail(at("nodes", i, "timeoutSeconds"), "is of another type of node than END", "remove it")
		}
		if n.Retries == (harness.Retries{}) {
			continue
		}
		if n.Type != harness.NodeAgent && n.Type != harness.NodeShell {
			c.fail(at("nodes", i, "retries"), fmt.Sprintf("are of types AGENT and SHELL, and this is %s", n.Type), "remove them")
		}
		if n.Retries.Max < 0 || n.Retries.Max > MaxRetries {
			c.fail(at("nodes", i, "retries.max"), fmt.Sprintf("is %d", n.Retries.Max), fmt.Sprintf("use 1 to %d, or leave retries out", MaxRetries))
		}
		if b := n.Retries.BackoffSeconds; b < 1 || b > MaxBackoff {
			c.fail(at("nodes", i, "retries.backoffSeconds"), fmt.Sprintf("is %d", b), fmt.Sprintf("use 1 to %d, or leave it out for %d", MaxBackoff, DefaultBackoff))
		}
	}
}

// The joins, as this package's readers know them.
const (
	JoinAny = harness.JoinAny
	JoinAll = harness.JoinAll
)

func (c *checker) triggers() {
	for i, t := range c.workflow.Triggers {
		switch t.Type {
		case harness.TriggerChannel:
			c.channelTrigger(i, t)
		case harness.TriggerSchedule:
			if _, p := Schedule(t); p != nil {
				c.fail(at("triggers", i, p.Path), p.What, p.Fix)
			}
			c.given(i, nil)
		case "":
			c.fail(at("triggers", i, "type"), "is missing", "use CHANNEL or SCHEDULE")
		default:
			c.fail(at("triggers", i, "type"), fmt.Sprintf("is %q", t.Type), "use CHANNEL or SCHEDULE")
		}
		for _, f := range []struct {
			name string
			set  bool
			of   harness.TriggerType
		}{
			{"agent", t.Agent != "", harness.TriggerChannel},
			{"pattern", t.Pattern != "", harness.TriggerChannel},
			{"schedule", t.Schedule != "", harness.TriggerSchedule},
			{"timeZone", t.TimeZone != "", harness.TriggerSchedule},
		} {
			if f.set && t.Type != f.of && (t.Type == harness.TriggerChannel || t.Type == harness.TriggerSchedule) {
				c.fail(at("triggers", i, f.name), fmt.Sprintf("is of type %s", f.of), "remove it, or change type")
			}
		}
	}
}

func (c *checker) channelTrigger(i int, t harness.Trigger) {
	if t.Agent == "" {
		c.fail(at("triggers", i, "agent"), "is missing, to whom the message is", "add the name of an AiAgent")
	}
	switch {
	case t.Pattern == "":
		c.fail(at("triggers", i, "pattern"), "is missing", "write a regular expression, like ^/deploy (?P<service>[a-z]+)$")
	case len(t.Pattern) > maxTriggerPattern:
		c.fail(at("triggers", i, "pattern"), fmt.Sprintf("is over %d bytes", maxTriggerPattern), "shorten it")
	default:
		pattern, err := regexp.Compile(t.Pattern)
		if err != nil {
			c.fail(at("triggers", i, "pattern"), "is not a regular expression (RE2)", "mend it; RE2 has no look-around and no back references")
			return
		}
		c.given(i, pattern.SubexpNames())
	}
}

// given checks that a run which a trigger starts can have its input.
func (c *checker) given(i int, groups []string) {
	for j, in := range c.workflow.Inputs {
		if !in.Required {
			continue
		}
		switch found := slices.Contains(groups, in.Name); {
		case !found && c.workflow.Triggers[i].Type == harness.TriggerSchedule:
			c.fail(fmt.Sprintf("triggers[%d]", i), fmt.Sprintf("gives no input, and inputs[%d], %s, is required", j, in.Name), "make it optional, or remove the trigger")
		case !found, in.Type == harness.InputObject, in.Type == harness.InputList:
			c.fail(at("triggers", i, "pattern"), fmt.Sprintf("gives no %s, which inputs[%d] requires", in.Name, j), "add a group (?P<"+in.Name+">…), or make the input optional")
		}
	}
}

// Schedule returns when a trigger of type SCHEDULE starts runs, or what is wrong
// with one of its fields.
func Schedule(t harness.Trigger) (cron.Schedule, *Problem) {
	if t.Schedule == "" {
		return nil, &Problem{"schedule", "is missing", "write it as cron does, like 0 7 * * 1-5"}
	}
	zone := "UTC"
	if t.TimeZone != "" {
		if _, err := time.LoadLocation(t.TimeZone); err != nil || t.TimeZone == "Local" || len(t.TimeZone) > 64 {
			return nil, &Problem{"timeZone", fmt.Sprintf("is %q", t.TimeZone), "use a name of the IANA database, like Europe/Berlin"}
		}
		zone = t.TimeZone
	}
	// CRON_TZ, TZ and @every are the parser's own and no part of the five fields.
	if !fiveFields.MatchString(t.Schedule) {
		return nil, &Problem{"schedule", "is not five fields: minute, hour, day, month and day of the week", "write it like 0 7 * * 1-5"}
	}
	parser := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	schedule, err := parser.Parse("CRON_TZ=" + zone + " " + t.Schedule)
	if err != nil {
		return nil, &Problem{"schedule", "is not a schedule: " + err.Error(), "write it like 0 7 * * 1-5"}
	}
	if schedule.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, &Problem{"schedule", "never comes", "name a day that there is"}
	}
	return schedule, nil
}

var fiveFields = regexp.MustCompile(`^[0-9A-Za-z*?/,-]{1,64}( +[0-9A-Za-z*?/,-]{1,64}){4}$`)

func (c *checker) inputs() {
	seen := map[string]bool{}
	for i, in := range c.workflow.Inputs {
		switch {
		case !inputName.MatchString(in.Name):
			c.fail(at("inputs", i, "name"), fmt.Sprintf("is %q", in.Name), "use letters, digits and _, beginning with a letter, at most 63")
		case seen[in.Name]:
			c.fail(at("inputs", i, "name"), fmt.Sprintf("is %q, as in an earlier entry", in.Name), "name each once")
		}
		seen[in.Name] = true
		if _, known := celTypes[in.Type]; !known {
			c.fail(at("inputs", i, "type"), fmt.Sprintf("is %q", in.Type), "use string, integer, number, boolean, object or list")
		}
	}
}

var inputName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,62}$`)

// graph checks that a run can go through the nodes: from the start to each, and
// from each to an END. It returns to what edges lead from each node.
func (c *checker) graph() map[string]map[string]bool {
	w := c.workflow
	forward, backward, whole := map[string][]string{}, map[string][]string{}, true
	seen := map[harness.Edge]int{}
	for i, e := range w.Edges {
		known := c.reference(at("edges", i, "from"), e.From)
		known = c.reference(at("edges", i, "to"), e.To) && known
		if c.types[e.From] == harness.NodeEnd {
			c.fail(at("edges", i, "from"), fmt.Sprintf("is %q, which is of type END and ends the run", e.From), "remove the edge")
		}
		if first, twice := seen[e]; twice && known {
			c.fail(fmt.Sprintf("edges[%d]", i), fmt.Sprintf("is the same as edges[%d], so what follows would be done twice", first), "remove one of them")
		} else {
			seen[e] = i
		}
		forward[e.From] = append(forward[e.From], e.To)
		backward[e.To] = append(backward[e.To], e.From)
		whole = whole && known
	}
	reach := map[string]map[string]bool{}
	for id := range c.types {
		reach[id] = reached(forward, forward[id]...)
	}
	if w.Start != "" && len(w.Nodes) > 0 {
		whole = c.reference("start", w.Start) && whole
	}
	var ends []string
	for _, n := range w.Nodes {
		if n.Type == harness.NodeEnd {
			ends = append(ends, n.ID)
		}
	}
	if len(w.Nodes) > 0 && len(ends) == 0 {
		c.fail("nodes", "have none of type END, so a run could never end", "add one")
		whole = false
	}
	if whole { // else what cannot be reached may only lack what is wrong above
		c.ways(reached(forward, w.Start), reached(backward, ends...))
	}
	return reach
}

func (c *checker) ways(in, out map[string]bool) {
	for i, n := range c.workflow.Nodes {
		path := fmt.Sprintf("nodes[%d]", i)
		switch {
		case !in[n.ID]:
			c.fail(path, fmt.Sprintf("has no way in: no edges lead from %q to %q", c.workflow.Start, n.ID), "add an edge to it, or remove it")
		case !out[n.ID]:
			c.fail(path, fmt.Sprintf("has no way out: no edges lead from %q to a node of type END", n.ID), "add an edge from it")
		}
	}
}

// reference checks the id of a node and reports whether there is one.
func (c *checker) reference(path, id string) bool {
	_, ok := c.types[id]
	switch {
	case id == "":
		c.fail(path, "is missing", "use the id of a node")
	case !ok:
		c.fail(path, fmt.Sprintf("is %q, which is no node", id), "use the id of a node")
	}
	return ok && id != ""
}

// reached returns some nodes and all that edges lead to from them.
func reached(edges map[string][]string, from ...string) map[string]bool {
	found := map[string]bool{}
	stack := append([]string(nil), from...)
	for len(stack) > 0 {
		next := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if !found[next] {
			found[next] = true
			stack = append(stack, edges[next]...)
		}
	}
	return found
}
