// Weights in files of PyTorch and NumPy: tensors, rows, and the folders that have them in place of safetensors.
#include "colossal/checkpoint/strided_weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/checkpoint/safetensors.h"
#include "colossal/formats/zip_file.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "support/torch_bytes.h"

namespace colossal::checkpoint::strided_weights_test {
namespace {

using test::dict_piece;
using test::storage_piece;
using test::tensor_piece;
using testing::HasSubstr;

class StridedFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!formats::reads_zips()) GTEST_SKIP() << "built without libzip";
  }
  /// Writes a file with a tensor "w" of one element.
  void write_one(const std::string& name, float value, const std::string& tensor = "w") const {
    folder_.write(
        name, test::torch_zip(dict_piece({{tensor, tensor_piece(storage_piece("FloatStorage", "0", 1), 0, {1}, {1})}}),
                              {{"0", test::raw(std::vector<float>{value})}}));
  }
  double value_in_folder() const { return open_weights(folder_.path())->tensor("w").item<double>(); }
  test::TemporaryFolder folder_;
};

TEST_F(StridedFiles, HaveTensorsAndRows) {
  std::vector<float> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::string storage = storage_piece("FloatStorage", "0", 24);
  const std::string path = folder_.write(
      "x.pt", test::torch_zip(dict_piece({{"t", tensor_piece(storage, 0, {4, 2, 3}, {1, 12, 4})},
                                          {"s", tensor_piece(storage, 5, {3}, {0})},
                                          {"e", tensor_piece(storage, 0, {0, 3}, {3, 1})},
                                          {"h", tensor_piece(storage_piece("BFloat16Storage", "1", 2), 1, {}, {})}}),
                              {{"0", test::raw(values)}, {"1", std::string("\x80\x3f\x40\xc0", 4)}}));
  const auto weights = open_weights(path);
  const at::Tensor want = at::arange(24, at::kFloat).view({2, 3, 4}).permute({2, 0, 1});
  EXPECT_TRUE(at::equal(weights->tensor("t"), want));
  EXPECT_TRUE(weights->tensor("t").is_contiguous());
  for (int64_t row = 0; row < 4; ++row) EXPECT_TRUE(at::equal(weights->row("t", row), want[row])) << row;
  EXPECT_THAT(test::thrown_message([&] { weights->row("t", 4); }), HasSubstr("a row of t must be within it: got 4"));
  EXPECT_TRUE(at::equal(weights->tensor("s"), at::full({3}, 5.f)));
  EXPECT_EQ(weights->tensor("e").sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(weights->tensor("h").scalar_type(), at::kBFloat16);
  EXPECT_EQ(weights->tensor("h").item<float>(), -3);
  EXPECT_EQ(weights->entries().at("t")->shape, (std::vector<int64_t>{4, 2, 3}));
  EXPECT_EQ(weights->entries().at("t")->end, 96u);
}

TEST_F(StridedFiles, ReadArraysOfNumpy) {
  const std::string path = folder_.write(
      "x.npz", test::zip_of({{"a/b//weights.npy",
                              test::npy_of("<f8", "(2, 3)", test::raw(std::vector<double>{0, 1, 2, 3, 4, 5}), true)}}));
  EXPECT_TRUE(at::equal(open_weights(path)->tensor("a/b//weights"), at::arange(6, at::kDouble).view({3, 2}).t()));
}

TEST_F(StridedFiles, StandInForSafetensors) {
  write_one("diffusion_pytorch_model.fp16.bin", 1);
  EXPECT_EQ(value_in_folder(), 1);
  write_one("part.bin", 2);
  folder_.write("pytorch_model.bin.index.json", R"({"weight_map": {"w": "part.bin"}})");
  EXPECT_EQ(value_in_folder(), 2);
  write_one("pytorch_model.bin", 3);
  EXPECT_EQ(value_in_folder(), 3);
  write_safetensors(folder_ / "model.safetensors", {{"w", at::full({1}, 4.)}});
  EXPECT_EQ(value_in_folder(), 4);
}

TEST_F(StridedFiles, RefuseIndexesThatDoNotFit) {
  const auto refusal = [&](const std::string& map) {
    folder_.write("pytorch_model.bin.index.json", R"({"weight_map": )" + map + "}");
    return test::thrown_message([&] { open_weights(folder_.path()); });
  };
  write_one("a.bin", 1);
  write_one("b.bin", 1);
  write_one("c.bin", 1, "v");
  EXPECT_EQ(refusal(R"({"w": "a.bin", "v": "c.bin"})"), "");
  EXPECT_THAT(refusal(R"({"w": "c.bin"})"), HasSubstr("c.bin does not hold w"));
  EXPECT_THAT(refusal(R"({"w": "../a.bin"})"), HasSubstr("must be in a file of this folder"));
  EXPECT_THAT(refusal(R"({"w": "a.bin", "x": "b.bin"})"), HasSubstr("does not hold x"));
  EXPECT_THAT(refusal("3"), HasSubstr("weight_map must be a JSON object"));
}

TEST_F(StridedFiles, NameTheFileOfOtherContent) {
  EXPECT_TRUE(has_strided_name("a/b.ckpt"));
  EXPECT_FALSE(has_strided_name("a.bin/b.safetensors"));
  const std::string path = folder_.write("x.bin", "hello");
  EXPECT_THAT(test::thrown_message([&] { open_weights(path); }), HasSubstr("x.bin must be a file of torch.save"));
}

}  // namespace
}  // namespace colossal::checkpoint::strided_weights_test
