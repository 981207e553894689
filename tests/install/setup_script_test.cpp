// colossal.sh with stub programs, which record their arguments and create a fake torch: the script's installations,
// messages and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/paths.h"
#include "support/process.h"

namespace colossal::test::setup_script_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;
using Variables = std::map<std::string, std::string>;

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// A checkout that holds only the scripts, and a PATH of stubs only. The stubs write a line for each call into `calls`.
class SetupScript : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "setup-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(base);
    checkout = base + "/checkout";
    fs::create_directories(checkout);
    fs::create_directories(checkout + "/packaging");
    for (const char* script : {"/colossal.sh", "/packaging/release.sh"})
      fs::copy_file(source_dir() + script, checkout + script);
    for (const char* name :
         {"bash", "env", "dirname", "readlink", "sed", "awk", "grep", "tee", "sort",  "head",  "tail",  "tr",
          "wc",   "cat", "mkdir",   "rm",       "cp",  "mv",  "cmp",  "ls",  "nproc", "uname", "chmod", "touch"}) {
      const std::string program = find_program(name);
      ASSERT_NE(program, "") << name;
      fs::create_directories(base + "/stubs");
      fs::create_symlink(program, base + "/stubs/" + name);
    }
    const Finished python = run_process({.command = {"python3", "-c", "import sys; print(sys.executable, end='')"}});
    ASSERT_EQ(python.status, 0) << python.output;
    stub("python3", R"(case "$1 $2" in
  "- ") [ -n "$FAKE_SYSTEM_TORCH" ] && echo "$FAKE_SYSTEM_TORCH" ;;
  "-c "*Python.h*) [ -z "$FAKE_NO_PYTHON_H" ] || [ -e "$BASE/installed" ] ;;
  "-c "*) [ -z "$FAKE_NO_VENV" ] ;;
  "-m venv") echo "venv" >>"$CALLS"; )" +
                        python.output + R"( -m venv --without-pip "$3"
    mkdir -p "$3"/lib/fake && for packages in "$3"/lib/python*/site-packages; do
      mkdir -p "$packages/pip" && touch "$packages/pip/__init__.py"
      cp "$STUBS/fake_pip.py" "$packages/pip/__main__.py"
    done ;;
esac)");
    write(base + "/stubs/fake_pip.py", R"(import os, pathlib, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    sys.exit(0)
with open(os.environ["CALLS"], "a") as calls:
    print("pip", *arguments, "in", os.environ.get("TMPDIR"), file=calls)
if os.environ.get("FAKE_PIP_FAILS"):
    sys.exit("ERROR: No matching distribution found for torch")
packages = pathlib.Path(__file__).parent.parent
def put(path, text=""):
    path = packages / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
for word in arguments:
    if word.startswith("torch=="):
        put("torch/include/torch.h"), put("torch/__init__.py"), put("torch/lib/libtorch_cpu.so")
        put("torch/lib/libtorch_python.so")
        metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n"
        if os.environ.get("FAKE_WHEEL") == "cuda":
            put("torch/lib/libtorch_cuda.so")
            metadata += "Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.3; platform_system == \"Linux\"\n"
            if "--no-deps" not in arguments:
                put("nvidia/cudnn/lib/libcudnn.so.9"), put("nvidia/nccl/lib/libnccl.so.2")
                put("nvidia/cu13/lib/libcublas.so.13"), put("nvidia/cu13/lib/libcudart.so.13")
        put("torch-2.13.0.dist-info/METADATA", metadata)
    if word.startswith("cuda-toolkit[cudart,cupti]"):
        put("nvidia/cu13/lib/libcudart.so.13"), put("nvidia/cu13/lib/libcupti.so.13")
    if word.startswith("cuda-toolkit[cccl,crt]"):
        put("nvidia/cu13/include/crt/host_config.h"), put("nvidia/cu13/include/nv/target")
)");
    stub("c++", R"(case "$*" in
  --version) echo "c++ (Debian) $FAKE_GXX" ;;
  -dump*) echo "$FAKE_GXX" ;;
  *"-E -P"*) cat >/dev/null; echo "version $FAKE_LIBRARY" ;;
  *) cat >/dev/null; [ -z "$FAKE_NO_HEADERS" ] || [ -e "$BASE/installed" ] ;;
esac)");
    stub("cmake", R"(if [ "$1" = --version ]; then echo "cmake version $FAKE_CMAKE"; exit; fi
echo "cmake $*" >>"$CALLS"
mkdir -p build/release
printf 'CMAKE_HOME_DIRECTORY:INTERNAL=%s\n' "$PWD" >build/release/CMakeCache.txt
for name in TESTS PYTHON; do
  case "$*" in *-DCOLOSSAL_$name=ON*) echo COLOSSAL_$name:BOOL=ON >>build/release/CMakeCache.txt ;; esac
done
echo COLOSSAL_PYTHON_EXECUTABLE:INTERNAL=python3 >>build/release/CMakeCache.txt
touch build/release/build.ninja)");
    stub("ninja", R"(echo "ninja $*" >>"$CALLS"
printf '#!/bin/sh\necho "colossal ran: $*"\n' >"$2/colossal"
chmod +x "$2/colossal")");
    stub("apt-get", R"(echo "apt-get $* proxy=$http_proxy" >>"$CALLS"
case "$1" in
  update) rm -f "$BASE/stale" ;;
  install)
    [ ! -e "$BASE/stale" ] || { echo "E: Failed to fetch x.deb  404  Not Found"; exit 100; }
    touch "$BASE/installed" ;;
esac)");
    stub("sudo", R"([ -n "$FAKE_SUDO" ] || exit 1
shift; [ "$1" = true ] || exec "$STUBS/env" -u http_proxy "$@")");
    stub("id", R"(echo "${FAKE_UID:-0}")");
    stub("df",
         R"(echo "Filesystem 1024-blocks Used Available Capacity Mounted on"
echo "/dev/x 1 1 ${FAKE_FREE:-99000000} 1% /")");
  }
  void TearDown() override { fs::remove_all(base); }

  void stub(const std::string& name, const std::string& body) const {
    write(base + "/stubs/" + name, "#!/bin/sh\n" + body + "\n");
    fs::permissions(base + "/stubs/" + name, fs::perms::owner_all);
  }

  /// Runs `script` (default: colossal.sh of the checkout) and returns its output.
  Finished start(Variables variables, std::string script = "", std::vector<std::string> arguments = {"info"}) const {
    Variables all{{"PATH", base + "/stubs"},
                  {"STUBS", base + "/stubs"},
                  {"BASE", base},
                  {"CALLS", base + "/calls"},
                  {"FAKE_GXX", "12.2.0"},
                  {"FAKE_CMAKE", "3.25.1"},
                  {"FAKE_LIBRARY", "3.11"},
                  {"LIBTORCH_ROOT", ""},
                  {"COLOSSAL_TORCH", "cpu"},
                  {"CXX", ""},
                  {"http_proxy", ""}};
    for (const auto& [name, value] : variables) all[name] = value;
    arguments.insert(arguments.begin(), script.empty() ? checkout + "/colossal.sh" : script);
    return run_process({.command = arguments, .variables = all});
  }
  void write_wheel_script() const {
    write(checkout + "/python/make_wheel.py", R"(import os, pathlib, sys
print("make_wheel", *sys.argv[1:], file=open(os.environ["CALLS"], "a"))
wheel = pathlib.Path(sys.argv[2], "pycolossal.whl")
wheel.parent.mkdir(), wheel.touch()
)");
  }
  std::string calls() const { return content(base + "/calls"); }

  std::string base, checkout;
};

TEST_F(SetupScript, InstallsOnlyACpuWheel) {
  const Finished first = start({});
  ASSERT_EQ(first.status, 0) << first.output;
  EXPECT_THAT(first.output,
              HasSubstr("colossal.sh: first start. It will\n  download LibTorch 2.13.0 for the CPU: at most "));
  EXPECT_LT(first.output.find("first start"), first.output.find("installing LibTorch")) << first.output;
  EXPECT_THAT(first.output, HasSubstr("colossal ran: info"));
  EXPECT_THAT(calls(), HasSubstr("pip install --no-deps torch==2.13.0 in " + checkout + "/build/pip\n"));
  EXPECT_THAT(calls(), Not(HasSubstr("cuda-toolkit")));
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_CUDA=OFF"));
  EXPECT_FALSE(fs::exists(checkout + "/build/pip")) << "pip's temporary files stay";

  fs::remove(base + "/calls");
  const Finished second = start({{"COLOSSAL_TORCH", ""}});
  EXPECT_EQ(second.output, "colossal ran: info\n");
  EXPECT_EQ(calls().find("ninja"), 0u) << "a second start looks for nothing: " << calls();
}

TEST_F(SetupScript, CompilesWithoutACacheIfAsked) {
  EXPECT_EQ(start({}).status, 0);
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_CCACHE=ON"));
  EXPECT_EQ(start({{"COLOSSAL_CCACHE", "off"}}).status, 0);
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_CCACHE=OFF")) << "a built folder is configured again";
}

TEST_F(SetupScript, AddsTwoLibrariesToACudaWheelForTheCpu) {
  const Finished done = start({{"FAKE_WHEEL", "cuda"}});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(calls(), HasSubstr("pip install --no-deps torch==2.13.0"));
  EXPECT_THAT(calls(), HasSubstr("pip install cuda-toolkit[cudart,cupti]==13.0.3"));
}

TEST_F(SetupScript, ResumesAnInterruptedInstallation) {
  ASSERT_EQ(start({{"FAKE_WHEEL", "cuda"}}).status, 0);
  fs::remove_all(checkout + "/build");
  for (const auto& entry : fs::recursive_directory_iterator(checkout + "/.venv"))
    if (entry.path().filename() == "nvidia") {
      fs::remove_all(entry.path());
      break;
    }
  fs::remove(base + "/calls");
  ASSERT_EQ(start({{"FAKE_WHEEL", "cuda"}}).status, 0);
  EXPECT_THAT(calls(), Not(HasSubstr("torch==")));
  EXPECT_THAT(calls(), HasSubstr("pip install cuda-toolkit[cudart,cupti]==13.0.3"));
}

TEST_F(SetupScript, InstallsPackagesForGpus) {
  const Finished done = start({{"FAKE_WHEEL", "cuda"}, {"COLOSSAL_TORCH", "cuda"}});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("with GPU support"));
  EXPECT_THAT(calls(), HasSubstr("pip install torch==2.13.0 in"));
  EXPECT_THAT(calls(), HasSubstr("pip install cuda-toolkit[cccl,crt]==13.0.3"));
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_CUDA=ON"));
}

TEST_F(SetupScript, CompletesATorchForGpus) {
  ASSERT_EQ(start({{"FAKE_WHEEL", "cuda"}}).status, 0);
  fs::remove(base + "/calls");
  const Finished done = start({{"FAKE_WHEEL", "cuda"}, {"COLOSSAL_TORCH", "cuda"}});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("download the GPU libraries of LibTorch"));
  EXPECT_THAT(calls(), HasSubstr("pip install torch==2.13.0 in"));
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_CUDA=ON"));
}

TEST_F(SetupScript, KeepsACpuBuildIfGpusAreRequested) {
  ASSERT_EQ(start({}).status, 0);
  const Finished refused = start({{"COLOSSAL_TORCH", "cuda"}});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, HasSubstr("COLOSSAL_TORCH=cuda needs a CUDA build of torch: "));
  EXPECT_EQ(start({{"COLOSSAL_TORCH", ""}}).output, "colossal ran: info\n");
}

TEST_F(SetupScript, AnnouncesTheBuildOfTheTests) {
  ASSERT_EQ(start({}).status, 0);
  const Finished refused = start({{"COLOSSAL_TORCH", ""}, {"FAKE_FREE", "500000"}}, "", {"build"});
  EXPECT_EQ(refused.status, 1) << refused.output;
  const Finished done = start({{"COLOSSAL_TORCH", ""}}, "", {"build"});
  EXPECT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("colossal.sh will\n  build everything: about "));
}

TEST_F(SetupScript, RefusesAnUnknownTorch) {
  const Finished done = start({{"COLOSSAL_TORCH", "rocm"}});
  EXPECT_EQ(done.status, 1);
  EXPECT_THAT(done.output, HasSubstr("COLOSSAL_TORCH must be auto, cpu or cuda: got rocm"));
  EXPECT_EQ(calls(), "");
}

TEST_F(SetupScript, ChoosesTheTorchOfThisMachine) {
  const bool has_driver = fs::exists("/proc/driver/nvidia/version") || fs::exists("/dev/nvidiactl");
  const Finished done = start({{"COLOSSAL_TORCH", "auto"}, {"FAKE_WHEEL", "cuda"}});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_EQ(calls().find("--no-deps") == std::string::npos, has_driver) << calls();
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_CUDA=AUTO"));
}

TEST_F(SetupScript, KeepsATorchOfTheUser) {
  fs::create_directories(base + "/libtorch/include");
  ASSERT_EQ(start({{"LIBTORCH_ROOT", base + "/libtorch"}}).status, 0);
  EXPECT_THAT(calls(), Not(HasSubstr("pip")));
  EXPECT_THAT(calls(), HasSubstr("-DLIBTORCH_ROOT=" + base + "/libtorch"));
  const Finished wrong = start({{"LIBTORCH_ROOT", base}});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.output, HasSubstr("LIBTORCH_ROOT must be a folder with include/ and lib/: got " + base));
}

TEST_F(SetupScript, SkipsATorchThatIsTooNew) {
  fs::create_directories(base + "/torch/include");
  ASSERT_EQ(start({{"FAKE_SYSTEM_TORCH", "2.15.1+cpu " + base + "/torch"}}).status, 0);
  EXPECT_THAT(calls(), Not(HasSubstr("pip"))) << "2.15 is supported";
  fs::remove_all(checkout + "/build");
  const Finished done = start({{"FAKE_SYSTEM_TORCH", "2.16.0 " + base + "/torch"}});
  EXPECT_THAT(done.output, HasSubstr("torch 2.16.0 of python3 is not used: LibTorch 2.11 to 2.15 is supported"));
  EXPECT_THAT(calls(), HasSubstr("pip install --no-deps torch==2.13.0"));
}

TEST_F(SetupScript, NamesAllPackagesWithoutRoot) {
  fs::remove(base + "/stubs/cmake");
  const Finished done =
      start({{"FAKE_UID", "1000"}, {"CXX", "no-such-compiler"}, {"FAKE_NO_VENV", "1"}, {"FAKE_NO_HEADERS", "1"}});
  EXPECT_EQ(done.status, 1);
  EXPECT_THAT(done.output, HasSubstr("apt-get install -y g++ cmake libcli11-dev"));
  EXPECT_THAT(done.output, HasSubstr(" libboost-dev python3-venv\n"));
  EXPECT_EQ(calls(), "") << "something was downloaded";
}

TEST_F(SetupScript, InstallsThePackagesOfABuild) {
  const Finished done = start({{"FAKE_NO_HEADERS", "1"}, {"FAKE_NO_PYTHON_H", "1"}}, "", {"packages"});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(calls(),
              testing::ContainsRegex("^apt-get install [^\n]* libboost-dev liburing-dev libwebp-dev libarchive-dev "
                                     "libzip-dev gemmi-dev tao-pegtl-dev libavformat-dev libavcodec-dev libswscale-dev "
                                     "python3-dev proxy=\n$"));
  EXPECT_THAT(start({}, "", {"packages"}).output, HasSubstr("no package is missing"));

  const Finished refused = start({{"FAKE_UID", "1000"}, {"FAKE_NO_VENV", "1"}}, "", {"packages"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, HasSubstr("run this as root: apt-get install -y python3-venv\n"));
}

TEST_F(SetupScript, PrintsMissingPackages) {
  EXPECT_EQ(start({}, "", {"packages", "--missing"}).output, "");
  const Finished done = start({{"CXX", "no-such-compiler"}, {"FAKE_NO_PYTHON_H", "1"}}, "", {"packages", "--missing"});
  EXPECT_THAT(done.output, testing::StartsWith("g++\nlibcli11-dev\n"));
  EXPECT_THAT(done.output, testing::EndsWith("\npython3-dev\n"));
  EXPECT_EQ(calls(), "") << "something was installed";
  EXPECT_THAT(start({}, "", {"packages", "--all"}).output, HasSubstr("takes no argument or --missing: got --all"));
}

TEST_F(SetupScript, PacksAWheelOfTheBuild) {
  write_wheel_script();
  const Finished done = start({{"FAKE_NO_PYTHON_H", "1"}}, "", {"wheel"});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(done.output, testing::EndsWith("\n" + checkout + "/build/dist/pycolossal.whl\n"));
  EXPECT_THAT(calls(), testing::ContainsRegex("apt-get install [^\n]* python3-dev proxy="));
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_TESTS=OFF -DCOLOSSAL_BENCHMARKS=OFF -DCOLOSSAL_PYTHON=ON"));
  EXPECT_THAT(calls(), testing::ContainsRegex("ninja -C [^\n]* colossal_python\n"));
  EXPECT_THAT(calls(), HasSubstr("pip install scikit-build-core==1.1.2 auditwheel=="));
  EXPECT_THAT(calls(), HasSubstr("make_wheel " + checkout + "/build/release " + checkout + "/build/dist\n"));
}

TEST_F(SetupScript, BuildsThePythonModuleWithTheTests) {
  const char* code = "import os, sysconfig; exit(not os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'))";
  const bool has_headers = run_process({.command = {"python3", "-c", code}}).status == 0;
  ASSERT_EQ(start({}, "", {"build"}).status, 0);
  EXPECT_THAT(calls(), HasSubstr(std::string("-DCOLOSSAL_TESTS=ON -DCOLOSSAL_BENCHMARKS=ON -DCOLOSSAL_PYTHON=") +
                                 (has_headers ? "ON" : "OFF")));

  fs::remove_all(checkout + "/build");
  fs::remove(base + "/calls");
  fs::create_directories(base + "/libtorch/include");  // a LibTorch without Python
  ASSERT_EQ(start({{"LIBTORCH_ROOT", base + "/libtorch"}}, "", {"build"}).status, 0);
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_TESTS=ON -DCOLOSSAL_BENCHMARKS=ON -DCOLOSSAL_PYTHON=OFF"));
}

TEST_F(SetupScript, MakesTheFilesOfARelease) {
  for (const char* name : {"date", "sha256sum"}) fs::create_symlink(find_program(name), base + "/stubs/" + name);
  stub("git", R"(case "$*" in
  *status*) echo "$FAKE_CHANGES" ;;
  *) echo "git $*" >>"$CALLS"; for word in "$@"; do case $word in --output=*) touch "${word#*=}" ;; esac; done ;;
esac)");
  stub("cpack", R"(echo "cpack $*" >>"$CALLS"; mkdir -p "$6"; touch "$6/colossal_0.1.0_amd64.deb")");
  write(checkout + "/CMakeLists.txt", "project(colossal VERSION 0.1.0 LANGUAGES CXX)\n");
  write(checkout + "/build/release/CPackConfig.cmake", "");
  write(checkout + "/CHANGELOG.md", "# Changelog\n\n## Unreleased\n\nNew.\n\n## 0.0.9 - 2026-01-01\nOld.\n");
  write_wheel_script();

  const Finished unnamed = start({}, "", {"release"});
  EXPECT_EQ(unnamed.status, 1);
  EXPECT_THAT(unnamed.output, HasSubstr("CHANGELOG.md must have a section `## 0.1.0`"));
  const Finished changed = start({{"FAKE_CHANGES", " M README.md"}}, "", {"release", "--nightly"});
  EXPECT_EQ(changed.status, 1);
  EXPECT_THAT(changed.output, HasSubstr("the sources of a release must be committed"));
  EXPECT_EQ(calls(), "") << "something was downloaded";

  const std::string dist = checkout + "/build/dist/";
  const Finished nightly = start({}, "", {"release", "--nightly"});
  ASSERT_EQ(nightly.status, 0) << nightly.output;
  EXPECT_THAT(calls(), testing::ContainsRegex("-DCOLOSSAL_VERSION_SUFFIX=.dev20[0-9]+\n"));
  EXPECT_THAT(content(dist + "NOTES.md"), testing::MatchesRegex("# Colossal 0.1.0.dev20[0-9]+\n\nNew.\n"));
  EXPECT_THAT(content(dist + "SHA256SUMS"), testing::ContainsRegex("  colossal-0.1.0.dev20[0-9]+.tar.gz\n"));

  write(checkout + "/CHANGELOG.md", "# Changelog\n\n## 0.1.0 - 2026-12-01\n\nFirst.\n\n## 0.0.9\nOld.\n");
  const Finished done = start({}, "", {"release"});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_EQ(content(dist + "NOTES.md"), "# Colossal 0.1.0\n\nFirst.\n");
  for (const char* file : {"colossal-0.1.0.tar.gz", "colossal_0.1.0_amd64.deb", "pycolossal.whl", "NOTES.md"})
    EXPECT_THAT(content(dist + "SHA256SUMS"), HasSubstr(std::string("  ") + file + "\n"));

  fs::remove(checkout + "/build/release/CPackConfig.cmake");
  EXPECT_THAT(start({}, "", {"release"}).output, HasSubstr("Debian packages hold a CPU build of LibTorch"));
}

TEST_F(SetupScript, ConfiguresAnotherVersionAnew) {
  ASSERT_EQ(start({}).status, 0);
  fs::remove(base + "/calls");
  ASSERT_EQ(start({{"COLOSSAL_VERSION_SUFFIX", ".dev20261127"}}).status, 0);
  EXPECT_THAT(calls(), HasSubstr("-DCOLOSSAL_VERSION_SUFFIX=.dev20261127"));
}

TEST_F(SetupScript, PassesTheProxyThroughSudo) {
  const Finished done =
      start({{"FAKE_UID", "1000"}, {"FAKE_SUDO", "1"}, {"FAKE_NO_HEADERS", "1"}, {"http_proxy", "http://proxy:3128"}});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(calls(), testing::ContainsRegex("apt-get install [^\n]* proxy=http://proxy:3128\n"));
}

TEST_F(SetupScript, RefreshesStalePackageListsOnce) {
  write(base + "/stale", "");
  const Finished done = start({{"FAKE_NO_HEADERS", "1"}});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(calls(), testing::ContainsRegex("^apt-get install [^\n]*\napt-get update [^\n]*\napt-get install "));
}

TEST_F(SetupScript, NamesAlternativesToPip) {
  const Finished done = start({{"FAKE_PIP_FAILS", "1"}});
  EXPECT_EQ(done.status, 1);
  for (const char* part : {"No matching distribution found", "LIBTORCH_ROOT=FOLDER", "a python3 that can import torch",
                           "PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER"})
    EXPECT_THAT(done.output, HasSubstr(part));
}

TEST_F(SetupScript, RefusesADiskThatIsTooSmall) {
  const Finished done = start({{"FAKE_FREE", "500000"}});
  EXPECT_EQ(done.status, 1);
  EXPECT_THAT(done.output, testing::ContainsRegex("GB must be free on the file system of [^\n]*: got 0.5 GB"));
  EXPECT_EQ(calls(), "");
}

TEST_F(SetupScript, NamesAllOutdatedToolsAtOnce) {
  stub("cmake", "exit 1");
  EXPECT_THAT(start({}).output, HasSubstr("CMake must be 3.25 or newer: got no version from "));
  stub("cmake", "echo \"cmake version $FAKE_CMAKE\"");
  const Finished done = start({{"FAKE_GXX", "11.4.0"}, {"FAKE_CMAKE", "3.22.1"}, {"FAKE_LIBRARY", "3.2"}});
  EXPECT_EQ(done.status, 1);
  for (const char* part : {"g++ must be 12 or newer: got 11.4.0", "CMake must be 3.25 or newer: got 3.22.1",
                           "nlohmann-json must be 3.11 or newer: got 3.2", "toml++ must be 3.3 or newer: got 3.2"})
    EXPECT_THAT(done.output, HasSubstr(part));
  EXPECT_EQ(calls(), "");
}

TEST_F(SetupScript, ReconfiguresACopiedCheckout) {
  ASSERT_EQ(start({}).status, 0);
  const std::string copy = base + "/copy";
  fs::copy(checkout, copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove(base + "/calls");
  ASSERT_EQ(start({}, copy + "/colossal.sh").status, 0);
  EXPECT_THAT(calls(), HasSubstr("cmake --preset release --fresh -DLIBTORCH_ROOT=" + copy + "/.venv/"));
  EXPECT_THAT(calls(), HasSubstr("ninja -C " + copy + "/build/release"));
}

TEST_F(SetupScript, FollowsASymbolicLink) {
  fs::create_directories(base + "/bin");
  fs::create_symlink(checkout + "/colossal.sh", base + "/bin/colossal");
  ASSERT_EQ(start({}, base + "/bin/colossal").status, 0);
  EXPECT_THAT(calls(), HasSubstr("ninja -C " + checkout + "/build/release"));
  EXPECT_FALSE(fs::exists(base + "/bin/build"));
}

}  // namespace
}  // namespace colossal::test::setup_script_test
