#!/bin/sh
# Makes the secrets of docker-compose.yml, one file each, in deploy/secrets. What is there already stays.
set -eu
umask 077
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"

random() { head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n'; }
keep() { [ -s "$folder/$1" ] || printf '%s' "$2" > "$folder/$1"; }

keep secret-key "$(random)"
keep metrics-token "$(random)"
keep grafana-password "$(random)"
keep postgres-password "$(random)"
keep redis-password "$(random)"
keep database-url "postgresql://quartermaster:$(cat "$folder/postgres-password")@postgres:5432/quartermaster"
keep redis-url "redis://:$(cat "$folder/redis-password")@redis:6379/0"
keep redis.conf "requirepass $(cat "$folder/redis-password")"
# Compose shows files to containers as they are here: their users, which are not yours, have to be able to read them.
# Nobody else reaches them through this folder.
chmod 700 "$folder"
chmod 444 "$folder"/*
echo "secrets are in $folder; keep them out of git and in your backup"
