#include "colossal/base/version.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace colossal::version_test {
namespace {

TEST(Version, HasACommitOrAnEmptyRevision) {
  EXPECT_TRUE(std::regex_match(revision(), std::regex("([0-9a-f]{12,40}(-dirty)?)?"))) << revision();
}

}  // namespace
}  // namespace colossal::version_test
