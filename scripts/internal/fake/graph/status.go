package graph

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// report tells what becomes of a message that was taken, one status after the
// other, as the person's side does.
func (s *Server) report(m accepted) {
	s.jobs.Go(func(ctx context.Context) {
		fault, faulty := s.faults.Take("status", m.chat)
		states := []string{"sent", "delivered", "read"}
		code, why := s.fate(m)
		if faulty && fault.Do == "fail" {
			code, why = fault.Code, fault.Text
		}
		if m.unread {
			states = states[:2]
		}
		if code != 0 {
			states = []string{"failed"}
		}
		if fault.Do == "reorder" {
			slices.Reverse(states)
		}
		if fault.Do == "delay" && !s.clock.Sleep(ctx, time.Duration(fault.Delay)) {
			return
		}
		for _, state := range states {
			if !s.clock.Sleep(ctx, s.options.StatusDelay) {
				return
			}
			u := s.status(m, state, code, why)
			s.lines.Tick(m.number, m.chat, m.id, person.Ticks(state), failure(code, why))
			switch fault.Do {
			case "drop":
				s.counts.Add("statusesDropped")
			case "withhold":
				s.mu.Lock()
				s.withheld = append(s.withheld, u)
				s.mu.Unlock()
				s.counts.Add("statusesWithheld")
			default:
				s.counts.Add("statuses")
				select {
				case <-s.tell(u):
				case <-ctx.Done():
					return
				}
			}
		}
	})
}

func failure(code int, why string) string {
	if code == 0 {
		return ""
	}
	if why == "" {
		why = title(code)
	}
	return fmt.Sprintf("%d %s", code, why)
}

// fate says whether the message reaches its person: 0, or the code it fails with.
func (s *Server) fate(m accepted) (int, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.failing != 0 {
		return m.failing, ""
	}
	if m.person == nil && m.group == "" {
		return 131026, "Message undeliverable"
	}
	if m.person != nil {
		if p := s.find(m.person.ID); p != nil && p.Blocked {
			return 131026, "Message undeliverable"
		}
	}
	return 0, ""
}

// Release tells all statuses that were withheld, in one POST, the newest first
// when backwards. It returns how many.
func (s *Server) Release(backwards bool) int {
	s.mu.Lock()
	withheld := s.withheld
	s.withheld = nil
	s.mu.Unlock()
	if backwards {
		slices.Reverse(withheld)
	}
	s.tell(withheld...)
	return len(withheld)
}

func (s *Server) status(m accepted, state string, code int, why string) update {
	status := map[string]any{"id": m.id, "status": state, "timestamp": stamp(s.clock.Now())}
	if m.opaque != "" {
		status["biz_opaque_callback_data"] = m.opaque
	}
	u := update{number: m.number, chat: m.chat, status: status}
	switch {
	case m.group != "":
		status["recipient_type"], status["recipient_id"] = "group", m.group
		if m.reader != nil && state != "sent" {
			status["recipient_participant_id"], status["recipient_participant_user_id"] = m.reader.Phone, m.reader.BSUID
		}
	case m.byBSUID:
		status["recipient_user_id"] = m.to
	default:
		status["recipient_id"] = m.to
		if m.person != nil {
			status["recipient_user_id"] = m.person.BSUID
		}
	}
	if code == 0 {
		status["pricing"] = map[string]any{"billable": false, "pricing_model": "PMP", "category": "service", "type": "free_customer_service"}
		if m.person != nil {
			u.who = []Person{{Phone: m.person.Phone, BSUID: m.person.BSUID, Hidden: m.byBSUID}} // without a profile
		}
		return u
	}
	if why == "" {
		why = title(code)
	}
	status["errors"] = []any{map[string]any{
		"code": code, "title": title(code), "message": title(code), "error_data": map[string]any{"details": why},
		"href": "https://developers.facebook.com/docs/whatsapp/cloud-api/support/error-codes/",
	}}
	return u
}
