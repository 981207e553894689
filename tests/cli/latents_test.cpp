// A pipeline with an autoencoder and captions from training to pictures: export, draw, `colossal latents`, and training
// from the folder.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/torch_bytes.h"

namespace colossal::cli::latents_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr int64_t kMaxBytes = 1 << 24;

class Latents : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    train("vae_shapes", {"--run.folder=" + (folder() / "vae"), "--model.height=16", "--model.width=16",
                         "--model.levels=[4,8]", "--model.groups=2"});
    train("sd_finetune", joined(tiny(), {"--run.folder=" + (folder() / "first"), "--vae.from=" + (folder() / "vae")}));
    const Outcome outcome = run_command("export", {"--from", folder() / "first", "--to", folder() / "sd"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("captions are bytes"));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static const test::TemporaryFolder& folder() { return *folder_; }
  static Words joined(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Words tiny() {
    return {"--model.features=[8,16]", "--model.resnets=1", "--model.transformers=[1,0]",
            "--model.attention_heads=[2,2]", "--model.groups=4"};
  }
  static void train(const std::string& example, const Words& flags) {
    const Words common{test::source_dir() + "/examples/" + example + ".toml",
                       "--run.device=cpu",
                       "--data.path=builtin-shapes:12",
                       "--data.held_out=0",
                       "--training.evaluate_batches=0",
                       "--training.steps=2",
                       "--training.batch_size=4",
                       "--optimizer.warmup_steps=0"};
    const Outcome outcome = run_command("train", joined(common, flags));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  static std::string bytes(const std::string& path) { return read_file(path, kMaxBytes); }
  static size_t files(const std::string& path) {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  /// Gives the exported folder a tokenizer of ASCII, whose ids are those of the preset's encoder.
  static std::string with_tokenizer() {
    json ids = json::object();
    for (const char* end : {"", "</w>"})
      for (int byte = 0; byte < 128; ++byte)
        ids[text::to_byte_alphabet(std::string(1, static_cast<char>(byte))) + end] = ids.size();
    for (const char* token : {"<|startoftext|>", "<|endoftext|>"}) ids[token] = ids.size();
    folder().write("sd/tokenizer/vocab.json", ids.dump());
    folder().write("sd/tokenizer/merges.txt", "#version: 0.2\n");
    folder().write("sd/tokenizer/tokenizer_config.json",
                   R"({"tokenizer_class": "CLIPTokenizer", "bos_token": "<|startoftext|>", "do_lower_case": true,
                       "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})");
    json index = json::parse(bytes(folder() / "sd/model_index.json"));
    index["tokenizer"] = {"transformers", "CLIPTokenizer"};
    write_file(folder() / "sd/model_index.json", index.dump());
    return folder() / "sd";
  }
  static Outcome draw(const std::string& from, const std::string& to, const Words& more) {
    return run_command("draw", joined({"--from", from, "--steps", "2", "--to", folder() / to}, more));
  }

 private:
  inline static std::unique_ptr<test::TemporaryFolder> folder_;
};

TEST_F(Latents, ExportWritesEveryPart) {
  const json index = json::parse(bytes(folder() / "sd/model_index.json"));
  EXPECT_EQ(index.at("_class_name"), "StableDiffusionPipeline");
  EXPECT_EQ(index.at("vae"), json({"diffusers", "AutoencoderKL"}));
  EXPECT_EQ(index.at("text_encoder"), json({"transformers", "CLIPTextModel"}));
  EXPECT_EQ(json::parse(bytes(folder() / "sd/vae/config.json")).at("block_out_channels"), json({4, 8}));
  for (const char* file : {"unet/diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors",
                           "text_encoder/model.safetensors", "scheduler/scheduler_config.json"})
    EXPECT_TRUE(fs::exists(folder() / concat("sd/", file))) << file;
}

TEST_F(Latents, BecomePicturesOfARun) {
  const Outcome all = draw(folder() / "first", "pictures", {"--prompt", "a star", "--count", "3", "--seed", "4"});
  ASSERT_EQ(all.status, 0) << all.err;
  const std::string file = bytes(folder() / "pictures/0001-5.png");
  EXPECT_EQ(data::decode_picture(file, "drawn").width, 16);
  const Outcome one = draw(folder() / "first", "one.png", {"--prompt", "a star", "--seed", "5"});
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_TRUE(bytes(folder() / "one.png") == file);
  EXPECT_THAT(draw(folder() / "first", "x.png", {"--class", "star"}).err, HasSubstr("--prompt"));
}

TEST_F(Latents, TrainAndDrawFromAFolder) {
  const std::string sd = with_tokenizer(), cache = folder() / "cache";
  const auto stored = [&] {
    const Outcome outcome = run_command("latents", {"--from", sd, "--data.path=builtin-shapes:12", "--data.mirror=true",
                                                    "--to", cache, "--run.device=cpu"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, cache + "\n");
    return files(cache);
  };
  const size_t count = stored();
  EXPECT_GE(count, 4u) << "shards of captions and of pictures, and a note of each";
  EXPECT_EQ(stored(), count);
  train("sd_finetune", {"--run.folder=" + (folder() / "tuned"), "--model.from=" + sd, "--data.latents=" + cache});
  EXPECT_EQ(files(cache), count) << "training encodes nothing";
  const Outcome drawn = draw(folder() / "tuned", "tuned.png", {"--prompt", "a heart"});
  ASSERT_EQ(drawn.status, 0) << drawn.err;
  const Outcome exported = run_command("export", {"--from", folder() / "tuned", "--to", folder() / "again"});
  ASSERT_EQ(exported.status, 0) << exported.err;
  for (const char* file : {"vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors",
                           "tokenizer/vocab.json", "tokenizer/merges.txt"})
    EXPECT_TRUE(bytes(folder() / concat("again/", file)) == bytes(folder() / concat("sd/", file))) << file;
  const Outcome same = draw(folder() / "again", "again.png", {"--prompt", "a heart"});
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(data::decode_picture(bytes(folder() / "again.png"), "drawn").rgb,
            data::decode_picture(bytes(folder() / "tuned.png"), "drawn").rgb)
      << "the folder draws what the run draws";
}

TEST_F(Latents, ComeFromAPartWhoseWeightsAreAPickle) {
  const std::string sd = with_tokenizer(), pickled = folder() / "pickled";
  fs::copy(sd, pickled, fs::copy_options::recursive);
  const std::string weights = pickled + "/vae/diffusion_pytorch_model";
  {
    const checkpoint::SafetensorsReader reader(weights + ".safetensors");
    test::NamedPieces items;
    std::vector<std::pair<std::string, std::string>> storages;
    for (const auto& [name, entry] : reader.entries()) {
      ASSERT_EQ(entry.dtype, at::kFloat);
      const at::Tensor value = reader.tensor(name);
      const std::string key = std::to_string(storages.size());
      items.emplace_back(name, test::tensor_piece(test::storage_piece("FloatStorage", key, value.numel()), 0,
                                                  entry.shape, value.strides().vec()));
      storages.emplace_back(key, reader.bytes(name));
    }
    write_file(weights + ".bin", test::torch_old(test::ordered_piece(items), storages, 4));
  }
  fs::remove(weights + ".safetensors");
  write_file(pickled + "/text_encoder/pytorch_model.bin", "not read beside safetensors");
  const Words options{"--prompt", "a star", "--seed", "3"};
  for (const auto& [from, to] : {std::pair(sd, "a.png"), std::pair(pickled, "b.png")}) {
    const Outcome outcome = draw(from, to, options);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  EXPECT_TRUE(bytes(folder() / "a.png") == bytes(folder() / "b.png"));
  const Outcome exported = run_command("export", {"--from", pickled, "--to", folder() / "copied"});
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_TRUE(bytes(folder() / "copied/vae/diffusion_pytorch_model.bin") == bytes(weights + ".bin"));
  EXPECT_FALSE(fs::exists(folder() / "copied/text_encoder/pytorch_model.bin"));
}

TEST_F(Latents, StayInAFileIfTheyCannotBeDecoded) {
  const std::string sd = with_tokenizer(), broken = folder() / "broken";
  fs::copy(sd, broken, fs::copy_options::recursive);
  json config = json::parse(bytes(broken + "/vae/config.json"));
  config["scaling_factor"] = 1e-40;  // latents become infinite
  write_file(broken + "/vae/config.json", config.dump());
  const Words options{"--prompt", "a star", "--seed", "3"};
  const Outcome failed = draw(broken, "kept.png", options);
  EXPECT_NE(failed.status, 0);
  const std::string kept = folder() / "kept.latents.safetensors";
  EXPECT_THAT(failed.err, AllOf(HasSubstr("must be finite: blocks."), HasSubstr("--decode " + kept)));
  const Outcome decoded = run_command("draw", {"--from", sd, "--decode", kept, "--to", folder() / "kept.png"});
  ASSERT_EQ(decoded.status, 0) << decoded.err;
  ASSERT_EQ(draw(sd, "whole.png", options).status, 0);
  EXPECT_EQ(data::decode_picture(bytes(folder() / "kept.png"), "kept").rgb,
            data::decode_picture(bytes(folder() / "whole.png"), "whole").rgb);
}

TEST_F(Latents, NeedAModelThatDrawsThem) {
  const auto refused = [](const std::string& from) {
    return run_command("latents", {"--from", folder() / from, "--data.path=builtin-shapes:12", "--to", folder() / "x"})
        .err;
  };
  EXPECT_THAT(refused("vae"), HasSubstr("must draw pictures: got one that encodes"));
  EXPECT_THAT(refused("nothing"), HasSubstr("--from must be the folder of a run"));
}

}  // namespace
}  // namespace colossal::cli::latents_test
