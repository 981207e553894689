// `colossal draw`, and what other commands do with runs that learn to draw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/serve/local_drawer.h"
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

TEST_F(Draw, WritesThePicturesOfALocalDrawer) {
  drawn("files", {"--class", "star", "--count", "2", "--seed", "5", "--guidance", "2"});
  serve::LocalDrawer drawer(serve::read_local_drawer_options(json{{"from", folder() / "run"}}.dump()));
  const auto draw = [&](const std::string& options) { return drawer.draw(drawer.options(options)); };
  const auto result = [](serve::LocalDrawing& drawing) { return drawing.next(std::chrono::minutes(1)).value(); };
  const auto drawing = draw(R"({"prompt": "star", "count": 2, "seed": 5, "guidance": 2, "steps": 3})");
  const serve::Drawn pictures = result(*drawing);
  ASSERT_EQ(pictures.pictures.size(), 2u);
  EXPECT_EQ(pictures.pictures[0].png, bytes(folder() / "files/0000-5.png"));
  EXPECT_EQ(pictures.pictures[1].png, bytes(folder() / "files/0001-6.png"));
  EXPECT_THROW(draw(R"({"prompt": "star", "size": "9x8"})"), Error);
  EXPECT_THROW(draw(R"({"prompt": "star", "step": 3})"), Error);
  const auto failed = draw(R"({"prompt": "star", "image": "/absent.png"})");
  EXPECT_THROW(result(*failed), Error);
  const auto waits = draw(R"({"prompt": "star", "steps": 1000, "count": 1000})"), cancelled = draw(R"({"class": "1"})");
  EXPECT_FALSE(waits->next(std::chrono::milliseconds(0)));
  cancelled->cancel();
  EXPECT_THROW(result(*cancelled), Error);
  drawer.close();
  EXPECT_THROW(result(*waits), Error);
  EXPECT_THROW(draw(R"({"prompt": "star"})"), Error);
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
              HasSubstr("must have the sizes [1, 3, 8, 8], one for each of --count: got [2, 3, 8, 8]"));
}

TEST_F(Draw, RefusesWhatItCannotDraw) {
  const auto refused = [](Words words) {
    words.insert(words.end(), {"--to", folder() / "refused"});
    const Outcome outcome = draw(words);
    EXPECT_NE(outcome.status, 0);
    return outcome.err;
  };
  EXPECT_THAT(refused({}), HasSubstr("or a class with --class"));
  EXPECT_THAT(refused({"--class", "stir"}), HasSubstr("did you mean `star`?"));
  EXPECT_THAT(refused({"--class", "star", "--sampler", "ddin"}), HasSubstr("did you mean `ddim`?"));
  EXPECT_THAT(refused({"--class", "star", "--sampler", "ddim", "--karras"}), HasSubstr("karras"));
  EXPECT_THAT(refused({"--class", "star", "--eta", "2"}), HasSubstr("eta must be between 0 and 1"));
  EXPECT_THAT(refused({"--class", "star", "--approximate", "pab"}), HasSubstr("needs a model with two axes"));
  EXPECT_THAT(refused({"--plan", "--approximate", "pab"}), HasSubstr("--approximate has no effect with --plan"));
  const auto planned = [](const char* preset, const Words& words) {
    Words all{"--from", preset, "--plan"};
    all.insert(all.end(), words.begin(), words.end());
    return run_command("draw", all).err;
  };
  EXPECT_THAT(planned("flux-tiny", {"--negative", "x"}), HasSubstr("negative needs a second pass"));
  EXPECT_THAT(planned("sd3-tiny", {"--size", "136x64"}), HasSubstr("must be at most 128 pixels"));
  EXPECT_THAT(refused({"--class", "star", "--guidance", "1", "--parallel.guidance", "2"}),
              HasSubstr("parallel.guidance must be 1 for one pass a step, without guidance"));
  const Words dsp{"--parallel.sequence.mode", "dsp"};
  EXPECT_THAT(refused(dsp), HasSubstr("has no effect with --parallel.sequence=1")) << "a mode that draw knows";
  EXPECT_THAT(run_command("generate", {"--from", "x", "--prompt", "x", dsp[0], dsp[1]}).err, HasSubstr("dsp not in {"));
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

TEST_F(Draw, ReadsAPipelineOfDiffusersAndWritesItsModelBack) {
  const auto exported = [](const std::string& from, const std::string& to) {
    const Outcome outcome = run_command("export", {"--from", folder() / from, "--to", folder() / to});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
  };
  exported("run", "first");
  exported("first", "second");
  exported("first/transformer", "part");
  for (const std::string file : {"/config.json", "/diffusion_pytorch_model.safetensors"})
    for (const std::string other : {"second/transformer", "part"})
      EXPECT_EQ(bytes(folder() / (other + file)), bytes(folder() / ("first/transformer" + file))) << other << file;
  EXPECT_THAT(run_command("generate", {"--from", folder() / "first", "--prompt", "x"}).err,
              HasSubstr("`colossal draw` draws with it"));
}

TEST_F(Draw, TrainsAModelFromAPipelineOfDiffusers) {
  ASSERT_EQ(run_command("export", {"--from", folder() / "run", "--to", folder() / "origin"}).status, 0);
  train("dit_shapes", {"--run.folder=" + (folder() / "tuned"), "--model.from=" + (folder() / "origin"),
                       "--training.steps=1", "--optimizer.learning_rate=1e-30", "--training.sample_every=0"});
  ASSERT_EQ(run_command("export", {"--from", folder() / "tuned", "--to", folder() / "again"}).status, 0);
  const std::string weights = "/transformer/diffusion_pytorch_model.safetensors";
  const checkpoint::SafetensorsReader origin(folder() / ("origin" + weights)), again(folder() / ("again" + weights));
  for (const auto& [name, entry] : origin.entries())
    EXPECT_TRUE(at::allclose(again.tensor(name), origin.tensor(name), 0, 1e-20)) << name;
  EXPECT_EQ(draw({"--class", "6", "--to", folder() / "tuned.png"}, "tuned").status, 0);
}

/// Returns pixels of a picture.
std::vector<uint8_t> pixels_of(const std::string& file) { return data::decode_picture(file, "picture").rgb; }

// Adapters that a run kept alone draw the same in each of their forms, and leave the base as it is.
TEST_F(Draw, DrawsWithAdaptersInEachForm) {
  ASSERT_EQ(run_command("export", {"--from", folder() / "run", "--to", folder() / "base"}).status, 0);
  train("dit_shapes", {"--run.folder=" + (folder() / "lora"), "--model.from=" + (folder() / "base"),
                       "--adapter.kind=lora", "--adapter.rank=4", "--adapter.alpha=400",
                       "--optimizer.learning_rate=0.5", "--training.ema=0", "--training.sample_every=0"});
  const auto exported = [](const std::string& to, const Words& words) {
    Words all{"--from", folder() / "lora", "--to", folder() / to, "--adapter-only"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run_command("export", all);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  };
  exported("peft", {});
  exported("kohya", {"--adapter-form", "kohya"});
  const auto picture = [](const std::string& from, const Words& adapters) {
    Words words{"--class", "star", "--guidance", "3", "--to", folder() / "lora.png"};
    for (const std::string& adapter : adapters) words.insert(words.end(), {"--adapter", folder() / adapter});
    const Outcome outcome = draw(words, from);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return pixels_of(bytes(folder() / "lora.png"));
  };
  const std::vector<uint8_t> adapted = picture("lora", {}), plain = picture("base", {});
  EXPECT_NE(adapted, plain);
  for (const Words& adapters : {Words{"lora"}, Words{"peft"}, Words{"kohya/pytorch_lora_weights.safetensors"}})
    EXPECT_EQ(picture("base", adapters), adapted) << ::testing::PrintToString(adapters);
  const std::vector<uint8_t> sum = picture("base", {"peft:0.5", "kohya:0.5"});
  ASSERT_EQ(sum.size(), adapted.size());
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], adapted[i], 1);  // rounded in another order
  EXPECT_EQ(picture("base", {"peft:0"}), plain);
  const checkpoint::SafetensorsReader peft(folder() / "peft/pytorch_lora_weights.safetensors");
  EXPECT_EQ(peft.entries().size(), 2u * 2 * 4);  // A and B of the projections of two blocks
  EXPECT_TRUE(peft.contains("transformer.transformer_blocks.0.attn1.to_out.0.lora_A.weight"));
  EXPECT_THAT(peft.metadata().at("lora_adapter_metadata"), HasSubstr("\"transformer.lora_alpha\": 400"));
}

}  // namespace
}  // namespace colossal::cli::draw_test
