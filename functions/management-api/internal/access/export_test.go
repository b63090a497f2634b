package access

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"
)

// SetAsking lets c ask so many times a second about anybody, one at once.
func SetAsking(c *Cluster, perSecond float64) {
	c.strangers, c.asking = rate.NewLimiter(rate.Limit(perSecond), 1), rate.NewLimiter(rate.Limit(perSecond), 1)
}

// RoleRights are the rules of a role as "verb resource".
func RoleRights(role string) []string {
	var all []string
	for _, g := range roleRights(role) {
		for _, resource := range g.resources {
			for _, verb := range g.verbs {
				all = append(all, verb+" "+resource)
			}
		}
	}
	return all
}

// Limited takes a request of each of many callers and returns how many are kept,
// and whether the last of them is limited.
func Limited(l Limits, many int, now time.Time) (kept int, waits bool) {
	all := newLimiter(l)
	for i := range many {
		all.take(fmt.Sprint(i), now)
	}
	return max(all.recent.Len(), len(all.callers)), all.take(fmt.Sprint(many-1), now) > 0
}
