// Keys that other keys, the model or the data leave without effect are refused.
#include "colossal/run/unused_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/run/data.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::unused_keys_test {
namespace {

using testing::HasSubstr;

const std::string kPasses = "";

Config with(const std::vector<std::string>& flags) { return read_given_config("", flags).config; }

std::string refusal(const std::vector<std::string>& flags) {
  return test::thrown_message([&] {
    const Config config = with(flags);
    config.validate();
    resolve_model(config, built_in());
  });
}

TEST(UnusedKeys, NeedOtherKeys) {
  EXPECT_THAT(refusal({"--data.weights=1,2"}),
              HasSubstr("[data] weights needs data.sources, without which it has no effect: got [1.0, 2.0]"));
  EXPECT_THAT(refusal({"--model.name=t5-tiny", "--data.mean_span=5"}), HasSubstr("mean_span needs data.noise_density"));
  EXPECT_EQ(refusal({"--model.name=t5-tiny", "--data.mean_span=5", "--data.noise_density=0.15"}), kPasses);
  const std::vector<std::pair<std::string, std::string>> rows{{"precision.masters=false", "precision.mode=bf16"},
                                                              {"precision.loss_scale=8", "precision.mode=fp16"},
                                                              {"precision.loss_scale_growth=8", "precision.mode=fp16"},
                                                              {"precision.fp8_scaling=delayed", "precision.mode=fp8"},
                                                              {"precision.fp8_margin=1", "precision.mode=fp8"}};
  for (const auto& [key, need] : rows) {
    EXPECT_THAT(refusal({"--" + key}), HasSubstr("without which it has no effect")) << key;
    EXPECT_EQ(refusal({"--" + key, "--" + need}), kPasses) << key << " with " << need;
  }
  const std::string history = "--precision.fp8_history=4", fp8 = "--precision.mode=fp8";
  EXPECT_THAT(refusal({history, fp8}), HasSubstr("fp8_history needs precision.mode fp8 with precision.fp8_scaling"));
  EXPECT_EQ(refusal({history, fp8, "--precision.fp8_scaling=delayed"}), kPasses);
  EXPECT_THAT(refusal({"--model.name=vit-tiny-cifar", "--data.augment=false", "--data.min_crop_area=0.5"}),
              HasSubstr("min_crop_area needs"));
}

TEST(UnusedKeys, StayBesideASwitchThatIsOff) {
  EXPECT_EQ(refusal({"--training.evaluate_batches=0", "--training.evaluate_every=5", "--training.sample_tokens=0",
                     "--training.sample_every=3", "--training.clip=0", "--training.clip_by=value",
                     "--parallel.sequence.mode=ring", "--parallel.pipeline.schedule=gpipe"}),
            kPasses);
}

TEST(UnusedKeys, NeedAModelOfTheirKind) {
  test::TemporaryFolder folder;
  const std::string text = folder.write("text.txt", std::string(4000, 'a'));
  const auto opening = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--data.path=" + text, "--training.evaluate_batches=0", "--data.sequence=16",
                               "--training.batch_size=2"});
    return test::thrown_message([&] { open_data(with(flags), built_in(), "", 0, at::kCPU); });
  };
  EXPECT_EQ(opening({}), kPasses);
  for (const char* key : {"data.text_columns=[\"x\"]", "data.shuffle_bytes=0"})
    EXPECT_THAT(opening({"--model.name=gpt2-tiny", concat("--", key)}), HasSubstr("without which it has no effect"))
        << key;
  const std::vector<std::string> labels{"--model.name=bert-tiny", "--model.objective=class", "--model.classes=2"};
  for (const char* key : {"data.augment=false", "data.min_crop_area=0.5", "data.image_mean=[0.5, 0.5, 0.5]",
                          "data.image_deviation=[0.5, 0.5, 0.5]", "data.label_column=x"}) {
    std::vector<std::string> flags = labels;
    flags.push_back(concat("--", key));
    EXPECT_THAT(opening(flags), HasSubstr("without which it has no effect")) << key;
  }
  EXPECT_THAT(opening({"--model.name=t5-tiny", "--model.source_tokens=8", "--data.target_column=x"}),
              HasSubstr("target_column needs JSON lines or Parquet"));
  EXPECT_EQ(opening({"--model.name=bert-tiny", "--data.masked=0.5"}), kPasses);
  EXPECT_THAT(opening({"--model.name=vit-tiny-cifar"}), HasSubstr("[data] sequence needs a model of text"));
  const std::string records = folder.write("texts.jsonl", "{\"x\": \"a text that is long enough for rows\"}\n");
  EXPECT_EQ(test::thrown_message([&] {
              open_data(with({"--data.path=" + records, "--data.text_columns=x", "--data.shuffle_bytes=0",
                              "--training.evaluate_batches=0", "--data.sequence=16", "--training.batch_size=2"}),
                        built_in(), "", 0, at::kCPU);
            }),
            kPasses);
}

}  // namespace
}  // namespace colossal::run::unused_keys_test
