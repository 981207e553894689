// Pipelines of several text encoders: each has its own part of learned words and of files of adapters.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/external_names.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::several_encoders_test {
namespace {

using testing::HasSubstr;

class SeveralEncoders : public testing::Test {
 protected:
  void SetUp() override {
    source_.sizes = models::denoiser_of(models::built_in().resolve({.name = "sdxl-tiny"}));
    for (const models::CaptionPart& part : source_.sizes.captions) {
      const std::string folder = concat(folder_.path(), "/", source_.captions.size());
      write_encoder(folder, part.preset);
      source_.captions.push_back({folder, "bytes"});
    }
  }
  static void write_encoder(const std::string& folder, const std::string& preset) {
    const models::ModelShape shape = models::built_in().resolve({.name = preset});
    nn::Parameters parameters({}, {.dtype = at::kDouble, .seed = 5});
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      checkpoint::export_weights(folder, parameters, run::external_names(shape), shape.architecture->to_json()(shape),
                                 mesh.all());
    });
  }
  /// Returns what the model reads of a caption.
  tensor::Batch told(const std::string& caption, const std::vector<std::string>& words,
                     const std::vector<run::AdapterChoice>& adapters = {}) const {
    run::PipelineSource source = source_;
    source.learned = words;
    tensor::Batch read;
    comm::run_ranks(1, [&](comm::World& world) {
      PartsLoading loading;
      loading.dtype = at::kDouble;
      loading.adapters = adapters;
      read = PipelineParts(source, world, at::kCPU, loading, run::built_in()).told(caption, 0);
    });
    return read;
  }
  test::TemporaryFolder folder_;
  run::PipelineSource source_;
};

// A word whose vectors are those of a letter is read as that letter.
TEST_F(SeveralEncoders, ReadAWordOfBoth) {
  const std::string file = folder_ / "lune.safetensors";
  std::map<std::string, at::Tensor> vectors;
  for (const char* name : {"clip_l", "clip_g"}) {
    const std::string encoder = source_.captions.at(vectors.size()).encoder;
    vectors[name] = checkpoint::SafetensorsReader(encoder + "/model.safetensors")
                        .tensor("text_model.embeddings.token_embedding.weight")
                        .narrow(0, 'c', 2)
                        .clone();
  }
  checkpoint::write_safetensors(file, vectors);
  const tensor::Batch word = told("a lune", {file}), letters = told("a cd", {file});
  for (const char* field : {"text", "pooled"})
    EXPECT_TRUE(at::allclose(word.at(field), letters.at(field), 1e-12, 1e-12)) << field;
  EXPECT_FALSE(at::allclose(told("a lune", {}).at("text"), word.at("text"), 1e-3, 1e-3));
  vectors["clip_g"] = vectors["clip_g"].narrow(0, 0, 1).clone();
  checkpoint::write_safetensors(file, vectors);
  EXPECT_THAT(test::thrown_message([&] { told("a", {file}); }), HasSubstr("as many vectors in clip_l as in clip_g"));
  checkpoint::write_safetensors(file, {{"emb_params", at::ones({1, 64})}});
  EXPECT_THAT(test::thrown_message([&] { told("a", {file}); }), HasSubstr("for 2 text encoders of CLIP, as the model"));
}

TEST_F(SeveralEncoders, HaveAdaptersOfTheirOwn) {
  const auto adapted = [&](const std::string& prefix, int64_t features) {
    const std::string file = folder_ / (prefix + ".safetensors"),
                      layer = concat(prefix, "_text_model_encoder_layers_0_mlp_fc1");
    checkpoint::write_safetensors(file, {{layer + ".lora_down.weight", at::arange(features, at::kDouble).unsqueeze(0)},
                                         {layer + ".lora_up.weight", at::ones({4 * features, 1}, at::kDouble)}});
    return told("a star", {}, {{.name = prefix, .folder = file}});
  };
  const tensor::Batch plain = told("a star", {}), first = adapted("lora_te1", 64), second = adapted("lora_te2", 32);
  const auto is_same = [&](const tensor::Batch& other, const char* field, int64_t begin, int64_t count) {
    return at::allclose(plain.at(field).narrow(-1, begin, count), other.at(field).narrow(-1, begin, count), 1e-9, 1e-9);
  };
  EXPECT_FALSE(is_same(first, "text", 0, 64));
  EXPECT_TRUE(is_same(first, "text", 64, 32) && is_same(first, "pooled", 0, 24));
  EXPECT_TRUE(is_same(second, "text", 0, 64));
  EXPECT_FALSE(is_same(second, "text", 64, 32) || is_same(second, "pooled", 0, 24));
  EXPECT_THAT(test::thrown_message([&] { adapted("lora_te3", 32); }), HasSubstr("got some of text_encoder_3 in"));
}

}  // namespace
}  // namespace colossal::diffusion::several_encoders_test
