package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"regexp"
	"strconv"
	"time"
)

// Quantity is an amount as Kubernetes writes it: "500m", "2", "512Mi", "1.5Gi",
// "1e3". It is kept as written and read exactly: unlike Kubernetes' own type it
// never rounds. Empty means the default.
//
// +kubebuilder:validation:Type=""
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:Pattern=`^([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$`
type Quantity string

// quantityForm is a decimal number and a suffix. The lengths keep a hostile
// text from costing anything.
var quantityForm = regexp.MustCompile(`^(\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:([KMGTPE]i|[numkMGTPE])|[eE](\d{1,2}))?$`)

var suffixes = map[string]*big.Rat{
	"n": big.NewRat(1, 1e9), "u": big.NewRat(1, 1e6), "m": big.NewRat(1, 1e3), "": big.NewRat(1, 1),
	"k": big.NewRat(1e3, 1), "M": big.NewRat(1e6, 1), "G": big.NewRat(1e9, 1), "T": big.NewRat(1e12, 1), "P": big.NewRat(1e15, 1), "E": big.NewRat(1e18, 1),
	"Ki": big.NewRat(1<<10, 1), "Mi": big.NewRat(1<<20, 1), "Gi": big.NewRat(1<<30, 1), "Ti": big.NewRat(1<<40, 1), "Pi": big.NewRat(1<<50, 1), "Ei": big.NewRat(1<<60, 1),
}

// Milli returns q in thousandths of a core.
func (q Quantity) Milli() (int64, error) {
	return q.in(big.NewRat(1, 1000), "finer than 1m or larger than a number of cores can be")
}

// Bytes returns q as a number of bytes.
func (q Quantity) Bytes() (int64, error) {
	return q.in(big.NewRat(1, 1), "not a whole number of bytes, or too many")
}

// in returns how many units q is, if that is exact and fits.
func (q Quantity) in(unit *big.Rat, inexact string) (int64, error) {
	parts := quantityForm.FindStringSubmatch(string(q))
	if parts == nil {
		return 0, errors.New("is not an amount: write it like 500m, 2, 512Mi or 1.5Gi")
	}
	amount, _ := new(big.Rat).SetString(parts[1]) // the form allows only what SetString reads
	amount.Mul(amount, suffixes[parts[2]])
	if parts[3] != "" {
		exponent, _ := strconv.Atoi(parts[3]) // two digits
		amount.Mul(amount, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(exponent)), nil)))
	}
	amount.Quo(amount, unit)
	if !amount.IsInt() || !amount.Num().IsInt64() {
		return 0, errors.New("is " + inexact)
	}
	return amount.Num().Int64(), nil
}

// UnmarshalJSON takes a text or a bare number, as Kubernetes does.
func (q *Quantity) UnmarshalJSON(data []byte) error {
	if data = bytes.TrimSpace(data); len(data) > 0 && data[0] != '"' {
		*q = Quantity(data)
		return nil
	}
	return json.Unmarshal(data, (*string)(q))
}

// Duration is a span of time as text: "90s", "1h30m", "24h". Empty means the
// default.
//
// +kubebuilder:validation:MaxLength=64
// +kubebuilder:validation:Pattern=`^([0-9]{1,10}(\.[0-9]{1,9})?(ms|s|m|h))+$`
type Duration string

// durationForm is what Go reads without its signs, omissions and tiny units.
var durationForm = regexp.MustCompile(`^(\d{1,10}(\.\d{1,9})?(ms|s|m|h))+$`)

// Parse returns the duration.
func (d Duration) Parse() (time.Duration, error) {
	parsed, err := time.ParseDuration(string(d))
	if err != nil || len(d) > 64 || !durationForm.MatchString(string(d)) {
		return 0, errors.New("is not a duration")
	}
	return parsed, nil
}
