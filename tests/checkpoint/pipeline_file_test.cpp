// Files of adapters for pipelines of pictures: both forms, older names, and what is refused.
#include "colossal/checkpoint/peft/pipeline_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/checkpoint/safetensors.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::pipeline_file_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

at::Tensor counted(at::IntArrayRef sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::arange(count, at::kFloat).view(sizes);
}

class PipelineFiles : public testing::Test {
 protected:
  PeftFolder read(const Tensors& tensors, const std::map<std::string, std::string>& metadata = {}) const {
    const std::string file = folder_ / "adapters.safetensors";
    write_safetensors(file, tensors, metadata);
    return read_pipeline_file(file);
  }
  std::string refusal(const Tensors& tensors) const {
    return test::thrown_message([&] { read(tensors); });
  }
  test::TemporaryFolder folder_;
};

TEST_F(PipelineFiles, HaveOneScaleInEveryForm) {
  const at::Tensor a = counted({2, 5}), b = counted({3, 2});
  const std::string header =
      R"({"unet.r": 2, "unet.lora_alpha": 6, "unet.target_modules": ["to_q"], "unet.bias": "none"})";
  const PeftFolder peft =
      read({{"unet.x.to_q.lora_A.weight", a}, {"unet.x.to_q.lora_B.weight", b}}, {{"lora_adapter_metadata", header}});
  const PeftFolder kohya = read({{"lora_unet_x_to_q.lora_down.weight", a},
                                 {"lora_unet_x_to_q.lora_up.weight", b},
                                 {"lora_unet_x_to_q.alpha", at::scalar_tensor(6.0)}});
  EXPECT_EQ(peft.layers().at("unet.x.to_q").scale, 3);
  EXPECT_EQ(kohya.layers().at("lora_unet_x_to_q").scale, 3);
  EXPECT_EQ(peft.config().alpha, 6);
  EXPECT_EQ(kohya.config().alpha, 6);
  EXPECT_TRUE(at::equal(kohya.layers().at("lora_unet_x_to_q").a, a));
}

TEST_F(PipelineFiles, HaveAnAlphaOfTheirRankIfTheyNameNone) {
  const PeftFolder folder =
      read({{"unet.x.lora_A.weight", counted({4, 5})}, {"unet.x.lora_B.weight", counted({6, 4})}});
  EXPECT_EQ(folder.layers().at("unet.x").scale, 1);
  EXPECT_EQ(folder.config().rank, 4);
}

TEST_F(PipelineFiles, MayHaveOlderNames) {
  const PeftFolder folder = read({{"unet.b.attn1.processor.to_q_lora.down.weight", counted({1, 4})},
                                  {"unet.b.attn1.processor.to_q_lora.up.weight", counted({4, 1})},
                                  {"unet.b.attn1.processor.to_out_lora.down.weight", counted({1, 4})},
                                  {"unet.b.attn1.processor.to_out_lora.up.weight", counted({4, 1})},
                                  {"unet.b.attn2.to_k.lora.down.weight", counted({1, 4})},
                                  {"unet.b.attn2.to_k.lora.up.weight", counted({4, 1})}});
  std::vector<std::string> names;
  for (const auto& [name, layer] : folder.layers()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("unet.b.attn1.to_out.0", "unet.b.attn1.to_q", "unet.b.attn2.to_k"));
}

TEST_F(PipelineFiles, ReadBackWhatWasWritten) {
  const PeftLayer linear{.a = counted({2, 5}), .b = counted({3, 2}), .rank = 2},
      convolution{.a = counted({4, 5, 3, 3}), .b = counted({6, 4}), .rank = 4};
  PeftConfig config{.rank = 2, .alpha = 6};
  config.ranks = {{"down.conv1", 4}};
  for (const PipelineForm form : {PipelineForm::Peft, PipelineForm::Kohya}) {
    write_pipeline_file(folder_ / "",
                        {{"unet", {config, {{"down.conv1", convolution}, {"down.to_q", linear}}}},
                         {"text_encoder", {{.rank = 2, .alpha = 2}, {{"text_model.q_proj", linear}}}}},
                        form);
    const SafetensorsReader reader(find_pipeline_file(folder_ / ""));
    const bool is_kohya = form == PipelineForm::Kohya;
    EXPECT_EQ(
        reader.entries().at(is_kohya ? "lora_unet_down_conv1.lora_up.weight" : "unet.down.conv1.lora_B.weight").shape,
        (std::vector<int64_t>{6, 4, 1, 1}));
    const PeftFolder folder = read_pipeline_file(find_pipeline_file(folder_ / ""));
    const PeftLayer& read = folder.layers().at(is_kohya ? "lora_unet_down_conv1" : "unet.down.conv1");
    EXPECT_TRUE(at::equal(read.a, convolution.a) && at::equal(read.b, convolution.b));
    EXPECT_EQ(read.scale, 1.5);
    EXPECT_EQ(folder.layers().at(is_kohya ? "lora_unet_down_to_q" : "unet.down.to_q").scale, 3);
    EXPECT_EQ(folder.layers().at(is_kohya ? "lora_te_text_model_q_proj" : "text_encoder.text_model.q_proj").scale, 1);
  }
}

TEST_F(PipelineFiles, RefuseOtherKindsByName) {
  for (const std::string name : {"dora_scale", "hada_w1_a", "lokr_w1"})
    EXPECT_THAT(refusal({{"lora_unet_x." + name, counted({2, 2})}}), HasSubstr(name));
}

TEST_F(PipelineFiles, RefuseAllTensorsWithoutAnEffect) {
  EXPECT_THAT(refusal({{"unet.x.lora_A.weight", counted({2, 4})},
                       {"unet.x.lora_B.weight", counted({4, 2})},
                       {"unet.y.bias", counted({4})},
                       {"lora_unet_z.alpha", at::scalar_tensor(1.0)}}),
              AllOf(HasSubstr("unet.y.bias"), HasSubstr("lora_unet_z.alpha")));
  EXPECT_THAT(refusal({{"unet.x.lora_A.weight", counted({2, 4})}}), HasSubstr("the one down alone"));
  EXPECT_THAT(refusal({{"unet.x.lora_A.weight", counted({2, 4})}, {"unet.x.lora_B.weight", counted({4, 3})}}),
              HasSubstr("[2, 4] and [4, 3]"));
}

}  // namespace
}  // namespace colossal::checkpoint::pipeline_file_test
