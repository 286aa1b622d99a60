#!/bin/sh
# sglang-router: SGLang's router in Rust, from PyPI.
. "$(dirname "$0")/install.sh"

case "${1:-}" in
install)
    [ $# -eq 2 ] || usage UPSTREAM
    install_wheels "$2/sglang-router" "$here/sglang-router/requirements.txt"
    ;;
start)
    [ $# -eq 4 ] || usage UPSTREAM
    installed "$2/sglang-router"
    exec "$2/sglang-router/bin/python" -m sglang_router.launch_router --host 127.0.0.1 --port "$3" \
        --worker-urls "$4" --policy round_robin --disable-health-check --prometheus-host 127.0.0.1 \
        --prometheus-port "$(($3 + 1000))" --log-level warn
    ;;
*) usage UPSTREAM ;;
esac
