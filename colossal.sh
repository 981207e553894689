#!/usr/bin/env bash
# The newcomer's door: installs what is missing, builds, and runs `colossal` with the arguments given.
#
#   ./colossal.sh train examples/quickstart.toml     any command of `colossal`; builds that program alone
#   ./colossal.sh build                              builds everything
#   ./colossal.sh test [ctest arguments]             builds everything and runs the tests
#   ./colossal.sh sanitize [--quick]                 the tests of raw memory, threads and input under sanitizers; quick:
#                                                    of files and HTTP alone
#   ./colossal.sh test-long                          runs what takes too long for continuous integration, and says what
#                                                    failed
#   ./colossal.sh wheel                              packs the Python package for other machines into build/dist
#   ./colossal.sh release [--nightly]                packs wheel, sources, Debian packages, checksums and notes into
#                                                    build/dist
#   ./colossal.sh docs                               writes the documentation site into build/site
#   ./colossal.sh packages                           installs every Debian package that a build and `pip install .` need
#   ./colossal.sh packages --missing                 prints the names of those that are missing, one a line
#
# LibTorch: $LIBTORCH_ROOT if set; else a torch 2.11 to 2.15 that .venv or python3 can import; else the wheel is
# installed into .venv.
# COLOSSAL_TORCH: which wheel that is. cpu: LibTorch without GPUs; cuda: with all that GPUs need; auto (default): cuda
# if an NVIDIA driver is loaded.
# COLOSSAL_CCACHE=off: compiles without ccache, which is used if it is on the path.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
build=$root/build/release
log=$root/build/setup.log
caller=$PWD
torch_version=2.13.0
# Sizes in MB, measured for this version with pip's defaults: the download, and .venv after it.
cpu_download=540 cpu_venv=1300 cuda_download=2700 cuda_venv=5000
# Minutes of one core and MB in build/, measured for the program alone and for everything.
program_minutes=20 program_size=950 all_minutes=50 all_size=2800
# Debian's name of a package = what shows that it is there, however it was installed: a header, after `:` a program,
# after `@` a part of Python.
tool_packages=(g++=:c++ cmake=:cmake)
build_packages=(libcli11-dev=CLI/CLI.hpp libtomlplusplus-dev=toml++/toml.h nlohmann-json3-dev=nlohmann/json.hpp
  libspdlog-dev=spdlog/spdlog.h libxxhash-dev=xxhash.h libpcre2-dev=pcre2.h libutf8proc-dev=utf8proc.h zlib1g-dev=zlib.h
  libzstd-dev=zstd.h libpng-dev=png.h libjpeg-dev=jpeglib.h libgif-dev=gif_lib.h
  libvalijson-dev=valijson/validator.hpp libboost-dev=boost/beast.hpp ninja-build=:ninja)
# Needed by `pip install .` alone.
python_packages=(python3=:python3 python3-venv=@venv python3-dev=@header)
# Optional: asynchronous reads and writes of scratch files, which threads do otherwise; pictures in WebP and tar files;
# weights in PyTorch's and NumPy's files; structures of proteins; videos other than GIF and y4m.
extra_packages=(liburing-dev=liburing.h libwebp-dev=webp/decode.h libarchive-dev=archive.h libzip-dev=zip.h
  gemmi-dev=gemmi/cif.hpp tao-pegtl-dev=tao/pegtl.hpp
  libavformat-dev=libavformat/avformat.h libavcodec-dev=libavcodec/avcodec.h libswscale-dev=libswscale/swscale.h)
# Optional with the tests: a linker that saves a minute over their programs, and what the Python module needs.
extra_test_packages=(lld=:ld.lld python3-dev=@header)
docs_packages=(doxygen=:doxygen python3=:python3 python3-venv=@venv)
test_packages=(libgtest-dev=gtest/gtest.h libgmock-dev=gmock/gmock.h libbenchmark-dev=benchmark/benchmark.h)

# ON or OFF, for CMake: whether ccache is used.
case ${COLOSSAL_CCACHE:-on} in off | OFF | no | 0) ccache=OFF ;; *) ccache=ON ;; esac

die() { printf 'colossal.sh: %s\n' "$*" >&2; exit 1; }

# step "what" command...: one line with the elapsed time; the output goes to the log, and is shown if the command fails.
step() {
  local what=$1
  try_step "$@" || die "$what failed; the whole log is $log"
}

# The same, but returns the failure.
try_step() {
  local what=$1 began=$SECONDS line
  shift
  mkdir -p "$root/build"
  printf '%s ... ' "$what" >&2
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  line=$(wc -l <"$log")
  if "$@" >>"$log" 2>&1; then
    echo "$((SECONDS - began)) s" >&2
  else
    echo "failed after $((SECONDS - began)) s" >&2
    tail -n +"$((line + 1))" "$log" | tail -n 60 >&2
    return 1
  fi
}

# sudo drops the environment, and with it the proxy that apt needs.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; return; fi
  local name proxies=()
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    if [ -n "${!name:-}" ]; then proxies+=("$name=${!name}"); fi
  done
  sudo -n env "${proxies[@]}" "$@"
}

is_root_possible() { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"
}

# The lists of packages may be old (then a download ends with 404) or missing: they are fetched if the first try fails.
install_debian() {  # [package...]
  local began=$SECONDS
  mkdir -p "$root/build"
  printf '\n== installing %s\n' "$*" >>"$log"
  printf 'installing %s ... ' "$*" >&2
  if apt_install "$@" >>"$log" 2>&1; then
    echo "$((SECONDS - began)) s" >&2
    return
  fi
  echo "failed; trying again with new package lists" >&2
  step "fetching the package lists" as_root apt-get update
  step "installing $*" apt_install "$@"
}

is_there() {  # header, :program or @part
  local python=${PYTHON:-python3}
  case $1 in
    @venv) "$python" -c 'import ensurepip, venv' 2>/dev/null ;;
    @header)
      "$python" -c 'import os, sysconfig; exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' \
        2>/dev/null ;;
    :c++) command -v "${CXX:-c++}" >/dev/null ;;
    :*) command -v "${1#:}" >/dev/null ;;
    *) printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1 ;;
  esac
}

missing_of() {  # [package=mark...]: the packages that are not there, one a line
  local entry
  for entry in "$@"; do is_there "${entry#*=}" || echo "${entry%%=*}"; done
}

# Installs packages without which nothing is lost.
want_packages() {  # [package=mark...]
  local missing
  mapfile -t missing < <(missing_of "$@")
  if [ ${#missing[@]} -eq 0 ] || ! command -v apt-get >/dev/null || ! is_root_possible; then return; fi
  apt_install "${missing[@]}" >>"$log" 2>&1 || echo "continuing without ${missing[*]}, which could not be installed" >&2
}

is_older() {  # found, wanted
  [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" != "$2" ]
}

# The value of macros that a header defines, joined by points: `3.11`.
version_in_header() {  # header, macro...
  local header=$1 text
  shift
  text=$(printf '%s\n' "$*" | tr ' ' '.')
  printf '#include <%s>\nversion %s\n' "$header" "$text" | "${CXX:-c++}" -std=c++17 -E -P -x c++ - 2>/dev/null |
    sed -n '/^version /{s/version//;s/ //g;p}' || true
}

# What is there and too old, one line each: the version found and the one wanted.
too_old() {
  local version cxx=${CXX:-c++}
  if command -v "$cxx" >/dev/null && ! "$cxx" --version 2>/dev/null | head -n 1 | grep -qi clang; then
    version=$("$cxx" -dumpfullversion -dumpversion 2>/dev/null) || version=unknown
    if [ "$version" = unknown ] || is_older "$version" 12; then
      echo "g++ must be 12 or newer: got $version ($cxx); install g++-12 and start again with CXX=g++-12"
    fi
  fi
  if command -v cmake >/dev/null; then
    version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p') || version=
    if [ -z "$version" ] || is_older "$version" 3.25; then
      echo "CMake must be 3.25 or newer: got ${version:-no version from $(command -v cmake)};" \
        "install a newer one, such as with pip install cmake"
    fi
  fi
  version=$(version_in_header nlohmann/json.hpp NLOHMANN_JSON_VERSION_MAJOR NLOHMANN_JSON_VERSION_MINOR)
  if [ -n "$version" ] && is_older "$version" 3.11; then
    echo "nlohmann-json must be 3.11 or newer: got $version;" \
      "install a newer one earlier in the search path of the compiler"
  fi
  version=$(version_in_header toml++/toml.h TOML_LIB_MAJOR TOML_LIB_MINOR)
  if [ -n "$version" ] && is_older "$version" 3.3; then
    echo "toml++ must be 3.3 or newer: got $version; install a newer one earlier in the search path of the compiler"
  fi
}

has_nvidia_driver() {
  [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ] ||
    { [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so ]; }
}

# cpu or cuda: which wheel of torch is installed.
wanted_torch() {
  case ${COLOSSAL_TORCH:-auto} in
    auto) if has_nvidia_driver; then echo cuda; else echo cpu; fi ;;
    *) echo "$COLOSSAL_TORCH" ;;
  esac
}

# Prints "<version> <folder>" of the torch that $1 (a python) imports.
torch_of() {
  command -v "$1" >/dev/null || return 1
  "$1" - 2>/dev/null <<'PYTHON'
import importlib.metadata, importlib.util, sys
found = importlib.util.find_spec("torch")
if not found or not found.submodule_search_locations:
    sys.exit(1)
print(importlib.metadata.version("torch"), found.submodule_search_locations[0])
PYTHON
}

# Whether the torch was found here, and not given by LIBTORCH_ROOT: only then may the one of .venv be completed.
is_found=no

# Sets LIBTORCH_ROOT to the torch of .venv or python3, or to nothing; says which ones are passed over.
look_for_torch() {
  local python found version
  LIBTORCH_ROOT=
  for python in "$root/.venv/bin/python" python3; do
    found=$(torch_of "$python") || continue
    version=${found%% *}
    if is_older "$version" 2.11 || ! is_older "$version" 2.16; then
      echo "colossal.sh: torch $version of $python is not used: LibTorch 2.11 to 2.15 is supported" >&2
      continue
    fi
    if [ "$python" = python3 ] && [ "${COLOSSAL_TORCH:-auto}" = cuda ] &&
      [ ! -e "${found#* }/lib/libtorch_cuda.so" ]; then
      echo "colossal.sh: torch $version of python3 is not used: it is a CPU build, and COLOSSAL_TORCH is cuda" >&2
      continue
    fi
    LIBTORCH_ROOT=${found#* }
    return
  done
}

has_venv() { [ -x "$root/.venv/bin/python" ] && "$root/.venv/bin/python" -m pip --version >/dev/null 2>&1; }

need_venv() {
  has_venv || step "making .venv" python3 -m venv "$root/.venv"
}

# Runs pip of .venv. Its temporary files go to build/, because /tmp may be memory. On a terminal pip shows its progress.
pip_install() {  # "what" argument...
  local what=$1 began=$SECONDS
  shift
  mkdir -p "$root/build/pip"
  local command=(env TMPDIR="$root/build/pip" "$root/.venv/bin/python" -m pip install "$@") failed=no
  if [ -t 2 ]; then
    echo "$what" >&2
    "${command[@]}" --log "$log" >&2 || failed=yes
    if [ $failed = no ]; then echo "$what ... $((SECONDS - began)) s" >&2; fi
  else
    try_step "$what" "${command[@]}" || failed=yes
  fi
  rm -rf "$root/build/pip"
  [ $failed = no ] || die "pip could not install LibTorch (the log is $log). Three ways around it:
  LIBTORCH_ROOT=FOLDER ./colossal.sh ...        FOLDER is an unpacked LibTorch, \
or the torch folder of another environment
  a python3 that can import torch 2.11 to 2.15  first in PATH
  PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER ./colossal.sh ...   FOLDER holds the wheel of torch \
$torch_version for this Python"
}

# The requirement of a package that this torch asks for: `cuda_toolkit_version` prints V of its cuda-toolkit[...]==V.
cuda_toolkit_version() {
  "$root/.venv/bin/python" - <<'PYTHON'
import importlib.metadata, re
found = [re.match(r"cuda-toolkit\[.*\]==([\d.]+)", line) for line in importlib.metadata.requires("torch") or []]
print(next((match.group(1) for match in found if match), ""))
PYTHON
}

has_cuda_library() { compgen -G "$(dirname "$LIBTORCH_ROOT")/nvidia/*/lib/lib$1.so*" >/dev/null; }  # name
has_cuda_header() { compgen -G "$(dirname "$LIBTORCH_ROOT")/nvidia/*/include/$1" >/dev/null; }  # path

# What the torch of .venv lacks: `libraries` and `headers` of GPUs, or the two libraries that a CUDA build loads on the
# `cpu`, too. Nothing for a torch that belongs to the user, which is never changed. An interrupted installation is seen
# here, and taken up.
missing_parts() {
  [ $is_found = yes ] && [[ $LIBTORCH_ROOT == "$root"/.venv/* ]] || return 0
  [ -e "$LIBTORCH_ROOT/lib/libtorch_cuda.so" ] || return 0
  if [ "$(wanted_torch)" = cpu ]; then
    has_cuda_library cudart && has_cuda_library cupti || echo cpu
    return
  fi
  has_cuda_library cudnn && has_cuda_library nccl && has_cuda_library cublas || echo libraries
  has_cuda_header crt/host_config.h && { has_cuda_header nv/target || has_cuda_header cccl/nv/target; } || echo headers
}

install_torch() {
  local found version toolkit part parts
  if [ -z "$LIBTORCH_ROOT" ]; then
    need_venv
    if [ "$(wanted_torch)" = cuda ]; then
      pip_install "installing LibTorch (torch $torch_version) with GPU support into .venv" "torch==$torch_version"
    else
      pip_install "installing LibTorch (torch $torch_version) into .venv" --no-deps "torch==$torch_version"
    fi
    found=$(torch_of "$root/.venv/bin/python") ||
      die "torch was installed into .venv but cannot be found there; see $log"
    LIBTORCH_ROOT=${found#* }
  fi
  mapfile -t parts < <(missing_parts)
  [ ${#parts[@]} -gt 0 ] || return 0
  found=$(torch_of "$root/.venv/bin/python")
  version=${found%% *} version=${version%%+*}
  toolkit=$(cuda_toolkit_version)
  for part in "${parts[@]}"; do
    # Without the headers GPUs work, with fewer features.
    if [ "$part" = headers ] && [ "${COLOSSAL_TORCH:-auto}" = auto ]; then
      [ -n "$toolkit" ] && try_step "installing the headers of CUDA $toolkit" \
        "$root/.venv/bin/python" -m pip install "cuda-toolkit[cccl,crt]==$toolkit" ||
        echo "colossal.sh: continuing without the CUDA headers; colossal info shows what is missing" >&2
      continue
    fi
    [ "$part" = libraries ] || [ -n "$toolkit" ] ||
      die "torch $version in .venv names no version of the CUDA packages;" \
        "remove .venv to get torch $torch_version, or set LIBTORCH_ROOT"
    case $part in
      cpu) pip_install "installing two libraries that this LibTorch loads on CPUs, too, and what torchrun imports" \
        "cuda-toolkit[cudart,cupti]==$toolkit" typing_extensions ;;
      libraries) pip_install "installing the GPU libraries of LibTorch" "torch==$version" ;;
      headers) pip_install "installing the headers of CUDA $toolkit" "cuda-toolkit[cccl,crt]==$toolkit" ;;
    esac
  done
}

# As many compilers as there are cores and 3 GB of memory for each: units of joined tests need that.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 3000000) }' /proc/meminfo 2>/dev/null || echo 1)
  local limit
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [ "$limit" != max ] && [ $((limit / 3000000000)) -lt "$memory" ]; then memory=$((limit / 3000000000)); fi
  if [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  if [ "$cores" -lt 1 ]; then cores=1; fi
  echo "$cores"
}

gigabytes() { awk -v mb="$1" 'BEGIN { printf "%.1f GB", mb / 1000 }'; }

# Finds all that is missing and all that cannot work before anything is downloaded, says what will be done, and installs
# the packages.
prepare() {  # ON or OFF: with the tests; ON or OFF: with the Python module
  local problems=() packages=() needed=0 lines=() text entry
  [ "$(uname -sm)" = "Linux x86_64" ] || problems+=("the system must be Linux on x86_64: got $(uname -sm)")
  case ${COLOSSAL_TORCH:-auto} in
    auto | cpu | cuda) ;;
    *) problems+=("COLOSSAL_TORCH must be auto, cpu or cuda: got $COLOSSAL_TORCH") ;;
  esac
  entry=("${tool_packages[@]}" "${build_packages[@]}")
  if [ "$1" = ON ]; then entry+=("${test_packages[@]}"); fi
  if [ "$2" = ON ]; then entry+=("${python_packages[@]}"); fi
  mapfile -t packages < <(missing_of "${entry[@]}")
  mapfile -t -O "${#problems[@]}" problems < <(too_old)

  if [ -n "${LIBTORCH_ROOT:-}" ] && [ $is_found = no ]; then
    [ -d "$LIBTORCH_ROOT/include" ] ||
      problems+=("LIBTORCH_ROOT must be a folder with include/ and lib/: got $LIBTORCH_ROOT")
  elif [ $is_found = no ]; then
    is_found=yes
    look_for_torch
  fi
  if [ -z "${LIBTORCH_ROOT:-}" ]; then
    if ! command -v python3 >/dev/null; then
      packages+=(python3 python3-venv)
    elif ! has_venv && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
      packages+=(python3-venv)
    fi
  fi
  if [ ${#packages[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
      problems+=("packages are missing, and there is no apt-get to install them (names of Debian): ${packages[*]}")
    elif ! is_root_possible; then
      problems+=("packages are missing; run this as root, then start again: apt-get install -y ${packages[*]}")
    else
      lines+=("install ${#packages[@]} Debian packages: ${packages[*]}")
    fi
  fi
  local cpu cuda
  cpu="at most $(gigabytes $cpu_download), $(gigabytes $cpu_venv)"
  cuda="$(gigabytes $cuda_download), $(gigabytes $cuda_venv)"
  if [ -z "${LIBTORCH_ROOT:-}" ]; then
    if [ "$(wanted_torch)" = cuda ]; then
      needed=$((needed + cuda_download + cuda_venv))
      text="download LibTorch $torch_version with GPU support: $cuda in .venv"
      lines+=("$text   (COLOSSAL_TORCH=cpu, for the CPU: $cpu)")
    else
      needed=$((needed + cpu_download + cpu_venv))
      text="download LibTorch $torch_version for the CPU: $cpu in .venv   ("
      has_nvidia_driver || text+="no NVIDIA driver here; "
      lines+=("${text}COLOSSAL_TORCH=cuda, with GPU support: $cuda)")
    fi
  fi
  if [ "${COLOSSAL_TORCH:-auto}" = cuda ] && [ -d "${LIBTORCH_ROOT:-}/include" ] &&
    [ ! -e "$LIBTORCH_ROOT/lib/libtorch_cuda.so" ]; then
    text="COLOSSAL_TORCH=cuda needs a CUDA build of torch: $LIBTORCH_ROOT is a CPU build;"
    problems+=("$text remove $root/.venv, or set LIBTORCH_ROOT to another one")
  fi
  if [ -n "${LIBTORCH_ROOT:-}" ] && [ ${#problems[@]} -eq 0 ] &&
    [[ " $(missing_parts | tr '\n' ' ')" == *" libraries "* ]]; then
    needed=$((needed + cuda_download + cuda_venv - cpu_venv))
    text=$(gigabytes $((cuda_download - cpu_download)))
    lines+=("download the GPU libraries of LibTorch: $text, $(gigabytes $cuda_venv) in .venv")
  fi
  local what=colossal minutes=$program_minutes size=$program_size
  if [ "$1" = ON ]; then what=everything minutes=$all_minutes size=$all_size; fi
  if [ ! -x "$build/colossal" ] || { [ "$1" = ON ] && ! has_tests; }; then
    needed=$((needed + size))
    minutes=$(((minutes + $(jobs) - 1) / $(jobs)))
    lines+=("build $what: about $minutes minutes on $(jobs) core(s), $(gigabytes $size) in build/")
  fi
  local free
  free=$(df -Pk "$root" | awk 'NR == 2 { print int($4 / 1000) }')
  if [ "$free" -lt "$needed" ]; then
    text="$(gigabytes "$needed") must be free on the file system of $root: got $(gigabytes "$free")"
    problems+=("$text; free some space")
  fi
  if [ ${#problems[@]} -gt 0 ]; then
    if [ ${#problems[@]} -eq 1 ]; then die "${problems[0]}"; fi
    printf 'colossal.sh: %s problems must be fixed first:\n' "${#problems[@]}" >&2
    printf '  %s\n' "${problems[@]}" >&2
    exit 1
  fi
  if [ ${#lines[@]} -gt 0 ]; then
    if [ -x "$build/colossal" ]; then echo "colossal.sh will" >&2; else echo "colossal.sh: first start. It will" >&2; fi
    printf '  %s\n' "${lines[@]}" >&2
  fi
  if [ ${#packages[@]} -gt 0 ]; then
    install_debian "${packages[@]}"
    mapfile -t problems < <(too_old)
    if [ ${#problems[@]} -gt 0 ]; then die "${problems[@]}"; fi
  fi
}

# The stamp holds the folder of LibTorch that the build was configured for, and the value of COLOSSAL_TORCH: a start
# that finds them looks for nothing else. A checkout that was copied names the original's paths in its build folder, and
# is configured anew.
stamp=$build/.configured
is_of_this_checkout() {
  grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt" 2>/dev/null
}
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" 2>/dev/null; }  # name of a variable of CMake
has_tests() { [ "$(cached COLOSSAL_TESTS)" = ON ]; }
has_module() { [ "$(cached COLOSSAL_PYTHON)" = ON ]; }
has_suffix() { [ "$(cached COLOSSAL_VERSION_SUFFIX)" = "${COLOSSAL_VERSION_SUFFIX:-}" ]; }
has_ccache() {
  local before
  before=$(cached COLOSSAL_CCACHE)
  [ "${before:-ON}" = "$ccache" ]
}
is_configured() {
  [ -f "$stamp" ] && [ -f "$build/build.ninja" ] && is_of_this_checkout || return 1
  local known='' choice=''
  { read -r known && read -r choice; } <"$stamp" || true
  [ -d "$known/include" ] || return 1
  # What the environment does not say stays as it was; another COLOSSAL_TORCH looks for a torch anew.
  COLOSSAL_TORCH=${COLOSSAL_TORCH:-$choice}
  [ "$COLOSSAL_TORCH" = "$choice" ] || return 1
  if [ -z "${LIBTORCH_ROOT:-}" ]; then LIBTORCH_ROOT=$known is_found=yes; fi
  [ "$LIBTORCH_ROOT" = "$known" ]
}

# Whether the torch is that of a Python with headers. Then the Python module is built with the tests.
can_build_module() {
  local python=python3 found
  if [[ $LIBTORCH_ROOT == "$root"/.venv/* ]]; then python=$root/.venv/bin/python; fi
  [ -e "$LIBTORCH_ROOT/lib/libtorch_python.so" ] && PYTHON=$python is_there @header && found=$(torch_of "$python") &&
    [ "${found#* }" -ef "$LIBTORCH_ROOT" ]
}

# AUTO: an earlier configuration may have left the module out, such as before python3-dev was installed.
has_wanted_module() {  # ON, OFF or AUTO
  [ "$1" = OFF ] || has_module || { [ "$1" = AUTO ] && ! can_build_module; }
}

# The program alone needs none of the packages of tests, benchmarks and the Python module.
configure() {  # ON or OFF: with the tests and benchmarks; ON, OFF or AUTO (if it can be built): with the Python module
  is_configured && { [ "$1" = OFF ] || has_tests; } && has_wanted_module "$2" && has_suffix && has_ccache && return
  local tests=$1 module=$2 fresh=() cuda=AUTO extra=("${extra_packages[@]}")
  mkdir -p "$root/build"
  if has_tests; then tests=ON; fi
  if has_module; then module=ON; fi
  prepare "$tests" "$module"
  if [ "$tests" = ON ]; then extra+=("${extra_test_packages[@]}"); fi
  want_packages "${extra[@]}"
  install_torch
  if [ "$module" = AUTO ]; then module=$(can_build_module && echo ON || echo OFF); fi
  export LIBTORCH_ROOT
  if [ -f "$build/CMakeCache.txt" ] && ! is_of_this_checkout; then fresh=(--fresh); fi
  rm -f "$stamp"  # a configuration that fails is tried again
  case ${COLOSSAL_TORCH:-auto} in cuda) cuda=ON ;; cpu) cuda=OFF ;; esac
  cd "$root"
  step "configuring" cmake --preset release "${fresh[@]}" -DLIBTORCH_ROOT="$LIBTORCH_ROOT" -DCOLOSSAL_CUDA=$cuda \
    -DCOLOSSAL_TESTS="$tests" -DCOLOSSAL_BENCHMARKS="$tests" -DCOLOSSAL_PYTHON="$module" \
    -DCOLOSSAL_CCACHE=$ccache -DCOLOSSAL_VERSION_SUFFIX="${COLOSSAL_VERSION_SUFFIX:-}"
  printf '%s\n%s\n' "$LIBTORCH_ROOT" "${COLOSSAL_TORCH:-auto}" >"$stamp"
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

# The Python packages against which the interop tests compare. Without them those tests are skipped and say why.
install_interop() {
  local wanted=$root/tests/interop/requirements.txt seen=$root/.venv/.interop-requirements said=$root/build/interop.log
  [ -f "$wanted" ] || return 0
  cat "$wanted" "$root/docs/requirements.txt" | cmp -s - "$seen" && return
  need_venv
  local began=$SECONDS torch found version packages=(-r "$wanted")
  # Python imports a CPU build of torch once its dependencies are there. Those of a CUDA build are gigabytes, and are
  # left to the user.
  torch=$(head -n 1 "$stamp")
  if [[ $torch == "$root"/.venv/* ]] && [ ! -e "$torch/lib/libtorch_cuda.so" ] &&
    found=$(torch_of "$root/.venv/bin/python"); then
    version=${found%% *}
    packages+=("torch==${version%%+*}")
  fi
  if "$root/.venv/bin/python" -m pip install "${packages[@]}" >"$said" 2>&1; then
    cat "$wanted" "$root/docs/requirements.txt" >"$seen"
    echo "installed the Python packages of the interop tests in $((SECONDS - began)) s" >&2
  else
    echo "the Python packages of the interop tests could not be installed (see $said);" \
      "the tests that need them will be skipped" >&2
  fi
}

# Writes the site. Needs no build: the references of commands and keys are files, those of Python and C++ come from the
# sources.
make_docs() {
  local made=$root/build/docs env=$root/build/docs/env wanted=$root/docs/requirements.txt missing
  mapfile -t missing < <(missing_of "${docs_packages[@]}")
  if [ ${#missing[@]} -gt 0 ]; then
    die "the documentation site needs packages that are missing; run this as root: apt-get install -y ${missing[*]}"
  fi
  mkdir -p "$made"
  cd "$root"
  if ! cmp -s "$wanted" "$env/.requirements"; then
    [ -x "$env/bin/python" ] || step "making an environment for Sphinx" python3 -m venv "$env"
    step "installing Sphinx" "$env/bin/python" -m pip install -r "$wanted"
    cp "$wanted" "$env/.requirements"
  fi
  {
    cat docs/site/Doxyfile
    sed -n 's/^\([a-z_]*\) *: *\(.*\)/\1 \2/p' src/colossal/PUBLIC | while read -r layer headers; do
      printf "INPUT += src/colossal/$layer/%s.h\n" $headers
    done
  } >"$made/Doxyfile"
  step "reading the public headers" doxygen "$made/Doxyfile"
  step "writing the site" "$env/bin/python" -m sphinx -W --keep-going -q -b html -c docs/site -d "$made/doctrees" . \
    build/site
  echo "$root/build/site/index.html"
}

# Installs what is missing of the packages that every build needs, with those of `pip install .`.
packages() {
  local missing problems
  mapfile -t missing < <(missing_of "${tool_packages[@]}" "${build_packages[@]}" "${extra_packages[@]}" \
    "${python_packages[@]}")
  if [ ${#missing[@]} -eq 0 ]; then
    echo "colossal.sh: no package is missing" >&2
  elif ! command -v apt-get >/dev/null; then
    die "packages are missing, and there is no apt-get to install them (names of Debian): ${missing[*]}"
  elif ! is_root_possible; then
    die "packages are missing; run this as root: apt-get install -y ${missing[*]}"
  else
    install_debian "${missing[@]}"
  fi
  mapfile -t problems < <(too_old)
  if [ ${#problems[@]} -gt 0 ]; then die "${problems[@]}"; fi
}

# Builds and runs those tests that the target has; the others have no label where they are not built.
sanitize() {  # preset, target, what
  build=$root/build/$1
  cd "$root"
  local fresh=()
  if [ -f "$build/CMakeCache.txt" ] && ! is_of_this_checkout; then fresh=(--fresh); fi
  step "configuring $1" cmake --preset "$1" "${fresh[@]}" -DLIBTORCH_ROOT="$LIBTORCH_ROOT" -DCOLOSSAL_CCACHE=$ccache
  build_target "$2" "$3"
  cd "$build"
  ctest --output-on-failure --parallel "$(jobs)" -L 'pure|unit'
}

# What continuous integration leaves out, one part after the other: a part that fails does not end the others.
test_long() {
  local failed=()
  part() {  # name, command...
    local name=$1 began=$SECONDS
    shift
    echo "== $name" >&2
    "$@" || failed+=("$name")
    echo "== $name took $((SECONDS - began)) s" >&2
  }
  part "sanitizers" "$root/colossal.sh" sanitize
  part "mutated input" \
    env COLOSSAL_MUTATED_FILES=20000 COLOSSAL_MUTATED_REQUESTS=100000 COLOSSAL_TOKENIZER_TEXTS=20000 \
    "$root/colossal.sh" test --timeout 7200 -R 'Mutated|GgufFile|GgufVocabulary|tokenizers_interop'
  part "bare root" env COLOSSAL_BARE_ROOT=1 "$root/colossal.sh" test -L bare
  if [ ${#failed[@]} -gt 0 ]; then
    printf 'colossal.sh: failed: %s\n' "${failed[@]}" >&2
    exit 1
  fi
}

case "${1:-}" in
  build)
    configure ON AUTO
    build_target all "everything"
    ;;
  test)
    shift
    configure ON AUTO
    install_interop &  # half of its minutes are waiting, which the compiler fills
    build_target all "everything"
    wait
    cd "$build"
    exec ctest --output-on-failure --parallel "$(jobs)" "$@"
    ;;
  wheel)
    source "$root/packaging/release.sh"
    configure OFF ON
    build_target colossal_python "the Python package"
    make_wheel
    ;;
  release)
    source "$root/packaging/release.sh"
    release "${2:-}"
    ;;
  docs)
    make_docs
    ;;
  packages)
    case "${2:-}" in
      "") packages ;;
      --missing) missing_of "${tool_packages[@]}" "${build_packages[@]}" "${python_packages[@]}" ;;
      *) die "packages takes no argument or --missing: got $2" ;;
    esac
    ;;
  jobs)  # for python/build_backend.py
    jobs
    ;;
  sanitize)
    configure ON AUTO
    read -r LIBTORCH_ROOT <"$stamp"
    export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=suppressions=$root/tests/thread_sanitizer.supp
    part=
    # Two tests send as many requests with faults, one of them to a server over a model.
    if [ "${2:-}" = --quick ]; then part=_quick; else export COLOSSAL_MUTATED_REQUESTS=50000; fi
    sanitize asan "sanitized_tests$part" "the tests of raw memory and untrusted input under AddressSanitizer and UBSan"
    unset COLOSSAL_MUTATED_REQUESTS
    sanitize tsan "thread_sanitized_tests$part" "the tests of threads under ThreadSanitizer"
    ;;
  test-long)
    test_long
    ;;
  *)
    configure OFF OFF
    build_target colossal_app "colossal"
    cd "$caller"
    exec "$build/colossal" "$@"
    ;;
esac
