package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// database names the functions' database and the role that owns it. The role
// is no superuser.
const database = "tuluat"

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
	statements := []string{"ALTER ROLE " + database + " PASSWORD '" + password + "'"}
	if !hasRole {
		statements[0] = "CREATE ROLE " + database + " LOGIN PASSWORD '" + password + "'"
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
