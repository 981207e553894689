// Runs that train an IP-adapter on a tiny UNet: what they start from, every layout, drawing, the folder of diffusers.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/exported_pipeline.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/saved_model.h"
#include "diffusion/latent_runs.h"
#include "support/layouts.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::image_prompt_runs_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::SizeIs;
using Flags = std::vector<std::string>;

class ImagePromptRuns : public LatentRuns {
 protected:
  static void SetUpTestSuite() {
    LatentRuns::SetUpTestSuite();
    train(latent_config_in(base(), {"--optimizer.learning_rate=0.03", "--optimizer.final_learning_rate=0.03"}));
    // A high rate, so that image prompts matter after few steps.
    train(prompt_config_in(trained(), {}));
  }
  static std::string base() { return shared() / "base"; }
  static std::string trained() { return shared() / "trained"; }

  /// A run of an IP-adapter on the base.
  static run::Config prompt_config_in(const std::string& folder, const Flags& flags) {
    const Flags own{"--run.folder=" + folder,
                    "--run.device=cpu",
                    "--run.matmul=mkl",
                    "--precision.mode=fp64",
                    "--parallel.chunk_mib=0.05",
                    "--model.from=" + base(),
                    "--adapter.kind=ip-adapter",
                    "--adapter.from=clip-vision-tiny",
                    "--data.path=builtin-shapes:24",
                    "--data.held_out=0.2",
                    "--data.latents=" + (shared() / "latents"),
                    "--optimizer.learning_rate=0.03",
                    "--optimizer.warmup_steps=0",
                    "--training.batch_size=8",
                    "--training.steps=3",
                    "--training.sample_every=0",
                    "--training.evaluate_batches=1",
                    "--training.evaluate_every=3"};
    return run::read_given_config(test::source_dir() + "/examples/controlnet_shapes.toml", test::joined(own, flags))
        .config;
  }
  run::Config prompt_config(const std::string& name, const Flags& flags = {}) const {
    return prompt_config_in(folder_ / name, flags);
  }

  /// Writes a picture.
  std::string picture(int64_t shape) const {
    const std::string name = concat("picture-", shape, ".png");
    folder_.write(name, data::encode_png(data::draw_shape_outline(shape, 1, 40, 48)));
    return folder_ / name;
  }

  /// Writes a picture of noise.
  std::string noise() const {
    data::Picture picture{48, 40, {}};
    for (int64_t i = 0; i < 48 * 40 * 3; ++i) picture.rgb.push_back(static_cast<uint8_t>(i * i % 251));
    folder_.write("noise.png", data::encode_png(picture));
    return folder_ / "noise.png";
  }

  /// Draws with an IP-adapter, on `ranks` ranks of a pipeline, and returns the PNG.
  static std::string drawn(const std::string& from, const std::string& adapter, const std::string& image,
                           double scale = 1, int ranks = 1) {
    const run::Program known = program();
    const std::string chosen = adapter.empty() ? "" : concat(adapter, ":", scale);
    const run::PipelineSource source = find_pipeline(from, known, "draw", "", {.image_prompt = chosen});
    std::string png;
    comm::run_ranks(ranks, [&](comm::World& world) {
      distributed::ParallelConfig layout;
      layout.pipeline.size = ranks;
      comm::Mesh mesh(world, layout.axes());
      run::Loading loading{.tokenizer = "none", .image_prompt = source.image_prompt};
      PartsLoading of_parts;
      if (!adapter.empty()) of_parts.dtype = at::kDouble;
      const run::SavedModel saved = run::load_model(from, mesh, layout, at::kCPU, loading, known);
      PipelineParts parts(source, world, at::kCPU, of_parts, known);
      Drawer drawer(source, *saved.model, parts, mesh, "");
      drawer.draw({.prompt = "a star", .steps = 3, .ip_image = image}, {}, [&](const DrawnPicture& one) {
        png = data::encode_png(data::decode_picture(one.png, "drawn"));  // without what it says
      });
    });
    return png;
  }

  /// Writes a run as the folder that diffusers reads.
  static void export_to(const std::string& to, const std::string& run) {
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved = run::load_model(run, mesh, {}, at::kCPU, {.tokenizer = "none"}, program());
      diffusion::export_image_prompt(to, saved, run, mesh, true, program());
    });
  }

  static std::map<std::string, at::Tensor> tensors_in(const std::string& file) {
    const checkpoint::SafetensorsReader reader(file);
    std::map<std::string, at::Tensor> found;
    for (const auto& [name, entry] : reader.entries()) found[name] = reader.tensor(name).clone();
    return found;
  }
};

TEST_F(ImagePromptRuns, StartFromTheTextAndSaveTheAdapterAlone) {
  const run::Config still =
      prompt_config("still", {"--optimizer.learning_rate=1e-30", "--training.steps=1", "--training.evaluate_every=0"});
  train(still);
  const auto file = [](const std::string& run, int step) {
    return concat(run, "/checkpoints/step-00000", step, "/rank-00000.safetensors");
  };
  const auto own = tensors_in(file(still.run.folder, 1)), of_base = tensors_in(file(base(), 3));
  int copies = 0;
  for (const auto& [name, value] : own) {
    if (!name.starts_with("model.")) continue;
    EXPECT_TRUE(models::is_of_image_prompt(name.substr(6))) << name;
    const auto origin = models::image_prompt_origin(name.substr(6));
    if (!origin) continue;
    ++copies;
    EXPECT_TRUE(at::allclose(value, of_base.at("model." + *origin), 0, 1e-12)) << name;
  }
  EXPECT_EQ(copies, 2 * 4) << "keys and values of each attention";
  for (const double norm : metric(prompt_config_in(trained(), {}), "grad_norm")) EXPECT_GT(norm, 1e-6);
}

TEST_F(ImagePromptRuns, HaveTheCourseOfOneProcessInEveryLayout) {
  const auto course = [&](const Flags& layout) {
    return course_of(prompt_config("run", layout), {"loss", "grad_norm", "eval_loss"});
  };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(testing::Ge(3u + 3u + 1u)));
  for (const Flags& layout :
       {Flags{"--parallel.data=2", "--parallel.tensor.size=2", "--parallel.pipeline.size=2",
              "--parallel.pipeline.micro_batches=2"},
        Flags{"--parallel.tensor.size=4", "--parallel.tensor.mode=2d"},
        Flags{"--parallel.data=2", "--parallel.zero=3", "--memory.host=64MiB", "--memory.recompute=block"}})
    test::expect_near(course(layout), want, testing::PrintToString(layout));
}

TEST_F(ImagePromptRuns, ContinueBitForBit) {
  const run::Config whole = prompt_config("whole"), parts = prompt_config("parts");
  train(whole);
  train(parts, train::Start::Overwrite, 2);
  train(parts, train::Start::Resume);
  for (const char* name : {"loss", "grad_norm", "eval_loss"})
    EXPECT_EQ(metric(parts, name), metric(whole, name)) << name;
}

TEST_F(ImagePromptRuns, DrawWhatTheirPictureSaysAndByTheirScale) {
  const std::string star = drawn(base(), trained(), picture(6));
  EXPECT_EQ(drawn(trained(), trained(), picture(6)), star) << "the run names its base";
  EXPECT_EQ(drawn(base(), trained(), picture(6), 1, 2), star) << "in a pipeline";
  // The encoder has random weights, so its embeddings are alike: a large scale shows how they differ.
  EXPECT_NE(drawn(base(), trained(), noise(), 100), drawn(base(), trained(), picture(6), 100));
  EXPECT_NE(drawn(base(), trained(), picture(6), 0.5), star);
  EXPECT_EQ(drawn(base(), trained(), picture(6), 0), drawn(base(), "", ""));
}

TEST_F(ImagePromptRuns, TakeNoPictureToPlan) {
  const cli::Outcome outcome = cli::run_command("draw", {"--from", base(), "--plan", "--ip", trained()});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("image encoder"));
}

// Samples resemble the first picture that the run has not left out.
TEST_F(ImagePromptRuns, DrawSamplesBesideBrokenPictures) {
  write_pictures("pictures", 5, 16, 16);
  std::string png = read_file(folder_ / "pictures/16x16-0.png", 1 << 20);
  png[png.size() - 17] ^= 1;  // the last byte of its pixels
  folder_.write("pictures/0.png", png);
  folder_.write("pictures/0.txt", "a star");
  const run::Config c =
      prompt_config("samples", {"--data.path=" + (folder_ / "pictures"), "--data.on_error=skip", "--data.held_out=0",
                                "--data.latents=auto", "--training.evaluate_batches=0", "--training.batch_size=4",
                                "--training.steps=2", "--training.sample_every=1", "--training.sample_prompt=a star"});
  train(c);
  size_t samples = 0;
  for (const auto& file : fs::recursive_directory_iterator(c.run.folder + "/samples"))
    samples += file.is_regular_file() ? 1 : 0;
  EXPECT_EQ(samples, 4u);
}

TEST_F(ImagePromptRuns, WriteTheFolderThatTheyReadAgain) {
  const std::string to = folder_ / "ip";
  export_to(to, trained());
  EXPECT_EQ(read_json_object(to + "/image_encoder/config.json", "test").at("model_type"), "clip_vision_model");
  const auto tensors = tensors_in(to + "/ip-adapter.safetensors");
  EXPECT_TRUE(tensors.contains("image_proj.norm.bias") && tensors.contains("ip_adapter.7.to_v_ip.weight"));
  EXPECT_THAT(tensors, SizeIs(4 + 2 * 4));
  EXPECT_EQ(drawn(base(), to, picture(6)), drawn(base(), trained(), picture(6)));
  EXPECT_EQ(drawn(base(), to + "/ip-adapter.safetensors", picture(6)), drawn(base(), trained(), picture(6)));
  // Training continues from the folder and from the run, and writes the same file again.
  for (const std::string& from : {to, trained()}) {
    const run::Config c = prompt_config("further", {"--adapter.from=" + from, "--training.steps=1",
                                                    "--training.evaluate_every=1", "--optimizer.learning_rate=1e-300"});
    train(c);
    test::expect_near(metric(c, "eval_loss"), {metric(prompt_config_in(trained(), {}), "eval_loss").back()}, from);
    const std::string again = folder_ / "again";
    export_to(again, c.run.folder);
    for (const auto& [name, value] : tensors_in(again + "/ip-adapter.safetensors"))
      EXPECT_TRUE(at::equal(value, tensors.at(name))) << name;
    if (from != to) continue;
    export_to(to, c.run.folder);  // onto the folder from which the run began, and whose encoder it reads
    EXPECT_TRUE(fs::exists(to + "/image_encoder/config.json"));
  }
}

TEST_F(ImagePromptRuns, RefuseWhatDoesNotFit) {
  const auto refusal = [&](const Flags& flags) {
    return test::thrown_message([&] { train(prompt_config("refused", flags)); });
  };
  EXPECT_THAT(refusal({"--adapter.rank=3"}), HasSubstr("another adapter.kind than \"ip-adapter\""));
  EXPECT_THAT(refusal({"--adapter.from="}), HasSubstr("adapter.from must name the encoder of pictures"));
  EXPECT_THAT(refusal({"--adapter.from=" + base()}), HasSubstr("must have one file ip-adapter*.safetensors: got none"));
  EXPECT_THAT(refusal({"--data.latents=none"}), HasSubstr("where the embeddings of pictures are stored: got \"none\""));
  EXPECT_THAT(test::thrown_message([&] { drawn(base(), "", picture(6)); }), HasSubstr("name the IP-adapter"));
  EXPECT_THAT(test::thrown_message([&] { drawn(base(), trained(), ""); }), HasSubstr("name the picture"));
  const run::Config other = latent_config("other", {"--model.features=[8,24]"});
  train(other);
  EXPECT_THAT(test::thrown_message([&] { drawn(other.run.folder, trained(), picture(6)); }),
              HasSubstr("of the model's sizes, [24, 64]: got [16, 64]; it belongs to another base"));
  const run::Config again = latent_config("again", {"--training.seed=7"});
  train(again);
  EXPECT_THAT(test::thrown_message([&] { drawn(again.run.folder, trained(), picture(6)); }),
              HasSubstr("must be put onto the base on which they were trained"));
}

TEST_F(ImagePromptRuns, RefuseFilesOfOtherKinds) {
  const auto refusal = [&](const std::string& adapter) {
    return test::thrown_message([&] { drawn(base(), adapter, picture(6)); });
  };
  const auto write = [&](const std::string& name, const std::map<std::string, at::Tensor>& tensors) {
    create_folder(fs::path(folder_ / name).parent_path().string());
    checkpoint::write_safetensors(folder_ / name, tensors);
    return folder_ / name;
  };
  const at::Tensor some = at::zeros({2, 2});
  EXPECT_THAT(refusal(write("plus/ip-adapter-plus.safetensors", {{"image_proj.latents", some}})),
              HasSubstr("got a resampler of all states of the encoder (IP-adapter plus)"));
  EXPECT_THAT(refusal(write("full/ip-adapter-full.safetensors", {{"image_proj.proj.3.weight", some}})),
              HasSubstr("got a projection of all states of the encoder (IP-adapter full)"));
  write("several/ip-adapter_a.safetensors", {{"a", some}});
  write("several/ip-adapter_b.safetensors", {{"b", some}});
  EXPECT_THAT(refusal(folder_ / "several"), HasSubstr("name the file"));
  folder_.write("pickled/ip-adapter_sd15.bin", "pickle");
  EXPECT_THAT(refusal(folder_ / "pickled"), HasSubstr("which has Python objects, and those can run code"));
  const std::string to = folder_ / "ip";
  export_to(to, trained());
  fs::rename(to + "/image_encoder", to + "/elsewhere");
  EXPECT_THAT(refusal(to), HasSubstr("copy the folder image_encoder there"));
  EXPECT_THAT(refusal(folder_ / "none"), HasSubstr("there is none at"));
}

}  // namespace
}  // namespace colossal::diffusion::image_prompt_runs_test
