package console

import (
	"bufio"
	"bytes"
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"tuluat.ai/harness/shared/harness/view"
)

type usageBody struct {
	Items  []view.ModelUsage
	Agent  string
	Since  string
	Total  costs
	Charts []chart
}

// Cost is what all of it has cost.
func (b *usageBody) Cost() string { return b.Total.text() }

// Asked is how often models were asked, and Tokens what that took.
func (b *usageBody) Asked() int64  { return b.Total.asked }
func (b *usageBody) Tokens() int64 { return b.Total.tokens }

func (p *page) usage() error {
	b, err := p.usageBody()
	if err != nil {
		return err
	}
	return p.show("usage", "Usage", b)
}

func (p *page) usageBody() (*usageBody, error) {
	query := p.r.URL.Query()
	b := &usageBody{Agent: query.Get("agent"), Since: query.Get("since")}
	asked := pick(query, "agent")
	if since, ok := utc(b.Since); ok {
		asked.Set("since", since)
	}
	var l list[view.ModelUsage]
	if err := p.get("/usage", asked, &l); err != nil {
		return nil, err
	}
	b.Items = l.Items
	tokens, questions, cost := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, u := range l.Items {
		b.Total.add(u)
		tokens[u.Day] += float64(u.InputTokens + u.OutputTokens)
		questions[u.Day] += float64(u.Asked)
		if n, err := strconv.ParseFloat(u.Cost, 64); err == nil {
			cost[u.Day] += n
		}
	}
	b.Charts = []chart{byDay("Tokens by day", tokens), byDay("Questions to models by day", questions), byDay("Cost by day", cost)}
	return b, nil
}

func byDay(title string, values map[string]float64) chart {
	var points []point
	for _, day := range sortedKeys(values) {
		points = append(points, point{day, values[day]})
	}
	return newChart(title, points)
}

// figure is a metric summed up by one of its labels.
type figure struct {
	Title, Help string
	Rows        []figureRow
}

type figureRow struct {
	Label, Value string
	Width        int // of 100
}

// shownFigures are the metrics of the page, and what they are parted by.
var shownFigures = []struct{ name, title, label string }{
	{"tuluat_sessions", "Sessions", "state"},
	{"tuluat_agent_runs_total", "Turns and runs that ended", "state"},
	{"tuluat_executions_total", "Commands that ended", "state"},
	{"tuluat_approvals_total", "Approvals that ended", "state"},
	{"tuluat_approvals_waiting", "Approvals that wait", "agent"},
	{"tuluat_sandbox_pods_active", "Sandboxes", "agent"},
	{"tuluat_replies", "Parts of replies", "state"},
	{"tuluat_model_tokens_total", "Tokens", "model"},
	{"tuluat_model_cost_total", "Cost", "model"},
	{"tuluat_model_failures_total", "Questions without an answer", "model"},
	{"tuluat_agent_guardrail_blocks_total", "Guardrails", "action"},
	{"tuluat_dead_letters", "Dead letters", "state"},
	{"tuluat_leaks", "Leaks that the last sweep found", "kind"},
	{"tuluat_messages_waiting", "Messages that wait", ""},
	{"tuluat_outbox_size", "Announcements that wait", ""},
	{"tuluat_sweep_age_seconds", "Seconds since the last sweep", ""},
}

type metricsBody struct {
	Charts  []chart
	Figures []figure
}

func (p *page) metrics() error {
	var b metricsBody
	if p.who.may("list aiagents") {
		u, err := p.usageBody()
		if err != nil {
			return err
		}
		b.Charts = u.Charts
	}
	answer, err := p.fetch("/metrics", nil)
	if s := statusOf(err); err != nil && s != http.StatusNotFound {
		return err
	}
	b.Figures = readFigures(answer.Body)
	return p.show("metrics", "Metrics", b)
}

// readFigures reads the text format of Prometheus, as far as we write it.
func readFigures(text []byte) []figure {
	sums, helps := map[string]map[string]float64{}, map[string]string{}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		one := scanner.Text()
		if help, ok := strings.CutPrefix(one, "# HELP "); ok {
			name, words, _ := strings.Cut(help, " ")
			helps[name] = words
			continue
		}
		name, labels, value, ok := sample(one)
		if !ok {
			continue
		}
		for _, f := range shownFigures {
			if f.name == name {
				if sums[name] == nil {
					sums[name] = map[string]float64{}
				}
				sums[name][labels[f.label]] += value
			}
		}
	}
	var all []figure
	for _, f := range shownFigures {
		if sums[f.name] != nil {
			all = append(all, figure{Title: f.title, Help: helps[f.name], Rows: rows(sums[f.name])})
		}
	}
	return all
}

func rows(sums map[string]float64) []figureRow {
	most := 0.0
	for _, v := range sums {
		if !math.IsInf(v, 0) {
			most = math.Max(most, v)
		}
	}
	names := sortedKeys(sums)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(sums[b], sums[a]) })
	var all []figureRow
	for _, name := range names {
		r := figureRow{Label: name, Value: number(sums[name])}
		if most > 0 && !math.IsInf(sums[name], 0) {
			r.Width = int(math.Round(sums[name] / most * 100))
		}
		if math.IsInf(sums[name], 1) {
			r.Value = "never"
		}
		all = append(all, r)
	}
	return all
}

// sample reads one line: name{label="value",…} number.
func sample(text string) (name string, labels map[string]string, value float64, ok bool) {
	at := strings.LastIndexByte(text, ' ')
	if at < 0 || strings.HasPrefix(text, "#") {
		return "", nil, 0, false
	}
	value, err := strconv.ParseFloat(text[at+1:], 64)
	if err != nil {
		return "", nil, 0, false
	}
	name, rest, _ := strings.Cut(text[:at], "{")
	labels = map[string]string{}
	for rest != "" && rest != "}" {
		label, quoted, found := strings.Cut(strings.TrimPrefix(rest, ","), "=")
		prefix, err := strconv.QuotedPrefix(quoted)
		if !found || err != nil {
			return "", nil, 0, false
		}
		if labels[label], err = strconv.Unquote(prefix); err != nil {
			return "", nil, 0, false
		}
		rest = quoted[len(prefix):]
	}
	return name, labels, value, true
}
