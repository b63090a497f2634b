package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness/view"
)

//go:embed templates/*.html assets/*.js assets/*.css
var files embed.FS

// asset is a file that pages load, under a name that has its digest: it never
// changes under that name.
type asset struct {
	name, kind string
	content    []byte
}

var (
	assets    = readAssets()
	templates = readTemplates()
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // of what is compiled in: found by the first test
	}
	return v
}

func readAssets() map[string]asset {
	all := map[string]asset{}
	for _, e := range must(fs.ReadDir(files, "assets")) {
		content := must(fs.ReadFile(files, "assets/"+e.Name()))
		sum := sha256.Sum256(content)
		kind := "text/javascript; charset=utf-8"
		if path.Ext(e.Name()) == ".css" {
			kind = "text/css; charset=utf-8"
		}
		base, ext := strings.TrimSuffix(e.Name(), path.Ext(e.Name())), path.Ext(e.Name())
		all[e.Name()] = asset{base + "-" + hex.EncodeToString(sum[:6]) + ext, kind, content}
	}
	return all
}

func serveAsset(w http.ResponseWriter, r *http.Request) {
	for _, a := range assets {
		if a.name == r.PathValue("name") {
			w.Header().Set("Content-Type", a.kind)
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
			_, _ = w.Write(a.content) // the browser may be gone
			return
		}
	}
	http.NotFound(w, r)
}

// readTemplates returns each page with the layout and the parts that pages share.
func readTemplates() map[string]*template.Template {
	shared := template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/parts.html"))
	all := map[string]*template.Template{}
	for _, e := range must(fs.ReadDir(files, "templates")) {
		name := strings.TrimSuffix(e.Name(), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		all[name] = template.Must(template.Must(shared.Clone()).ParseFS(files, "templates/"+e.Name()))
	}
	return all
}

var functions = template.FuncMap{
	"asset": func(name string) string { return Prefix + "assets/" + assets[name].name },
	"plain": func(v any) string { return plain(fmt.Sprint(v)) },
	"cell":  func(v any) string { return cell(fmt.Sprint(v)) },
	"line":  func(v any) string { return line(fmt.Sprint(v)) },
	"when":  func(t any) when { return whenOf(t) },
	"word":  word,
	"message": func(v any) string {
		text, less := cut(fmt.Sprint(v), 2000)
		if less {
			text += " …"
		}
		return plain(text)
	},
	"tone":  func(v any) string { return tone(fmt.Sprint(v)) },
	"dict":  dict,
	"bytes": sizeOf,

	"nodeword": func(v any) string { return clipped(fmt.Sprint(v), 20) },
	"edgeword": func(v any) string { return clipped(fmt.Sprint(v), 12) },
}

// clipped is as much of text on one line as there is room for.
func clipped(text string, most int) string {
	runes := []rune(line(text))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// when is a time in a page.
type when struct{ Machine, Text string }

func whenOf(v any) when {
	switch t := v.(type) {
	case time.Time:
		if !t.IsZero() {
			return when{t.UTC().Format(time.RFC3339), t.UTC().Format("2006-01-02 15:04:05")}
		}
	case *time.Time:
		if t != nil {
			return whenOf(*t)
		}
	}
	return when{}
}

// word is a state as people read it: AWAITING_APPROVAL is awaiting approval.
func word(v any) string {
	return strings.ToLower(strings.ReplaceAll(line(fmt.Sprint(v)), "_", " "))
}

// tone is the look of a state.
func tone(state string) string {
	switch state {
	case "FAILED", "INVALID", "BLOCKED", "OPEN", "ERROR", "TIMED_OUT", "OUT_OF_MEMORY", "DISK_LIMIT", "SANDBOX_GONE", "NOT_FOUND", "DENIED", "EMPTY", "REJECTED":
		return "bad"
	case "DEGRADED", "AWAITING_APPROVAL", "PENDING", "UNKNOWN", "WARN", "EXPIRED", "HIT":
		return "warn"
	case "READY", "DONE", "COMPLETED", "APPROVED", "AVAILABLE", "SENT", "DELIVERED", "READ":
		return "good"
	case "RUNNING", "AWAITING_EXECUTION", "CREATING":
		return "live"
	}
	return "calm"
}

// dict gives a part of a template several values.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict of %d values", len(pairs))
	}
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m, nil
}

func sizeOf(n any) string {
	var size int64
	switch v := n.(type) {
	case int64:
		size = v
	case int:
		size = int64(v)
	}
	switch {
	case size < 1<<10:
		return fmt.Sprintf("%d B", size)
	case size < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(size)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(size)/(1<<20))
}

// frame is what every page has around it.
type frame struct {
	*page
	Title, Active string
	Theme, Self   string
	Said          string
	Nav           []navItem
	Who           string
	Body          any
	Problem       *view.Problem // what the API refused of the form on this page
}

type navItem struct{ Path, Name, Key string }

// nav has the pages whose list the caller may see.
func (c caller) nav() []navItem {
	var all []navItem
	for _, n := range []struct{ right, path, name, key string }{
		{"", "", "Home", "h"},
		{"list approvals", "approvals", "Approvals", "p"},
		{"list sessions", "sessions", "Sessions", "s"},
		{"list aiagents", "agents", "Agents", "a"},
		{"list aiworkflows", "workflows", "Workflows", "w"},
		{"list sandboxes", "sandboxes", "Sandboxes", "b"},
		{"list channels", "channels", "Channels", "c"},
		{"list deadletters", "deadletters", "Dead letters", "d"},
		{"list logs", "logs", "Logs", "l"},
		{"list aiagents", "usage", "Usage", "u"},
		{"list sessions", "metrics", "Metrics", "m"},
		{"list aiagents", "halt", "Halt", "x"},
	} {
		if n.right == "" || c.may(n.right) {
			all = append(all, navItem{Prefix + n.path, n.name, n.key})
		}
	}
	return all
}

// show answers with a page.
func (p *page) show(name, title string, body any) error { return p.showProblem(name, title, body, nil) }

// showProblem is show with what the API refused of the page's form, in whose fields
// is what was sent.
func (p *page) showProblem(name, title string, body any, err error) error {
	f := frame{
		page: p, Title: title, Active: "/" + strings.SplitN(strings.TrimPrefix(p.r.URL.Path, Prefix), "/", 2)[0], Theme: theme(p.r),
		Self: p.r.URL.RequestURI(), Said: said[p.r.URL.Query().Get("said")], Nav: p.who.nav(), Who: p.who.Name, Body: body,
	}
	if p.r.Method != http.MethodGet {
		f.Self = Prefix
	}
	status := http.StatusOK
	if err != nil {
		e, ok := err.(*refused) //nolint:errorlint // what send returns
		if !ok || e.Status == http.StatusUnauthorized {
			return err
		}
		f.Problem, status, f.Said = &e.Problem, e.Status, ""
	}
	return render(p.w, status, name, "layout", f)
}

// part answers with one part of a page.
func (p *page) part(name, block string, body any) error {
	return render(p.w, http.StatusOK, name, block, frame{page: p, Body: body, Theme: theme(p.r), Self: Prefix})
}

// problem answers with what went wrong.
func (p *page) problem(err error) {
	e, ok := err.(*refused) //nolint:errorlint // what send returns
	if !ok {
		p.Log.Error("a page failed", "path", p.r.URL.Path, "err", err)
		e = &refused{Problem: view.Problem{Status: http.StatusInternalServerError, Detail: "the page cannot be shown"}}
	}
	if retry := e.header.Get("Retry-After"); retry != "" {
		p.w.Header().Set("Retry-After", retry)
	}
	if p.partial() {
		p.w.WriteHeader(e.Status)
		return
	}
	f := frame{page: p, Title: http.StatusText(e.Status), Theme: theme(p.r), Self: Prefix, Nav: p.who.nav(), Who: p.who.Name, Problem: &e.Problem}
	if render(p.w, e.Status, "problem", "layout", f) != nil {
		p.w.WriteHeader(http.StatusInternalServerError)
	}
}

// plain answers with a page for who is not signed in.
func (c *console) plain(w http.ResponseWriter, r *http.Request, status int, title, text string) {
	c.outside(w, r, status, "plain", title, text)
}

// onward is a page of ours that goes on to another: what comes then is asked for by
// us, so that strict cookies come along.
func (c *console) onward(w http.ResponseWriter, r *http.Request, target string) {
	w.Header().Set("Refresh", "0; url="+target)
	c.outside(w, r, http.StatusOK, "onward", "Opening the console", target)
}

// outside answers with a page of a template for who is not signed in.
func (c *console) outside(w http.ResponseWriter, r *http.Request, status int, name, title, body string) {
	f := frame{page: &page{console: c, w: w, r: r}, Title: title, Theme: theme(r), Self: Prefix, Body: body}
	if err := render(w, status, name, "layout", f); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// render writes nothing unless all of it can be.
func render(w http.ResponseWriter, status int, name, block string, data any) error {
	t, ok := templates[name]
	if !ok {
		return fmt.Errorf("there is no template %s", name)
	}
	var out bytes.Buffer
	if err := t.ExecuteTemplate(&out, block, data); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // the browser may be gone
	return nil
}

// said is what a page tells of what was done before it. A page shows nothing else
// of its address.
var said = map[string]string{
	"ended":      "Your sign-in has ended. Sign in again to go on.",
	"out":        "You are signed out.",
	"approved":   "Approved.",
	"rejected":   "Rejected.",
	"sent":       "The message was sent.",
	"replied":    "Your answer was sent.",
	"cancelled":  "The session was ended.",
	"paused":     "You have taken the session over. Its agent keeps out of it until you hand it back.",
	"resumed":    "The session is with its agent again.",
	"saved":      "Saved.",
	"created":    "Created.",
	"deleted":    "Deleted.",
	"switched":   "Switched.",
	"halted":     "Halted.",
	"going":      "Going on.",
	"terminated": "The sandbox is being terminated.",
	"replayed":   "The event was sent again.",
	"discarded":  "The dead letter was discarded.",
	"requested":  "The command was asked for.",
	"started":    "The run was started.",
	"unchanged":  "Nothing was different, so nothing was saved.",
}
