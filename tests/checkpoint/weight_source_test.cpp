// Sources of weights beside folders: one safetensors file, and tensors in memory.
#include "colossal/checkpoint/weight_source.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "support/temporary_folder.h"

namespace colossal::checkpoint::weight_source_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::map<std::string, at::Tensor>& tensors() {
  static const std::map<std::string, at::Tensor> all{{"base.w", at::arange(6, at::kFloat).view({2, 3})},
                                                     {"b", at::ones({3}, at::kDouble)}};
  return all;
}

void expect_all(const WeightSource& source) {
  ASSERT_EQ(source.entries().size(), 2u);
  for (const auto& [name, value] : tensors()) {
    EXPECT_TRUE(at::equal(source.tensor(name), value));
    EXPECT_EQ(source.entries().at(name)->dtype, value.scalar_type());
    EXPECT_EQ(source.entries().at(name)->shape, value.sizes().vec());
    source.leave(name);
  }
  EXPECT_EQ(source.find("w", "base."), "base.w");
  EXPECT_EQ(source.find("base.b", "base."), "b");
  EXPECT_EQ(source.find("c", "base."), std::nullopt);
}

TEST(WeightSource, ReadsOneSafetensorsFile) {
  const test::TemporaryFolder folder;
  write_safetensors(folder / "any name", tensors());
  expect_all(*open_weights(folder / "any name"));
}

TEST(WeightSource, HoldsTensorsInMemory) {
  expect_all(*weights_in_memory(tensors()));
  EXPECT_THAT([] { weights_in_memory({{"gone", at::Tensor()}}); },
              ThrowsMessage<Error>(HasSubstr("got none for gone")));
}

}  // namespace
}  // namespace colossal::checkpoint::weight_source_test
