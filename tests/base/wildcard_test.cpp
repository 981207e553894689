#include "colossal/base/wildcard.h"

#include <gtest/gtest.h>

namespace colossal::wildcard_test {
namespace {

TEST(Wildcard, StandsForAnyCharacters) {
  EXPECT_TRUE(matches_wildcards("*.attn.bias", "h.0.attn.bias"));
  EXPECT_TRUE(matches_wildcards("h.*.mlp.*", "h.11.mlp.c_fc"));
  EXPECT_TRUE(matches_wildcards("*", ""));
  EXPECT_TRUE(matches_wildcards("a**b", "ab"));
  EXPECT_TRUE(matches_wildcards("*ab", "aab")) << "the star takes one character more";
  EXPECT_TRUE(matches_wildcards("", ""));
  EXPECT_FALSE(matches_wildcards("h.*.mlp", "h.1.mlp.c_fc"));
  EXPECT_FALSE(matches_wildcards("attn.bias", "h.0.attn.bias"));
  EXPECT_FALSE(matches_wildcards("a.b", "a_b")) << "a dot stands for itself";
}

}  // namespace
}  // namespace colossal::wildcard_test
