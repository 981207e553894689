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

}  // namespace
}  // namespace colossal::nn::parameter_test
