package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/harness"
)

// database names the functions' database and the role that owns it. The role
// is no superuser; it may make the functions' roles.
const database = "tuluat"

// roleOf is the role of a function, as the schema makes it.
func roleOf(function string) string { return "tuluat_" + strings.ReplaceAll(function, "-", "_") }

// asRoles is dsn for each function: its connections act as its role, so that
// what the schema does not grant it fails on this machine too.
func asRoles(dsn harness.Secret, set *manifest.Set) (map[string]string, error) {
	urls := map[string]string{}
	for _, service := range set.Services {
		u, err := url.Parse(dsn.Reveal())
		if err != nil {
			return nil, errors.New("the connection string is no URL") // the error's own text holds the password
		}
		query := u.Query()
		query.Set("role", roleOf(service.Function()))
		u.RawQuery = query.Encode()
		urls[service.Function()] = u.String()
	}
	return urls, nil
}

// allowRoles lets the database's owner act as each function of set.
func allowRoles(ctx context.Context, superuser string, set *manifest.Set) error {
	conn, err := pgx.Connect(ctx, superuser)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, service := range set.Services {
		if _, err := conn.Exec(ctx, "GRANT "+pgx.Identifier{roleOf(service.Function())}.Sanitize()+" TO "+database); err != nil {
			return fmt.Errorf("the role of %s: %w", service.Function(), err)
		}
	}
	return nil
}

// prepareDatabase makes the database and its role if they are not there, gives
// the role a fresh password and returns its connection string.
func prepareDatabase(ctx context.Context, superuser string) (harness.Secret, error) {
	conn, err := pgx.Connect(ctx, superuser)
	if err != nil {
		return "", fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var hasRole, hasDatabase bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1), EXISTS (SELECT FROM pg_database WHERE datname = $1)`,
		database).Scan(&hasRole, &hasDatabase); err != nil {
		return "", fmt.Errorf("look for the database: %w", err)
	}
	password := rand.Text() // letters and digits only: safe to quote
	statements := []string{"ALTER ROLE " + database + " CREATEROLE PASSWORD '" + password + "'"}
	if !hasRole {
		statements[0] = "CREATE ROLE " + database + " LOGIN CREATEROLE PASSWORD '" + password + "'"
	}
	if !hasDatabase {
		statements = append(statements, "CREATE DATABASE "+database+" OWNER "+database)
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", fmt.Errorf("prepare the database: %w", err)
		}
	}
	u, err := url.Parse(superuser)
	if err != nil {
		return "", err
	}
	u.User, u.Path = url.UserPassword(database, password), "/"+database
	return harness.Secret(u.String()), nil
}
