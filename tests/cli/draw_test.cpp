// `colossal draw`, and what other commands do with runs that learn to draw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/data/pictures/picture.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::cli::draw_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

constexpr int64_t kMaxBytes = 1 << 20;

class Draw : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    train("dit_shapes",
          {"--run.folder=" + (folder() / "run"), "--model.hidden=16", "--model.ffn=64", "--model.layers=2",
           "--model.height=8", "--model.width=8", "--training.ema=0.5", "--training.sample_every=0"});
    train("vit_cifar10", {"--run.folder=" + (folder() / "vit"), "--model.hidden=16", "--model.ffn=32",
                          "--model.layers=1", "--model.side=8", "--training.save_every=0"});
  }
  static void TearDownTestSuite() { delete folder_; }
  static const test::TemporaryFolder& folder() { return *folder_; }

  static void train(const std::string& example, const Words& flags) {
    Words words{test::source_dir() + "/examples/" + example + ".toml",
                "--run.device=cpu",
                "--data.path=builtin-shapes:40",
                "--data.held_out=0.1",
                "--training.steps=3",
                "--training.batch_size=8",
                "--training.evaluate_every=0",
                "--optimizer.warmup_steps=0"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome outcome = run_command("train", words);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  static Outcome draw(Words words, const std::string& from = "run") {
    words.insert(words.begin(), {"--from", folder() / from, "--steps", "3"});
    return run_command("draw", words);
  }
  static std::string drawn(const std::string& name, const Words& words) {
    Words all{"--to", folder() / name};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = draw(all);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  }
  static std::string bytes(const std::string& path) { return read_file(path, kMaxBytes); }

 private:
  static test::TemporaryFolder* folder_;
};
test::TemporaryFolder* Draw::folder_ = nullptr;

TEST_F(Draw, WritesAFilePerPictureWithItsOptions) {
  EXPECT_EQ(drawn("stars", {"--class", "star", "--count", "3", "--seed", "5"}),
            concat(folder() / "stars/0000-5.png\n", folder() / "stars/0001-6.png\n", folder() / "stars/0002-7.png\n"));
  const std::string file = bytes(folder() / "stars/0001-6.png");
  const data::Picture picture = data::decode_picture(file, "star");
  EXPECT_EQ(picture.width, 8);
  const auto texts = data::read_png_texts(file, "star");
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].keyword, "parameters");
  EXPECT_THAT(texts[0].text, AllOf(StartsWith("star\nSteps: 3, Sampler: ddim, CFG scale: 3, Seed: 6, Size: 8x8"),
                                   HasSubstr("Model hash: ")));
}

TEST_F(Draw, RepeatsEachPictureAlone) {
  drawn("all", {"--class", "star", "--count", "3", "--seed", "5"});
  drawn("one.png", {"--class", "6", "--seed", "6"});
  EXPECT_EQ(data::decode_picture(bytes(folder() / "one.png"), "one").rgb,
            data::decode_picture(bytes(folder() / "all/0001-6.png"), "all").rgb);
}

TEST_F(Draw, ReadsLinesAndPrintsLines) {
  const std::string lines = folder().write("lines.jsonl", R"({"class": "heart", "count": 2, "sampler": "ddpm"}
{"class": true, "seed": 9})");
  EXPECT_THAT(draw({"--prompts", lines, "--to", folder() / "x"}).err, HasSubstr("lines.jsonl:2: class must be"));
  folder().write("lines.jsonl", R"({"class": "heart", "count": 2, "sampler": "ddpm"}

{"class": 1, "seed": 9, "steps": 2})");
  const std::string out = drawn("lines", {"--prompts", lines, "--json"});
  const json last = json::parse(out.substr(out.rfind('{')));
  EXPECT_EQ(last.at("path"), folder() / "lines/0002-9.png");
  EXPECT_EQ(last.at("seed"), 9);
  EXPECT_EQ(last.at("sampler"), "ddim");
  EXPECT_EQ(last.at("steps"), 2);
  EXPECT_GT(last.at("seconds").get<double>(), 0);
  EXPECT_GT(last.at("peak_bytes").get<int64_t>(), 1 << 20);
}

TEST_F(Draw, UsesTheAverageOfTheWeightsUnlessToldOtherwise) {
  drawn("average.png", {"--class", "star"});
  drawn("last.png", {"--class", "star", "--no-ema"});
  EXPECT_NE(bytes(folder() / "average.png"), bytes(folder() / "last.png"));
}

TEST_F(Draw, BeginsWithTheNoiseOfAFile) {
  const auto write = [](const std::vector<int64_t>& sizes) {
    checkpoint::SafetensorsWriter writer(folder() / "noise.safetensors", {{"latents", at::kFloat, sizes}});
    writer.write(at::sin(at::arange(at::zeros(sizes).numel())).view(sizes));
    writer.finish();
    return folder() / "noise.safetensors";
  };
  const std::string two = write({2, 3, 8, 8});
  drawn("first", {"--class", "star", "--count", "2", "--latents", two});
  drawn("other", {"--class", "star", "--count", "2", "--latents", two, "--seed", "7"});
  const auto rgb = [](const std::string& name) { return data::decode_picture(bytes(folder() / name), name).rgb; };
  EXPECT_EQ(rgb("first/0000-1.png"), rgb("other/0000-7.png")) << "ddim draws no other noise";
  EXPECT_NE(rgb("first/0000-1.png"), rgb("first/0001-2.png"));
  EXPECT_THAT(draw({"--class", "star", "--latents", two, "--to", folder() / "x"}).err,
              HasSubstr("must have the sizes [1, 3, 8, 8], --count pictures: got [2, 3, 8, 8]"));
}

TEST_F(Draw, RefusesWhatItCannotDraw) {
  const auto refused = [](Words words) {
    words.insert(words.end(), {"--to", folder() / "refused"});
    const Outcome outcome = draw(words);
    EXPECT_NE(outcome.status, 0);
    return outcome.err;
  };
  EXPECT_THAT(refused({}), HasSubstr("name it with --class"));
  EXPECT_THAT(refused({"--class", "stir"}), HasSubstr("did you mean `star`?"));
  EXPECT_THAT(refused({"--class", "star", "--sampler", "ddin"}), HasSubstr("did you mean `ddim`?"));
  EXPECT_THAT(refused({"--class", "star", "--sampler", "ddim", "--karras"}), HasSubstr("karras"));
  EXPECT_THAT(refused({"--class", "star", "--eta", "2"}), HasSubstr("eta must be between 0 and 1"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "refused"));
  EXPECT_THAT(draw({"--class", "star", "--count", "2", "--to", "x.png"}).err, HasSubstr("must be a folder"));
  EXPECT_THAT(draw({"--class", "star", "--to", folder() / "x"}, "vit").err,
              HasSubstr("must draw pictures: got one that classifies images"));
  EXPECT_THAT(draw({"--class", "star", "--to", folder() / "x"}, "").err, HasSubstr("config.toml"));
  EXPECT_THAT(run_command("generate", {"--from", folder() / "run", "--prompt", "x"}).err, HasSubstr("draws pictures"));
}

TEST_F(Draw, JudgesDrawnPicturesByAClassifier) {
  drawn("judged/star", {"--class", "star", "--count", "2"});
  drawn("judged/0", {"--class", "0"});
  const auto evaluate = [](const std::string& pictures, const std::string& from) {
    return run_command("evaluate", {"--from", folder() / from, "--pictures", folder() / pictures, "--json"});
  };
  EXPECT_THAT(evaluate("judged", "vit").err, HasSubstr("the class 0"));
  std::filesystem::rename(folder() / "judged/0", folder() / "judged/circle");
  const Outcome outcome = evaluate("judged", "vit");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json found = json::parse(outcome.out);
  EXPECT_EQ(found.at("pictures"), 3);
  EXPECT_THAT(found.at("accuracy").get<double>() * 3, ::testing::AnyOf(0, 1, 2, 3));
  EXPECT_THAT(evaluate("judged", "run").err, HasSubstr("got one that draws pictures"));
}

TEST_F(Draw, ExportsAPipelineOfDiffusers) {
  const Outcome outcome = run_command("export", {"--from", folder() / "run", "--to", folder() / "pipeline"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto object = [](const std::string& name) { return json::parse(bytes(folder() / ("pipeline/" + name))); };
  EXPECT_EQ(object("model_index.json").at("transformer"), json({"diffusers", "DiTTransformer2DModel"}));
  EXPECT_EQ(object("model_index.json").at("id2label").at("6"), "star");
  EXPECT_EQ(object("scheduler/scheduler_config.json").at("prediction_type"), "sample");
  EXPECT_EQ(object("scheduler/scheduler_config.json").at("beta_start"), 1e-4);
  EXPECT_EQ(object("scheduler/scheduler_config.json").at("beta_end"), 0.02);
  EXPECT_EQ(object("transformer/config.json").at("sample_size"), 8);
  const checkpoint::SafetensorsReader tensors(folder() / "pipeline/transformer/diffusion_pytorch_model.safetensors");
  const std::string first = "transformer_blocks.0.norm1.emb.timestep_embedder.linear_1.weight",
                    second = "transformer_blocks.1.norm1.emb.timestep_embedder.linear_1.weight";
  EXPECT_TRUE(at::equal(tensors.tensor(first), tensors.tensor(second)));
}

}  // namespace
}  // namespace colossal::cli::draw_test
