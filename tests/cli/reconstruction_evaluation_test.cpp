// `colossal evaluate --reconstruct`: a trained autoencoder and pictures of several sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/data/videos/clip_encoder.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::cli::reconstruction_evaluation_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class EvaluateReconstruction : public testing::Test {
 protected:
  void SetUp() override {
    train("run", {});
    std::filesystem::create_directories(folder_ / "pictures/more");
    write("pictures/0.png", 16, 16);
    write("pictures/more/1.png", 25, 19);
  }
  void train(const std::string& name, const Words& flags) {
    Words words{test::source_dir() + "/examples/vae_shapes.toml",
                "--run.folder=" + (folder_ / name),
                "--run.device=cpu",
                "--model.height=16",
                "--model.width=16",
                "--model.levels=8,16",
                "--model.groups=4",
                "--data.path=builtin-shapes:40",
                "--data.held_out=0.1",
                "--training.steps=2",
                "--training.batch_size=4",
                "--training.evaluate_every=0",
                "--optimizer.warmup_steps=0"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome outcome = run_command("train", words);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  void write(const std::string& name, int64_t width, int64_t height) {
    write_file(folder_ / name, data::encode_png(data::draw_shape(3, 1, width, height)));
  }
  Outcome evaluate(Words words, const std::string& from = "run") {
    words.insert(words.begin(), {"--from", folder_ / from});
    return run_command("evaluate", words);
  }
  test::TemporaryFolder folder_;
};

TEST_F(EvaluateReconstruction, PrintsTheSimilarityOfPicturesOfAnySize) {
  const Outcome outcome = evaluate({"--reconstruct", folder_ / "pictures", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json found = json::parse(outcome.out);
  EXPECT_EQ(found.size(), 3U);
  EXPECT_EQ(found.at("pictures"), 2);
  EXPECT_GT(found.at("psnr").get<double>(), 1);
  EXPECT_LT(found.at("psnr").get<double>(), 40);
  EXPECT_GT(found.at("ssim").get<double>(), -1);
  EXPECT_LT(found.at("ssim").get<double>(), 0.99);
  EXPECT_THAT(evaluate({"--reconstruct", folder_ / "pictures"}).out, HasSubstr("dB, ssim "));
}

TEST_F(EvaluateReconstruction, MeasuresTheFramesOfVideos) {
  const auto write_clip = [&](const std::string& name, int64_t frames) {
    std::string bytes;
    const auto clip = data::encode_gif({19, 16, 10}, [&](auto piece) { bytes += piece; });
    for (int64_t i = 0; i < frames; ++i) clip->add(data::draw_moving_shape(3, 1, 19, 16, i));
    clip->finish();
    write_file(folder_ / name, bytes);
  };
  std::filesystem::create_directories(folder_ / "clips");
  write_clip("clips/0.gif", 7);
  for (const char* name : {"hunyuan-video-vae-tiny", "open-sora-vae-tiny"}) {
    train(name, {concat("--model.name=", name), "--data.frames=5", "--model.levels=4,8,8,8", "--training.steps=1"});
    const json found = json::parse(evaluate({"--reconstruct", folder_ / "clips", "--json"}, name).out);
    EXPECT_EQ(found.at("videos"), 1) << name;
    EXPECT_EQ(found.at("pictures"), 0) << name;
    EXPECT_GT(found.at("psnr").get<double>(), 1) << name;
    EXPECT_LT(found.at("psnr").get<double>(), 40) << name;
  }
  // Frame by frame a video has the values of its pictures.
  std::filesystem::create_directories(folder_ / "frame");
  write_file(folder_ / "frame/0.png", data::encode_png(data::draw_moving_shape(3, 1, 19, 16, 0)));
  std::filesystem::create_directories(folder_ / "still");
  write_clip("still/0.gif", 1);
  const auto of = [&](const std::string& name) {
    return json::parse(evaluate({"--reconstruct", folder_ / name, "--json"}).out);
  };
  EXPECT_NEAR(of("still").at("psnr").get<double>(), of("frame").at("psnr").get<double>(), 1e-3);
  EXPECT_NEAR(of("still").at("ssim").get<double>(), of("frame").at("ssim").get<double>(), 1e-4);
}

TEST_F(EvaluateReconstruction, RefusesWhatItCannotMeasure) {
  EXPECT_THAT(evaluate({"--reconstruct", folder_ / "run"}).err, HasSubstr("folder with .png or .jpg files"));
  std::filesystem::create_directories(folder_ / "few");
  write("few/0.png", 16, 9);
  EXPECT_THAT(evaluate({"--reconstruct", folder_ / "few"}).err, HasSubstr("0.png must have sides of at least 11"));
  EXPECT_THAT(evaluate({"--reconstruct", "x", "--window", "3"}).err, HasSubstr("--window"));
  EXPECT_THAT(evaluate({"--pictures", folder_ / "pictures"}).err, HasSubstr("got one that encodes and decodes"));
}

}  // namespace
}  // namespace colossal::cli::reconstruction_evaluation_test
