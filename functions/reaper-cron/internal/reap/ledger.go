package reap

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

// ledgerStore is what comparing rows with objects outside reads and writes.
type ledgerStore interface {
	Comparing(ctx context.Context, kind harness.ObjectKind, every time.Duration) (c postgres.Comparison, due bool, err error)
	KeepComparing(ctx context.Context, kind harness.ObjectKind, c postgres.Comparison) error
	Compared(ctx context.Context, kind harness.ObjectKind, c postgres.Comparison) error
	NotCompared(ctx context.Context, kind harness.ObjectKind, reason string) error
	NeverCompared(ctx context.Context, kinds []harness.ObjectKind, reason string) error

	UnknownSandboxes(ctx context.Context, names []string) ([]string, error)
	EndSandbox(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason, message string) error

	UnknownSessions(ctx context.Context, ids []harness.SessionID) ([]harness.SessionID, error)
	OutsideVolumes(ctx context.Context) ([]postgres.OutsideObject, error)
	VolumeMade(ctx context.Context, name string, agent harness.AgentName, session harness.SessionID) error
	RemoveVolume(ctx context.Context, name string) (ours bool, err error)
	OutsideGone(ctx context.Context, o postgres.OutsideObject, reason string) (marked bool, err error)
	DeleteOldObjects(ctx context.Context, keep time.Duration, limit int) (int, error)

	Registrations(ctx context.Context, after string, limit int) ([]postgres.Registration, error)
	bucketStore
}

const (
	volumeGrace = 5 * time.Minute // for a start to be done with its volume
	objectTime  = 7 * 24 * time.Hour

	// Volumes of sessions that do not exist, which are more than so many and more than
	// half of all, are left alone: then it is rather the rows that are wrong.
	fewVolumes = 3

	// maxExamples is how many names of what is leaked or lost people are shown.
	maxExamples = 5
)

// heldVolumes is why volumes of sessions that do not exist are left.
const heldVolumes = "most volumes are of sessions that do not exist: are the rows another installation's, or restored from an old copy? Nothing of them is removed; remove by hand what is really nobody's"

// comparing is a comparison that goes on. Its methods may be called by several
// workers at once.
type comparing struct {
	postgres.Comparison
	mu sync.Mutex
}

// leaked counts an object without a live owner; at is zero when nobody knows since when it is.
func (c *comparing) leaked(name string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Leaked++
	c.example(name)
	if !at.IsZero() && (c.OldestAt == nil || at.Before(*c.OldestAt)) {
		at = at.UTC()
		c.OldestAt = &at
	}
}

// since is when an object of a time can have begun to have no row.
func (c *comparing) since(made time.Time) time.Time {
	if c.RestoredAt.After(made) {
		return c.RestoredAt
	}
	return made
}

// lost counts a row without its object.
func (c *comparing) lost(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Lost++
	c.example(name)
}

func (c *comparing) example(name string) {
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, name)
	}
}

// removed says of one of the leaked that it is not left, unless err.
func (c *comparing) removed(err error) {
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.Leaked--
		c.Removed++
	}
}

// marked says of one of the lost that its row now says so, unless err.
func (c *comparing) marked(err error) {
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.Lost--
		c.Marked++
	}
}

// left says why something is left.
func (c *comparing) left(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Reason = cmp.Or(c.Reason, why)
}

// compared runs a comparison of a kind, if one is due, and keeps what it came to.
// look returns whether it is whole; one that is not goes on in a later pass, and
// one that failed is begun again, or goes on where it was last kept.
func (r *Reaper) compared(ctx context.Context, kind harness.ObjectKind, every time.Duration, look func(c *comparing) (whole bool, err error)) error {
	kept, due, err := r.Store.Comparing(ctx, kind, every)
	if err != nil || !due {
		return err
	}
	c := &comparing{Comparison: kept}
	whole, err := look(c)
	switch {
	case err != nil && !whole:
		return errors.Join(err, r.Store.NotCompared(ctx, kind, harness.MessageOf(err)))
	case !whole:
		return r.Store.KeepComparing(ctx, kind, c.Comparison)
	}
	if err != nil { // all were compared, and something of what followed failed
		c.left(harness.MessageOf(err))
	}
	if c.Leaked == 0 {
		c.OldestAt = nil
	}
	if c.Leaked == 0 && c.Lost == 0 {
		c.Examples = nil
	}
	return errors.Join(err, r.Store.Compared(ctx, kind, c.Comparison))
}

// keeping are the items that compare what is beside sandboxes.
func (r *Reaper) keeping() []item {
	keeper, ok := r.Driver.(sandbox.Keeper)
	if !ok {
		return []item{{"volumes", func(ctx context.Context, _ *box) error {
			return r.Store.NeverCompared(ctx, []harness.ObjectKind{harness.ObjectVolume, harness.ObjectNetworkPolicy}, "sandboxes here have none")
		}}}
	}
	return []item{
		{"network_policies", func(ctx context.Context, b *box) error { return r.findPolicies(ctx, b, keeper) }},
		{"volumes", func(ctx context.Context, b *box) error { return r.findVolumes(ctx, b, keeper) }},
	}
}

// findPolicies compares the policies of allow-lists with the sandboxes that they
// belong to. One goes with its Pod; one that has none, or whose sandbox is GONE for
// a while, is removed. A sandbox whose policy is gone reaches nothing of its list:
// it is ended, so that the next one has a policy.
func (r *Reaper) findPolicies(ctx context.Context, b *box, keeper sandbox.Keeper) error {
	return r.compared(ctx, harness.ObjectNetworkPolicy, 0, func(c *comparing) (bool, error) {
		before, err := r.Store.LiveSandboxes(ctx)
		if err != nil {
			return false, err
		}
		objects, err := keeper.Objects(ctx, harness.ObjectNetworkPolicy)
		if err != nil {
			return false, err
		}
		exists, named := map[string]sandbox.Object{}, []string{}
		for _, o := range objects {
			exists[o.Name], named = o, append(named, o.Name)
		}
		unknown, err := r.Store.UnknownSandboxes(ctx, named)
		if err != nil {
			return false, err
		}
		var leaked []sandbox.Object
		for _, name := range unknown {
			if o := exists[name]; !o.Going && r.Now().Sub(o.CreatedAt) > leakGrace {
				leaked = append(leaked, o)
				c.leaked(o.Name, o.CreatedAt)
			}
		}
		var lost []postgres.SandboxRecord
		for _, record := range before {
			if record.Spec.Egress != harness.EgressAllowlist || record.State != harness.SandboxReady {
				continue
			}
			c.Known++
			if _, ok := exists[record.Name]; !ok {
				lost = append(lost, record)
				c.lost(record.Name)
			}
		}
		c.There = int64(len(objects))
		b.leaks(len(leaked), len(lost))
		return true, errors.Join(
			each(b, leaked, func(o sandbox.Object) error {
				err := r.removeObject(ctx, keeper, harness.ObjectNetworkPolicy, o)
				c.removed(err)
				return err
			}),
			each(b, lost, func(record postgres.SandboxRecord) error {
				r.Log.Warn("a sandbox has lost the network policy of its list", "sandbox", record.Name, "session", string(record.Session))
				err := r.Store.EndSandbox(ctx, record.ID, record.Agent, postgres.SandboxLost, "the network policy of its list of destinations is gone")
				c.marked(err)
				return err
			}),
		)
	})
}

func (r *Reaper) removeObject(ctx context.Context, keeper sandbox.Keeper, kind harness.ObjectKind, o sandbox.Object) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endTime, errors.New("removal of an object beside sandboxes"))
	defer cancel()
	r.Log.Info("object removed", "kind", string(kind), "name", o.Name, "session", string(o.Session))
	return keeper.Remove(ctx, kind, o)
}

// findVolumes compares the volumes of sessions with their rows, and removes those
// of sessions that have ended. The rows are read before and after the objects, as
// those of sandboxes are; a start that is under way is given time.
func (r *Reaper) findVolumes(ctx context.Context, b *box, keeper sandbox.Keeper) error {
	return r.compared(ctx, harness.ObjectVolume, 0, func(c *comparing) (bool, error) {
		before, err := r.Store.OutsideVolumes(ctx)
		if err != nil {
			return false, err
		}
		objects, err := keeper.Objects(ctx, harness.ObjectVolume)
		if err != nil {
			return false, err
		}
		rows, err := r.Store.OutsideVolumes(ctx)
		if err != nil {
			return false, err
		}
		after := map[string]postgres.OutsideObject{}
		for _, row := range rows {
			after[row.Name] = row
		}
		var strangers []harness.SessionID
		for _, o := range objects {
			if _, ok := after[o.Name]; !ok && o.Session != "" {
				strangers = append(strangers, o.Session)
			}
		}
		ended, err := in(ctx, strangers, r.Store.EndedSessions)
		if err != nil {
			return false, err
		}
		unknown, err := in(ctx, strangers, r.Store.UnknownSessions)
		if err != nil {
			return false, err
		}
		v := &volumes{Reaper: r, c: c, keeper: keeper, ended: ended, unknown: unknown, after: after, there: map[string]bool{}}
		c.Known, c.There = int64(len(rows)), int64(len(objects))
		var leaked, over []sandbox.Object
		for _, o := range objects {
			v.there[o.Name] = true
			switch row, known := after[o.Name]; {
			case o.Going:
			case known && row.Ended && !row.Used:
				over = append(over, o)
			case !known && r.Now().Sub(v.since(o)) > v.grace(o) && (o.Session == "" || ended[o.Session]):
				c.leaked(o.Name, o.CreatedAt)
				leaked = append(leaked, o)
				if unknown[o.Session] {
					v.foreign++
				}
			}
		}
		v.hold = v.foreign > fewVolumes && 2*v.foreign > len(objects)
		missing := v.missing(before)
		b.leaks(len(leaked), len(missing))
		return true, errors.Join(v.see(ctx, objects), each(b, over, v.end(ctx)), each(b, leaked, v.remove(ctx)), each(b, missing, v.gone(ctx)))
	})
}

// in says which of the sessions are among those that ask returns.
func in(ctx context.Context, ids []harness.SessionID, ask func(context.Context, []harness.SessionID) ([]harness.SessionID, error)) (map[harness.SessionID]bool, error) {
	all := map[harness.SessionID]bool{}
	if len(ids) == 0 {
		return all, nil
	}
	some, err := ask(ctx, ids)
	for _, id := range some {
		all[id] = true
	}
	return all, err
}

// volumes is one comparison of volumes.
type volumes struct {
	*Reaper
	c       *comparing
	keeper  sandbox.Keeper
	after   map[string]postgres.OutsideObject // rows
	there   map[string]bool                   // objects
	ended   map[harness.SessionID]bool        // of those without a row
	unknown map[harness.SessionID]bool        // of them, those that do not exist
	foreign int                               // how many would be removed of sessions that do not exist
	hold    bool                              // they are not removed
}

// grace is how old a volume without a row must be to be removed.
func (v *volumes) grace(o sandbox.Object) time.Duration {
	if v.unknown[o.Session] {
		return keyGrace
	}
	return volumeGrace
}

// since is when a volume can have begun to have no row: one of a session that is
// known had its row deleted by us.
func (v *volumes) since(o sandbox.Object) time.Time {
	if v.unknown[o.Session] {
		return v.c.since(o.CreatedAt)
	}
	return o.CreatedAt
}

// see writes of volumes that they are there whose row does not say so, or that an
// earlier release made without one.
func (v *volumes) see(ctx context.Context, objects []sandbox.Object) (err error) {
	for _, o := range objects {
		row, known := v.after[o.Name]
		switch {
		case o.Going || o.Session == "" || known && row.State != harness.ObjectPending:
		case known:
			err = errors.Join(err, v.Store.VolumeMade(ctx, o.Name, row.Agent, row.Session))
		case !v.ended[o.Session] && v.Now().Sub(o.CreatedAt) > volumeGrace:
			v.Log.Warn("a volume of an open session had no row", "volume", o.Name, "session", string(o.Session))
			err = errors.Join(err, v.Store.VolumeMade(ctx, o.Name, o.Agent, o.Session))
		}
	}
	return err
}

// end removes the volume of a session that has ended. Its row is GONE when a later
// comparison does not find it.
func (v *volumes) end(ctx context.Context) func(sandbox.Object) error {
	return func(o sandbox.Object) error {
		ours, err := v.Store.RemoveVolume(ctx, o.Name)
		if err != nil || !ours {
			return err
		}
		return v.removeObject(ctx, v.keeper, harness.ObjectVolume, o)
	}
}

// remove removes a volume without a row whose session has ended. Nobody can say
// whose one without its session is, so that one stays, and is told of.
func (v *volumes) remove(ctx context.Context) func(sandbox.Object) error {
	return func(o sandbox.Object) error {
		if o.Session == "" {
			v.c.left("of a volume nobody can say whose it is, because its annotation is gone or another's: look at its files, then remove it by hand")
			return nil
		}
		if v.hold && v.unknown[o.Session] {
			v.c.left(heldVolumes)
			return nil
		}
		err := v.removeObject(ctx, v.keeper, harness.ObjectVolume, o)
		v.c.removed(err)
		return err
	}
}

// missing are rows of before the objects were listed, whose object is not there.
func (v *volumes) missing(before []postgres.OutsideObject) []postgres.OutsideObject {
	var all []postgres.OutsideObject
	for _, row := range before {
		young := row.Age <= volumeGrace
		switch {
		case v.there[row.Name]:
		case row.State == harness.ObjectRemoving: // as was meant
			all = append(all, row)
		case row.State == harness.ObjectPending && (young || row.Used), row.State == harness.ObjectMade && young:
		default:
			all = append(all, row)
			if row.State == harness.ObjectMade && !row.Ended {
				v.c.lost(row.Name)
			}
		}
	}
	return all
}

// gone writes that a volume is not there.
func (v *volumes) gone(ctx context.Context) func(postgres.OutsideObject) error {
	return func(row postgres.OutsideObject) error {
		lost := row.State == harness.ObjectMade && !row.Ended
		reason := "it was never made"
		if row.State != harness.ObjectPending {
			reason = "the session has ended"
		}
		if lost {
			reason = postgres.SandboxLost
			v.Log.Warn("the volume of an open session is gone", "volume", row.Name, "session", string(row.Session), "agent", string(row.Agent))
		}
		_, err := v.Store.OutsideGone(ctx, row, reason)
		if lost {
			v.c.marked(err)
		}
		return err
	}
}

// findWebhooks tells of webhooks that are registered for accounts that no agent has
// any more: who sends there is answered nothing. Only the account's own token can
// take one away, and nobody here has it.
func (r *Reaper) findWebhooks(ctx context.Context, b *box) error {
	return r.compared(ctx, harness.ObjectWebhook, 0, func(c *comparing) (bool, error) {
		after := ""
		for {
			page, err := r.Store.Registrations(ctx, after, r.Batch)
			if err != nil {
				return false, err
			}
			for _, registered := range page {
				after = registered.Name
				c.Known++
				c.There++
				if !registered.Routed {
					c.leaked(registered.Name, registered.SeenAt)
					c.left("a webhook is registered for an account that no agent has: `tuluat telegram delete-webhook BOT` takes it away")
					b.count(1, 0)
				}
			}
			if len(page) < r.Batch {
				b.leaks(int(c.Leaked), 0)
				return true, nil
			}
		}
	})
}

func (r *Reaper) deleteObjects(ctx context.Context, b *box) error {
	return b.rows(func(limit int) (int, error) { return r.Store.DeleteOldObjects(ctx, objectTime, limit) })
}
