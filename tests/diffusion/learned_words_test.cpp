// Runs that learn words (textual inversion) on a small pipeline: every layout, drawing, and files of other programs.
#include "colossal/run/learned_words.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/file.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/exported_pipeline.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/external_names.h"
#include "colossal/run/saved_model.h"
#include "diffusion/latent_runs.h"
#include "support/layouts.h"
#include "support/thrown_message.h"
#include "text/clip_files.h"

namespace colossal::diffusion::learned_words_test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using Flags = std::vector<std::string>;

class LearnedWords : public LatentRuns {
 protected:
  static void SetUpTestSuite() {
    LatentRuns::SetUpTestSuite();
    train(latent_config_in(shared() / "base",
                           {"--optimizer.learning_rate=0.05", "--optimizer.final_learning_rate=0.05"}));
    write_pipeline();
    train(word_config_in(trained(), {}));
  }
  static std::string pipeline() { return shared() / "pipeline"; }
  static std::string trained() { return shared() / "trained"; }

  /// Writes the base as a pipeline, whose captions are bytes, and a tokenizer beside it.
  static void write_pipeline() {
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved =
          run::load_model(shared() / "base", mesh, {}, at::kCPU, {.tokenizer = "none"}, program());
      const auto objective = objective_of_run(shared() / "base", program(), "test");
      export_pipeline(pipeline(), *saved.model, *objective, mesh, at::kDouble, {.seed = objective->pipeline().seed},
                      program());
    });
    write_encoder();
    nlohmann::json index = nlohmann::json::parse(read_file(pipeline() + "/model_index.json", 1 << 20));
    index["tokenizer"] = {"transformers", "CLIPTokenizer"};
    write_file(pipeline() + "/model_index.json", index.dump());
    create_folder(pipeline() + "/tokenizer");
    write_tokenizer(pipeline() + "/tokenizer");
  }

  /// Puts an encoder with the vocabulary of that tokenizer in place of the one for bytes.
  static void write_encoder() {
    const models::ModelShape shape = models::built_in().resolve({.name = "clip-text-tiny"}, 600);
    nn::Parameters parameters({}, {.dtype = at::kDouble, .seed = 5});
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
    const std::string folder = pipeline() + "/text_encoder";
    std::filesystem::remove_all(folder);
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      checkpoint::export_weights(folder, parameters, run::external_names(shape), shape.architecture->to_json()(shape),
                                 mesh.all());
    });
  }

  /// A run that learns the word "<moon>", of two vectors, on pictures whose captions have it.
  static run::Config word_config_in(const std::string& folder, const Flags& flags) {
    const Flags own{"--run.folder=" + folder,
                    "--run.device=cpu",
                    "--run.matmul=mkl",
                    "--precision.mode=fp64",
                    "--parallel.chunk_mib=0.05",
                    "--model.from=" + pipeline(),
                    "--data.path=" + pictures(),
                    "--data.size=16,16",
                    "--data.held_out=0",
                    "--data.latents=" + (shared() / "word-latents"),
                    "--adapter.kind=textual-inversion",
                    "--adapter.targets=[\"<moon>=cat\"]",
                    "--adapter.rank=2",
                    "--diffusion.min_snr=0",
                    "--diffusion.guidance=7.5",  // that of the pipeline
                    "--optimizer.learning_rate=0.5",
                    "--optimizer.warmup_steps=0",
                    "--training.batch_size=4",
                    "--training.steps=3",
                    "--training.sample_every=0",
                    "--training.evaluate_every=0"};
    return run::read_given_config(test::source_dir() + "/examples/sd_finetune.toml", test::joined(own, flags)).config;
  }
  static std::string pictures() {
    const std::string folder = shared() / "pictures";
    create_folder(folder);
    for (int64_t i = 0; i < 6; ++i) {
      data::Picture picture{16, 16, std::vector<uint8_t>(16 * 16 * 3, static_cast<uint8_t>(40 * i))};
      write_file(concat(folder, "/", i, ".png"), data::encode_png(picture));
      write_file(concat(folder, "/", i, ".txt"), "a photo of <moon>");
    }
    return folder;
  }
  static void write_tokenizer(const std::string& folder) {
    const test::TemporaryFolder files;
    text::clip::write_folder(files, {{"pad_token", "!"}});
    for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"})
      if (std::filesystem::exists(files / name))
        write_file(concat(folder, "/", name), read_file(files / name, 1 << 24));
  }

  static std::string drawn(const std::string& prompt, const std::vector<std::string>& embeddings,
                           const std::string& from = pipeline()) {
    const run::Program known = program();
    run::PipelineSource source = find_pipeline(from, known, "draw");
    source.learned.insert(source.learned.end(), embeddings.begin(), embeddings.end());
    std::string png;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved = run::load_model(from, mesh, {}, at::kCPU, {.tokenizer = "none"}, known);
      PipelineParts parts(source, world, at::kCPU, {}, known);
      Drawer drawer(source, *saved.model, parts, mesh, "");
      drawer.draw({.prompt = prompt, .steps = 3}, {}, [&](const DrawnPicture& one) {
        png = data::encode_png(data::decode_picture(one.png, "drawn"));  // without what it says
      });
    });
    return png;
  }
};

TEST_F(LearnedWords, HaveTheCourseOfOneProcessInEveryLayout) {
  const auto course = [&](const Flags& layout) {
    return course_of(word_config_in(folder_ / "run", layout), {"loss", "grad_norm"});
  };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(6));
  for (size_t i = 3; i < 6; ++i) EXPECT_GT(want[i], 1e-9) << "no gradient reaches the word";
  for (const Flags& layout :
       {Flags{"--parallel.data=2", "--parallel.tensor.size=2", "--parallel.pipeline.size=2",
              "--parallel.pipeline.micro_batches=2"},
        Flags{"--parallel.data=2", "--parallel.zero=3", "--memory.host=64MiB", "--memory.recompute=block"}})
    test::expect_near(course(layout), want, testing::PrintToString(layout));
}

TEST_F(LearnedWords, DrawAndAreReadFromTheirFileAndFromThoseOfOtherPrograms) {
  const std::string moon = drawn("a photo of <moon>", {trained()});
  EXPECT_EQ(drawn("a photo of <moon>", {}, trained()), moon) << "the run names its base";
  EXPECT_NE(drawn("a photo of <moon>", {}), moon);
  EXPECT_EQ(drawn("a cat", {trained()}), drawn("a cat", {}));
  const std::string to = folder_ / "words";
  run::export_words(trained(), to);
  const checkpoint::SafetensorsReader file(to + "/learned_embeds.safetensors");
  const at::Tensor rows = file.tensor("<moon>").clone();
  EXPECT_EQ(rows.sizes(), at::IntArrayRef({2, 64}));
  EXPECT_EQ(drawn("a photo of <moon>", {to}), drawn("a photo of <moon>", {to + "/learned_embeds.safetensors"}));
  checkpoint::write_safetensors(folder_ / "lune.safetensors", {{"emb_params", rows}});
  EXPECT_EQ(drawn("a photo of lune", {folder_ / "lune.safetensors"}), drawn("a photo of <moon>", {to}));
}

// Each vector begins as that of the word it starts from, and other words stay as they are.
TEST_F(LearnedWords, StartFromAWord) {
  const run::Config c = word_config_in(folder_ / "still", {"--training.steps=1", "--optimizer.learning_rate=1e-30"});
  train(c);
  const std::vector<run::LearnedWord> words = run::read_words({c.run.folder});
  ASSERT_THAT(words, SizeIs(1));
  const checkpoint::SafetensorsReader encoder(pipeline() + "/text_encoder/model.safetensors");
  const at::Tensor table = encoder.tensor("text_model.embeddings.token_embedding.weight").to(at::kDouble);
  const int64_t cat = text::make_captions(pipeline() + "/tokenizer")("cat").ids.at(1);
  for (int64_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(words[0].rows[i], table[cat], 1e-12, 1e-12)) << i;
}

TEST_F(LearnedWords, RefuseWhatDoesNotFit) {
  const auto refusal = [&](const std::string& path) { return test::thrown_message([&] { drawn("a cat", {path}); }); };
  folder_.write("a.pt", "x");
  EXPECT_THAT(refusal(folder_ / "a.pt"), HasSubstr("Python objects can run code"));
  EXPECT_THAT(refusal(folder_ / "none.safetensors"), HasSubstr("there is none at"));
  checkpoint::write_safetensors(folder_ / "wide.safetensors", {{"<x>", at::zeros({1, 96})}});
  EXPECT_THAT(refusal(folder_ / "wide.safetensors"), HasSubstr("must have 64 features, as the text encoder: got 96"));
  checkpoint::write_safetensors(folder_ / "lora.safetensors",
                                {{"<x>", at::zeros({1, 64})}, {"conv", at::zeros({1, 2, 3})}});
  EXPECT_THAT(refusal(folder_ / "lora.safetensors"), HasSubstr("got conv"));
  EXPECT_THAT(test::thrown_message([&] { train(word_config_in(folder_ / "r", {"--adapter.targets=[\"<sun>\"]"})); }),
              HasSubstr("got none with <sun>"));
  EXPECT_THAT(test::thrown_message([&] { train(word_config_in(folder_ / "r", {"--adapter.alpha=3"})); }),
              HasSubstr("textual-inversion"));
}

}  // namespace
}  // namespace colossal::diffusion::learned_words_test
