# Makes the database at the first start and runs it. The password is set then; a
# later change of the Secret does not change it.
set -eu
for dir in /usr/lib/postgresql/*/bin /usr/local/bin; do
  [ -x "$dir/initdb" ] && PATH="$dir:$PATH"
done
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  rm -rf "$PGDATA.new"
  printf '%s\n' "$POSTGRES_PASSWORD" > /tmp/password
  initdb -D "$PGDATA.new" -U tuluat --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 -E UTF8 --locale=C.UTF-8
  rm /tmp/password
  echo 'host all all all scram-sha-256' >> "$PGDATA.new/pg_hba.conf"
  echo 'CREATE DATABASE tuluat OWNER tuluat' | postgres --single -D "$PGDATA.new" postgres
  mv "$PGDATA.new" "$PGDATA" # whole or not at all
fi
unset POSTGRES_PASSWORD
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp -c jit=off
