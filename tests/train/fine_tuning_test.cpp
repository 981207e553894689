// Supervised fine-tuning on chats: every layout has the losses of one process, and packed chats those of single rows.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/nn/embedding_noise.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "support/layouts.h"
#include "support/paths.h"
#include "support/run_courses.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::fine_tuning_test {
namespace {

using test::expect_near;
using testing::HasSubstr;

/// Chats of 36 to 54 tokens with the template of the examples.
std::string chat_lines() {
  std::string lines;
  for (int i = 0; i < 24; ++i) {
    const std::string question = concat("Add ", i * 37 % 101, " and ", i, i % 3 == 0 ? " now." : ""),
                      answer = concat("It is ", i * 37 % 101 + i, i % 4 == 1 ? ", I think." : ".");
    lines += concat(R"({"messages": [{"role": "user", "content": ")", question,
                    R"("}, {"role": "assistant", "content": ")", answer, "\"}]}\n");
  }
  return lines;
}

class FineTuning : public testing::Test {
 protected:
  void SetUp() override { write_file(folder_ / "chats.jsonl", chat_lines()); }

  run::Config config(const std::vector<std::string>& flags) const {
    const std::vector<std::string> own{"--data.path=" + (folder_ / "chats.jsonl"),
                                       "--data.chat_template=" + test::source_dir() + "/examples/chats.jinja",
                                       "--data.sequence=64"};
    return test::tiny_config("examples/sft.toml", test::joined(own, flags));
  }
  static std::vector<double> course(const run::Config& config, int64_t steps = 3) {
    return test::run_course(config, run::built_in(), steps);
  }
  test::TemporaryFolder folder_;
};

TEST_F(FineTuning, EqualsOneProcessUnderEveryLayout) {
  for (const std::string& packing : {"--data.packing=true", "--data.packing=false"}) {
    const std::string noise = "--alignment.noise=5";
    const std::vector<double> want = course(config({packing, noise}));
    EXPECT_NE(course(config({packing})), want) << "noise counts";
    for (const std::vector<std::string>& flags : test::layouts(folder_.path()))
      expect_near(course(config(test::joined({packing, noise}, flags))), want, testing::PrintToString(flags));
  }
}

// One batch holds the whole epoch, packed in as many rows as it needs, or a row for each chat. Rotary frequencies that
// depend on the length follow each chat: some are longer than the original positions.
TEST_F(FineTuning, LearnsTheSameFromPackedChatsAsFromSingleRows) {
  const std::vector<std::string> dynamic{"--model.rope_type=dynamic", "--model.rope_factor=4",
                                         "--model.rope_original_positions=44"},
      longrope{"--model.rope_type=longrope", "--model.rope_factor=4", "--model.rope_original_positions=44",
               "--model.rope_short_factors=[1,1.1,1.2,1.3]", "--model.rope_long_factors=[1.5,2,3,4]"};
  std::vector<std::string> model;
  const auto rows = [&](const char* packing, int64_t batch) {
    std::vector<std::string> flags{concat("--data.packing=", packing), concat("--training.batch_size=", batch),
                                   "--data.held_out=0", "--data.sequence=128"};
    flags.insert(flags.end(), model.begin(), model.end());
    return config(flags);
  };
  run::RunData packed = run::open_data(rows("true", 1), run::built_in(), "", 0, at::kCPU);
  int64_t count = 0, chats = 0;
  while (chats < 24) {
    const tensor::Batch batch = packed.training->next();
    const at::Tensor inside =
        batch.at("positions").eq(0).logical_and(at::arange(batch.tokens()).unsqueeze(0) < batch.at("lengths"));
    chats += inside.sum().item<int64_t>();
    ++count;
  }
  ASSERT_EQ(chats, 24);
  EXPECT_LT(count, 24);
  const std::vector<double> plain = course(rows("false", 24), 2);
  for (const auto& keys : {std::vector<std::string>{}, dynamic, longrope}) {
    model = keys;
    const std::vector<double> single = course(rows("false", 24), 2);
    EXPECT_EQ(single == plain, keys.empty());
    expect_near(course(rows("true", count), 2), single, "packed and single" + testing::PrintToString(keys));
  }
}

TEST_F(FineTuning, AddsNoiseByTheLengthOfEachText) {
  run::RunData data = run::open_data(config({"--alignment.noise=3"}), run::built_in(), "", 0, at::kCPU);
  const tensor::Batch batch = data.training->next();
  const at::Tensor &noise = batch.at(nn::kEmbeddingNoise), &documents = batch.at("documents");
  for (int64_t row = 0; row < batch.rows(); ++row) {
    std::map<int64_t, int64_t> lengths;
    for (int64_t t = 0; t < batch.tokens(); ++t) ++lengths[documents[row][t].item<int64_t>()];
    for (int64_t t = 0; t < batch.tokens(); ++t)
      EXPECT_FLOAT_EQ(noise[row][t].item<float>(),
                      3 / std::sqrt(static_cast<float>(lengths[documents[row][t].item<int64_t>()])));
  }
  EXPECT_FALSE(data.held_out->next().find(nn::kEmbeddingNoise).defined());
}

TEST_F(FineTuning, RefusesWhatCannotBeLearnt) {
  const auto refused = [&](const std::vector<std::string>& flags) {
    return test::thrown_message([&] { run::open_data(config(flags), run::built_in(), "", 0, at::kCPU); });
  };
  EXPECT_THAT(refused({"--data.documents=joined"}), HasSubstr("documents must be separate"));
  EXPECT_THAT(refused({"--alignment.method=stf"}), HasSubstr("did you mean `sft`"));
  EXPECT_THAT(refused({"--model.name=bert-tiny"}), HasSubstr("objective alignment needs a model whose head continues"));
  EXPECT_THAT(refused({"--data.text_columns=chat"}), HasSubstr("text_columns"));
  EXPECT_THAT(refused({"--data.path=" + test::source_dir() + "/LICENSE"}), HasSubstr("JSON lines or Parquet"));
}

}  // namespace
}  // namespace colossal::train::fine_tuning_test
