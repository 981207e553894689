// Parameters that are declared twice, for two sets of layers over them.
#include "colossal/nn/parameter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"

namespace colossal::nn::parameter_test {
namespace {

tensor::ShardSpec split_by(const std::string& rows, const std::string& columns) {
  auto spec = tensor::ShardSpec::whole({4, 4});
  spec.splits[0].axes = {rows};
  spec.splits[1].axes = {columns};
  return spec;
}

TEST(Parameters, ASecondLayoutMustStoreThemAsTheFirst) {
  Parameters parameters(tensor::Place({{"row", 2, 0}, {"column", 2, 1}}), {});
  const Parameter& weight = parameters.add("weight", split_by("row", "column"), Init::ones(), true);
  const Parameters::Redeclaration again(parameters);
  EXPECT_EQ(&parameters.add("weight", split_by("row", "column"), Init::ones(), true), &weight);
  // Swapped, a rank has as much, of other places.
  EXPECT_EQ(split_by("column", "row").local_shape(parameters.place()), weight.spec.local_shape(parameters.place()));
  EXPECT_THROW(parameters.add("weight", split_by("column", "row"), Init::ones(), true), Error);
  EXPECT_THROW(parameters.add("bias", tensor::ShardSpec::whole({4}), Init::ones(), true), Error);
}

TEST(Parameters, BuffersAreHeldWhereTheirStageIsAndAreNoParameters) {
  for (const int stage : {0, 1}) {
    Parameters parameters(tensor::Place({{"pipeline", 2, stage}}),
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

}  // namespace
}  // namespace colossal::nn::parameter_test
