package guardrail

import (
	"math"
	"math/big"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// detector finds one kind of thing. The pattern's first group, where it has one,
// is what was found; holds says whether it is one, nil that every match is.
//
// The table is small on purpose: each entry has a fixed form or a checksum, so
// that it is rarely wrong. What has neither, such as a password or a name, is for
// patterns of the agent's own or for a service. The libraries that know hundreds
// of forms bring dozens of modules into a function that starts on every message.
type detector struct {
	name    string
	of      harness.GuardrailType
	pattern *regexp.Regexp
	apart   string // characters that are not beside it, or it would be part of something longer
	holds   func(found string) bool
}

const (
	numerals = "0123456789"
	letters  = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	alnum    = numerals + letters
)

var detectors = []detector{
	// Forms as their providers document them.
	{"PRIVATE_KEY", harness.GuardrailSecret, regexp.MustCompile(`-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,40}-----|\z)`), "", nil},
	{"AWS_KEY", harness.GuardrailSecret, regexp.MustCompile(`\b((?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\b`), "", nil},
	{"GOOGLE_KEY", harness.GuardrailSecret, regexp.MustCompile(`\b(AIza[0-9A-Za-z_-]{35})`), "", nil},
	{"GITHUB_TOKEN", harness.GuardrailSecret, regexp.MustCompile(`\b(gh[pousr]_[0-9A-Za-z]{36,255}|github_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59})\b`), "", nil},
	{"GITLAB_TOKEN", harness.GuardrailSecret, regexp.MustCompile(`\b(gl(?:pat|dt|rt|cbt)-[0-9A-Za-z_-]{20,64})`), "", nil},
	{"SLACK_TOKEN", harness.GuardrailSecret, regexp.MustCompile(`\b(xox[abeoprs]-(?:[0-9A-Za-z]+-)*[0-9A-Za-z]{10,})`), "", nil},
	{"STRIPE_KEY", harness.GuardrailSecret, regexp.MustCompile(`\b((?:sk|rk)_(?:live|test)_[0-9A-Za-z]{16,247})\b`), "", nil},
	{"OPENAI_KEY", harness.GuardrailSecret, regexp.MustCompile(`\b(sk-(?:proj-|svcacct-|admin-)?[0-9A-Za-z_-]{20,200}T3BlbkFJ[0-9A-Za-z_-]{20,200})`), "", nil},
	{"ANTHROPIC_KEY", harness.GuardrailSecret, regexp.MustCompile(`\b(sk-ant-[0-9a-z]{3,10}-[0-9A-Za-z_-]{60,200})`), "", nil},
	{"TELEGRAM_TOKEN", harness.GuardrailSecret, regexp.MustCompile(`[0-9]{8,10}:AA[0-9A-Za-z_-]{33}`), alnum + "_-", nil},
	{"JWT", harness.GuardrailSecret, regexp.MustCompile(`\b(eyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{16,})`), "", nil},
	{"URL_PASSWORD", harness.GuardrailSecret, regexp.MustCompile(`\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s:/?#@"']{0,100}:([^\s/?#@"']{3,100})@`), "", secretLooking},
	{"ASSIGNED", harness.GuardrailSecret, regexp.MustCompile(`(?i)(?:passw(?:or)?d|secret|token|api[_-]?key|access[_-]?key|auth(?:orization)?)["']?\s{0,3}(?:=|:|=>|:=)\s{0,3}(?:bearer\s+|basic\s+)?["']?([0-9A-Za-z+/_.=~-]{16,200})`), "", random},

	{"EMAIL", harness.GuardrailPII, regexp.MustCompile(`\b([0-9A-Za-z][0-9A-Za-z._%+-]{0,63}@(?:[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?\.){1,8}[A-Za-z]{2,24})\b`), "", nil},
	{"PHONE", harness.GuardrailPII, regexp.MustCompile(`(?:\+|00)[1-9](?:[ ./()-]{0,2}[0-9]){7,14}|\(?[2-9][0-9]{2}\)?[ .-][2-9][0-9]{2}[ .-][0-9]{4}`), alnum + "+", nil},
	{"CARD", harness.GuardrailPII, regexp.MustCompile(`[2-6](?:[ -]?[0-9]){12,18}`), alnum, card},
	{"IBAN", harness.GuardrailPII, regexp.MustCompile(`(?i)[a-z]{2}[0-9]{2}(?: ?[0-9a-z]{4}){2,7}(?: ?[0-9a-z]{1,3})?`), alnum, iban},
	{"US_SSN", harness.GuardrailPII, regexp.MustCompile(`[0-9]{3}-[0-9]{2}-[0-9]{4}`), numerals + "-", ssn},
	{"TR_ID", harness.GuardrailPII, regexp.MustCompile(`[1-9][0-9]{10}`), alnum + "+", turkishID},
	{"IP_ADDRESS", harness.GuardrailPII, regexp.MustCompile(`(?:[0-9]{1,3}\.){3}[0-9]{1,3}`), alnum, publicAddress},
}

// Detectors returns the names of those of a type, in order; none where the type
// has none.
func Detectors(of harness.GuardrailType) []string {
	var names []string
	for _, d := range detectors {
		if d.of == of {
			names = append(names, d.name)
		}
	}
	return names
}

// Found is what a detector has found.
type Found struct {
	Span
	Detector string
}

// Detect returns what the named detectors of a type find in text, in order. No
// names: all of the type.
func Detect(text string, of harness.GuardrailType, names []string) []Found {
	var all []Found
	for _, d := range detectors {
		if d.of != of || len(names) > 0 && !slices.Contains(names, d.name) {
			continue
		}
		all = append(all, d.find(text)...)
	}
	slices.SortStableFunc(all, func(a, b Found) int {
		if a.Start != b.Start {
			return a.Start - b.Start
		}
		return b.End - a.End
	})
	return all
}

func (d detector) find(text string) []Found {
	var all []Found
	for from := 0; from < len(text); {
		at := d.pattern.FindStringSubmatchIndex(text[from:])
		if at == nil {
			break
		}
		start, end := from+at[len(at)-2], from+at[len(at)-1]
		if end = d.ends(text, start, end); end > start {
			all = append(all, Found{Span{start, end}, d.name})
			from = end
			continue
		}
		from = start + 1
	}
	return all
}

// ends says where the thing ends that was found at start; start: there is none. A
// number may have another one behind it that the pattern took in, too.
func (d detector) ends(text string, start, end int) int {
	if start > 0 && strings.IndexByte(d.apart, text[start-1]) >= 0 {
		return start
	}
	for {
		bounded := end == len(text) || strings.IndexByte(d.apart, text[end]) < 0
		if bounded && (d.holds == nil || d.holds(text[start:end])) {
			return end
		}
		if d.apart != alnum {
			return start
		}
		shorter := strings.LastIndexAny(text[start:end], " -")
		if shorter < 0 {
			return start
		}
		end = start + shorter
	}
}

// digits are those of text.
func digits(text string) string {
	return strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, text)
}

// card: the check digit of ISO/IEC 7812 (Luhn), at a length and with a beginning
// that the card schemes use.
func card(text string) bool {
	number := digits(text)
	if len(number) < 13 || len(number) > 19 || strings.Count(number, number[:1]) == len(number) {
		return false
	}
	sum := 0
	for i := range len(number) {
		n := int(number[len(number)-1-i] - '0')
		if i%2 == 1 {
			if n *= 2; n > 9 {
				n -= 9
			}
		}
		sum += n
	}
	return sum%10 == 0
}

// ibanLengths are of the countries of the IBAN registry (ISO 13616).
var ibanLengths = map[string]int{
	"AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22,
	"DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21,
	"HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27,
	"MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24,
	"RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22,
	"VG": 24, "XK": 20, "YE": 30,
}

// iban: the check digits of ISO 13616, mod 97, at its country's length.
func iban(text string) bool {
	code := strings.ToUpper(strings.ReplaceAll(text, " ", ""))
	if len(code) < 15 || ibanLengths[code[:2]] != len(code) {
		return false
	}
	n, ok := new(big.Int).SetString(ibanDigits(code), 10)
	return ok && new(big.Int).Mod(n, big.NewInt(97)).Int64() == 1
}

// ibanDigits puts the first four characters behind the others, and a number in
// the place of each letter: A is 10, Z is 35.
func ibanDigits(code string) string {
	var number []byte
	for _, b := range []byte(code[4:] + code[:4]) {
		if b < 'A' {
			number = append(number, b)
			continue
		}
		value := b - 'A' + 10
		number = append(number, '0'+value/10, '0'+value%10)
	}
	return string(number)
}

// ssn: a number that the Social Security Administration may have given.
func ssn(text string) bool {
	area, group, serial := text[:3], text[4:6], text[7:]
	return area != "000" && area != "666" && area[0] != '9' && group != "00" && serial != "0000"
}

// turkishID: the two check digits of a T.C. kimlik number.
func turkishID(text string) bool {
	var d [11]int
	sum := 0
	for i := range 11 {
		d[i] = int(text[i] - '0')
		if i < 10 {
			sum += d[i]
		}
	}
	odd, even := d[0]+d[2]+d[4]+d[6]+d[8], d[1]+d[3]+d[5]+d[7]
	return (7*odd-even+100)%10 == d[9] && sum%10 == d[10]
}

// publicAddress: one that can be somebody's.
func publicAddress(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.IsGlobalUnicast() && !a.IsPrivate()
}

// secretLooking refuses what stands for a password in an example.
func secretLooking(text string) bool {
	plain := strings.ToLower(strings.Trim(text, "<>{}[]$*%"))
	return plain != "" && !slices.Contains([]string{"password", "passwd", "pass", "secret", "token", "user", "xxx", "xxxx"}, plain) && !strings.HasPrefix(text, "$") &&
		!strings.HasPrefix(text, "<") && !strings.HasPrefix(text, "{")
}

// random: it is no word and no path: letters and digits, with at least three bits
// a character by how often each occurs.
func random(text string) bool {
	if !strings.ContainsAny(text, "0123456789") || !strings.ContainsFunc(text, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }) {
		return false
	}
	counts := map[rune]int{}
	for _, r := range text {
		counts[r]++
	}
	bits := 0.0
	for _, n := range counts {
		p := float64(n) / float64(len(text))
		bits -= p * math.Log2(p)
	}
	return bits >= 3
}
