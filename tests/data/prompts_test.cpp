// Prompts of rollouts: their tokens, records, batches and streams.
#include "colossal/data/chats/prompts.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/data/chats/chat_stream.h"
#include "colossal/data/ignored_label.h"
#include "data/chat_tokens.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::prompts_test {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;
using Numbers = std::vector<int64_t>;

ChatEncoder encoder(const std::string& chat_template = made::kChatMl) {
  return {made::chat_tokenizer(), text::ChatTemplate(chat_template), {.end_ids = {made::kTurnEnd}}};
}

ChatSample sample_of(const std::string& line, ChatRules rules = {}, int64_t number = 3) {
  rules.samples = ChatSamples::Prompts;
  if (rules.sequence == 0) rules.sequence = 1000;
  return prompt_sample_of({line, std::make_shared<const std::string>("p.jsonl"), number}, encoder(), rules);
}

std::string refusal(const std::string& line, const ChatRules& rules = {}) {
  const std::string message = test::thrown_message([&] { sample_of(line, rules); });
  EXPECT_THAT(message, StartsWith("[data] p.jsonl:3")) << line;
  return message;
}

/// Expects that a record has the same tokens as a prompt as before the answer of fine-tuning.
void expect_tokens_of_fine_tuning(const ChatEncoder& own, const ordered_json& record, const std::string& completion) {
  const Numbers prompt = own.encode_prompt(prompt_line_of(record, "p.jsonl:3"));
  ordered_json answered = record;
  if (!answered.contains("completion")) answered["completion"] = completion;
  const LabelledTokens whole = own.encode(chat_line_of(answered, "p.jsonl:3")).texts.at(0);
  const auto first = std::find_if(whole.labels.begin(), whole.labels.end(), [](int64_t l) { return l != kIgnored; });
  EXPECT_EQ(prompt, Numbers(whole.ids.begin(), whole.ids.begin() + (first - whole.labels.begin()))) << record;
}

TEST(PromptTokens, EqualThoseThatFineTuningReads) {
  const std::string tools =
      std::string("{% if tools %}{{ tools[0].name }}{{ documents[0].text }}{{ mood }}{% endif %}") + made::kChatMl;
  for (const std::string& source : {std::string(made::kChatMl), std::string(made::kChatMlBlocks), tools})
    for (const char* record :
         {R"({"prompt": "31415926=", "answer": "11234569"})", R"({"prompt": ""})",
          R"({"prompt": [{"role": "user", "content": "2+3?"}]})", R"({"prompt": {"from": "human", "value": "2+3?"}})",
          R"({"prompt": "[{\"role\": \"user\", \"content\": \"2+3?\"}]"})",
          R"({"prompt": "2+3?", "completion": [{"role": "assistant", "content": "5"}]})",
          R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                         {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
              "tools": [{"name": "add"}], "documents": [{"text": "d"}],
              "chat_template_kwargs": {"mood": "!"}})"})
      expect_tokens_of_fine_tuning(encoder(source), ordered_json::parse(record), "5");
  const Numbers ids = encoder().encode_prompt(
      prompt_line_of(ordered_json::parse(R"({"prompt": [{"role": "user", "content": "a"}]})"), "here"));
  EXPECT_EQ(made::chat_tokenizer()->decode(ids, true), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
}

TEST(PromptTokens, BeginWithTheBeginToken) {
  const std::string file = test::source_dir() + "/../shared/data/stories260K-hf";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no " << file;
  for (const std::string name : {"/tokenizer.json", "/tokenizer.model"}) {
    const ChatEncoder plain(text::make_tokenizer(file + name), std::nullopt);
    EXPECT_THAT(plain.encode_prompt(prompt_line_of({{"prompt", "Once"}}, "here")), ElementsAre(1, 403)) << name;
    expect_tokens_of_fine_tuning(plain, {{"prompt", "Once"}}, " upon a time");
    expect_tokens_of_fine_tuning(plain, {{"prompt", "a\u4f60"}}, "\u597d");
  }
}

TEST(Prompts, KeepTheTextOfTheirLine) {
  const std::string line =
      R"({ "prompt":"caf\u00e9 ü😀", "answer":1.50, "big": 12345678901234567890, "far": 1e300, "small":-0.0,)"
      R"(	"long": 0.1000000000000000055511151231257827, "nested": {"b": [1, {"a": null}], "a": "}"}, "answer":2 })";
  for (const std::string& around : {line, line + "\r", "  " + line + "\t \r", "\xef\xbb\xbf" + line}) {
    const ChatSample sample = sample_of(around, {}, 1);
    EXPECT_EQ(sample.line, line);
    EXPECT_THAT(sample.texts, SizeIs(1));
    EXPECT_EQ(sample.loss, ChatSample::Loss::None);
  }
  EXPECT_THAT(refusal(R"({"prompt": "a", "answer": 1e400})"), HasSubstr("p.jsonl:3")) << "no JSON number of a double";
}

TEST(Prompts, ComeBackFromABatch) {
  const ChatSample samples[] = {sample_of(R"({"prompt": "ab", "n": "é"})"), sample_of(R"({"prompt": "abcd"})"),
                                sample_of(R"({"prompt": "c", "more": "members"})")};
  const tensor::Batch batch = make_prompt_batch({&samples[0], &samples[1], &samples[2]}, made::kDocumentEnd);
  EXPECT_EQ(batch.at("ids").sizes(), (Numbers{3, 4}));
  EXPECT_EQ(batch.at("ids")[2][1].item<int64_t>(), made::kDocumentEnd);
  EXPECT_EQ(batch.at("lines").scalar_type(), at::kByte);
  for (const auto& [name, field] : batch.fields()) EXPECT_TRUE(field.stays_whole) << name;
  const std::vector<PromptOfBatch> prompts = prompts_of(batch);
  EXPECT_THAT(prompts,
              ElementsAre(PromptOfBatch{{'a', 'b'}, samples[0].line},
                          PromptOfBatch{{'a', 'b', 'c', 'd'}, samples[1].line}, PromptOfBatch{{'c'}, samples[2].line}));
  EXPECT_THAT(prompts_of(batch.part(1, 2)), ElementsAre(prompts[1], prompts[2]));
  batch.at("line_lengths")[1][0] = 1000;
  EXPECT_THAT(test::thrown_message([&] { prompts_of(batch); }), HasSubstr("got 1000 in row 1"));
  EXPECT_THAT(test::thrown_message([&] { prompts_of(batch.without("lines")); }), HasSubstr("lines"));
}

TEST(Prompts, NeedAPrompt) {
  EXPECT_THAT(refusal(R"({"completion": "5", "answer": "5"})"),
              AllOf(HasSubstr("an object with the member prompt, a text, a message or a list of messages: got "
                              "completion and answer"),
                    HasSubstr("put everything before the answer into prompt")));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "a"}]})"), HasSubstr("got messages"));
  EXPECT_THAT(refusal(R"({"prompt": null})"), HasSubstr("got prompt"));
  EXPECT_THAT(refusal("{}"), HasSubstr("got an empty object"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": "a"}])"), HasSubstr("got array"));
  EXPECT_THAT(refusal(R"({"prompt": 5})"), HasSubstr("prompt must be a text, a message or a list of messages"));
  EXPECT_THAT(refusal(R"({"prompt": []})"), HasSubstr("prompt must have a message: got an empty list"));
  EXPECT_THAT(refusal(R"({"prompt": [{"role": "bot", "content": "a"}]})"), HasSubstr("message 1: roles are"));
  EXPECT_THAT(refusal(R"({"prompt": "a)"), HasSubstr("p.jsonl:3"));
  const ChatEncoder plain(made::chat_tokenizer(), std::nullopt, {.vocabulary = 98});
  const auto ids = [&](const ordered_json& record) { plain.encode_prompt(prompt_line_of(record, "p.jsonl:3")); };
  EXPECT_THAT(test::thrown_message([&] { ids({{"prompt", "c"}}); }), HasSubstr("p.jsonl:3: the tokenizer's id 99"));
  EXPECT_THAT(test::thrown_message([&] { ids({{"prompt", {{{"role", "user"}, {"content", "a"}}}}}); }),
              HasSubstr("p.jsonl:3: messages need a chat template"));
}

TEST(Prompts, LeaveRoomForTheirAnswer) {
  const ChatRules rules{.sequence = 10, .max_tokens = 4};
  EXPECT_THAT(sample_of(R"({"prompt": "123456"})", rules).texts, SizeIs(1));
  EXPECT_THAT(refusal(R"({"prompt": "1234567"})", rules),
              AllOf(HasSubstr("p.jsonl:3: a prompt must leave room for rollout.max_tokens = 4 in data.sequence = 10 "
                              "tokens: got a prompt of 7"),
                    HasSubstr("raise data.sequence, lower rollout.max_tokens or shorten the prompt")));
  EXPECT_THAT(refusal(R"({"prompt": ""})", rules), HasSubstr("a prompt must have a token: got none"));
}

TEST(Prompts, PassTheCheckOfTheirReader) {
  ChatRules rules;
  rules.check_line = [](const text::PromptLine& line) { text::required_text(line, "answer", "exact"); };
  EXPECT_THAT(sample_of(R"({"prompt": "a", "answer": "b"})", rules).texts, SizeIs(1));
  EXPECT_THAT(test::thrown_message([&] { sample_of(R"({"prompt": "a"})", rules); }),
              StartsWith("[data] exact reads `answer` of each line, which must be there: got none in p.jsonl:3; "));
  rules.check_line = [](const text::PromptLine&) { throw Error("reward", "no good"); };
  EXPECT_EQ(refusal(R"({"prompt": "a"})", rules), "[data] p.jsonl:3: no good");
}

class PromptStream : public testing::Test {
 protected:
  void SetUp() override {
    std::string lines;
    for (int i = 0; i < 10; ++i) lines += concat(R"({"prompt": ")", std::string(1 + i % 4, 'a'), i, "\"}\n");
    folder.write("prompts.jsonl", lines);
    options = {.batch_size = 4, .rules = {.samples = ChatSamples::Prompts, .sequence = 20, .max_tokens = 8}};
    options.records = {.seed = 5, .shuffle_bytes = 500};
  }
  std::vector<StreamSource> sources(const std::string& name = "prompts.jsonl") const {
    return {StreamSource::open("path", folder / name, 1)};
  }
  std::unique_ptr<ChatStream> stream(const std::string& name = "prompts.jsonl") const {
    return std::make_unique<ChatStream>(sources(name), std::make_shared<ChatEncoder>(encoder()), options);
  }
  static std::vector<PromptOfBatch> prompts(BatchReader& reader, int batches) {
    std::vector<PromptOfBatch> all;
    for (int i = 0; i < batches; ++i)
      for (PromptOfBatch& prompt : prompts_of(reader.next({}))) all.push_back(std::move(prompt));
    return all;
  }
  static std::set<std::string> lines(const std::vector<PromptOfBatch>& prompts, size_t first, size_t count) {
    std::set<std::string> all;
    for (size_t i = first; i < first + count; ++i) all.insert(prompts.at(i).line);
    return all;
  }
  test::TemporaryFolder folder;
  ChatStreamOptions options;
};

TEST_F(PromptStream, ReadsEveryRecordOncePerEpoch) {
  const auto reader = stream();
  const std::vector<PromptOfBatch> read = prompts(*reader, 5);
  EXPECT_THAT(lines(read, 0, 10), SizeIs(10));
  EXPECT_EQ(lines(read, 10, 10), lines(read, 0, 10));
  EXPECT_NE(std::vector(read.begin(), read.begin() + 10), std::vector(read.begin() + 10, read.end())) << "shuffled";
  for (const PromptOfBatch& prompt : read)
    EXPECT_EQ(ordered_json::parse(prompt.line)["prompt"], std::string(prompt.ids.begin(), prompt.ids.end()));
  EXPECT_EQ(reader->position()["row"], 20);
  options.records.shuffle = false;
  options.threads = 3;
  EXPECT_EQ(prompts(*stream(), 1)[1].line, R"({"prompt": "aa1"})");
}

TEST_F(PromptStream, ResumesAtAnyBatch) {
  const std::vector<PromptOfBatch> want = prompts(*stream(), 9);
  const auto first = stream();
  for (size_t stop = 0; stop < 7; ++stop) {
    const auto second = stream();
    second->seek(nlohmann::json::parse(first->position().dump()));
    EXPECT_EQ(prompts(*second, 2), std::vector(want.begin() + static_cast<int64_t>(stop * 4),
                                               want.begin() + static_cast<int64_t>(stop * 4) + 8))
        << stop;
    first->next({});
  }
}

TEST_F(PromptStream, HasPositionsOfItsOwn) {
  EXPECT_EQ(stream()->traits()["samples"], "prompts");
  Batches batches(stream(), false);
  const nlohmann::json state = batches.state();
  EXPECT_EQ(test::thrown_message([&] { Batches(stream(), false).restore(state); }), "");
  options.rules.samples = ChatSamples::Answers;
  options.packing = false;
  EXPECT_THAT(test::thrown_message([&] { Batches(stream(), false).restore(state); }), HasSubstr("samples was prompts"));
}

TEST_F(PromptStream, GivesReplicasTheirRows) {
  const std::vector<PromptOfBatch> want = prompts(*stream(), 1);
  options.ranks = 2;
  for (options.rank = 0; options.rank < 2; ++options.rank)
    EXPECT_EQ(prompts(*stream(), 1), std::vector(want.begin() + options.rank * 2, want.begin() + options.rank * 2 + 2));
}

TEST_F(PromptStream, NamesFaultsOrSkipsThem) {
  const std::string long_prompt = std::string(13, 'p');
  folder.write("bad.jsonl", R"({"prompt": "a"})"
                            "\n"
                            R"({"prompt": ")" +
                                long_prompt +
                                "\"}\n{\"completion\": \"c\"}\n\n{\"prompt\": \"\"}\n{\"prompt\": \"b\"}\n");
  options.records.shuffle = false;
  options.batch_size = 2;
  EXPECT_THAT(test::thrown_message([&] { stream("bad.jsonl")->next({}); }),
              AllOf(HasSubstr("bad.jsonl:2: a prompt must leave room for rollout.max_tokens = 8"),
                    HasSubstr("to train without it set data.on_error = \"skip\"")));
  options.records.on_error = OnError::Skip;
  const auto reader = stream("bad.jsonl");
  const std::vector<PromptOfBatch> read = prompts(*reader, 2);
  EXPECT_THAT(read, ElementsAre(PromptOfBatch{{'a'}, R"({"prompt": "a"})"}, PromptOfBatch{{'b'}, R"({"prompt": "b"})"},
                                read[0], read[1]));
  EXPECT_EQ(reader->position()["passed_over"], 6);
  const std::vector<std::string> notices = reader->take_notices();
  ASSERT_THAT(notices, SizeIs(6));
  EXPECT_THAT(notices[0],
              AllOf(HasSubstr("skipped: "), HasSubstr("bad.jsonl:2: a prompt must"), HasSubstr("(1 so far)")));
  EXPECT_THAT(notices[1], HasSubstr("bad.jsonl:3: a prompt must be an object with the member prompt"));
  EXPECT_THAT(notices[2], HasSubstr("bad.jsonl:5: a prompt must have a token"));
  options.rules.max_tokens = 20;
  EXPECT_THAT(test::thrown_message([&] { stream("bad.jsonl")->next({}); }),
              HasSubstr("whole epochs of the data held no sample: 17 lines or files could not be used; the last line"));
}

TEST_F(PromptStream, ReadsRowsOfParquet) {
  const std::string file = test::source_dir() + "/tests/data/parquet/plain.parquet";
  std::vector<std::string> notices;
  EXPECT_THAT(test::thrown_message(
                  [&] { check_first_chats({StreamSource::open("path", file, 1)}, encoder(), options, notices); }),
              AllOf(HasSubstr("plain.parquet:1: a prompt must be an object"), HasSubstr("got label")));
}

TEST_F(PromptStream, ChecksTheFirstRecordsBeforeTheFirstStep) {
  std::vector<std::string> notices;
  const auto check = [&](const ChatEncoder& own, const std::string& text) {
    folder.write("first.jsonl", text);
    return check_first_chats(sources("first.jsonl"), own, options, notices);
  };
  const std::string chat = R"({"prompt": [{"role": "user", "content": "a"}]})", text = R"({"prompt": "a"})";
  options.rules.sequence = 100;
  EXPECT_THAT(check(encoder(), chat), ElementsAre(made::kTurnEnd));
  EXPECT_THAT(check(encoder(made::kChatMlBlocks), chat), ElementsAre(made::kTurnEnd));
  EXPECT_THAT(check(encoder(), text), ElementsAre(made::kDocumentEnd));
  EXPECT_THAT(notices, IsEmpty());
  EXPECT_THAT(check(encoder("{% for m in messages %}{{ m.content }}\n{% endfor %}"), chat),
              ElementsAre(made::kDocumentEnd));
  EXPECT_THAT(notices, ElementsAre(AllOf(HasSubstr("writes no end token"), HasSubstr("ends answers"))));
  notices.clear();
  EXPECT_THAT(check(encoder("{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}"
                            "{{ raise_exception('no') }}{% endif %}{% endfor %}"),
                    chat),
              IsEmpty());
  EXPECT_THAT(notices, ElementsAre(HasSubstr("answers end at the maximum of tokens alone")));
  std::atomic<int> checked = 0;
  options.rules.check_line = [&](const text::PromptLine& line) {
    ++checked;
    text::required_text(line, "prompt", "exact");
  };
  std::string many;
  for (int i = 0; i < 110; ++i) many += text + "\n";
  check(encoder(), many);
  EXPECT_EQ(checked, 100);
  const std::string bad = text + "\n" + text + "\n" + chat + "\n";
  EXPECT_THAT(test::thrown_message([&] { check(encoder(), bad); }),
              AllOf(HasSubstr("first.jsonl:3"), HasSubstr("exact reads `prompt`"), HasSubstr("data.on_error")));
  options.records.on_error = OnError::Skip;
  EXPECT_THAT(check(encoder(), bad), ElementsAre(made::kDocumentEnd));
}

}  // namespace
}  // namespace colossal::data::prompts_test
