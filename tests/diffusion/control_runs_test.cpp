// Runs that train a ControlNet on a tiny UNet: what they start from, every layout, drawing, the folder of diffusers.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
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
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/run/control_source.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/saved_model.h"
#include "colossal/serve/local_drawer.h"
#include "diffusion/latent_runs.h"
#include "support/layouts.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::control_runs_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::SizeIs;
using Flags = std::vector<std::string>;

class ControlRuns : public LatentRuns {
 protected:
  static void SetUpTestSuite() {
    LatentRuns::SetUpTestSuite();
    train(latent_config_in(base(), {"--optimizer.learning_rate=0.03", "--optimizer.final_learning_rate=0.03"}));
    // A high rate, so that control pictures matter after few steps.
    train(control_config_in(trained(), {}));
  }
  static std::string base() { return shared() / "base"; }
  static std::string trained() { return shared() / "trained"; }

  /// A run of a ControlNet on the base.
  static run::Config control_config_in(const std::string& folder, const Flags& flags) {
    const Flags own{"--run.folder=" + folder,
                    "--run.device=cpu",
                    "--run.matmul=mkl",
                    "--precision.mode=fp64",
                    "--parallel.chunk_mib=0.05",
                    "--model.from=" + base(),
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
  run::Config control_config(const std::string& name, const Flags& flags = {}) const {
    return control_config_in(folder_ / name, flags);
  }

  /// Writes the outline of a shape.
  std::string outline(int64_t shape) const {
    const std::string name = concat("outline-", shape, ".png");
    folder_.write(name, data::encode_png(data::draw_shape_outline(shape, 1, 16, 16)));
    return folder_ / name;
  }

  /// Ranks that draw, and what else the model is loaded with.
  struct Way {
    distributed::ParallelConfig layout{};
    int64_t guidance_ranks = 1;
    run::Loading loading{.tokenizer = "none"};
  };
  /// Draws with a ControlNet and returns the PNG, or those of all pictures one after the other.
  static std::string drawn(const std::string& from, const std::string& control, const DrawOptions& options, Way way) {
    const run::Program known = program();
    const run::PipelineSource source = find_pipeline(from, known, "draw", "", {.control = control});
    way.loading.control = source.control;
    std::string png;
    comm::run_ranks(static_cast<int>(way.guidance_ranks * way.layout.ranks()), [&](comm::World& world) {
      comm::Mesh mesh(world, run::axes_with_guidance(way.layout, way.guidance_ranks));
      comm::Mesh own = mesh.without({run::kGuidanceAxis});
      const run::SavedModel saved = run::load_model(from, own, way.layout, at::kCPU, way.loading, known);
      PipelineParts parts(source, world, at::kCPU, {}, known);
      Drawer drawer(source, *saved.model, parts, mesh, "");
      drawer.draw(options, {}, [&](const DrawnPicture& one) {
        png += data::encode_png(data::decode_picture(one.png, "drawn"));  // without what it says
      });
    });
    return png;
  }
  static std::string drawn(const std::string& from, const std::string& control, const std::string& image,
                           double scale = 1) {
    return drawn(from, control.empty() ? "" : concat(control, ":", scale), options_with(image), {});
  }
  static DrawOptions options_with(const std::string& image) {
    return {.prompt = "a star", .steps = 3, .control_image = image};
  }
};

TEST_F(ControlRuns, StartFromTheirBaseAndLearn) {
  const run::Config still = control_config("still", {"--optimizer.learning_rate=1e-30", "--training.steps=1",
                                                     "--training.evaluate_every=1", "--training.batch_size=4"});
  train(still);
  const std::vector<double> of_base = metric(latent_config_in(base(), {}), "eval_loss");
  test::expect_near(metric(still, "eval_loss"), {of_base.back()}, "the loss of the base");
  const std::vector<double> losses = metric(control_config_in(trained(), {}), "loss");
  ASSERT_THAT(losses, SizeIs(3));
  const std::vector<double> norms = metric(control_config_in(trained(), {}), "grad_norm");
  for (const double norm : norms) EXPECT_GT(norm, 1e-6);
  // The trunk is a copy of the UNet, not new values: its first step moves what starts at 0 alone.
  const checkpoint::SafetensorsReader file(still.run.folder + "/checkpoints/step-000001/rank-00000.safetensors");
  EXPECT_FALSE(file.entries().empty());
  for (const auto& [name, entry] : file.entries())
    EXPECT_TRUE(!name.starts_with("model.") || models::is_of_control(name.substr(6))) << name;
}

TEST_F(ControlRuns, HaveTheCourseOfOneProcessInEveryLayout) {
  const auto course = [&](const Flags& layout) {
    return course_of(control_config("run", layout), {"loss", "grad_norm", "eval_loss"});
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

TEST_F(ControlRuns, ContinueBitForBit) {
  const run::Config whole = control_config("whole"), parts = control_config("parts");
  train(whole);
  train(parts, train::Start::Overwrite, 2);
  train(parts, train::Start::Resume);
  for (const char* name : {"loss", "grad_norm", "eval_loss"})
    EXPECT_EQ(metric(parts, name), metric(whole, name)) << name;
}

TEST_F(ControlRuns, DrawWhatTheirPictureSaysAndByTheirScale) {
  const std::string star = drawn(base(), trained(), outline(6));
  EXPECT_EQ(drawn(trained(), trained(), outline(6)), star) << "the run names its base";
  EXPECT_NE(drawn(base(), trained(), outline(0)), star);
  EXPECT_NE(drawn(base(), trained(), outline(6), 0.5), star);
  EXPECT_EQ(drawn(base(), trained(), outline(6), 0), drawn(base(), "", ""));
}

TEST_F(ControlRuns, DrawTheSameInEveryLayout) {
  DrawOptions options = options_with(outline(6));
  options.count = 2;
  options.guidance = 3;
  const std::string want = drawn(base(), trained(), options, {});
  Way pipeline, replicas, tensor, matrix, guidance, streamed;
  pipeline.layout.pipeline.size = 2;
  replicas.layout.data = 2;
  tensor.layout.tensor.size = 2;
  matrix.layout.tensor = {.size = 4, .mode = "2d"};
  guidance.guidance_ranks = 2;
  guidance.layout.tensor.size = 2;
  streamed.loading.memory.host = int64_t{300} << 10;
  streamed.loading.memory.disk = folder_ / "disk";
  const std::vector<std::pair<const char*, Way>> ways{{"pipeline", pipeline}, {"data", replicas},
                                                      {"tensor", tensor},     {"2d", matrix},
                                                      {"guidance", guidance}, {"streamed", streamed}};
  for (const auto& [name, way] : ways) EXPECT_EQ(drawn(base(), trained(), options, way), want) << name;
  // Quantized weights draw another picture.
  Way packed;
  packed.loading.packing = {.bits = 8, .group = 8};
  EXPECT_NE(drawn(base(), trained(), options, packed), want);
}

TEST_F(ControlRuns, DrawFromAPictureAndInsideAMask) {
  folder_.write("begin.png", data::encode_png(data::draw_shape(2, 3, 16, 16)));
  data::Picture half{16, 16, std::vector<uint8_t>(16 * 16 * 3, 0)};
  std::fill(half.rgb.begin(), half.rgb.begin() + 8 * 16 * 3, 255);  // the upper half is painted anew
  folder_.write("mask.png", data::encode_png(half));
  DrawOptions options = options_with(outline(6));
  options.image = folder_ / "begin.png";
  const std::string begun = drawn(base(), trained(), options, {});
  options.mask = folder_ / "mask.png";
  const std::string painted = drawn(base(), trained(), options, {});
  EXPECT_NE(painted, begun);
  options.control_image = outline(0);
  EXPECT_NE(drawn(base(), trained(), options, {}), painted);
  options.approximate = "pab";
  EXPECT_THAT(test::thrown_message([&] { drawn(base(), trained(), options, {}); }),
              HasSubstr("needs a model with two"));
}

// A command, its lines of prompts, and a drawer of a program with a path and with bytes write the same file.
TEST_F(ControlRuns, DrawTheSameInCommandsAndPrograms) {
  const std::string control = trained() + ":0.5", image = outline(6), to = folder_ / "one.png",
                    prompts = folder_.write("lines.jsonl", concat(R"({"control-image": ")", image, "\"}\n"));
  const Flags words{"--from", base(), "--control", control, "--prompt", "a star", "--steps", "3", "--to"};
  const cli::Outcome lone = cli::run_command("draw", test::joined(words, {to, "--control-image", image}));
  ASSERT_EQ(lone.status, 0) << lone.err;
  const std::string want = read_file(to, 1 << 20);
  EXPECT_EQ(data::decode_picture(want, "one").rgb,
            data::decode_picture(drawn(base(), trained(), image, 0.5), "other").rgb);
  ASSERT_EQ(cli::run_command("draw", test::joined(words, {folder_ / "many", "--prompts", prompts})).status, 0);
  EXPECT_EQ(read_file(folder_ / "many/0000-1.png", 1 << 20), want);
  const nlohmann::json loaded{{"from", base()}, {"control", control}};
  serve::LocalDrawer drawer(serve::read_local_drawer_options(loaded.dump()));
  const auto of_drawer = [&](const std::string& name, const GivenFiles& files) {
    const nlohmann::json given{{"prompt", "a star"}, {"steps", 3}, {"control-image", name}};
    const auto drawing = drawer.draw(drawer.options(given.dump(), files), files);
    return drawing->next(std::chrono::minutes(1)).value().pictures.at(0).png;
  };
  EXPECT_EQ(of_drawer(image, {}), want);
  EXPECT_EQ(of_drawer("control_image", {{"control_image", read_file(image, 1 << 20)}}), want);
  EXPECT_THAT(test::thrown_message([&] { of_drawer("control_image", {{"control_image", "no picture"}}); }),
              HasSubstr("control_image"));
  EXPECT_THAT(test::thrown_message([&] { drawer.options(R"({"prompt": "a star"})"); }), HasSubstr("name the picture"));
}

TEST_F(ControlRuns, TakeNoPictureToPlan) {
  const cli::Outcome outcome = cli::run_command("draw", {"--from", base(), "--plan", "--control", trained()});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST_F(ControlRuns, WriteTheFolderThatTheyReadAgain) {
  const std::string to = folder_ / "controlnet";
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const run::SavedModel saved = run::load_model(trained(), mesh, {}, at::kCPU, {.tokenizer = "none"}, program());
    run::export_control(to, saved, trained(), mesh);
  });
  EXPECT_EQ(read_json_object(to + "/config.json", "test").at("_class_name"), "ControlNetModel");
  EXPECT_EQ(drawn(base(), to, outline(6)), drawn(base(), trained(), outline(6)));
  // Training continues from the folder, and from the run.
  const auto first_loss = [&](const std::string& from) {
    const run::Config c = control_config("further", {"--adapter.from=" + from, "--training.steps=1",
                                                     "--training.evaluate_every=1", "--optimizer.learning_rate=1e-30"});
    train(c);
    return metric(c, "eval_loss");
  };
  test::expect_near(first_loss(to), {metric(control_config_in(trained(), {}), "eval_loss").back()}, "the folder");
  test::expect_near(first_loss(trained()), {metric(control_config_in(trained(), {}), "eval_loss").back()}, "the run");
}

TEST_F(ControlRuns, LearnPicturesBesidePictures) {
  write_pictures("pictures", 6, 16, 16);
  const Flags flags{"--data.path=" + (folder_ / "pictures"), "--data.latents=" + (folder_ / "latents"),
                    "--data.size=16,16", "--data.held_out=0", "--training.evaluate_every=0"};
  EXPECT_THAT(
      test::thrown_message([&] { train(control_config("none", flags)); }),
      AllOf(HasSubstr("6 without one, the first of which must be " + (folder_ / "pictures/16x16-0.control.png")),
            HasSubstr("data.on_error")));
  for (int64_t i = 0; i < 6; ++i)
    folder_.write(concat("pictures/16x16-", i, ".control.png"),
                  data::encode_png(data::draw_shape_outline(i, 1, 16, 16)));
  const run::Config c = control_config("run", flags);
  train(c);
  EXPECT_THAT(metric(c, "loss"), SizeIs(3));
  folder_.write("pictures/16x16-0.control.png", data::encode_png(data::draw_shape_outline(0, 1, 8, 8)));
  EXPECT_THAT(test::thrown_message([&] { train(control_config("small", flags)); }),
              HasSubstr("16x16-0.control.png must have the size of its picture, 16 x 16: got 8 x 8"));
  // A small, a broken and a missing one are left out by name.
  folder_.write("pictures/16x16-1.control.png", "no picture");
  std::filesystem::remove(folder_ / "pictures/16x16-2.control.png");
  const run::Config skips = control_config("skips", test::joined(flags, {"--data.on_error=skip"}));
  const run::ResolvedModel resolved = run::resolve_model(skips, program());
  const run::OpenedData opened = resolved.objective.objective->open({.config = skips, .shape = resolved.shape});
  for (const char* name : {"16x16-0.control.png must have the size", "16x16-1.control.png", "16x16-2.control.png"})
    EXPECT_THAT(opened.notices, Contains(AllOf(HasSubstr("skipped: "), HasSubstr(name))));
  train(skips);
  EXPECT_THAT(metric(skips, "loss"), SizeIs(3));
}

TEST_F(ControlRuns, GoOnWithTheSameControlPicturesOnly) {
  write_pictures("pictures", 6, 16, 16);
  const auto write_control = [&](int64_t i, uint64_t look) {
    folder_.write(concat("pictures/16x16-", i, ".control.png"),
                  data::encode_png(data::draw_shape_outline(i, look, 16, 16)));
  };
  for (int64_t i = 0; i < 6; ++i) write_control(i, 1);
  const run::Config c = control_config(
      "run", {"--data.path=" + (folder_ / "pictures"), "--data.size=16,16", "--data.latents=" + (folder_ / "latents"),
              "--data.held_out=0", "--training.evaluate_every=0"});
  train(c, train::Start::Overwrite, 2);
  write_control(4, 2);
  EXPECT_THAT(test::thrown_message([&] { train(c, train::Start::Resume); }), HasSubstr("pictures"));
  write_control(4, 1);
  train(c, train::Start::Resume);
  EXPECT_THAT(metric(c, "loss"), SizeIs(3));
}

TEST_F(ControlRuns, RefuseWhatDoesNotFit) {
  const auto refusal = [&](const Flags& flags) {
    return test::thrown_message([&] { train(control_config("refused", flags)); });
  };
  EXPECT_THAT(refusal({"--adapter.rank=3"}), HasSubstr("another adapter.kind than \"controlnet\""));
  EXPECT_THAT(refusal({"--adapter.from=" + base()}), HasSubstr("must have a ControlNet"));
  EXPECT_THAT(test::thrown_message([&] { drawn(base(), "", outline(6)); }), HasSubstr("name the ControlNet"));
  EXPECT_THAT(test::thrown_message([&] { drawn(base(), trained(), ""); }), HasSubstr("name the picture"));
  const run::Config other = latent_config("other", {"--model.features=[8,24]"});
  train(other);
  EXPECT_THAT(test::thrown_message([&] { drawn(other.run.folder, trained(), outline(6)); }),
              HasSubstr("block_out_channels must be that of the model, [8,24]: got [8,16]"));
  const run::Config again = latent_config("again", {"--training.seed=7"});
  train(again);
  EXPECT_THAT(test::thrown_message([&] { drawn(again.run.folder, trained(), outline(6)); }),
              HasSubstr("must be put onto the base on which they were trained"));
}

}  // namespace
}  // namespace colossal::diffusion::control_runs_test
