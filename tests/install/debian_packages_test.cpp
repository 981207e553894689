// The packages that `cpack -G DEB` makes: their content, and an installation in a root of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "support/paths.h"
#include "support/process.h"

namespace colossal::test::debian_packages_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

Finished command(const std::vector<std::string>& words) {
  return run_process({.command = words, .limit = std::chrono::seconds(300)});
}

/// Makes the packages in a folder that is removed after the test: unpacked they have 0.5 GB.
class DebianPackages : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder);
    const fs::path build = fs::path(program_path()).parent_path();
    if (!fs::exists(build / "CPackConfig.cmake")) GTEST_SKIP() << "no packages of a build for a CUDA build of LibTorch";
    if (find_program("dpkg-shlibdeps").empty()) GTEST_SKIP() << "no dpkg-shlibdeps here; apt-get install dpkg-dev";
    const Finished made = command({fs::path(COLOSSAL_CMAKE).parent_path() / "cpack", "-G", "DEB", "-B", folder,
                                   "--config", build / "CPackConfig.cmake"});
    ASSERT_EQ(made.status, 0) << made.output;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      if (name.rfind("colossal_", 0) == 0) program = entry.path();
      if (name.rfind("libcolossal-dev_", 0) == 0) library = entry.path();
    }
    ASSERT_THAT(program, testing::EndsWith("_amd64.deb"));
    ASSERT_THAT(library, testing::EndsWith("_amd64.deb"));
  }
  void TearDown() override { fs::remove_all(folder); }

  /// Runs dpkg on a root without the packages of the system.
  Finished dpkg(std::vector<std::string> words) const {
    words.insert(words.begin(), {"dpkg", "--root=" + root, "--force-not-root", "--force-depends",
                                 "--force-script-chrootless", "--force-bad-path"});
    return command(words);
  }
  static std::string depends_of(const std::string& package) {
    return command({"dpkg-deb", "--field", package, "Depends"}).output;
  }

  const std::string folder = testing::TempDir() + "debian-packages", root = folder + "/root";
  std::string program, library;
};

std::set<std::string> files_of(const std::string& folder) {
  std::set<std::string> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory()) files.insert(fs::relative(entry.path(), folder));
  return files;
}

TEST_F(DebianPackages, InstallRunAndLeaveNothing) {
  for (const char* name : {"libc6 (>= ", "libzstd1", "libspdlog1"}) EXPECT_THAT(depends_of(program), HasSubstr(name));
  EXPECT_THAT(depends_of(program), testing::Not(HasSubstr("torch")));
  for (const char* name : {"nlohmann-json3-dev", "libspdlog-dev", "libtomlplusplus-dev"})
    EXPECT_THAT(depends_of(library), HasSubstr(name));

  fs::create_directories(root + "/var/lib/dpkg/updates");
  fs::create_directories(root + "/var/lib/dpkg/info");
  std::ofstream(root + "/var/lib/dpkg/status");
  const Finished installed = dpkg({"--install", program, library});
  ASSERT_EQ(installed.status, 0) << installed.output;

  const Finished version = command({root + "/usr/bin/colossal", "--version"});
  EXPECT_THAT(version.output, testing::StartsWith("colossal "));
  const Finished info = command({root + "/usr/bin/colossal", "info", "--no-measure"});  // starts colossal-torch
  EXPECT_EQ(info.status, 0) << info.output;
  const Finished libraries = command({"ldd", root + "/usr/libexec/colossal/colossal-torch"});
  EXPECT_THAT(libraries.output, HasSubstr("/usr/libexec/colossal/../../lib/colossal/libtorch_cpu.so"));
  const std::set<std::string> files = files_of(root + "/usr");
  for (const char* file : {"include/colossal.h", "lib/libcolossal_base.a", "lib/cmake/Colossal/ColossalConfig.cmake",
                           "share/colossal/builtin_text.gz"})
    EXPECT_TRUE(files.count(file)) << file;

  const Finished removed = dpkg({"--purge", "colossal", "libcolossal-dev"});
  EXPECT_EQ(removed.status, 0) << removed.output;
  EXPECT_THAT(files_of(root + "/usr"), testing::IsEmpty());
}

}  // namespace
}  // namespace colossal::test::debian_packages_test
