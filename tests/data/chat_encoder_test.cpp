// The tokens of chats, and which of them count. The golden values are those of transformers' mask of assistant tokens.
#include "colossal/data/chats/chat_encoder.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/data/ignored_label.h"
#include "data/chat_tokens.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::data::chat_encoder_test {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr char kTwoTurns[] = R"([{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"},
                                 {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])";

ChatEncoder encoder(const std::string& source, Answers answers = Answers::All) {
  return {made::chat_tokenizer(), text::ChatTemplate(source), {.answers = answers, .end_ids = {made::kTurnEnd}}};
}

EncodedChat encode(const ChatEncoder& encoder, const std::string& json) {
  return encoder.encode(chat_line_of(ordered_json::parse(json), "chats.jsonl:3"));
}

std::string refusal(const ChatEncoder& own, const std::string& json) {
  return test::thrown_message([&] { encode(own, json); });
}

/// Returns the tokens that count, with "<end>" for the end of a turn and "<stop>" for that of a document.
std::string counted(const LabelledTokens& tokens) {
  std::string text;
  EXPECT_EQ(tokens.ids.size(), tokens.labels.size());
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.labels[i] == kIgnored) continue;
    EXPECT_EQ(tokens.labels[i], tokens.ids[i]) << i;
    const int64_t id = tokens.ids[i];
    text += id == made::kTurnEnd       ? "<end>"
            : id == made::kTurnBegin   ? "<begin>"
            : id == made::kDocumentEnd ? "<stop>"
                                       : std::string(1, static_cast<char>(id));
  }
  return text;
}

std::string counted(const ChatEncoder& encoder, const std::string& json) {
  return counted(encode(encoder, json).texts.at(0));
}

TEST(ChatLabels, EqualTheGoldenOnesByBlocksAndByPrefixes) {
  for (const char* source : {made::kChatMl, made::kChatMlBlocks}) {
    const EncodedChat chat = encode(encoder(source), kTwoTurns);
    ASSERT_EQ(chat.texts.size(), 1u);
    const LabelledTokens& tokens = chat.texts[0];
    ASSERT_EQ(tokens.ids.size(), 51u);
    std::vector<size_t> places;
    std::vector<int64_t> labels;
    for (size_t i = 0; i < tokens.labels.size(); ++i) {
      if (tokens.labels[i] == kIgnored) continue;
      places.push_back(i);
      labels.push_back(tokens.labels[i]);
      EXPECT_EQ(tokens.labels[i], tokens.ids[i]);
    }
    EXPECT_THAT(places, ElementsAre(23, 24, 47, 48, 49));
    EXPECT_THAT(labels, ElementsAre(53, 258, 121, 111, 258));
    EXPECT_EQ(tokens.ids[25], '\n');
    EXPECT_THAT(chat.turn_ends, ElementsAre(258));
    EXPECT_FALSE(chat.appends_end);
    EXPECT_TRUE(tokens.can_learn());
  }
}

TEST(ChatLabels, FollowTheChoiceOfAnswers) {
  for (const char* source : {made::kChatMl, made::kChatMlBlocks}) {
    EXPECT_EQ(counted(encoder(source), kTwoTurns), "5<end>yo<end>");
    EXPECT_EQ(counted(encoder(source, Answers::Last), kTwoTurns), "yo<end>");
    EXPECT_EQ(counted(encoder(source, Answers::Everything), R"([{"role": "user", "content": "a"}, )"
                                                            R"({"role": "assistant", "content": "b"}])"),
              "<begin>user\na<end>\n<begin>assistant\nb<end>\n");
    const std::string skipped = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", )"
                                R"("weight": 0},
                                    {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])";
    EXPECT_EQ(counted(encoder(source), skipped), "d<end>");
    EXPECT_EQ(counted(encoder(source, Answers::Everything), skipped),
              "<begin>user\na<end>\n<begin>assistant\n\n<begin>user\nc<end>\n<begin>assistant\nd<end>\n");
    const EncodedChat none = encode(encoder(source), R"([{"role": "user", "content": "a"}, {"role": "assistant", )"
                                                     R"("content": "b", "train": false}])");
    EXPECT_EQ(counted(none.texts[0]), "");
    EXPECT_FALSE(none.texts[0].can_learn());
    EXPECT_THAT(none.turn_ends, IsEmpty());
    EXPECT_EQ(counted(encoder(source), R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", )"
                                       R"("content": "b"},
        {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d\n"}]})"),
              "d\n<end>");
  }
  EXPECT_EQ(answers_of("last", "data.answers"), Answers::Last);
  EXPECT_THAT(test::thrown_message([] { answers_of("first", "data.answers"); }),
              HasSubstr("data.answers must be all, last or everything: got first"));
}

// ColossalChat drops the last message of an odd number, and forces an end token after the end of a turn.
TEST(ChatLabels, LoseNoMessageAndLearnOneEnd) {
  for (const char* source : {made::kChatMl, made::kChatMlBlocks}) {
    const std::string odd = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
                            R"({"role": "user", "content": "c"}])";
    const LabelledTokens tokens = encode(encoder(source), odd).texts[0];
    const std::string text(tokens.ids.begin(), tokens.ids.end());
    EXPECT_THAT(text, HasSubstr("user\nc"));
    EXPECT_EQ(counted(tokens), "b<end>");
    const LabelledTokens first = encode(encoder(source), R"([{"role": "assistant", "content": "b"}, )"
                                                         R"({"role": "user", "content": "c"}])")
                                     .texts[0];
    EXPECT_EQ(counted(first), "b<end>");
  }
}

// Phi-3 writes both ends after the last message, and only one after the others.
TEST(ChatLabels, StopAtTheFirstOfTwoEnds) {
  const std::string closing = std::string(made::kChatMl) + "{% if not add_generation_prompt %}<|endoftext|>{% endif %}";
  EXPECT_EQ(counted(encoder(closing), kTwoTurns), "5<end>yo<end>");
}

TEST(ChatLabels, TakeTheEndDirectlyAfterABlock) {
  const std::string outside =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}";
  EXPECT_EQ(counted(encoder(outside), kTwoTurns), "5<end>yo<end>");
  const ChatEncoder unknown(made::chat_tokenizer(), text::ChatTemplate(outside));  // no id at which generation stops
  EXPECT_EQ(counted(unknown, kTwoTurns), "5<end>yo<end>");
  EXPECT_EQ(counted(unknown, R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
                             R"({"role": "user", "content": "c"}])"),
            "b<end>");
  EXPECT_FALSE(unknown.is_end(made::kTurnEnd));
  EXPECT_THAT(encode(unknown, kTwoTurns).turn_ends, ElementsAre(made::kTurnEnd));
}

TEST(ChatLabels, AppendAnEndThatTheTemplateDoesNotWrite) {
  // The next turn begins with a special token, which does not end the turn before it.
  const std::string open =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% endfor %}";
  const ChatEncoder blocks(made::chat_tokenizer(), text::ChatTemplate(open));
  EXPECT_EQ(counted(blocks, kTwoTurns), "5yo\n<stop>");
  EXPECT_TRUE(encode(blocks, kTwoTurns).appends_end);
  EXPECT_THAT(encode(blocks, kTwoTurns).turn_ends, ElementsAre(made::kDocumentEnd));
  const std::string plain =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% "
      "endif %}";
  EXPECT_EQ(counted(encoder(plain), kTwoTurns), "5\nyo\n<stop>");
  EXPECT_EQ(counted(encoder(plain), R"([{"role": "assistant", "content": "b"}, {"role": "user", )"
                                    R"("content": "c"}])"),
            "b\n");
}

TEST(ChatLabels, LackAnswersThatTheTemplateLeavesOut) {
  EXPECT_EQ(counted(encoder("{{ messages[0].content }}"), kTwoTurns), "");
}

TEST(ChatLabels, CoverPlainTexts) {
  const ChatEncoder plain(made::chat_tokenizer(), std::nullopt);
  EXPECT_EQ(counted(plain, R"({"prompt": "2+3=", "completion": "5\n"})"), "5\n<stop>");
  EXPECT_EQ(counted(plain, R"({"prompt": "", "completion": "5<|endoftext|>"})"), "5<stop>");
  EXPECT_EQ(counted(plain, R"({"text": "Once"})"), "Once<stop>");
  EXPECT_THAT(counted(plain, R"({"instruction": "Add.", "output": "5"})"), "5<stop>");
  const ChatEncoder everything(made::chat_tokenizer(), std::nullopt, {.answers = Answers::Everything});
  EXPECT_EQ(counted(everything, R"({"prompt": "2+3=", "completion": "5"})"), "2+3=5<stop>");
  EXPECT_THAT(refusal(plain, kTwoTurns),
              AllOf(HasSubstr("chats.jsonl:3: messages need a chat template"), HasSubstr("data.chat_template")));
  const ChatEncoder small(made::chat_tokenizer(), std::nullopt, {.vocabulary = 256});
  EXPECT_THAT(
      refusal(small, R"({"text": "a"})"),
      HasSubstr("chats.jsonl:3: the tokenizer's id 256 (<|endoftext|>) must be below the model's vocabulary of 256"));
}

TEST(ChatLabels, CoverBothTextsOfAPair) {
  const ChatEncoder plain(made::chat_tokenizer(), std::nullopt);
  const EncodedChat pair = encode(plain, R"({"prompt": "2+3=", "chosen": "5", "rejected": "66"})");
  ASSERT_EQ(pair.texts.size(), 2u);
  EXPECT_EQ(counted(pair.texts[0]), "5<stop>");
  EXPECT_EQ(counted(pair.texts[1]), "66<stop>");
  EXPECT_EQ(pair.texts[1].ids.size(), 7u);
}

TEST(ChatLabels, RefuseTemplatesWhoseBeginningsDiffer) {
  // Reasoning models drop what stands before </think> in earlier answers.
  const std::string drops =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
      "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const std::string chat = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "hm</think>b"},
                               {"role": "user", "content": "c"}, {"role": "assistant", "content": "hm</think>d"}])";
  EXPECT_THAT(refusal(encoder(drops), chat), AllOf(StartsWith("[data] chats.jsonl:3: "), HasSubstr("message 2"),
                                                   HasSubstr("data.answers = \"last\"")));
  EXPECT_EQ(counted(encoder(drops, Answers::Last), chat), "hm</think>d<end>");
  const std::string opens = std::string(made::kChatMl) + "{% if add_generation_prompt %}<think>{% endif %}";
  EXPECT_THAT(refusal(encoder(opens, Answers::Last), chat),
              AllOf(HasSubstr("message 4"), HasSubstr("data.chat_template"), testing::Not(HasSubstr("data.answers"))));
  EXPECT_THAT(refusal(encoder("{{ raise_exception('no system') }}"), chat),
              AllOf(StartsWith("[data] chats.jsonl:3: "), HasSubstr("no system")));
}

TEST(ChatLabels, TakeAllBlocksOfAMessage) {
  const std::string split =
      "{% for m in messages %}<|im_start|>{% if m.role == 'assistant' %}{% generation %}[{% endgeneration %}-"
      "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{% "
      "endfor %}";
  EXPECT_EQ(counted(encoder(split), kTwoTurns), "[5<end>[yo<end>");
  EXPECT_EQ(counted(encoder(split, Answers::Last), kTwoTurns), "[yo<end>");
}

TEST(ChatLabels, CountATokenByItsFirstByte) {
  const std::string file = test::source_dir() + "/../shared/data/stories260K-hf";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no " << file;
  for (const std::string name : {"/tokenizer.json", "/tokenizer.model"}) {
    const std::shared_ptr<const text::Tokenizer> tokenizer = text::make_tokenizer(file + name);
    const ChatEncoder plain(tokenizer, std::nullopt);
    const LabelledTokens text = encode(plain, R"({"text": "Once upon a time"})").texts[0];
    EXPECT_THAT(text.ids, ElementsAre(1, 403, 407, 261, 378, 2)) << name;
    EXPECT_THAT(text.labels, ElementsAre(kIgnored, 403, 407, 261, 378, 2));
    // "Once up" + "on a time": the token "upon" spans the border, so it is read only.
    const LabelledTokens border = encode(plain, R"({"prompt": "Once up", "completion": "on a time"})").texts[0];
    EXPECT_EQ(border.ids, text.ids);
    EXPECT_THAT(border.labels, ElementsAre(kIgnored, kIgnored, kIgnored, 261, 378, 2));
    // With the space, "upon" begins in the completion.
    EXPECT_THAT(encode(plain, R"({"prompt": "Once", "completion": " upon a time"})").texts[0].labels,
                ElementsAre(kIgnored, kIgnored, 407, 261, 378, 2));
    // Bytes of characters without a token count one by one.
    const LabelledTokens bytes = encode(plain, R"({"prompt": "a\u4f60", "completion": "\u597d"})").texts[0];
    EXPECT_EQ(std::count(bytes.labels.begin(), bytes.labels.end(), kIgnored),
              static_cast<int64_t>(bytes.ids.size()) - 4);
  }
}

TEST(ChatLabels, ChangeWithTheirTraits) {
  const auto traits = [](const ChatEncoder& own) { return own.traits().dump(); };
  EXPECT_EQ(traits(encoder(made::kChatMl)), traits(encoder(made::kChatMl)));
  EXPECT_NE(traits(encoder(made::kChatMl)), traits(encoder(made::kChatMlBlocks)));
  EXPECT_NE(traits(encoder(made::kChatMl)), traits(encoder(made::kChatMl, Answers::Last)));
}

TEST(ChatEncoder, EncodesAPromptAsTheBeginningOfItsChat) {
  const ChatEncoder chats(made::chat_tokenizer(), text::ChatTemplate(made::kChatMl));
  const std::vector<int64_t> prompt = chats.encode_prompt("2+3?");
  const EncodedChat whole = chats.encode(chat_line_of(
      nlohmann::ordered_json::parse(R"([{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}])"),
      "here"));
  const LabelledTokens& tokens = whole.texts.at(0);
  ASSERT_LT(prompt.size(), tokens.ids.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), tokens.ids.begin()));
  EXPECT_EQ(tokens.labels[prompt.size() - 1], kIgnored);
  EXPECT_EQ(tokens.labels[prompt.size()], tokens.ids[prompt.size()]) << "the answer begins here";
  const ChatEncoder plain(made::chat_tokenizer(), std::nullopt);
  EXPECT_EQ(plain.encode_prompt("2+3?"), made::chat_tokenizer()->encode_prompt("2+3?"));
}

}  // namespace
}  // namespace colossal::data::chat_encoder_test
