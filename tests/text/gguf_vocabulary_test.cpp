#include "colossal/text/tokenizers/gguf_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <random>
#include <set>
#include <sstream>

#include "colossal/base/error.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::text::gguf_vocabulary_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int64_t>;
using Kind = formats::GgufValue::Kind;
namespace fs = std::filesystem;

const std::string kShared = test::source_dir() + "/../shared/data/tokenizers/";

std::string write(const test::TemporaryFolder& folder, const formats::GgufValues& values,
                  const std::string& name = "v.gguf") {
  formats::GgufWriter writer(folder / name, values, {});
  writer.finish();
  return folder / name;
}

formats::GgufValues with(const std::string& model, const std::vector<std::string>& tokens,
                         const std::vector<int64_t>& types) {
  return {{"tokenizer.ggml.model", formats::GgufValue::text(model)},
          {"tokenizer.ggml.tokens", formats::GgufValue::list(tokens)},
          {"tokenizer.ggml.token_type", formats::GgufValue::list(Kind::I32, types)}};
}

formats::GgufValues byte_level() {
  formats::GgufValues values =
      with("gpt2", {"h", "e", "\u0120", "he", "\u0120he", "<|end|>", "<tool>"}, {1, 1, 1, 1, 1, 3, 4});
  values["tokenizer.ggml.pre"] = formats::GgufValue::text("gpt-2");
  values["tokenizer.ggml.merges"] = formats::GgufValue::list(std::vector<std::string>{"h e", "\u0120 he"});
  values["tokenizer.ggml.eos_token_id"] = formats::GgufValue::integer(5);
  return values;
}

formats::GgufValues pieces() {
  formats::GgufValues values =
      with("llama", {"<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab"}, {2, 3, 3, 1, 1, 1, 1, 1});
  values["tokenizer.ggml.scores"] = formats::GgufValue::list(std::vector<double>{0, 0, 0, -3, -4, -5, -1, -2});
  values["tokenizer.ggml.bos_token_id"] = formats::GgufValue::integer(1);
  values["tokenizer.ggml.eos_token_id"] = formats::GgufValue::integer(2);
  return values;
}

std::string complaint_of(const formats::GgufValues& values) {
  test::TemporaryFolder folder;
  const std::string path = write(folder, values);
  return test::thrown_message([&] { make_tokenizer(path); });
}

formats::GgufValues changed(formats::GgufValues values, const std::string& key, const formats::GgufValue& value) {
  values[key] = value;
  return values;
}

formats::GgufValues without(formats::GgufValues values, const std::string& key) {
  values.erase(key);
  return values;
}

TEST(GgufVocabulary, ReadsBytePairs) {
  test::TemporaryFolder folder;
  const auto tokenizer = make_tokenizer(write(folder, byte_level()));
  EXPECT_EQ(tokenizer->encode("he he<|end|>he<tool>"), (Ids{3, 4, 5, 3, 6}));
  EXPECT_EQ(tokenizer->decode({3, 4, 5, 6}), "he he<tool>");
  EXPECT_EQ(tokenizer->end_id(), 5);
  EXPECT_EQ(tokenizer->encode_whole("he").ids, (Ids{3}));
  formats::GgufValues around = changed(byte_level(), "tokenizer.ggml.add_bos_token", formats::GgufValue::flag(true));
  around["tokenizer.ggml.add_eos_token"] = formats::GgufValue::flag(true);
  around["tokenizer.ggml.bos_token_id"] = formats::GgufValue::integer(6);
  EXPECT_EQ(make_tokenizer(write(folder, around, "w.gguf"))->encode_whole("he").ids, (Ids{6, 3, 5}));
  EXPECT_TRUE(has_tokenizer(folder / "v.gguf"));
  EXPECT_FALSE(has_tokenizer(write(folder, {}, "none.gguf")));
}

TEST(GgufVocabulary, ReadsPieces) {
  test::TemporaryFolder folder;
  const auto tokenizer = make_tokenizer(write(folder, pieces()));
  EXPECT_EQ(tokenizer->encode("ab ab"), (Ids{7, 7}));
  EXPECT_EQ(tokenizer->encode_whole("ab</s>").ids, (Ids{1, 7, 2}));  // a begin token is the default
  EXPECT_EQ(tokenizer->encode("axb"), (Ids{3, 4, 0, 5}));
  EXPECT_EQ(tokenizer->decode({7, 7}), "ab ab");
  const auto plain = make_tokenizer(
      write(folder, changed(pieces(), "tokenizer.ggml.add_space_prefix", formats::GgufValue::flag(false)), "w.gguf"));
  EXPECT_EQ(plain->encode("ab ab"), (Ids{6, 7}));
}

TEST(GgufVocabulary, RefusesUnknownPreTokenizers) {
  // llama.cpp splits the words of such a file by a default pattern, which gives other tokens.
  EXPECT_THAT(complaint_of(without(byte_level(), "tokenizer.ggml.pre")), HasSubstr("pre is missing"));
  EXPECT_THAT(complaint_of(changed(byte_level(), "tokenizer.ggml.pre", formats::GgufValue::text("new"))),
              HasSubstr("names new,"));
}

TEST(GgufVocabulary, RefusesDamage) {
  EXPECT_THAT(complaint_of(changed(byte_level(), "tokenizer.ggml.model", formats::GgufValue::text("rwkv"))),
              HasSubstr("gpt2, llama, bert or t5"));
  EXPECT_THAT(
      complaint_of(changed(byte_level(), "tokenizer.ggml.token_type", formats::GgufValue::list(Kind::I32, {1}))),
      HasSubstr("as long as tokens"));
  EXPECT_THAT(complaint_of(changed(byte_level(), "tokenizer.ggml.eos_token_id", formats::GgufValue::integer(7))),
              HasSubstr("eos_token_id must be the id"));
  EXPECT_THAT(complaint_of(without(byte_level(), "tokenizer.ggml.merges")), HasSubstr("has no tokenizer.ggml.merges"));
  EXPECT_THAT(
      complaint_of(changed(pieces(), "tokenizer.ggml.scores", formats::GgufValue::list(std::vector<double>{1}))),
      HasSubstr("scores must be as long"));
  EXPECT_THAT(complaint_of(with("gpt2", {"a", "a"}, {1, 1})), HasSubstr("the token a occurs twice"));
  EXPECT_THAT(complaint_of({}), HasSubstr("has no tokenizer.ggml.tokens"));
}

TEST(GgufVocabulary, ReadsTheChatTemplate) {
  test::TemporaryFolder folder;
  const std::string path = write(
      folder, changed(byte_level(), "tokenizer.chat_template",
                      formats::GgufValue::text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")));
  ASSERT_TRUE(has_chat_template(path));
  Chat chat;
  chat.messages = {{{"role", "user"}, {"content", "he"}}};
  EXPECT_EQ(ChatTemplate::read(path).render(chat).text, "he<|end|>");
  EXPECT_FALSE(has_chat_template(write(folder, byte_level(), "w.gguf")));
}

/// Checks that a tokenizer equals the one that is read from the GGUF file written for it.
void expect_same(const std::string& source, const std::vector<std::string>& texts, int64_t more = 0) {
  const auto before = make_tokenizer(source);
  test::TemporaryFolder folder;
  const auto after = make_tokenizer(write(folder, gguf_of_tokenizer(source, before->vocabulary_size() + more)));
  EXPECT_EQ(after->vocabulary_size(), before->vocabulary_size() + more);
  EXPECT_EQ(after->end_id(), before->end_id());
  for (const std::string& text : texts) {
    ASSERT_EQ(after->encode(text), before->encode(text)) << source << ": " << text;
    ASSERT_EQ(after->encode_whole(text).ids, before->encode_whole(text).ids) << source << ": " << text;
    ASSERT_EQ(after->decode(after->encode(text)), before->decode(before->encode(text))) << source << ": " << text;
  }
}

TEST(GgufVocabulary, WritesTokenizersOfBytesAndOfFiles) {
  expect_same("bytes", {"text", "\xC3\xA9 \n\t\x7F", ""}, 5);
  test::TemporaryFolder folder;
  expect_same(write(folder, byte_level()), {"he he", "<tool>he"}, 2);
  expect_same(write(folder, pieces(), "w.gguf"), {"ab ab", "b<s>a"});
  EXPECT_THAT(test::thrown_message([&] { gguf_of_tokenizer("bytes", 100); }),
              HasSubstr("257 tokens, more than the model, 100"));
}

std::vector<std::string> shared_texts() {
  std::vector<std::string> texts;
  std::istringstream lines(test::read_all(kShared + "texts.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json row = json::parse(line);
    texts.push_back(row.is_string() ? row.get<std::string>() : row.at("text").get<std::string>());
  }
  return texts;
}

TEST(GgufVocabulary, WritesTokenizersOfFolders) {
  if (!fs::exists(kShared + "hf")) GTEST_SKIP() << "needs " << kShared << "hf";
  const std::vector<std::string> texts = shared_texts();
  expect_same(kShared + "hf/llama-prepend-from-mistral-v1", texts);
  // The newer form adds no space before a text that starts with one, or after a special token; llama.cpp always does.
  expect_same(kShared + "hf/llama-metaspace-from-mistral-v1", {"two words", "a  b", "\u00E9\n\t1"});
  test::TemporaryFolder folder;
  folder.write("vocab.json", test::read_all(kShared + "gpt2/encoder.json"));
  folder.write("merges.txt", test::read_all(kShared + "gpt2/vocab.bpe"));
  expect_same(folder.path(), texts, 47);
  EXPECT_THAT(test::thrown_message([&] { gguf_of_tokenizer(kShared + "hf/t5-small", 40000); }),
              HasSubstr("Unigram cannot be written"));
}

std::string unpacked(const std::string& path) {
  std::string bytes;
  gzFile file = gzopen(path.c_str(), "rb");
  char part[1 << 16];
  for (int count; (count = gzread(file, part, sizeof part)) > 0;) bytes.append(part, static_cast<size_t>(count));
  gzclose(file);
  return bytes;
}

/// Compares the ids of 300 texts with llama.cpp's. `max_differences`: number of texts that differ, because llama.cpp
/// finds other tokens than the model's own tokenizer. It drops marks of some scripts in WordPiece and splits composed
/// characters in unigram. It also reads "</s>" of Qwen2, an ordinary token, as a special token.
TEST(GgufVocabulary, EqualsLlamaCpp) {
  const std::string folder = kShared + "gguf-vocab/";
  if (!fs::exists(folder)) GTEST_SKIP() << "needs " << folder;
  const std::vector<std::pair<std::string, int>> max_differences{{"bert-bge", 5},      {"falcon", 0},    {"gpt-2", 0},
                                                                 {"llama-bpe", 0},     {"llama-spm", 0}, {"qwen2", 1},
                                                                 {"nomic-bert-moe", 3}};
  test::TemporaryFolder temporary;
  for (const auto& [name, max] : max_differences) {
    std::string file = folder + "ggml-vocab-" + name + ".gguf";
    if (!fs::exists(file)) file = temporary.write(name + ".gguf", unpacked(file + ".gz"));
    const auto tokenizer = make_tokenizer(file);
    std::istringstream lines(test::read_all(folder + "ggml-vocab-" + name + ".vectors.jsonl"));
    int off = 0, count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      const json vector = json::parse(line);
      off += tokenizer->encode_whole(vector["text"].get<std::string>()).ids != vector["ids_special"].get<Ids>();
    }
    EXPECT_EQ(count, 300) << name;
    EXPECT_LE(off, max) << name;
  }
}

/// Each mutated file gives a tokenizer or an error. COLOSSAL_MUTATED_FILES is the number of files of each kind;
/// default: 60.
TEST(GgufVocabulary, RefusesOrReadsMutatedFiles) {
  const char* asked = std::getenv("COLOSSAL_MUTATED_FILES");
  const int count = asked ? std::atoi(asked) : 60;
  std::mt19937 random(1);
  test::TemporaryFolder folder;
  for (const formats::GgufValues& values :
       {byte_level(), pieces(),
        changed(with("bert", {"[UNK]", "\u2581ab", "b"}, {3, 1, 1}), "tokenizer.ggml.unknown_token_id",
                formats::GgufValue::integer(0)),
        changed(changed(pieces(), "tokenizer.ggml.model", formats::GgufValue::text("t5")),
                "tokenizer.ggml.precompiled_charsmap", formats::GgufValue::list(Kind::U8, {4, 0, 0, 0, 0, 0, 0, 0}))}) {
    const std::string whole = test::read_all(write(folder, values));
    for (int i = 0; i < count; ++i) {
      std::string bytes = whole;
      for (unsigned changes = 1 + random() % 3; changes > 0; --changes)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      const std::string path = folder.write("m.gguf", bytes);
      try {
        const auto tokenizer = make_tokenizer(path);
        tokenizer->decode(tokenizer->encode_whole("he ab<s> \xFF").ids);
        gguf_of_tokenizer(path, 20);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace colossal::text::gguf_vocabulary_test
