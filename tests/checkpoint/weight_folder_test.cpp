// The files in which a folder may have its weights, and those that are refused.
#include "colossal/checkpoint/hugging_face/weight_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::weight_folder_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Returns the value of the one tensor that a folder with these weight files has; each file has its own value, from 1.
/// An index names the file `shard`, whose value is 9.
double value_in(const std::vector<std::string>& files) {
  const test::TemporaryFolder folder;
  double next = 1;
  for (const std::string& file : files) {
    if (file.ends_with(".json")) {
      write_safetensors(folder / "shard", {{"w", at::full({1}, 9.)}});
      folder.write(file, R"({"weight_map": {"w": "shard"}})");
    } else {
      write_safetensors(folder / file, {{"w", at::full({1}, next++)}});
    }
  }
  return WeightFolder(folder.path()).tensor("w").item<double>();
}

TEST(WeightFolder, ReadsTheFilesOfTransformersAndDiffusers) {
  for (const char* stem : {"model", "diffusion_pytorch_model"}) {
    const std::string name = stem;
    EXPECT_EQ(value_in({name + ".safetensors"}), 1) << name;
    EXPECT_EQ(value_in({name + ".safetensors.index.json"}), 9) << name;
    EXPECT_EQ(value_in({name + ".fp16.safetensors"}), 1) << name;
    EXPECT_EQ(value_in({name + ".safetensors.index.fp16.json"}), 9) << name;
    EXPECT_EQ(value_in({name + ".fp16.safetensors.index.json"}), 9) << name;
  }
}

TEST(WeightFolder, PrefersWeightsThatAreNotRounded) {
  EXPECT_EQ(value_in({"model.fp16.safetensors", "diffusion_pytorch_model.safetensors"}), 2);
  EXPECT_EQ(value_in({"diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.safetensors.index.json"}),
            9);
}

TEST(WeightFolder, RefusesPickles) {
  for (const char* name : {"diffusion_pytorch_model.bin", "diffusion_pytorch_model.fp16.bin", "pytorch_model.bin",
                           "v1-5-pruned.ckpt", "model.pt", "weights.pth"}) {
    const test::TemporaryFolder folder;
    const std::string path = folder.write(name, "");
    EXPECT_THAT(test::thrown_message([&] { WeightFolder open(folder.path()); }),
                AllOf(HasSubstr("is not read in their place; convert to safetensors"), HasSubstr(".safetensors\", {")))
        << name;
    EXPECT_THAT(
        test::thrown_message([&] { WeightFolder open(path); }),
        AllOf(HasSubstr(name), HasSubstr("must have safetensors: a pickle is not read in their place; convert")))
        << name;
  }
  const test::TemporaryFolder folder;
  folder.write("training_args.bin", "");
  EXPECT_THAT(test::thrown_message([&] { WeightFolder open(folder.path()); }), HasSubstr("download it, or convert"));
}

}  // namespace
}  // namespace colossal::checkpoint::weight_folder_test
