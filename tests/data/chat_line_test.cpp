// Records of chats and preferences: every form, and what is refused.
#include "colossal/data/chats/chat_line.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/record_lines.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::data::chat_line_test {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

ChatLine line(const std::string& json) { return chat_line_of(ordered_json::parse(json), "chats.jsonl:3"); }

std::string refusal(const std::string& json) {
  const std::string message = test::thrown_message([&] { line(json); });
  EXPECT_THAT(message, StartsWith("[data] chats.jsonl:3: ")) << json;
  return message;
}

/// Returns "role: content" of each message, with "*" before answers that are trained and "-" before skipped ones.
std::vector<std::string> shown(const Dialogue& dialogue) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < dialogue.messages.size(); ++i) {
    const ordered_json& message = dialogue.messages[i];
    const char* mark[] = {"", "*", "-"};
    texts.push_back(mark[static_cast<size_t>(dialogue.uses[i])] + message["role"].get<std::string>() + ": " +
                    (message["content"].is_null() ? "null" : message["content"].get<std::string>()));
  }
  return texts;
}

TEST(ChatLine, ReadsChatsInEveryForm) {
  for (const char* json :
       {R"({"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]})",
        R"([{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}])",
        R"({"conversations": [{"from": "human", "value": "2+3?"}, {"from": "gpt", "value": "5"}]})",
        R"({"messages": [{"from": "user", "content": "2+3?"}, {"from": "assistant", "content": "5"}]})",
        R"({"messages": [{"from": "human", "content": "2+3?"}, {"from": "assistant", "content": "5"}]})",
        R"({"messages": "[{\"role\": \"user\", \"content\": \"2+3?\"}, {\"from\": \"gpt\", \"value\": \"5\"}]"})",
        R"({"prompt": [{"role": "user", "content": "2+3?"}], "completion": [{"role": "assistant", "content": "5"}]})",
        R"({"prompt": [{"role": "user", "content": "2+3?"}], "completion": {"role": "assistant", "content": "5"}})",
        R"({"prompt": [{"role": "user", "content": "2+3?"}], "completion": "5"})",
        R"({"prompt": "2+3?", "completion": [{"role": "assistant", "content": "5"}]})"}) {
    const ChatLine read = line(json);
    EXPECT_EQ(read.kind, ChatKind::Answer) << json;
    ASSERT_EQ(read.dialogues.size(), 1u);
    EXPECT_THAT(shown(read.dialogues[0]), ElementsAre("user: 2+3?", "*assistant: 5")) << json;
  }
  EXPECT_THAT(shown(line(R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "u"},
                             {"from": "gpt", "value": "a"}, {"from": "tool", "value": "t"},
                             {"from": "gpt", "value": "b"}, {"from": "human", "value": "last"}]})")
                        .dialogues[0]),
              ElementsAre("system: s", "user: u", "*assistant: a", "tool: t", "*assistant: b", "user: last"));
}

TEST(ChatLine, ReadsPlainTexts) {
  const ChatLine completion = line(R"({"prompt": "2+3=", "completion": "5\n"})");
  EXPECT_EQ(completion.kind, ChatKind::Answer);
  EXPECT_FALSE(completion.dialogues[0].has_messages());
  EXPECT_EQ(completion.dialogues[0].prompt, "2+3=");
  EXPECT_EQ(completion.dialogues[0].completion, "5\n");
  const ChatLine text = line(R"({"text": "Once", "source": "web"})");
  EXPECT_EQ(text.kind, ChatKind::Text);
  EXPECT_EQ(text.dialogues[0].completion, "Once");
  const Dialogue alpaca = line(R"({"instruction": "Add.", "input": "", "output": "5"})").dialogues[0];
  EXPECT_EQ(alpaca.prompt,
            "Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n### Instruction:\nAdd.\n\n### Response:");
  EXPECT_EQ(alpaca.completion, "5");
  EXPECT_EQ(line(R"({"instruction": "Add.", "input": "2 3", "output": "5"})").dialogues[0].prompt,
            "Below is an instruction that describes a task, paired with an input that provides further context. Write "
            "a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n2 3\n\n"
            "### Response:");
}

TEST(ChatLine, TrainsWhatTheRecordSays) {
  const Dialogue weights =
      line(R"([{"role": "user", "content": "a", "weight": 1}, {"role": "assistant", "content": "b", "weight": 0},
      {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1.0}])")
          .dialogues[0];
  EXPECT_THAT(shown(weights), ElementsAre("user: a", "-assistant: b", "user: c", "*assistant: d"));
  EXPECT_EQ(weights.messages[1].dump(), R"({"role":"assistant","content":"b"})");
  EXPECT_THAT(shown(line(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": false}])")
                        .dialogues[0]),
              ElementsAre("user: a", "-assistant: b"));
  EXPECT_THAT(shown(line(R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                             "completion": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})")
                        .dialogues[0]),
              ElementsAre("user: a", "assistant: b", "user: c", "*assistant: d"));
}

TEST(ChatLine, KeepsToolsAndVariables) {
  const ChatLine read =
      line(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}], "name": "x"},
      {"role": "tool", "content": "5"}, {"role": "assistant", "content": "It is 5"}],
      "tools": "[{\"type\": \"function\"}]", "chat_template_kwargs": {"enable_thinking": false}})");
  EXPECT_THAT(shown(read.dialogues[0]), ElementsAre("user: ab", "*assistant: null", "tool: 5", "*assistant: It is 5"));
  EXPECT_EQ(read.dialogues[0].messages[1]["tool_calls"].dump(), R"([{"function":{"name":"f"}}])");
  EXPECT_EQ(read.dialogues[0].messages[1]["name"], "x");
  EXPECT_EQ(read.tools.dump(), R"([{"type":"function"}])");
  EXPECT_EQ(read.variables.dump(), R"({"enable_thinking":false})");
}

TEST(ChatLine, ReadsPairs) {
  const ChatLine texts = line(R"({"prompt": "2+3=", "chosen": "5", "rejected": "6", "margin": 0.5})");
  EXPECT_EQ(texts.kind, ChatKind::Pair);
  EXPECT_EQ(texts.margin, 0.5);
  ASSERT_EQ(texts.dialogues.size(), 2u);
  EXPECT_EQ(texts.dialogues[0].prompt, "2+3=");
  EXPECT_EQ(texts.dialogues[1].completion, "6");
  for (const char* json :
       {R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "a"}], )"
        R"("rejected": [{"role": "assistant", "content": "b"}]})",
        R"({"context": [{"from": "human", "content": "q"}], "chosen": [{"from": "assistant", "content": "a"}], )"
        R"("rejected": [{"from": "assistant", "content": "b"}]})",
        R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], )"
        R"("rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})",
        R"({"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], )"
        R"("rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})",
        R"({"prompt": "q", "chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", )"
        R"("content": "b"}]})",
        R"({"prompt": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"})"}) {
    const ChatLine read = line(json);
    ASSERT_EQ(read.dialogues.size(), 2u) << json;
    EXPECT_THAT(shown(read.dialogues[0]), ElementsAre("user: q", "*assistant: a")) << json;
    EXPECT_THAT(shown(read.dialogues[1]), ElementsAre("user: q", "*assistant: b")) << json;
  }
}

TEST(ChatLine, ReadsRankings) {
  const ChatLine texts = line(R"({"prompt": "2+3=", "answers": ["5", "six", "no"]})");
  EXPECT_EQ(texts.kind, ChatKind::Ranking);
  ASSERT_EQ(texts.dialogues.size(), 3u);
  EXPECT_EQ(texts.dialogues[1].prompt, "2+3=");
  EXPECT_EQ(texts.dialogues[1].completion, "six");
  const ChatLine chats = line(R"({"prompt": [{"role": "user", "content": "q"}], )"
                              R"("answers": ["a", {"from": "gpt", "value": "b"}]})");
  EXPECT_THAT(shown(chats.dialogues[0]), ElementsAre("user: q", "*assistant: a"));
  EXPECT_THAT(shown(chats.dialogues[1]), ElementsAre("user: q", "*assistant: b"));
  EXPECT_EQ(line(R"({"prompt": "q", "completion": "a", "answers": "no ranking"})").kind, ChatKind::Answer);
}

TEST(ChatLine, RefusesRankingsThatCompareNothing) {
  EXPECT_THAT(refusal(R"({"prompt": "q", "answers": ["a"]})"), HasSubstr("answers must be a list of two or more"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "answers": "a"})"), HasSubstr("the best first: got string"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "answers": ["a", "b", "a"]})"), HasSubstr("the same for answers 1 and 3"));
  EXPECT_THAT(refusal(R"({"prompt": [{"role": "user", "content": "q"}], "answers": ["a", "b", "c", "b"]})"),
              HasSubstr("the same for answers 2 and 4"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "answers": ["a", ""]})"), HasSubstr("answer 2: completion must not be empty"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "answers": ["a", 5]})"), HasSubstr("answer 2: completion must be a text"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "answers": ["a", "b"], "margin": 1})"), HasSubstr("margin must be of a pair"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": "a", "rejected": "b", "margin": "1"})"),
              HasSubstr("margin must be a number: got \"1\""));
}

TEST(ChatLine, FindsThePromptOfTextsWithoutOne) {
  const auto parts = [](const std::string& chosen, const std::string& rejected) {
    const ChatLine read = line(ordered_json({{"chosen", chosen}, {"rejected", rejected}}).dump());
    EXPECT_EQ(read.dialogues[0].prompt, read.dialogues[1].prompt);
    return std::vector{read.dialogues[0].prompt, read.dialogues[0].completion, read.dialogues[1].completion};
  };
  EXPECT_THAT(parts("Human: hi Yes", "Human: hi No"), ElementsAre("Human: hi", " Yes", " No"));
  EXPECT_THAT(parts("ab", "ac"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(parts("x\u00e9", "x\u00e8"), ElementsAre("x", "\u00e9", "\u00e8"));  // they share their first byte
  // One text begins the other, so the last turn is the answer.
  const std::string start = "\n\nHuman: a\n\nAssistant:";
  EXPECT_THAT(parts(start + " Yes", start + " Yes. Bye"), ElementsAre(start, " Yes", " Yes. Bye"));
  EXPECT_THAT(refusal(R"({"chosen": "ab", "rejected": "abc"})"), HasSubstr("chosen must not be empty"));
}

TEST(ChatLine, ReadsRatedAnswers) {
  const ChatLine good = line(R"({"prompt": "2+3=", "completion": "5", "label": true})");
  EXPECT_EQ(good.kind, ChatKind::Rated);
  EXPECT_TRUE(good.is_desirable);
  const ChatLine bad =
      line(R"({"prompt": [{"from": "user", "content": "q"}], "completion": {"from": "assistant", "content": "a"}, )"
           R"("label": false})");
  EXPECT_FALSE(bad.is_desirable);
  EXPECT_THAT(shown(bad.dialogues[0]), ElementsAre("user: q", "*assistant: a"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": "a", "label": 1})"),
              HasSubstr("a label must be true or false: got 1"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": "a", "label": null})"), HasSubstr("got null"));
}

TEST(ChatLine, NamesWhatIsWrong) {
  EXPECT_THAT(refusal(R"([{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}])"),
              HasSubstr("message 2: roles are system, user (human), assistant (gpt) and tool: got bot"));
  EXPECT_THAT(refusal(R"([{"content": "a"}])"), HasSubstr("message 1 must be an object with a role"));
  EXPECT_THAT(refusal(R"(["a"])"), HasSubstr("message 1 must be an object with a role"));
  EXPECT_THAT(refusal("[]"), HasSubstr("a chat has no answer"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "a"}]})"), HasSubstr("a chat has no answer"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}])"),
              HasSubstr("message 2: an answer must not be empty"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": null}])"),
              HasSubstr("message 2 has no content and no tool_calls"));
  EXPECT_THAT(refusal(R"([{"role": "user"}, {"role": "assistant", "content": "b"}])"),
              HasSubstr("message 1 has no content"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{"type": "image_url"}]}])"), HasSubstr("parts of text only"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": 5}])"), HasSubstr("content must be a text: got number"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "content": "b", "weight": 0.5}])"),
              HasSubstr("weight must be 0 or 1: got 0.5"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "content": "b", "train": 1}])"),
              HasSubstr("train must be true or false"));
  EXPECT_THAT(refusal(R"({"prompt": "a", "completion": " "})"), HasSubstr("completion must not be empty"));
  EXPECT_THAT(refusal(R"({"prompt": 5, "completion": "a"})"), HasSubstr("prompt must be a text, a message or a list"));
  EXPECT_THAT(refusal(R"({"prompt": "a", "chosen": "b", "rejected": "b"})"),
              HasSubstr("chosen and rejected must differ"));
  EXPECT_THAT(refusal(R"({"prompt": "a", "chosen": "b", "rejected": ""})"), HasSubstr("rejected must not be empty"));
  EXPECT_THAT(refusal(R"({"chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", )"
                      R"("content": "a"}]})"),
              HasSubstr("chosen and rejected must differ"));
  EXPECT_THAT(refusal(R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "big"})"),
              HasSubstr("margin must be a number"));
  EXPECT_THAT(refusal(R"({"question": "a", "answer": "b"})"), HasSubstr("got question and answer"));
  EXPECT_THAT(refusal("5"), HasSubstr("got number"));
  EXPECT_THAT(refusal(R"({"text": "a", "chat_template_kwargs": []})"),
              HasSubstr("chat_template_kwargs must be an object"));
  EXPECT_THAT(refusal(R"({"messages": "hello"})"), HasSubstr("messages must be a list of objects: got string"));
}

TEST(ChatLine, ReadsRealFiles) {
  const std::string folder = test::source_dir() + "/../shared/data/";
  if (!std::filesystem::exists(folder + "chat")) GTEST_SKIP() << "no " << folder << "chat";
  const auto count = [&](const std::string& file, ChatKind kind) {
    int64_t count = 0;
    const auto lines = RecordLines::open(folder + file, 16 << 20, {}, {});
    for (std::string text; lines->next(text);) {
      if (is_blank(text)) continue;
      const ordered_json record = parse_ordered_json_line(text, file, lines->position().lines);
      EXPECT_EQ(chat_line_of(record, file + ":" + std::to_string(lines->position().lines)).kind, kind) << file;
      ++count;
    }
    return count;
  };
  EXPECT_GT(count("chat/colossalchat-lora_sft_data.jsonl", ChatKind::Answer), 5);
  EXPECT_GT(count("chat/colossalchat-test_sft_data.jsonl", ChatKind::Answer), 0);
  EXPECT_GT(count("chat/colossalchat-test_dpo_data.jsonl", ChatKind::Pair), 0);
  EXPECT_GT(count("chat/colossalchat-test_kto_data.jsonl", ChatKind::Rated), 0);
}

}  // namespace
}  // namespace colossal::data::chat_line_test
