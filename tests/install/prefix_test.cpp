// What an installation holds.
#include <gtest/gtest.h>

#include <set>

#include "install/installed.h"

namespace colossal::test::prefix_test {
namespace {

namespace fs = std::filesystem;

TEST_F(Installed, ProgramsRun) {
  const Finished version = command({prefix() + "/bin/colossal", "--version"});
  EXPECT_EQ(version.output.rfind("colossal ", 0), 0u) << version.output;
  const Finished info = command({prefix() + "/bin/colossal", "info", "--no-measure"});  // of the program in libexec
  EXPECT_EQ(info.status, 0) << info.output;
}

TEST_F(Installed, HoldsPublicHeadersAlone) {
  std::set<std::string> headers;
  for (const auto& entry : fs::recursive_directory_iterator(prefix() + "/include"))
    if (entry.is_regular_file()) headers.insert(fs::relative(entry.path(), prefix() + "/include").string());
  for (const char* header : {"colossal.h", "colossal/nn/layers.h", "colossal/parallel/tensor/config.h"})
    EXPECT_TRUE(headers.count(header)) << header;
  for (const char* header : {"colossal/memory/chunk_store.h", "colossal/report/plot.h", "colossal/ops/simd.h"})
    EXPECT_FALSE(headers.count(header)) << header;
}

}  // namespace
}  // namespace colossal::test::prefix_test
