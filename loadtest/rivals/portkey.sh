#!/bin/sh
# Portkey's gateway: Node, from npm. It is told where to go by two headers of each request:
# x-portkey-provider:openai and x-portkey-custom-host:UPSTREAM/v1, and believes the second only of a trusted host.
. "$(dirname "$0")/install.sh"

case "${1:-}" in
install)
    [ $# -eq 2 ] || usage UPSTREAM
    rm -rf "$2/portkey"
    mkdir -p "$2/portkey"
    cp "$here/portkey/package.json" "$here/portkey/package-lock.json" "$2/portkey/"
    (cd "$2/portkey" && npm ci --ignore-scripts --omit=dev --no-audit --no-fund --loglevel=error)
    touch "$2/portkey/installed"
    ;;
start)
    [ $# -eq 4 ] || usage UPSTREAM
    installed "$2/portkey"
    host=${4#*://}
    TRUSTED_CUSTOM_HOSTS=${host%%[:/]*} NODE_ENV=production \
        exec node "$2/portkey/node_modules/@portkey-ai/gateway/build/start-server.js" --port="$3" --headless
    ;;
*) usage UPSTREAM ;;
esac
