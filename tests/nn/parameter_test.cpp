// Parameters that are declared twice, for two sets of layers over them, and parameters of several models.
#include "colossal/nn/parameter.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/nn/product.h"
#include "support/thrown_message.h"

namespace colossal::nn::parameter_test {
namespace {

tensor::ShardSpec split_by(const std::string& rows, const std::string& columns) {
  auto spec = tensor::ShardSpec::whole({4, 4});
  spec.splits[0].axes = {rows};
  spec.splits[1].axes = {columns};
  return spec;
}

TEST(Parameters, RefuseSecondLayoutThatStoresDifferently) {
  Parameters parameters(tensor::MeshCoordinates({{"row", 2, 0}, {"column", 2, 1}}), {});
  const Parameter& weight = parameters.add("weight", split_by("row", "column"), Init::ones(), true);
  const Parameters::Redeclaration again(parameters);
  EXPECT_EQ(&parameters.add("weight", split_by("row", "column"), Init::ones(), true), &weight);
  // With the axes swapped a rank has as many elements, but other ones.
  EXPECT_EQ(split_by("column", "row").local_shape(parameters.coordinates()),
            weight.spec.local_shape(parameters.coordinates()));
  EXPECT_THROW(parameters.add("weight", split_by("column", "row"), Init::ones(), true), Error);
  EXPECT_THROW(parameters.add("bias", tensor::ShardSpec::whole({4}), Init::ones(), true), Error);
}

TEST(Parameters, StartAtAConstant) {
  Parameters parameters({}, {.dtype = at::kDouble});
  const Parameter& weight = parameters.add("weight", tensor::ShardSpec::whole({3}), Init::constant(.25), false);
  EXPECT_TRUE(weight.value.equal(at::full({3}, .25, at::kDouble)));
}

TEST(Parameters, HoldBuffersOnTheirStage) {
  for (const int stage : {0, 1}) {
    Parameters parameters(tensor::MeshCoordinates({{"pipeline", 2, stage}}),
                          {.stages = [](const std::string&) { return std::vector<int>{1}; }});
    const Buffer &load = parameters.buffer("load", tensor::ShardSpec::whole({3}), at::kDouble),
                 &past = parameters.buffer("past", tensor::ShardSpec::whole({2}), at::kLong, BufferUse::Training);
    EXPECT_EQ(load.value.defined(), stage == 1);
    if (stage == 1) {
      EXPECT_EQ(load.value.scalar_type(), at::kDouble);
      EXPECT_FALSE(load.value.requires_grad());
      EXPECT_TRUE(at::equal(past.value, at::zeros({2}, at::kLong)));
    }
    EXPECT_EQ(load.saved_name(), "model.load");
    EXPECT_EQ(past.saved_name(), "past");
    EXPECT_EQ(parameters.size(), 0u);
    EXPECT_TRUE(parameters.declared().empty());
    EXPECT_EQ(parameters.buffers().size(), 2u);
    EXPECT_THROW(parameters.buffer("load", tensor::ShardSpec::whole({3}), at::kDouble), Error);
    EXPECT_THROW(parameters.add("load", tensor::ShardSpec::whole({3}), Init::ones(), true), Error);
    const Parameters::Redeclaration again(parameters);
    EXPECT_EQ(&parameters.buffer("load", tensor::ShardSpec::whole({3}), at::kDouble), &load);
  }
}

// Names, stages, treatments and wrappers are the same as for each model alone, and so are the values.
TEST(Parameters, PrefixNamesOfSeveralModels) {
  std::vector<std::string> asked;
  const auto treatment = [&](const std::string& name) {
    asked.push_back(name);
    return Treatment{.trains = name != "weight"};
  };
  const auto whole = tensor::ShardSpec::whole({3, 2});
  Parameters parameters({}, {.seed = 3});
  const Parameter& first = parameters.add("weight", whole, Init::normal(1), true);
  Parameters::Options second{.seed = 3, .model = "critic", .treatment = treatment};
  second.products.push_back([](std::shared_ptr<const Product> product, const Parameter& weight, Parameters& all) {
    all.add(weight.name + ".added", tensor::ShardSpec::whole({2}), Init::zeros(), false);
    all.buffer("history", tensor::ShardSpec::whole({2}), at::kFloat);
    return product;
  });
  parameters.begin_model(second);
  const Parameter& weight = parameters.add("weight", whole, Init::normal(1), true);
  parameters.product_for(weight, nullptr);
  EXPECT_EQ(weight.name, "critic.weight");
  EXPECT_EQ(weight.own_name(), "weight");
  EXPECT_EQ(weight.model, "critic");
  EXPECT_FALSE(weight.treatment.trains);
  EXPECT_TRUE(first.treatment.trains);
  EXPECT_TRUE(at::equal(weight.value, first.value.detach())) << "drawn as in a model without a name";
  EXPECT_EQ(first.saved_name(), "model.weight");
  EXPECT_EQ(weight.saved_name(), "critic.weight");
  EXPECT_EQ(parameters.at("critic.weight.added").own_name(), "weight.added");
  EXPECT_EQ(parameters.buffers().front().name, "critic.history");
  EXPECT_EQ(parameters.buffers().front().saved_name(), "critic.history");
  EXPECT_EQ(asked, (std::vector<std::string>{"weight", "weight.added"}));
  {
    const Parameters::Redeclaration again(parameters);
    EXPECT_EQ(&parameters.add("weight", whole, Init::normal(1), true), &weight);
  }
  EXPECT_THAT(test::thrown_message([&] { parameters.begin_model({.seed = 3}); }), testing::HasSubstr("got \"\" twice"));
  EXPECT_THAT(test::thrown_message([&] { parameters.begin_model({.seed = 3, .model = "critic"}); }),
              testing::HasSubstr("got \"critic\" twice"));
  EXPECT_THAT(test::thrown_message([&] { parameters.begin_model({.seed = 4, .model = "other"}); }),
              testing::HasSubstr("one dtype, device and seed"));
}

}  // namespace
}  // namespace colossal::nn::parameter_test
