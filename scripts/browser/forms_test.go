//go:build browser

package browser_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/shared/event"
)

var (
	formText   = regexp.MustCompile(`(?s)<form([^>]*)>(.*?)</form>`)
	buttonText = regexp.MustCompile(`(?s)<button([^>]*)>(.*?)</button>`)
	attribute  = regexp.MustCompile(`([\w-]+)="([^"]*)"`)
	shownText  = regexp.MustCompile(`\{\{if.*?\{\{end\}\}|\{\{.*?\}\}`) // what a template puts in
	postRoute  = regexp.MustCompile(`"POST (?:"\+Prefix\+")?([^"]+)"`)
	otherwise  = regexp.MustCompile(`hx-(post|put|patch|delete)|formaction|type="submit"`)
	placeText  = regexp.MustCompile(`\{\w+\}`)
)

// shape is a pattern for what literal text with holes becomes.
func shape(text string, holes *regexp.Regexp, hole string) *regexp.Regexp {
	parts := holes.Split(text, -1)
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile("^" + strings.Join(parts, hole) + "$")
}

// complete fails the test for each button of a form in the console's templates, and
// each route that a form may go to, that was not pressed.
func complete(t *testing.T, done []press) {
	root, err := checkout.Root()
	if err != nil {
		t.Fatal(err)
	}
	console := filepath.Join(root, "functions", "management-api", "internal", "console")
	read := func(pattern string) map[string]string {
		files, err := filepath.Glob(filepath.Join(console, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		all := map[string]string{}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all[filepath.Base(file)] = string(text)
		}
		return all
	}
	forms, routes := 0, 0
	for name, text := range read("templates/*.html") {
		if strings.Count(text, "<form") != len(formText.FindAllString(text, -1)) || otherwise.MatchString(text) {
			t.Errorf("%s does something in a way that is not known here", name)
		}
		inForms := 0
		for _, form := range formText.FindAllStringSubmatch(text, -1) {
			is := map[string]string{}
			for _, a := range attribute.FindAllStringSubmatch(form[1], -1) {
				is[a[1]] = a[2]
			}
			action, buttons := shape(is["action"], shownText, ".+"), buttonText.FindAllStringSubmatch(form[2], -1)
			if len(buttons) == 0 {
				t.Errorf("%s: the form of %s has no button", name, is["action"])
			}
			inForms += len(buttons)
			for _, button := range buttons {
				if strings.HasSuffix(button[1], " hidden") {
					continue
				}
				forms++
				label, found := shape(button[2], shownText, ".*"), false
				for _, p := range done {
					found = found || p.Method == is["method"] && p.Class == is["class"] && action.MatchString(p.Action) && label.MatchString(p.Label)
				}
				if !found {
					t.Errorf("%s: nobody presses %q of the form of %q, class %q", name, button[2], is["action"], is["class"])
				}
			}
		}
		if strings.Count(text, "<button") != inForms {
			t.Errorf("%s has a button of no form", name)
		}
	}
	for name, text := range read("*.go") {
		if strings.Count(text, `"POST `) != len(postRoute.FindAllString(text, -1)) {
			t.Errorf("%s has a route that is not known here", name)
		}
		for _, route := range postRoute.FindAllStringSubmatch(text, -1) {
			if route[1] == "csp-report" { // of the browser
				continue
			}
			routes++
			path, found := shape("/console/"+route[1], placeText, "[^/]+"), false
			for _, p := range done {
				found = found || p.Method == "post" && path.MatchString(p.Action)
			}
			if !found {
				t.Errorf("nobody presses what goes to %s", route[1])
			}
		}
	}
	t.Logf("%d presses of %d buttons, to %d routes", len(done), forms, routes)
	if forms == 0 || routes == 0 {
		t.Error("the console's forms are not found")
	}
}

// filters narrows each list by its form: the choice is in the address, every row is
// like that, and the page is the same when it is opened again.
func filters(t *testing.T, s *stage, done *[]press) {
	for _, row := range []struct {
		path, field, text, tick, address string
		words                            []string // of each row
	}{
		{"agents", "", "", "status=READY", "status=READY", []string{"ready"}},
		{"approvals", "#agent", s.agent, "status=REJECTED", "agent=" + s.agent, []string{s.agent, "rejected"}},
		{"sessions", "#agent", s.agent, "status=CANCELLED", "agent=" + s.agent, []string{s.agent, "cancelled"}},
		{"sandboxes", "#agent", s.agent, "status=GONE", "agent=" + s.agent, []string{s.agent, "gone"}},
		{"deadletters", "#type", string(event.SessionDue), "status=DISCARDED", "type=" + string(event.SessionDue), []string{string(event.SessionDue), "discarded"}},
		{"logs", "#agent", s.agent, "level=INFO", "agent=" + s.agent, []string{s.agent, "info"}},
		{"usage", "#agent", s.agent, "", "agent=" + s.agent, []string{s.agent}},
	} {
		t.Run(row.path, func(t *testing.T) {
			h := &hand{tab: newTab(t, views[2]), stage: s, done: done}
			h.signIn()
			h.open(dev.URL+"/console/"+row.path, inside)
			if row.field != "" {
				h.write(row.field, row.text)
			}
			name, value, ticks := strings.Cut(row.tick, "=")
			if ticks {
				h.click(fmt.Sprintf(`.filter input[name=%s][value=%s]`, name, value))
			}
			h.press(".filter button", "")
			for range 2 {
				for _, part := range []string{row.address, row.tick} {
					if search := eval[string](h.tab, "location.search"); !strings.Contains(search, part) {
						t.Errorf("the address is %s, without %s", search, part)
					}
				}
				rows := eval[[]string](h.tab, `[...document.querySelectorAll('[data-row]')].map((r) => r.innerText.toLowerCase())`)
				if len(rows) == 0 {
					t.Error("there is no row")
				}
				for _, text := range rows {
					for _, word := range row.words {
						if !strings.Contains(text, word) {
							t.Errorf("a row is not of %q: %s", word, text)
						}
					}
				}
				if row.field != "" && eval[string](h.tab, "document.querySelector('"+row.field+"').value") != row.text ||
					ticks && !eval[bool](h.tab, fmt.Sprintf("document.querySelector('.filter input[name=%s][value=%s]').checked", name, value)) {
					t.Error("the form has forgotten what was chosen")
				}
				h.open(eval[string](h.tab, "location.href"), inside)
			}
			if row.path == "logs" {
				h.followsTheLog()
			}
		})
	}
}

// followsTheLog looks at the log of an agent that is at work, without a hand, and
// takes it away as a file.
func (h *hand) followsTheLog() {
	h.t.Helper()
	h.open(dev.URL+"/console/logs?agent="+coder, inside)
	eval[string](h.tab, "window.before = document.querySelector('#rows [data-row]')?.innerText ?? 'nothing'")
	dev.call(h.t, http.MethodPost, "/api/v1/sessions", object{"agent": coder, "text": "run: echo followed"}, nil)
	h.until(answerTime, "window.before && document.querySelector('#rows [data-row]') && document.querySelector('#rows [data-row]').innerText !== window.before")
	lines := eval[[]string](h.tab, "fetch(document.querySelector('a[download]').href).then((r) => r.text()).then((t) => t.trim().split('\\n').map((l) => JSON.parse(l).agent))")
	if len(lines) == 0 || slices.ContainsFunc(lines, func(agent string) bool { return agent != coder }) {
		h.t.Errorf("the file is of %v", lines)
	}
}

// channelSteps goes by the guide to each channel: each credential is explained, and of
// each that an agent names, the page says what its function has found.
func channelSteps(t *testing.T) {
	var all struct {
		Items []struct {
			Channel, Account string
			Secrets          []struct{ Name, Key, State string }
		}
	}
	dev.call(t, http.MethodGet, "/api/v1/channels?limit=200", nil, &all)
	for _, channel := range []string{"whatsapp", "telegram", "webhook"} {
		t.Run(channel, func(t *testing.T) {
			h := &hand{tab: newTab(t, views[2])}
			h.signIn()
			h.open(dev.URL+"/console/channels", inside)
			h.follows("/set-up/" + channel)
			checks := 0
			for range 2 {
				for _, key := range eval[[]string](h.tab, `[...document.querySelector('[aria-label=Credentials]').querySelectorAll('th[scope=row] code')].map((c) => c.innerText)`) {
					if !eval[bool](h.tab, "[...document.querySelectorAll('pre')].some((p) => p.innerText.includes('--from-file="+key+"='))") {
						t.Errorf("the command leaves out %s", key)
					}
				}
				shown := eval[[]string](h.tab, `[...document.querySelectorAll('[aria-label=Accounts] [data-row]')].map((r) => r.innerText)`)
				for _, account := range all.Items {
					if strings.ToLower(account.Channel) != channel {
						continue
					}
					for _, secret := range account.Secrets {
						checks++
						want, found := secret.Name+"/"+secret.Key+" "+strings.ToLower(secret.State), false
						for _, row := range shown {
							found = found || strings.Contains(row, account.Account) && strings.Contains(row, want)
						}
						if !found {
							t.Errorf("%s is not shown: %q", want, shown)
						}
					}
				}
				h.leads(func() { h.click("main p:last-of-type a") }) // look again
			}
			if checks == 0 {
				t.Error("no credential was checked")
			}
		})
	}
}

// deadLetters makes two of a session: no function of a system that is well refuses
// what it is sent.
func deadLetters(t *testing.T, session string) (ids [2]string) {
	for i := range ids {
		if err := database(t).QueryRow(t.Context(), `INSERT INTO dead_letters (event_id, event_type, session_id, payload, destination, status_code, cause, state)
			VALUES ('session.due:' || $1 || $2, $3, $1, jsonb_build_object('session', $1::text), 'http://agent-step', 503, 'made by hand', 'OPEN') RETURNING dead_letter_id::text`,
			session, fmt.Sprint(i), event.SessionDue).Scan(&ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	return ids
}

// breaches is how often the console was told of what its policy kept from happening.
func breaches(t *testing.T) int {
	dev.call(t, http.MethodGet, "/api/v1/whoami", nil, nil) // it is there, and its log
	text, err := os.ReadFile(filepath.Join(dev.home, "logs", "management-api.log"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "a browser kept a page from something")
}
