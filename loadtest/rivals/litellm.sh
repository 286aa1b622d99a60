#!/bin/sh
# LiteLLM's proxy: Python, from PyPI. Without a database, with a key, and never as root.
. "$(dirname "$0")/install.sh"

case "${1:-}" in
install)
    [ $# -eq 2 ] || usage 'UPSTREAM MODEL'
    install_wheels "$2/litellm" "$here/litellm/requirements.txt"
    ;;
start)
    [ $# -eq 5 ] || usage 'UPSTREAM MODEL'
    installed "$2/litellm"
    key=${PONS_KEY:?is the key that LiteLLM asks for: sk- and 32 random digits, exported for it and for the harness}
    work=$2/litellm-work
    rm -rf "$work"
    mkdir -p "$work"
    cat >"$work/config.yaml" <<EOF
model_list:
  - model_name: "$5"
    litellm_params:
      model: "openai/$5"
      api_base: "$4/v1"
      api_key: none
litellm_settings:
  telemetry: false
  drop_params: false
EOF
    as=
    if [ "$(id -u)" -eq 0 ]; then
        chown -R 65534:65534 "$work"
        as='setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs'
    fi
    cd "$work"
    # The table of prices is the package's own: without this it is fetched at the start.
    exec env -u PONS_KEY HOME="$work" LITELLM_MASTER_KEY="$key" LITELLM_LOCAL_MODEL_COST_MAP=True \
        LITELLM_TELEMETRY=False LITELLM_LOG=ERROR DISABLE_ADMIN_UI=True \
        $as "$2/litellm/bin/python" "$2/litellm/bin/litellm" --config "$work/config.yaml" --host 127.0.0.1 --port "$3" --num_workers 1
    ;;
*) usage 'UPSTREAM MODEL' ;;
esac
