# What the rivals' scripts share; each sources this. The rule: nothing is installed but what a file here pins by
# version and hash, and a measured start never installs.

set -eu

here=$(cd "$(dirname "$0")" && pwd)

usage() {
    echo "usage: $(basename "$0") install CACHE | start CACHE PORT $1" >&2
    exit 2
}

# The distribution's own Python where there is one: builds that version managers make are often half as fast.
python() {
    if [ -x /usr/bin/python3 ]; then echo /usr/bin/python3; else command -v python3; fi
}

# A fresh virtual environment in $1 with the packages that $2 pins, wheels alone: nothing of theirs runs here.
install_wheels() {
    rm -rf "$1"
    "$(python)" -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r "$2"
    touch "$1/installed"
}

# Ends unless $1 has been installed.
installed() {
    if [ ! -e "$1/installed" ]; then
        echo "$1 is not there; run '$0 install' first" >&2
        exit 1
    fi
}
