// Folders of pipelines: their parts, what is left out, what is refused, and the index that is written.
#include "colossal/run/objectives/diffusion/pipeline_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::pipeline_folder_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns the index of the published folder of Stable Diffusion 1.5, with changes.
json stable_diffusion(const json& changes = json::object()) {
  json index = json::parse(R"({"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.6.0",
      "feature_extractor": ["transformers", "CLIPImageProcessor"],
      "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
      "scheduler": ["diffusers", "PNDMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
      "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
      "vae": ["diffusers", "AutoencoderKL"]})");
  index.update(changes);
  return index;
}

class PipelineFolders : public testing::Test {
 protected:
  /// Writes an index, and folders for the parts, and reads the pipeline.
  PipelineFolder read(const json& index, const std::string& lacks = "") const {
    folder_.write("model_index.json", index.dump());
    for (const char* part : {"unet", "transformer", "vae", "text_encoder", "tokenizer", "scheduler", "text_encoder_2",
                             "text_encoder_3", "tokenizer_2", "tokenizer_3"})
      std::filesystem::create_directories(folder_ / part);
    if (!lacks.empty()) std::filesystem::remove_all(folder_ / lacks);
    return read_pipeline(folder_.path());
  }
  std::string message(const json& index, const std::string& lacks = "") const {
    return test::thrown_message([&] { read(index, lacks); });
  }
  test::TemporaryFolder folder_;
};

std::vector<std::string> names(const PipelineFolder& pipeline) {
  std::vector<std::string> all;
  for (const PipelinePart& part : pipeline.parts) all.push_back(part.name);
  return all;
}

TEST_F(PipelineFolders, HaveTheirPartsAndNoticesOfThoseThatAreNotRead) {
  const PipelineFolder pipeline = read(stable_diffusion({{"image_encoder", {nullptr, nullptr}}}));
  EXPECT_THAT(names(pipeline), ElementsAre("scheduler", "text_encoder", "tokenizer", "unet", "vae"));
  EXPECT_EQ(pipeline.denoiser().class_name, "UNet2DConditionModel");
  EXPECT_EQ(pipeline.at("vae").folder, folder_ / "vae");
  EXPECT_THAT(pipeline.notices,
              ElementsAre(HasSubstr("feature_extractor is not read"), HasSubstr("safety_checker is not read")));
}

// A file of a UNet alone is a pipeline without the other parts.
TEST_F(PipelineFolders, HaveTheClassOfAUnetAlone) {
  const std::string file = folder_ / "unet.safetensors", unet = "model.diffusion_model.";
  std::map<std::string, at::Tensor> tensors{
      {unet + "input_blocks.0.0.weight", at::ones({32, 4, 3, 3})},
      {unet + "input_blocks.1.0.in_layers.2.weight", at::ones({32, 32, 3, 3})},
      {unet + "middle_block.1.proj_in.weight", at::ones({32, 32})},
      {unet + "middle_block.1.transformer_blocks.0.attn2.to_k.weight", at::ones({32, 16})},
      {unet + "out.2.weight", at::ones({4, 32, 3, 3})}};
  checkpoint::write_safetensors(file, tensors);
  EXPECT_EQ(read_pipeline(file).class_name, "StableDiffusionPipeline");
  tensors[unet + "label_emb.0.0.weight"] = at::ones({128, 24});
  checkpoint::write_safetensors(file, tensors);
  const PipelineFolder pipeline = read_pipeline(file);
  EXPECT_EQ(pipeline.class_name, "StableDiffusionXLPipeline");
  EXPECT_TRUE(pipeline.zeros_for_empty);
  EXPECT_THAT(names(pipeline), ElementsAre("unet", "scheduler"));
}

TEST_F(PipelineFolders, LackPartsThatAreNull) {
  const PipelineFolder pipeline = read(stable_diffusion({{"safety_checker", {nullptr, nullptr}},
                                                         {"vae", {nullptr, nullptr}},
                                                         {"requires_safety_checker", false},
                                                         {"feature_extractor", nullptr}}),
                                       "vae");
  EXPECT_EQ(pipeline.find("vae"), nullptr);
  EXPECT_THAT(pipeline.notices, ElementsAre());
  EXPECT_THAT(test::thrown_message([&] { pipeline.at("vae"); }), HasSubstr("must have the part vae"));
}

TEST_F(PipelineFolders, HaveTheNamesOfTheClassesOfADit) {
  const json index = json::parse(R"({"_class_name": "DiTPipeline", "scheduler": ["diffusers", "DDIMScheduler"],
      "transformer": ["diffusers", "DiTTransformer2DModel"], "vae": [null, null],
      "id2label": {"0": "tench, Tinca tinca", "1": "goldfish"}})");
  const PipelineFolder pipeline = read(index);
  EXPECT_THAT(pipeline.class_names, ElementsAre("tench, Tinca tinca", "goldfish"));
  EXPECT_EQ(pipeline.denoiser().name, "transformer");
  json without = index_of(pipeline);
  without.erase("_diffusers_version");
  EXPECT_EQ(without, index);
  json gap = index;
  gap["id2label"].erase("0");
  EXPECT_THAT(message(gap), HasSubstr("got none for 0"));
}

TEST_F(PipelineFolders, LeaveOutThePartsThatAreNotRead) {
  const PipelineFolder pipeline = read(stable_diffusion());
  const json index = index_of(pipeline);
  for (const char* part : {"safety_checker", "feature_extractor", "image_encoder"})
    EXPECT_EQ(index.at(part), json({nullptr, nullptr})) << part;
  EXPECT_EQ(index.at("requires_safety_checker"), false);
  EXPECT_EQ(names(read(index)), names(pipeline));
  EXPECT_EQ(index.at("tokenizer"), stable_diffusion().at("tokenizer"));
}

/// Returns the index of a pipeline of a class, as diffusers 0.42 writes it.
json index_with(const char* class_name, const char* denoiser, const std::vector<std::string>& encoders) {
  json index{{"_class_name", class_name},
             {"scheduler", {"diffusers", "EulerDiscreteScheduler"}},
             {"vae", {"diffusers", "AutoencoderKL"}},
             {"image_encoder", {nullptr, nullptr}},
             {"feature_extractor", {nullptr, nullptr}}};
  index[std::string(denoiser).starts_with("UNet") ? "unet" : "transformer"] = {"diffusers", denoiser};
  for (size_t i = 0; i < encoders.size(); ++i) {
    const std::string end = i == 0 ? "" : "_" + std::to_string(i + 1);
    index["text_encoder" + end] = {"transformers", encoders[i]};
    index["tokenizer" + end] = {"transformers", encoders[i].starts_with("T5") ? "T5TokenizerFast" : "CLIPTokenizer"};
  }
  return index;
}

TEST_F(PipelineFolders, HaveTheTextEncodersOfTheirClass) {
  const std::string clip = "CLIPTextModel", projected = clip + "WithProjection", t5 = "T5EncoderModel";
  json xl = index_with("StableDiffusionXLPipeline", "UNet2DConditionModel", {clip, projected});
  xl["force_zeros_for_empty_prompt"] = true;
  const json sd3 = index_with("StableDiffusion3Pipeline", "SD3Transformer2DModel", {projected, projected, t5}),
             flux = index_with("FluxPipeline", "FluxTransformer2DModel", {clip, t5});
  for (const json& index : {xl, sd3, flux}) {
    const PipelineFolder pipeline = read(index);
    json written = index_of(pipeline);
    written.erase("_diffusers_version");
    EXPECT_EQ(written, index);
    EXPECT_EQ(class_of_part(pipeline.class_name, "text_encoder_2"), index.at("text_encoder_2").at(1));
    EXPECT_EQ(class_of_part(pipeline.class_name, "tokenizer_2"), index.at("tokenizer_2").at(1));
  }
  EXPECT_TRUE(read(xl).zeros_for_empty);
  xl["force_zeros_for_empty_prompt"] = false;
  EXPECT_FALSE(read(xl).zeros_for_empty);
  xl.erase("force_zeros_for_empty_prompt");
  EXPECT_TRUE(read(xl).zeros_for_empty) << "the default of diffusers";
  EXPECT_FALSE(read(flux).zeros_for_empty);
  EXPECT_EQ(read(flux).denoiser().class_name, "FluxTransformer2DModel");
  json refiner = xl;
  refiner["_class_name"] = "StableDiffusionXLImg2ImgPipeline";
  EXPECT_EQ(message(refiner), "");
  refiner["requires_aesthetics_score"] = true;
  EXPECT_THAT(message(refiner), HasSubstr("requires_aesthetics_score must be false"));
  json other = flux;
  other["text_encoder_2"] = {"transformers", "CLIPTextModel"};
  EXPECT_THAT(message(other), HasSubstr("text_encoder_2 must be of the class T5EncoderModel: got CLIPTextModel"));
  EXPECT_THAT(test::thrown_message([] { class_of_part("FluxPipeline", "unet"); }), HasSubstr("the part unet"));
}

TEST_F(PipelineFolders, NameWhatIsWrong) {
  EXPECT_THAT(message(stable_diffusion({{"_class_name", "StableDiffusionPipelin"}})),
              HasSubstr("did you mean `StableDiffusionPipeline`?"));
  EXPECT_THAT(message(stable_diffusion({{"_class_name", "FluxPipeline"}})),
              HasSubstr("a FluxPipeline has the parts scheduler, text_encoder, text_encoder_2"));
  EXPECT_THAT(message(stable_diffusion({{"unet", {"diffusers", "UNet2DConditionModul"}}})),
              AllOf(HasSubstr("unet must be of the class"), HasSubstr("did you mean `UNet2DConditionModel`?")));
  EXPECT_THAT(message(stable_diffusion({{"unet", {"own_code", "UNet2DConditionModel"}}})), HasSubstr("is not run"));
  EXPECT_THAT(message(stable_diffusion({{"text_encoder_2", {"transformers", "CLIPTextModel"}}})),
              HasSubstr("got text_encoder_2, did you mean `text_encoder`?"));
  EXPECT_THAT(message(stable_diffusion({{"vae", "AutoencoderKL"}})), HasSubstr("must be a pair"));
  EXPECT_THAT(message(stable_diffusion(), "text_encoder"), HasSubstr("must have the folder text_encoder"));
  EXPECT_THAT(test::thrown_message([&] { read_pipeline(folder_ / "none"); }), HasSubstr("model_index.json"));
}

}  // namespace
}  // namespace colossal::run::pipeline_folder_test
