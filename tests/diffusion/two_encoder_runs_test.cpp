// Runs of a small SDXL that train adapters of the UNet and of both of its text encoders.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/file.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/exported_pipeline.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/adapter_export.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/external_names.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/saved_model.h"
#include "diffusion/latent_runs.h"
#include "support/layouts.h"
#include "support/thrown_message.h"
#include "text/clip_files.h"

namespace colossal::diffusion::two_encoder_runs_test {
namespace {

using testing::SizeIs;
using Flags = std::vector<std::string>;

constexpr int64_t kCat = 527;  // token of "cat" at the end of a word (text/clip_files.h)

class TwoEncoderRuns : public LatentRuns {
 protected:
  static void SetUpTestSuite() {
    LatentRuns::SetUpTestSuite();
    train(config_in(shared() / "base", {"--model.name=sdxl-tiny", "--vae.from=" + vae(), "--training.steps=4",
                                        "--data.path=builtin-shapes:16"}));
    write_pipeline();
  }
  static std::string pipeline() { return shared() / "pipeline"; }

  static run::Config config_in(const std::string& folder, const Flags& flags) {
    const Flags own{"--run.folder=" + folder,
                    "--run.device=cpu",
                    "--run.matmul=mkl",
                    "--precision.mode=fp64",
                    "--data.held_out=0",
                    "--data.latents=" + (shared() / "latents"),
                    "--diffusion.min_snr=0",
                    "--diffusion.guidance=5",  // that of the pipeline
                    "--diffusion.drop_label=0.5",
                    "--optimizer.warmup_steps=0",
                    "--optimizer.learning_rate=0.05",
                    "--optimizer.final_learning_rate=0.05",
                    "--training.batch_size=4",
                    "--training.ema=0",
                    "--training.sample_every=0",
                    "--training.evaluate_every=0"};
    return run::read_given_config(test::source_dir() + "/examples/sd_finetune.toml", test::joined(own, flags)).config;
  }

  /// Writes the base as a pipeline, with encoders for the tokenizer beside them.
  static void write_pipeline() {
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved =
          run::load_model(shared() / "base", mesh, {}, at::kCPU, {.tokenizer = "none"}, program());
      const auto objective = objective_of_run(shared() / "base", program(), "test");
      export_pipeline(pipeline(), *saved.model, *objective, mesh, at::kDouble, {.seed = objective->pipeline().seed},
                      program());
    });
    nlohmann::json index = nlohmann::json::parse(read_file(pipeline() + "/model_index.json", 1 << 20));
    for (const char* end : {"", "_2"}) {
      write_encoder(concat(pipeline(), "/text_encoder", end), *end ? "clip-text-tiny-projected" : "clip-text-tiny");
      const test::TemporaryFolder files;
      text::clip::write_folder(files, {{"pad_token", "!"}});
      std::filesystem::copy(files.path(), concat(pipeline(), "/tokenizer", end),
                            std::filesystem::copy_options::recursive);
      index[concat("tokenizer", end)] = {"transformers", "CLIPTokenizer"};
    }
    write_file(pipeline() + "/model_index.json", index.dump());
  }
  static void write_encoder(const std::string& folder, const std::string& preset) {
    const models::ModelShape shape =
        models::built_in().resolve({.name = preset, .own = models::own_keys({"end_id=2"})}, 600);
    nn::Parameters parameters({}, {.dtype = at::kDouble, .seed = 5});
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
    std::filesystem::remove_all(folder);
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      checkpoint::export_weights(folder, parameters, run::external_names(shape), shape.architecture->to_json()(shape),
                                 mesh.all());
    });
  }

  /// A run that trains adapters of the UNet and of both encoders.
  static run::Config adapter_config(const std::string& folder, const Flags& flags) {
    return config_in(folder, test::joined(Flags{"--model.from=" + pipeline(), "--data.path=builtin-shapes:16",
                                                "--adapter.kind=lora", "--adapter.rank=2", "--adapter.alpha=4",
                                                "--adapter.text_encoder=true", "--training.steps=3"},
                                          flags));
  }

  static std::string drawn(const std::string& from, const Flags& adapters = {}) {
    const run::Program known = program();
    const run::PipelineSource source = find_pipeline(from, known, "draw");
    std::vector<run::AdapterChoice> choices;
    for (const std::string& one : adapters) choices.push_back({.name = "own", .folder = one});
    std::string png;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      run::Loading loading{.tokenizer = "none", .dtype = at::kDouble};
      run::set_adapters(loading, choices);
      const run::SavedModel saved = run::load_model(from, mesh, {}, at::kCPU, loading, known);
      PartsLoading of_parts;
      of_parts.adapters = choices;
      of_parts.dtype = at::kDouble;
      PipelineParts parts(source, world, at::kCPU, of_parts, known);
      Drawer drawer(source, *saved.model, parts, mesh, "");
      drawer.draw({.prompt = "a red circle", .steps = 3}, {}, [&](const DrawnPicture& one) {
        png = data::encode_png(data::decode_picture(one.png, "drawn"));  // without what it says
      });
    });
    return png;
  }
};

TEST_F(TwoEncoderRuns, HaveTheCourseOfOneProcessInEveryLayout) {
  const auto course = [&](const Flags& layout) {
    return course_of(adapter_config(folder_ / "run", layout), {"loss", "grad_norm"});
  };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(6));
  for (const Flags& layout :
       {Flags{"--parallel.data=2", "--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"},
        Flags{"--parallel.tensor.size=2", "--parallel.zero=3", "--parallel.data=2", "--memory.recompute=block"}})
    test::expect_near(course(layout), want, testing::PrintToString(layout));
}

// The run, and its adapters in both forms on the pipeline, draw the same; each encoder has its own.
TEST_F(TwoEncoderRuns, DrawAndWriteTheAdaptersOfBoth) {
  const run::Config c = adapter_config(folder_ / "run", {});
  train(c);
  const std::string ours = drawn(c.run.folder);
  EXPECT_NE(drawn(pipeline()), ours);
  EXPECT_EQ(drawn(pipeline(), {c.run.folder}), ours);
  for (const auto& [form, first, second] :
       {std::tuple{checkpoint::PipelineForm::Peft,
                   "text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_B.weight",
                   "text_encoder_2.text_model.encoder.layers.1.self_attn.q_proj.lora_B.weight"},
        {checkpoint::PipelineForm::Kohya, "lora_te1_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight",
         "lora_te2_text_model_encoder_layers_1_self_attn_q_proj.lora_up.weight"}}) {
    const std::string to = folder_ / first;
    create_folder(to);
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::AdapterSource source = run::open_adapters(c.run.folder);
      const run::SavedModel saved =
          run::load_model(pipeline(), mesh, {}, at::kCPU, {.tokenizer = "none", .dtype = at::kDouble}, program());
      run::export_adapters(to, saved, source, mesh, form);
    });
    const checkpoint::SafetensorsReader file(to + "/pytorch_lora_weights.safetensors");
    for (const char* name : {first, second})
      EXPECT_GT(file.tensor(name).abs().max().item<double>(), 1e-9) << name << " has not learned";
    EXPECT_EQ(drawn(pipeline(), {to}), ours) << first;
  }
}

// Words get vectors for each encoder, which their files name.
TEST_F(TwoEncoderRuns, LearnWordsOfBoth) {
  for (const char* name : {"a", "b", "c", "d"}) {
    const data::Picture picture{16, 16, std::vector<uint8_t>(16 * 16 * 3, static_cast<uint8_t>(50 * (name[0] - 'a')))};
    folder_.write(concat("pictures/", name, ".png"), data::encode_png(picture));
    folder_.write(concat("pictures/", name, ".txt"), "a photo of moon");
  }
  const auto trained = [&](const std::string& name, const Flags& flags) {
    const run::Config c = config_in(
        folder_ / name, test::joined(Flags{"--model.from=" + pipeline(), "--data.path=" + (folder_ / "pictures"),
                                           "--data.size=16,16", "--adapter.kind=textual-inversion",
                                           "--adapter.targets=[\"moon=cat\"]", "--adapter.rank=2", "--training.steps=2",
                                           "--data.latents=" + (folder_ / "latents"), "--optimizer.learning_rate=0.5"},
                                     flags));
    train(c);
    return c;
  };
  const run::Config c = trained("words", {}),
                    split = trained("split", {"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"});
  test::expect_near(metric(split, "loss"), metric(c, "loss"), "pipeline");
  const std::string to = folder_ / "out";
  run::export_words(c.run.folder, to);
  const checkpoint::SafetensorsReader file(to + "/moon.safetensors");
  EXPECT_EQ(file.tensor("clip_l").sizes(), at::IntArrayRef({2, 64}));
  EXPECT_EQ(file.tensor("clip_g").sizes(), at::IntArrayRef({2, 32}));
  const std::vector<run::LearnedWord> words = run::read_words({to});
  ASSERT_THAT(words, SizeIs(1));
  EXPECT_EQ(words[0].word, "moon");
  const at::Tensor cat = checkpoint::SafetensorsReader(pipeline() + "/text_encoder_2/model.safetensors")
                             .tensor("text_model.embeddings.token_embedding.weight")[kCat];
  EXPECT_GT((words[0].second[0] - cat).abs().max().item<double>(), 1e-3) << "it has not learned";
  EXPECT_LT((words[0].second[0] - cat).abs().max().item<double>(), 3) << "it started elsewhere";
  EXPECT_NE(drawn(c.run.folder), "");
}

}  // namespace
}  // namespace colossal::diffusion::two_encoder_runs_test
