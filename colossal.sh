#!/usr/bin/env bash
# The newcomer's door: installs what is missing, builds, and runs `colossal` with the arguments given.
#
#   ./colossal.sh train examples/quickstart.toml     any command of `colossal`; builds that program alone
#   ./colossal.sh build                              builds everything
#   ./colossal.sh test [ctest arguments]             builds everything and runs the tests
#   ./colossal.sh sanitize                           the tests of raw memory, threads and input under sanitizers
#
# LibTorch: $LIBTORCH_ROOT if set; else a torch >= 2.11 that .venv or python3 can import; else the wheel is installed into .venv.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$root/build/release
log=$root/build/setup.log
caller=$PWD
torch_version=2.13.0
# Debian's name of a package = the header (or the program, behind `:`) by which it is known to be there, however it came.
build_packages=(libcli11-dev=CLI/CLI.hpp libtomlplusplus-dev=toml++/toml.h nlohmann-json3-dev=nlohmann/json.hpp
  libspdlog-dev=spdlog/spdlog.h libxxhash-dev=xxhash.h libpcre2-dev=pcre2.h libutf8proc-dev=utf8proc.h zlib1g-dev=zlib.h
  libzstd-dev=zstd.h libpng-dev=png.h libjpeg62-turbo-dev=jpeglib.h
  ninja-build=:ninja)
# What it is better with, and does without: asynchronous reads and writes of scratch files, which threads do otherwise.
extra_packages=(liburing-dev=liburing.h)
test_packages=(libgtest-dev=gtest/gtest.h libgmock-dev=gmock/gmock.h libbenchmark-dev=benchmark/benchmark.h)

die() { echo "colossal.sh: $*" >&2; exit 1; }

# step "what" command...: one line with the elapsed time; the output goes to the log, and is shown when the command fails.
step() {
  local what=$1 began=$SECONDS
  shift
  mkdir -p "$root/build"
  printf '%s ... ' "$what" >&2
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  local line
  line=$(wc -l <"$log")
  if "$@" >>"$log" 2>&1; then
    echo "$((SECONDS - began)) s" >&2
  else
    echo "failed after $((SECONDS - began)) s" >&2
    tail -n +"$((line + 1))" "$log" | tail -n 60 >&2
    die "$what failed; the whole log is $log"
  fi
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_debian() {  # [package...]
  local list=$*
  command -v apt-get >/dev/null || die "please install these packages (Debian's names): $list"
  if [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
    die "please run this as root, then start again: apt-get install -y $list"
  fi
  export DEBIAN_FRONTEND=noninteractive
  # The lists may be old or missing: they are fetched only when the packages cannot be had without.
  as_root apt-get install --simulate --no-install-recommends "$@" >/dev/null 2>&1 ||
    step "fetching the package lists" as_root apt-get update
  step "installing $list" as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

is_there() {  # header or :program
  case $1 in
    :*) command -v "${1#:}" >/dev/null ;;
    *) printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1 ;;
  esac
}

need_packages() {  # [package=mark...]
  local missing=() entry
  for entry in "$@"; do is_there "${entry#*=}" || missing+=("${entry%%=*}"); done
  if [ ${#missing[@]} -gt 0 ]; then install_debian "${missing[@]}"; fi
}

# The same, but where it cannot be had nothing is lost.
want_packages() {  # [package=mark...]
  local missing=() entry
  for entry in "$@"; do is_there "${entry#*=}" || missing+=("${entry%%=*}"); done
  if [ ${#missing[@]} -eq 0 ] || ! command -v apt-get >/dev/null; then return; fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1 ||
    echo "going on without ${missing[*]}, which could not be installed" >&2
}

need_tools() {
  command -v "${CXX:-c++}" >/dev/null || die "no C++ compiler found; install g++ 12 or newer (Debian: apt-get install g++)"
  command -v cmake >/dev/null || die "cmake not found; install CMake 3.25 or newer (Debian: apt-get install cmake)"
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p') || die "$(command -v cmake) --version fails; repair CMake"
  [ "$(printf '%s\n3.25\n' "$version" | sort -V | head -n 1)" = 3.25 ] || die "CMake $version is too old: 3.25 or newer is needed"
}

# Prints the folder of the torch that $1 (a python) imports, if it is 2.11 or newer.
torch_of() {
  command -v "$1" >/dev/null || return 1
  "$1" - 2>/dev/null <<'PYTHON'
import importlib.metadata, importlib.util, re, sys
found = importlib.util.find_spec("torch")
version = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch")) if found else None
if not version or tuple(map(int, version.groups())) < (2, 11):
    sys.exit(1)
print(found.submodule_search_locations[0])
PYTHON
}

need_venv() {
  [ -x "$root/.venv/bin/python" ] && "$root/.venv/bin/python" -m pip --version >/dev/null 2>&1 && return
  command -v python3 >/dev/null || die "python3 not found; install it (Debian: apt-get install python3 python3-venv), or set LIBTORCH_ROOT"
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_debian python3-venv
  step "making .venv" python3 -m venv "$root/.venv"
}

find_libtorch() {
  if [ -n "${LIBTORCH_ROOT:-}" ]; then
    [ -d "$LIBTORCH_ROOT/include" ] || die "LIBTORCH_ROOT=$LIBTORCH_ROOT has no include folder; it must hold include/ and lib/"
    return
  fi
  LIBTORCH_ROOT=$(torch_of "$root/.venv/bin/python") || LIBTORCH_ROOT=$(torch_of python3) || LIBTORCH_ROOT=
  if [ -z "$LIBTORCH_ROOT" ]; then
    need_venv
    step "installing LibTorch (torch $torch_version) into .venv" "$root/.venv/bin/python" -m pip install "torch==$torch_version"
    LIBTORCH_ROOT=$(torch_of "$root/.venv/bin/python") || die "torch was installed into .venv but cannot be found there"
  fi
  export LIBTORCH_ROOT
}

# As many compilers as there are cores and 2 GB of memory for each.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 2000000) }' /proc/meminfo 2>/dev/null || echo 1)
  local limit
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [ "$limit" != max ] && [ $((limit / 2000000000)) -lt "$memory" ]; then memory=$((limit / 2000000000)); fi
  if [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  if [ "$cores" -lt 1 ]; then cores=1; fi
  echo "$cores"
}

# The stamp holds the folder of LibTorch that the build was configured for: while it is there, a start looks for nothing else.
stamp=$build/.configured
is_configured() {
  [ -f "$stamp" ] && [ -f "$build/build.ninja" ] || return 1
  local known
  known=$(<"$stamp")
  [ -d "$known/include" ] && [ "${LIBTORCH_ROOT:-$known}" = "$known" ]
}

configure() {  # ON or OFF: with the tests and benchmarks; the program alone needs none of their packages
  is_configured && return
  need_tools
  need_packages "${build_packages[@]}"
  if [ "$1" = ON ]; then need_packages "${test_packages[@]}"; fi
  want_packages "${extra_packages[@]}"
  find_libtorch
  cd "$root"
  step "configuring" cmake --preset release -DLIBTORCH_ROOT="$LIBTORCH_ROOT" -DCOLOSSAL_TESTS="$1" -DCOLOSSAL_BENCHMARKS="$1"
  printf '%s' "$LIBTORCH_ROOT" >"$stamp"
}

# Says nothing when nothing is to be done; on a terminal the line counts the units.
build_target() {  # target, what
  local began=$SECONDS count line said='' status=0
  count=$(jobs)
  printf '\n== building %s\n' "$2" >>"$log"
  line=$(wc -l <"$log")
  { ninja -C "$build" -j "$count" "$1" 2>&1 || echo "== failed"; } | tee -a "$log" | {
    while IFS= read -r text; do
      if [ "$text" = "== failed" ]; then status=1; fi
      [[ $text =~ ^\[([0-9]+/[0-9]+)\]\ (Building|Linking) ]] || continue
      if [ -t 2 ]; then
        printf '\rbuilding %s with %s job(s) ... %s ' "$2" "$count" "${BASH_REMATCH[1]}" >&2
      elif [ -z "$said" ]; then
        printf 'building %s with %s job(s) ... ' "$2" "$count" >&2
      fi
      said=yes
    done
    if [ -n "$said" ]; then echo "$([ $status -eq 0 ] || echo 'failed after ')$((SECONDS - began)) s" >&2; fi
    exit $status
  } || {
    tail -n +"$((line + 1))" "$log" | grep -Ev '^\[[0-9]+/[0-9]+\] Building|^== failed$' | tail -n 60 >&2
    die "building $2 failed; the whole log is $log"
  }
}

configure_with_tests() {
  configure ON
  grep -q '^COLOSSAL_TESTS:BOOL=ON' "$build/CMakeCache.txt" && grep -q '^COLOSSAL_BENCHMARKS:BOOL=ON' "$build/CMakeCache.txt" && return
  need_packages "${test_packages[@]}"
  step "configuring the tests" cmake -S "$root" -B "$build" -DCOLOSSAL_TESTS=ON -DCOLOSSAL_BENCHMARKS=ON
}

# The Python packages against which the interop tests compare. Without them those tests are skipped and say why.
install_interop() {
  local wanted=$root/tests/interop/requirements.txt seen=$root/.venv/.interop-requirements
  [ -f "$wanted" ] || return 0
  cmp -s "$wanted" "$seen" && return
  need_venv
  local began=$SECONDS
  printf 'installing the Python packages of the interop tests ... ' >&2
  if "$root/.venv/bin/python" -m pip install -r "$wanted" >>"$log" 2>&1; then
    cp "$wanted" "$seen"
    echo "$((SECONDS - began)) s" >&2
  else
    echo "failed after $((SECONDS - began)) s (see $log); the tests that need them will be skipped" >&2
  fi
}

# Builds and runs those tests that the target has; the others have no label where they are not built.
sanitize() {  # preset, target, what
  build=$root/build/$1
  cd "$root"
  step "configuring $1" cmake --preset "$1" -DLIBTORCH_ROOT="$LIBTORCH_ROOT"
  build_target "$2" "$3"
  cd "$build"
  ctest --output-on-failure --parallel "$(jobs)" -L 'pure|unit'
}

case "${1:-}" in
  build)
    configure_with_tests
    build_target all "everything"
    ;;
  test)
    shift
    configure_with_tests
    install_interop
    build_target all "everything"
    cd "$build"
    exec ctest --output-on-failure --parallel "$(jobs)" "$@"
    ;;
  sanitize)
    configure_with_tests
    LIBTORCH_ROOT=$(<"$stamp")
    export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=suppressions=$root/tests/thread_sanitizer.supp
    sanitize asan sanitized_tests "the tests of raw memory, threads and untrusted input under AddressSanitizer and UBSan"
    sanitize tsan thread_sanitized_tests "the tests of comm and memory under ThreadSanitizer"
    ;;
  *)
    configure OFF
    build_target colossal_app "colossal"
    cd "$caller"
    exec "$build/colossal" "$@"
    ;;
esac
