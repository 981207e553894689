#include "colossal/optim/parameter_groups.h"

#include <gtest/gtest.h>

#include "support/thrown_message.h"

namespace colossal::optim::parameter_groups_test {
namespace {

nn::Parameters model() {
  nn::Parameters parameters({}, {});
  for (const char* name : {"embedding.weight", "blocks.0.qkv.weight", "blocks.10.qkv.weight"})
    parameters.add(name, tensor::ShardSpec::whole({2, 2}), nn::Init::zeros(), true);
  parameters.add("blocks.0.norm.weight", tensor::ShardSpec::whole({2}), nn::Init::ones(), false);
  return parameters;
}

TEST(ParameterGroups, SetFactorsByTheFirstMatch) {
  nn::Parameters p = model();
  const ParameterGroups groups{{"blocks.?.*", "blocks.*", "embedding.weight"}, {0.5, 2, 0}, {1, 0.5, 0}};
  groups.apply(p);
  EXPECT_EQ(p.at("blocks.0.qkv.weight").rate, 0.5);
  EXPECT_EQ(p.at("blocks.10.qkv.weight").rate, 2);
  EXPECT_EQ(p.at("embedding.weight").rate, 0);
  EXPECT_EQ(p.at("blocks.0.norm.weight").decay, 1);
  EXPECT_EQ(p.at("blocks.10.qkv.weight").decay, 0.5);
  EXPECT_EQ(p.at("embedding.weight").decay, 0);
}

TEST(ParameterGroups, IgnoreUnmatchedParameters) {
  nn::Parameters p = model();
  ParameterGroups{{"embedding.*"}, {}, {}}.apply(p);
  ParameterGroups{}.apply(p);
  EXPECT_EQ(p.at("embedding.weight").rate, 1);
  EXPECT_EQ(p.at("embedding.weight").decay, 1);
  EXPECT_EQ(p.at("blocks.0.norm.weight").rate, 1);
  EXPECT_EQ(p.at("blocks.0.norm.weight").decay, 0);
}

TEST(ParameterGroups, RefuseMismatchedListsAndUnmatchedPatterns) {
  nn::Parameters p = model();
  EXPECT_EQ(
      test::thrown_message([&] { ParameterGroups{{"blocks.*"}, {1, 2}, {}}.apply(p); }),
      "[optimizer] groups.learning_rate must have one number per pattern of groups.parameters: got 2 for 1 patterns");
  EXPECT_EQ(test::thrown_message([&] { ParameterGroups{{"blocks.*", "block.0.*"}, {}, {1, 1}}.apply(p); }),
            "[optimizer] no parameter belongs to group block.0.* of groups.parameters (a parameter belongs to the "
            "first group that matches); there are "
            "embedding.weight, blocks.*.qkv.weight, blocks.*.norm.weight");
  EXPECT_EQ(p.at("blocks.0.qkv.weight").decay, 1);
}

TEST(ParameterGroups, RefuseAGroupOfFrozenParametersOnly) {
  nn::Parameters p(
      {}, {.treatment = [](const std::string& name) { return nn::Treatment{.trains = name != "embedding.weight"}; }});
  for (const char* name : {"embedding.weight", "blocks.0.qkv.weight"})
    p.add(name, tensor::ShardSpec::whole({2, 2}), nn::Init::zeros(), true);
  EXPECT_EQ(test::thrown_message([&] { ParameterGroups{{"blocks.*", "embed*"}, {1, 1}, {}}.apply(p); }),
            "[optimizer] only frozen parameters belong to group embed* of groups.parameters (a parameter belongs to "
            "the first group that matches); remove the group, or train one of them; trained are blocks.*.qkv.weight");
  ParameterGroups{{"*"}, {0.5}, {}}.apply(p);  // a group may match frozen parameters as well
  EXPECT_EQ(p.at("blocks.0.qkv.weight").rate, 0.5);
}

}  // namespace
}  // namespace colossal::optim::parameter_groups_test
