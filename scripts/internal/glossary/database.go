package glossary

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// Set is a closed set of a column: the values its CHECK allows.
type Set struct {
	Constraint string
	Values     []string
}

// Database returns the names of the schema in the database at dsn, its closed
// sets, and a line for each foreign key whose column is not named like the key
// it points at. Partitions and the migration tool's own table are no words.
func Database(ctx context.Context, dsn harness.Secret) (names []Name, sets []Set, misnamed []string, err error) {
	conn, err := pgx.Connect(ctx, dsn.Reveal())
	if err != nil {
		return nil, nil, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if names, err = tables(ctx, conn); err != nil {
		return nil, nil, nil, err
	}
	if sets, err = checks(ctx, conn); err != nil {
		return nil, nil, nil, err
	}
	for _, s := range sets {
		for _, v := range s.Values {
			names = append(names, Name{Form: Value, Text: v, Where: "constraint " + s.Constraint})
		}
	}
	misnamed, err = references(ctx, conn)
	return names, sets, misnamed, err
}

const ourTables = `c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'goose_db_version'`

func tables(ctx context.Context, conn *pgx.Conn) ([]Name, error) {
	rows, err := conn.Query(ctx, `SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE a.attnum > 0 AND NOT a.attisdropped AND `+ourTables+` ORDER BY c.relname, a.attnum`)
	if err != nil {
		return nil, err
	}
	var names []Name
	var table, column, last string
	_, err = pgx.ForEachRow(rows, []any{&table, &column}, func() error {
		if table != last {
			names = append(names, Name{Form: Table, Text: table, Where: "database"})
			last = table
		}
		names = append(names, Name{Form: Column, Text: column, Where: "table " + table})
		return nil
	})
	return names, err
}

var (
	closedSet = regexp.MustCompile(`^CHECK \(\(\(?\w+\)?(?:::text)? = ANY \([^=]*ARRAY\[[^\]]*\][^=]*\)$`)
	literal   = regexp.MustCompile(`'([^']+)'`)
)

func checks(ctx context.Context, conn *pgx.Conn) ([]Set, error) {
	rows, err := conn.Query(ctx, `SELECT k.conname, pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
		WHERE k.contype = 'c' AND `+ourTables+` ORDER BY c.relname, k.conname`)
	if err != nil {
		return nil, err
	}
	var sets []Set
	var name, definition string
	_, err = pgx.ForEachRow(rows, []any{&name, &definition}, func() error {
		definition = strings.TrimSuffix(definition, " NOT VALID") // it holds for what is written
		if !closedSet.MatchString(definition) {
			return nil // a rule between columns
		}
		set := Set{Constraint: name}
		for _, m := range literal.FindAllStringSubmatch(definition, -1) {
			set.Values = append(set.Values, m[1])
		}
		sets = append(sets, set)
		return nil
	})
	return sets, err
}

// references finds columns that give a second name to what they point at. A
// column may instead say the part that the other row plays, if the glossary
// has a word for the part: in_reply_to.
func references(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT c.relname, a.attname, f.relname, b.attname
		FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_class f ON f.oid = k.confrelid
		CROSS JOIN LATERAL unnest(k.conkey, k.confkey) AS pair (here, there)
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = here JOIN pg_attribute b ON b.attrelid = f.oid AND b.attnum = there
		WHERE k.contype = 'f' AND a.attname <> b.attname AND a.attname NOT IN ('in_reply_to', 'origin_session', 'child_session') AND `+ourTables+` ORDER BY 1, 2`)
	if err != nil {
		return nil, err
	}
	var misnamed []string
	var table, column, target, key string
	_, err = pgx.ForEachRow(rows, []any{&table, &column, &target, &key}, func() error {
		misnamed = append(misnamed, fmt.Sprintf("table %s: column %s points at %s.%s and must have that name", table, column, target, key))
		return nil
	})
	return misnamed, err
}

// equal reports whether s has exactly these values, in any order.
func (s Set) equal(values []string) bool {
	has := map[string]bool{}
	for _, v := range values {
		has[v] = true
	}
	for _, v := range s.Values {
		if !has[v] {
			return false
		}
	}
	return len(has) == len(s.Values)
}

func (s Set) String() string { return s.Constraint + " (" + strings.Join(s.Values, ", ") + ")" }
