// `colossal draw` with a model of clips: files, given frames, a decoder beside it, and what it refuses.
#include "colossal/cli/draw_clips.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/data/videos/video.h"
#include "colossal/diffusion/clip_length.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/diffusion/told_captions.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/serve/local_drawer.h"
#include "support/clip_run.h"
#include "support/temporary_folder.h"

namespace colossal::cli::draw_clips_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;
using Frames = std::vector<data::Picture>;

constexpr int64_t kMaxBytes = 1 << 20, kWidth = 12, kHeight = 8;

class DrawClips : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    test::write_clip_run(folder() / "run");
  }
  static void TearDownTestSuite() { delete folder_; }
  static const test::TemporaryFolder& folder() { return *folder_; }

  static Outcome draw(Words words, const std::string& from = "run") {
    words.insert(words.begin(), {"--from", folder() / from, "--steps", "2"});
    return run_command("draw", words);
  }
  /// Draws to a file or folder and returns the lines that are printed.
  static std::string drawn(const std::string& to, const Words& words, const std::string& from = "run") {
    Words all{"--prompt", "a red circle moves left", "--to", folder() / to};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = draw(all, from);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  }
  static std::string refused(const std::string& to, const Words& words, const std::string& from = "run") {
    Words all{"--to", folder() / to};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = draw(all, from);
    EXPECT_NE(outcome.status, 0);
    return outcome.err;
  }
  /// Reads a clip as frames of one rate.
  static Frames frames_of(const std::string& name) {
    const auto file = InputFile::open(folder() / name);
    const auto video = data::open_video(data::bytes_of(*file), name);
    Frames frames;
    while (video->next()) frames.push_back(video->picture());
    return frames;
  }
  /// Writes a picture of the size of the model, and returns its path.
  static std::string write_picture(const std::string& name, uint8_t blue) {
    data::Picture picture{kWidth, kHeight, {}};
    for (int64_t i = 0; i < kWidth * kHeight; ++i)
      picture.rgb.insert(picture.rgb.end(), {static_cast<uint8_t>(2 * i), static_cast<uint8_t>(255 - i), blue});
    return folder().write(name, data::encode_png(picture));
  }

 private:
  static test::TemporaryFolder* folder_;
};
test::TemporaryFolder* DrawClips::folder_ = nullptr;

TEST_F(DrawClips, WritesAGifThatHasTheFrames) {
  const std::string line = drawn("out.gif", {"--frames", "5", "--fps", "8", "--seed", "4", "--json"});
  const json printed = json::parse(line);
  EXPECT_EQ(printed.at("path"), folder() / "out.gif");
  EXPECT_EQ(printed.at("frames"), 5);
  EXPECT_EQ(printed.at("fps"), 8);
  EXPECT_EQ(printed.at("seed"), 4);
  EXPECT_EQ(printed.at("sampler"), "flow");
  EXPECT_GT(printed.at("seconds").get<double>(), 0);
  const Frames frames = frames_of("out.gif");
  ASSERT_EQ(frames.size(), 5u);
  EXPECT_EQ(frames[0].width, kWidth);
  EXPECT_EQ(frames[0].height, kHeight);
  EXPECT_NE(frames[0].rgb, frames[4].rgb);
  const auto file = InputFile::open(folder() / "out.gif");
  EXPECT_NEAR(data::open_video(data::bytes_of(*file), "out.gif")->seconds(), 5. / 8, 0.01);
}

TEST_F(DrawClips, WritesY4mAndOnePictureForOneFrame) {
  drawn("out.y4m", {"--frames", "4"});
  EXPECT_EQ(frames_of("out.y4m").size(), 4u);
  drawn("one.png", {"--frames", "1"});
  EXPECT_EQ(data::decode_picture(read_file(folder() / "one.png", kMaxBytes), "one").width, kWidth);
}

TEST_F(DrawClips, RepeatsEachClipOfAFolderAlone) {
  EXPECT_EQ(drawn("clips", {"--count", "2", "--seed", "5"}),
            concat(folder() / "clips/0000-5.gif\n", folder() / "clips/0001-6.gif\n"));
  drawn("alone.gif", {"--seed", "6"});
  EXPECT_EQ(frames_of("clips/0001-6.gif").size(), 3u) << "the frames of the model";
  EXPECT_EQ(read_file(folder() / "alone.gif", kMaxBytes), read_file(folder() / "clips/0001-6.gif", kMaxBytes));
  const std::string lines = folder().write("lines.jsonl", R"({"prompt": "a star", "frames": 2, "count": 1})");
  drawn("lines", {"--prompts", lines, "--seed", "6"});
  EXPECT_EQ(frames_of("lines/0000-6.gif").size(), 2u);
}

TEST_F(DrawClips, KeepsTheGivenFrames) {
  const std::string first = write_picture("first.png", 0), last = write_picture("last.png", 255);
  const auto pixels = [](const std::string& path) {
    return data::decode_picture(read_file(path, kMaxBytes), path).rgb;
  };
  drawn("begun.gif", {"--image", first});
  const Frames begun = frames_of("begun.gif");
  ASSERT_EQ(begun.size(), 3u);
  EXPECT_EQ(begun[0].rgb, pixels(first));
  EXPECT_NE(begun[2].rgb, pixels(first));
  drawn("both.gif", {"--image", first, "--last", last, "--frames", "4"});
  const Frames both = frames_of("both.gif");
  ASSERT_EQ(both.size(), 4u);
  EXPECT_EQ(both.front().rgb, pixels(first));
  EXPECT_EQ(both.back().rgb, pixels(last));
}

TEST_F(DrawClips, GivesTheFramesOfEachClipToPrograms) {
  serve::LocalDrawer drawer(serve::read_local_drawer_options(json{{"from", folder() / "run"}}.dump()));
  const auto drawing = drawer.draw(drawer.options(R"({"prompt": "a star", "count": 2, "frames": 2, "steps": 2})"));
  const serve::Drawn drawn = drawing->next(std::chrono::minutes(1)).value();
  ASSERT_EQ(drawn.pictures.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(drawn.pictures[i].seed, i < 2 ? 1 : 2);
    EXPECT_EQ(drawn.pictures[i].frame, static_cast<int64_t>(i % 2));
    EXPECT_EQ(drawn.pictures[i].frames, 2);
    EXPECT_EQ(drawn.pictures[i].pixels.width, kWidth);
  }
}

TEST_F(DrawClips, DecodesFramesOneByOne) {
  test::write_clip_run(folder() / "latents",
                       {"--model.channels=4", "--model.height=2", "--model.width=3", "--vae.from=autoencoder-kl-tiny"});
  drawn("decoded.gif", {"--fps", "10"}, "latents");
  const Frames frames = frames_of("decoded.gif");
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0].width, 3 * 4);
  checkpoint::write_safetensors(folder() / "kept.safetensors", {{"latents", at::randn({2, 4, 3, 2, 3})}});
  const Words decode{"--decode", folder() / "kept.safetensors", "--prompt", "x"};
  const auto decoded = [&](const std::string& to, Words words) {
    words.insert(words.end(), decode.begin(), decode.end());
    words.insert(words.end(), {"--to", folder() / to});
    return draw(words, "latents");
  };
  const Outcome outcome = decoded("decoded", {"--fps", "10"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(frames_of("decoded/0001-1.gif").size(), 3u);
  EXPECT_THAT(decoded("x", {"--frames", "4"}).err, HasSubstr("of 4 frames must be 4 frames: got [2, 4, 3"));
  EXPECT_THAT(refused("x", {"--prompt", "x", "--vae", "none"}, "latents"), HasSubstr("channels must be 3"));
}

TEST_F(DrawClips, RefuseToBeServed) {
  const Outcome outcome = run_command("serve", {"--from", folder() / "run", "--port", "0"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("the model must draw pictures: got one of clips"));
}

// Chunks of 5 frames are 2 of the latent.
TEST_F(DrawClips, DecodesChunksOfTime) {
  test::write_clip_run(folder() / "chunks",
                       {"--model.channels=4", "--model.height=4", "--model.width=6", "--vae.from=open-sora-vae-tiny"});
  drawn("own.gif", {}, "chunks");
  EXPECT_EQ(frames_of("own.gif").size(), 6u) << "the least of 3 frames of the latent";
  drawn("chunks.gif", {"--frames", "12", "--image", write_picture("chunk.png", 7)}, "chunks");
  const Frames frames = frames_of("chunks.gif");
  ASSERT_EQ(frames.size(), 12u);
  EXPECT_EQ(frames[0].width, kWidth);
  EXPECT_THAT(refused("x.gif", {"--prompt", "x", "--tiles"}, "chunks"), HasSubstr("decodes in chunks of time"));
  const Outcome outcome =
      draw({"--prompt", "x", "--frames", "6", "--to", folder() / "x.gif", "--vae", "hunyuan-video-vae-tiny"}, "chunks");
  EXPECT_THAT(outcome.err, HasSubstr("makes clips of 4 k + 1 frames: got 6; nearest: 5"));
}

TEST_F(DrawClips, RefusesWhatClipsCannotBe) {
  const Words prompt{"--prompt", "x"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), prompt.begin(), prompt.end());
    return words;
  };
  const std::string first = write_picture("given.png", 9);
  EXPECT_THAT(refused("x.png", with({"--frames", "2"})), HasSubstr("name it .gif"));
  EXPECT_THAT(refused("x.gif", with({"--last", first})), HasSubstr("a last frame must come with the first one"));
  EXPECT_THAT(refused("x.gif", with({"--image", first, "--frames", "1"})), HasSubstr("set more frames"));
  EXPECT_THAT(refused("x.gif", with({"--image", first, "--strength", "0.5"})), HasSubstr("strength"));
  EXPECT_THAT(refused("x.gif", with({"--image", first, "--mask", first})),
              HasSubstr("a mask needs a model of pictures"));
  EXPECT_THAT(refused("x.gif", with({"--fps", "60"})), HasSubstr("at most 50 frames a second"));
  EXPECT_THAT(refused("x", with({"--fps", "60"})), HasSubstr("at most 50 frames a second"));
  EXPECT_THAT(draw({"--plan", "--frames", "-5"}).err, HasSubstr("frames must be between 0 and 2^20: got -5"));
  EXPECT_THAT(draw({"--plan", "--frames", "1048577"}).err, HasSubstr("got 1048577"));
  EXPECT_THAT(run_command("export", {"--from", folder() / "run", "--to", folder() / "x.gguf"}).err,
              HasSubstr("a model that draws must be written as a folder"));
  EXPECT_THAT(refused("x.gif", with({"--count", "2"})), HasSubstr("must be a folder"));
  if (!data::reads_videos()) {
    EXPECT_THAT(refused("x.mp4", prompt), HasSubstr("mp4"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder() / "x.gif"));
}

TEST_F(DrawClips, RefusesFilesThatCannotBeWritten) {
  const auto message = [&](const std::string& to, Words words) {
    words.insert(words.end(), {"--prompt", "x"});
    return refused(to, words);
  };
  test::write_clip_run(folder() / "odd", {"--model.patch=1", "--model.height=5", "--model.width=7"});
  EXPECT_THAT(refused("x.mp4", {"--prompt", "x"}, "odd"),
              HasSubstr("the sides of an .mp4 file must be even: got 7x5; set --size 8x6, or write .gif or .y4m"));
  data::Picture picture{9, 7, std::vector<uint8_t>(3 * 9 * 7, 8)};
  const std::string image = folder().write("odd.png", data::encode_png(picture));
  EXPECT_THAT(refused("x.mp4", {"--prompt", "x", "--image", image}, "odd"), HasSubstr("got 9x7; set --size 10x8"));
  EXPECT_THAT(message("z.webm", {}), HasSubstr("must be a .png, .gif, .y4m or .mp4 file, or a folder"));
  EXPECT_THAT(message("z.webm", {}), HasSubstr("of the unknown ending .webm"));
  EXPECT_THAT(message("z.jpg", {"--frames", "1"}), HasSubstr("of the unknown ending .jpg"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "z.webm"));
  drawn("z.webm/", {"--frames", "1"});
  drawn("z.webm", {"--frames", "1"});
  drawn("Z.PNG", {"--frames", "1"});
  EXPECT_TRUE(std::filesystem::is_regular_file(folder() / "Z.PNG"));
  EXPECT_THAT(message("gone/x.png", {"--frames", "1"}), HasSubstr("gone/x.png"));
  EXPECT_THAT(message("x.gif", {"--image", folder() / "none.png"}), HasSubstr("none.png"));
  EXPECT_THAT(message("x.gif", {"--image", image, "--last", folder() / "none.png"}), HasSubstr("none.png"));
}

// The parts are written beside the published weights, so nothing of the run is needed.
TEST_F(DrawClips, DrawsTheSameFromAnExport) {
  const auto bytes = [&](const std::string& to, const std::string& from, const Words& words = {}) {
    drawn(to, words, from);
    return read_file(folder() / to, kMaxBytes);
  };
  const auto exported = [&](const std::string& from, const std::string& to) {
    const Outcome outcome = run_command("export", {"--from", folder() / from, "--to", folder() / to});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
  };
  const Words latents{"--model.channels=4", "--model.height=4", "--model.width=6", "--diffusion.guidance=2",
                      "--training.seed=5"};
  test::write_clip_run(folder() / "pixel-run", {"--diffusion.shift=2", "--precision.mode=fp32"});
  for (const char* vae : {"open-sora-vae-tiny", "autoencoder-kl-tiny"}) {
    Words flags = latents;
    flags.insert(flags.end(), {concat("--vae.from=", vae), "--precision.mode=fp32"});
    test::write_clip_run(folder() / vae, flags);
  }
  for (const std::string from : {"pixel-run", "open-sora-vae-tiny", "autoencoder-kl-tiny"}) {
    const std::string to = from + "-out", again = from + "-again";
    exported(from, to);
    exported(to, again);
    const std::string want = bytes(from + ".y4m", from);
    EXPECT_TRUE(bytes(to + ".y4m", to) == want) << from;
    EXPECT_TRUE(bytes(again + ".y4m", again) == want) << from;
    EXPECT_TRUE(bytes("parts.y4m", to,
                      {"--vae", from == "pixel-run" ? "none" : from, "--text-encoder", "clip-text-tiny"}) == want)
        << "the same parts again";
  }
  const std::string out = folder() / "open-sora-vae-tiny-out";
  drawn("other.gif", {"--vae", out, "--text-encoder", out}, "autoencoder-kl-tiny");
  const run::Config next = run::read_given_config("", {"--model.from=" + out, "--data.path=builtin-shapes"}).config;
  const run::ResolvedModel model = run::resolve_model(next, run::built_in());
  const auto* objective = dynamic_cast<const run::DiffusionObjective*>(model.objective.objective.get());
  ASSERT_NE(objective, nullptr);
  EXPECT_EQ(objective->pipeline().vae, out + "/vae") << "a run that starts from the export uses its parts";
  EXPECT_EQ(objective->pipeline().captions.front().encoder, out + "/text_encoder");
  EXPECT_EQ(objective->pipeline().keys.guidance, 2);
  std::filesystem::remove_all(out + "/vae");
  EXPECT_THAT(refused("x.gif", {"--prompt", "x"}, "open-sora-vae-tiny-out"),
              HasSubstr("must have the folder vae, because its colossal_pipeline.json names that part"));
  write_file(out + "/colossal_pipeline.json", "{\"frames\": \"x\"}");
  EXPECT_THAT(refused("x.gif", {"--prompt", "x"}, "open-sora-vae-tiny-out"),
              HasSubstr("colossal_pipeline.json: frames"));
  write_file(out + "/colossal_pipeline.json", "damaged");
  EXPECT_THAT(refused("x.gif", {"--prompt", "x"}, "open-sora-vae-tiny-out"), HasSubstr("colossal_pipeline.json"));
}

// Open-Sora tells a picture 120 frames a second, in training, too.
TEST_F(DrawClips, TellsASingleFrameTheRateOfPictures) {
  const auto bytes = [&](const std::string& name, const Words& words) {
    drawn(name, words);
    return read_file(folder() / name, kMaxBytes);
  };
  const std::string picture = bytes("single.png", {"--frames", "1"});
  EXPECT_EQ(bytes("other.png", {"--frames", "1", "--fps", "8"}), picture);
  EXPECT_NE(bytes("8.gif", {"--frames", "2", "--fps", "8"}), bytes("40.gif", {"--frames", "2", "--fps", "40"}));
  test::write_clip_run(folder() / "one", {"--model.frames=1"});
  const run::PipelineSource source = diffusion::find_pipeline(folder() / "one", run::built_in(), "draw");
  comm::run_ranks(1, [&](comm::World& world) {
    diffusion::PipelineParts parts(source, world, at::kCPU, {}, run::built_in());
    const auto rate = [&](int64_t frames, double fps) {
      return diffusion::read_captions(source, parts, {.prompt = "x", .is_guided = false, .fps = fps, .frames = frames})
          .told.at("fps")
          .item<double>();
    };
    EXPECT_EQ(rate(1, 8), run::kPictureRate);
    EXPECT_EQ(rate(1, 0), run::kPictureRate);
    EXPECT_EQ(rate(2, 8), 8);
    EXPECT_EQ(rate(2, 0), diffusion::kDefaultRate);
  });
}

TEST(DrawnPaths, RefuseClipsOfAModelOfPictures) {
  const test::TemporaryFolder folder;
  run::PipelineSource source{.sizes = {.channels = 3, .height = 8, .width = 8, .classes = 2}};
  source.keys.target = "epsilon";
  source.keys.schedule = "linear";
  const auto message = [&](const diffusion::DrawOptions& options, const std::string& to) {
    try {
      diffusion::check_clip_options(source, options);
      check_drawn_path(folder / to, source, options);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_THAT(message({.drawn = "1", .frames = 2}, "x"), HasSubstr("frames needs a model of clips"));
  EXPECT_THAT(message({.drawn = "1", .fps = 8}, "x"), HasSubstr("fps needs a model of clips"));
  EXPECT_THAT(message({.drawn = "1", .last = "a.png"}, "x"), HasSubstr("last needs a model of clips"));
  EXPECT_THAT(message({.drawn = "1"}, "x.gif"), HasSubstr("a .png file or a folder"));
  EXPECT_EQ(message({.drawn = "1"}, "x.png"), "");
  EXPECT_EQ(numbered_path("clips", 12, 7, ".gif"), "clips/0012-7.gif");
  EXPECT_EQ(numbered_path("clips/", 12, 7, ".gif"), "clips/0012-7.gif");
}

}  // namespace
}  // namespace colossal::cli::draw_clips_test
