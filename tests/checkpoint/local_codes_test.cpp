// Quantized values of a rank's matrix, from one tensor of a folder or from several.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/checkpoint/hugging_face/local_parts.h"

namespace colossal::checkpoint::local_codes_test {
namespace {

/// A source of quantized values that a test has made.
class MadeSource final : public WeightSource {
 public:
  at::Tensor tensor(const std::string& name) const override { return made.at(name).values(); }
  std::optional<ops::GroupCodes> codes(const std::string& name) const override { return made.at(name); }
  void leave(const std::string&) const override { ++left; }
  std::map<std::string, ops::GroupCodes> made;
  mutable int left = 0;
};

ops::GroupCodes codes_of(const at::Tensor& values) { return ops::round_to_codes(values, {.bits = 8, .group = 16}); }

ExternalPart part_of(int64_t first, int64_t rows) {
  return {.parameter = nullptr, .name = "", .box = {{first, 0}, {rows, 48}}, .transposed = false, .rows = rows};
}

const at::Tensor& sample() {
  static const at::Tensor values = at::linspace(-2, 3, 32 * 48, at::kFloat).view({32, 48});
  return values;
}

NamedTensor value() { return {"w", at::empty({32, 48}), tensor::ShardSpec::whole({32, 48})}; }

TEST(LocalCodes, UseTheTensorThatHasAllWithoutACopy) {
  MadeSource files;
  files.made["a"] = codes_of(sample());
  const ExternalPart part = part_of(0, 32);
  const PartSource source{&part, "a"};
  const auto local = local_codes({&source}, files, value(), {});
  ASSERT_TRUE(local.has_value());
  EXPECT_EQ(local->codes.data_ptr(), files.made["a"].codes.data_ptr()) << "copied";
  EXPECT_EQ(local->scales.data_ptr(), files.made["a"].scales.data_ptr()) << "copied";
  EXPECT_EQ(files.left, 1);
}

TEST(LocalCodes, JoinSeveralTensorsAndRowsOfOne) {
  MadeSource files;
  files.made["a"] = codes_of(sample().narrow(0, 0, 20));
  files.made["b"] = codes_of(sample().narrow(0, 20, 12));
  const ExternalPart first = part_of(0, 20), second = part_of(20, 12);
  const PartSource a{&first, "a"}, b{&second, "b"};
  const auto joined = local_codes({&a, &b}, files, value(), {});
  ASSERT_TRUE(joined.has_value());
  EXPECT_TRUE(at::equal(joined->values(), at::cat({files.made["a"].values(), files.made["b"].values()})));

  files.made["both"] = codes_of(sample());
  ExternalPart even = part_of(0, 16), odd = part_of(16, 16);
  even.rows = odd.rows = 32, even.stride = odd.stride = 2, odd.first = 1;
  const PartSource evens{&even, "both"}, odds{&odd, "both"};
  const auto sorted = local_codes({&evens, &odds}, files, value(), {});
  ASSERT_TRUE(sorted.has_value());
  const at::Tensor rows = files.made["both"].values();
  EXPECT_TRUE(at::equal(sorted->values(), at::cat({rows.slice(0, 0, 32, 2), rows.slice(0, 1, 32, 2)})));
}

}  // namespace
}  // namespace colossal::checkpoint::local_codes_test
