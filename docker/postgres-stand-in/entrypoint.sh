#!/bin/bash
# Makes the cluster at the first start, then becomes Postgres.
set -euo pipefail

if [ "${1:0:1}" = - ]; then
    set -- postgres "$@"
fi

# PG_VERSION alone would not do: initdb writes it first, and an interrupted start must not leave half a database behind.
if [ "$1" = postgres ] && [ ! -s "$PGDATA/stand-in-is-set-up" ]; then
    : "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD: the superuser needs a password}"
    user=${POSTGRES_USER:-postgres}
    database=${POSTGRES_DB:-$user}
    find "$PGDATA" -mindepth 1 -delete
    initdb --pgdata="$PGDATA" --username="$user" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") \
        --encoding=UTF8 --locale=C.UTF-8 --auth-local=trust --auth-host=scram-sha-256
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    # Single-user mode: nobody can connect before all is set up.
    if [ "$database" != postgres ]; then
        printf 'create database "%s";\n' "${database//\"/\"\"}" | postgres --single -D "$PGDATA" postgres > /dev/null
    fi
    sync
    echo yes > "$PGDATA/stand-in-is-set-up"
fi

exec "$@"
