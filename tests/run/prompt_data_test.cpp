// The prompts of a run: what [data] says about them, and what every replica reads.
#include "colossal/run/objectives/alignment/prompt_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/data/batches.h"
#include "colossal/data/chats/prompts.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::prompt_data_test {
namespace {

using data::PromptOfBatch;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kTurns[] =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% "
    "endif %}";

class PromptData : public testing::Test {
 protected:
  void SetUp() override {
    std::string lines;
    for (int i = 0; i < 12; ++i) lines += concat(R"({"prompt": ")", i * 37 % 101, R"(=", "answer": )", i, ".0}\n");
    folder.write("prompts.jsonl", lines);
  }
  /// A run that reads prompts with the keys of `flags`.
  struct Run {
    Config config;
    ChatKeys keys;
    ResolvedModel model;
  };
  Run run(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"--model.name=gpt2-tiny", "--data.path=" + (folder / "prompts.jsonl"),
                                 "--data.chat_template=", "--data.sequence=16"});
    const Config config = read_given_config(test::source_dir() + "/examples/sft.toml", flags).config;
    ResolvedModel model = resolve_model(config, built_in());
    ChatKeys keys = model.objective.row.values().data<ChatKeys>();
    return {config, std::move(keys), std::move(model)};
  }
  static OpenedData open(const Run& run, int64_t prompts = 4, int64_t max_tokens = 8, int replica = 0,
                         const std::function<void(const text::PromptLine&)>& check = {}) {
    const DataRequest request{run.config, run.model.shape, run.model.tokenizer, "", replica};
    return open_prompts(request, run.keys, prompts, max_tokens, check);
  }
  std::string refusal(const std::vector<std::string>& flags, int64_t max_tokens = 8) const {
    return test::thrown_message([&] {
      const Run own = run(flags);
      check_prompt_keys(own.config, own.keys);
      open(own, 4, max_tokens);
    });
  }
  static std::vector<PromptOfBatch> next(const OpenedData& data) { return data::prompts_of(data.stream->next({})); }
  test::TemporaryFolder folder;
};

TEST_F(PromptData, GivesEveryReplicaAllPrompts) {
  const Run own = run({"--training.batch_size=8", "--training.accumulate=2", "--data.held_out=0.5"});
  const OpenedData first = open(own), second = open(own, 4, 8, 1);
  std::set<std::string> lines;
  for (int batch = 0; batch < 3; ++batch) {
    const std::vector<PromptOfBatch> prompts = next(first);
    EXPECT_THAT(prompts, SizeIs(4));
    EXPECT_EQ(prompts, next(second));
    for (const PromptOfBatch& prompt : prompts) lines.insert(prompt.line);
  }
  EXPECT_THAT(lines, SizeIs(12)) << "no record is held out, and an epoch has each once";
  EXPECT_EQ(first.held_out, nullptr);
  EXPECT_THAT(first.notices, IsEmpty());
  EXPECT_THAT(first.end_ids, ElementsAre(own.model.tokenizer->end_id()));
  EXPECT_EQ(first.chat_template, "");
  EXPECT_EQ(first.encode_prompt("ab"), (std::vector<int64_t>{'a', 'b'}));
}

TEST_F(PromptData, RendersChatsWithTheirGenerationPrompt) {
  folder.write("prompts.jsonl", R"({"prompt": [{"role": "user", "content": "2+3="}], "answer": 5})");
  const Run own = run({"--data.sequence=64", "--data.chat_template=" + folder.write("turns.jinja", kTurns)});
  const OpenedData data = open(own);
  const std::string text = "user: 2+3=\nassistant: ";
  const std::vector<PromptOfBatch> prompts = next(data);
  EXPECT_EQ(prompts[0].ids, std::vector<int64_t>(text.begin(), text.end()));
  EXPECT_EQ(prompts[3], prompts[0]);
  EXPECT_EQ(data.chat_template, kTurns);
  EXPECT_EQ(data.encode_prompt("2+3="), prompts[0].ids);
  EXPECT_THAT(data.notices, ElementsAre(HasSubstr("ends answers")));
}

TEST_F(PromptData, ReadsTheSamePromptsAfterAResume) {
  const Run own = run({"--data.shuffle_bytes=600"});
  data::Batches batches(std::move(open(own, 5).stream), false);
  nlohmann::json state;
  std::vector<std::vector<PromptOfBatch>> want;
  for (int step = 0; step < 8; ++step) {
    if (step == 4) state = nlohmann::json::parse(batches.state().dump());
    want.push_back(data::prompts_of(batches.next()));
  }
  data::Batches again(std::move(open(own, 5).stream), false);
  again.restore(state);
  for (int step = 4; step < 8; ++step) EXPECT_EQ(data::prompts_of(again.next()), want[step]) << step;
  const Run longer = run({"--data.shuffle_bytes=600", "--data.sequence=32"});
  EXPECT_THAT(test::thrown_message([&] { data::Batches(std::move(open(longer, 5).stream), false).restore(state); }),
              HasSubstr("sequence was 16"));
}

TEST_F(PromptData, CallsTheCheckForOneRecordAtATime) {
  const Run own = run({"--data.threads=4"});
  int calls = 0, running = 0, most = 0;  // not atomic, so that a thread checker sees calls that overlap
  const OpenedData data = open(own, 4, 8, 0, [&](const text::PromptLine& line) {
    most = std::max(most, ++running);
    EXPECT_TRUE(line.members.at("answer").is_number_float());
    EXPECT_THAT(line.where, HasSubstr("prompts.jsonl:"));
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --running;
  });
  EXPECT_EQ(calls, 12) << "before the first batch";
  next(data);
  EXPECT_GE(calls, 24);
  EXPECT_EQ(most, 1);
}

TEST_F(PromptData, RefusesOrSkipsRecordsThatTheCheckRefuses) {
  folder.write("prompts.jsonl", "{\"prompt\": \"a\", \"answer\": 1}\n{\"prompt\": \"b\"}\n");
  const auto check = [](const text::PromptLine& line) { text::required_member(line, "answer", "exact"); };
  EXPECT_THAT(test::thrown_message([&] { open(run({}), 4, 8, 0, check); }),
              AllOf(HasSubstr("exact reads `answer` of each line"),
                    HasSubstr("got none in " + (folder / "prompts.jsonl:2")), HasSubstr("data.on_error = \"skip\"")));
  const Run skipping = run({"--data.on_error=skip"});
  const OpenedData data = open(skipping, 2, 8, 0, check);
  for (const PromptOfBatch& prompt : next(data)) EXPECT_EQ(prompt.line, R"({"prompt": "a", "answer": 1})");
  EXPECT_THAT(data.stream->take_notices(), testing::Contains(HasSubstr("skipped: exact reads")));
}

TEST_F(PromptData, NeedsRoomForAnswers) {
  EXPECT_EQ(refusal({}, 13), "");
  EXPECT_THAT(refusal({}, 14), AllOf(HasSubstr("prompts.jsonl:2: a prompt must leave room for rollout.max_tokens = 14"),
                                     HasSubstr("in data.sequence = 16 tokens: got a prompt of 3")));
  EXPECT_THAT(refusal({}, 16), HasSubstr("[rollout] max_tokens must leave room for a prompt in data.sequence = 16"));
  EXPECT_THAT(refusal({}, 0), HasSubstr("[rollout] prompts and max_tokens must be at least 1: got 4 and 0"));
}

TEST_F(PromptData, RefusesKeysWithoutEffect) {
  for (const std::string flag : {"packing=false", "answers=last", "too_long=drop", "held_out=0.2"})
    EXPECT_THAT(refusal({"--data." + flag}),
                AllOf(HasSubstr("[data] " + flag.substr(0, flag.find('=')) + " needs a method"),
                      HasSubstr("without which it has no effect")));
  EXPECT_THAT(refusal({"--data.documents=joined"}), HasSubstr("documents must be separate"));
  EXPECT_EQ(refusal({"--data.held_out=0"}), "");
  EXPECT_EQ(refusal({"--data.held_out=0.05", "--data.shuffle_bytes=0", "--data.on_error=skip"}), "");
  EXPECT_THAT(refusal({"--data.path=" + folder.write("prompts.txt", "2+3=")}),
              HasSubstr("reads chats and prompts from JSON lines or Parquet"));
}

}  // namespace
}  // namespace colossal::run::prompt_data_test
