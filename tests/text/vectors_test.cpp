// Compares the ids of 300 texts with the ids of the original packages, for every vocabulary in ../shared/data. The data
// is not part of the project, so the tests skip if it is absent.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "colossal/base/json.h"
#include "colossal/text/captions.h"
#include "colossal/text/tokenizer.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::text::vectors_test {
namespace {

using nlohmann::json;
using Ids = std::vector<int64_t>;
namespace fs = std::filesystem;

const std::string kTokenizers = test::source_dir() + "/../shared/data/tokenizers/";

std::vector<json> lines_of(const std::string& file) {
  std::vector<json> lines;
  std::istringstream text(test::read_all(file));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

/// Returns what CLIP's tokenizer of transformers makes of the package's text: a word's end becomes a space.
std::string with_clip_spaces(std::string text) {
  for (size_t at = 0; (at = text.find("</w>", at)) != std::string::npos; ++at) text.replace(at, 4, " ");
  if (text.ends_with(' ')) text.pop_back();
  return text;
}

/// Checks every text against its vector. `decodes` is the key of the ids whose text is under `decoded`.
void expect_vectors(const Tokenizer& tokenizer, const std::string& file, const char* decodes) {
  std::vector<json> vectors = lines_of(file);
  if (file.find("/clip/") != std::string::npos) {
    for (json& vector : vectors) {
      for (const char* key : {"decoded", "decoded_special"}) vector[key] = with_clip_spaces(vector[key]);
    }
  }
  EXPECT_EQ(vectors.size(), 300u);
  for (const json& vector : vectors) {
    const std::string text = vector["text"];
    ASSERT_EQ(tokenizer.encode(text), vector["ids"].get<Ids>()) << file << ": " << vector["text"];
    const Ids decoded = vector[decodes].get<Ids>();
    ASSERT_EQ(valid_utf8(tokenizer.decode(decoded)), vector["decoded"].get<std::string>())
        << file << ": " << vector["text"];
    if (vector.contains("decoded_special")) {
      ASSERT_EQ(tokenizer.encode_whole(text).ids, vector["ids_special"].get<Ids>()) << file << ": " << vector["text"];
      ASSERT_EQ(valid_utf8(tokenizer.decode(decoded, true)), vector["decoded_special"].get<std::string>())
          << file << ": " << vector["text"];
    }
  }
}

TEST(Vectors, EqualsTokenizersPackage) {
  if (!fs::exists(kTokenizers + "hf")) GTEST_SKIP() << "needs " << kTokenizers << "hf";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(kTokenizers + "hf")) {
    if (!fs::exists(entry.path() / "tokenizer.json")) continue;
    SCOPED_TRACE(entry.path().string());
    expect_vectors(*make_tokenizer(entry.path().string()), (entry.path() / "vectors.jsonl").string(), "ids_special");
    ++count;
  }
  EXPECT_EQ(count, 9) << "falcon is compressed: its interop test reads it";
}

TEST(Vectors, EqualsSentencePiece) {
  if (!fs::exists(kTokenizers + "sentencepiece")) GTEST_SKIP() << "needs " << kTokenizers << "sentencepiece";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(kTokenizers + "sentencepiece")) {
    if (entry.path().extension() != ".model") continue;
    const std::string vectors = fs::path(entry.path()).replace_extension(".vectors.jsonl").string();
    expect_vectors(*make_tokenizer(entry.path().string()), vectors, "ids");
    ++count;
  }
  EXPECT_EQ(count, 12);
  expect_vectors(*make_tokenizer(kTokenizers + "mistral-v1/tokenizer.model"),
                 kTokenizers + "mistral-v1/sentencepiece.vectors.jsonl", "ids");
}

TEST(Vectors, EqualsTiktoken) {
  const std::string folder = kTokenizers + "tiktoken/cl100k_base/";
  if (!fs::exists(folder)) GTEST_SKIP() << "needs " << folder;
  const auto tokenizer = make_tokenizer(folder + "cl100k_base.tiktoken");
  EXPECT_EQ(tokenizer->vocabulary_size(), 100277);
  for (const json& vector : lines_of(folder + "vectors.jsonl")) {
    const std::string text = vector["text"];
    ASSERT_EQ(tokenizer->encode(text), vector["ids_special"].get<Ids>()) << vector["text"];
    ASSERT_EQ(tokenizer->decode(vector["ids"].get<Ids>()), text);
  }
}

TEST(Vectors, EncodesGpt2ByRanksAndByMerges) {
  if (!fs::exists(kTokenizers + "gpt2")) GTEST_SKIP() << "needs " << kTokenizers << "gpt2";
  test::TemporaryFolder folder;
  folder.write("vocab.json", test::read_all(kTokenizers + "gpt2/encoder.json"));
  folder.write("merges.txt", test::read_all(kTokenizers + "gpt2/vocab.bpe"));
  const auto merges = make_tokenizer(folder.path()), ranks = make_tokenizer(kTokenizers + "gpt2/gpt2.tiktoken");
  for (const json& vector : lines_of(kTokenizers + "gguf-vocab/ggml-vocab-gpt-2.vectors.jsonl")) {
    const std::string text = vector["text"];
    ASSERT_EQ(merges->encode(text), vector["ids_special"].get<Ids>()) << vector["text"];
    ASSERT_EQ(ranks->encode(text), vector["ids_special"].get<Ids>()) << vector["text"];
  }
}

TEST(Vectors, EqualsBertVocabulary) {
  if (!fs::exists(kTokenizers + "bert")) GTEST_SKIP() << "needs " << kTokenizers << "bert";
  const auto tokenizer = make_tokenizer(kTokenizers + "bert/vocab.txt");
  for (const json& vector : lines_of(kTokenizers + "hf/bert-base-uncased/vectors.jsonl"))
    ASSERT_EQ(tokenizer->encode_whole(vector["text"].get<std::string>()).ids, vector["ids_special"].get<Ids>())
        << vector["text"];
}

TEST(Vectors, EqualsClipOfCaptions) {
  const std::string folder = kTokenizers + "hf/clip";
  if (!fs::exists(folder)) GTEST_SKIP() << "needs " << folder;
  const Ids ids = make_captions(folder)("a photograph of an astronaut riding a horse").ids;
  Ids wanted{49406, 320, 8853, 539, 550, 18376, 6765, 320, 4558, 49407};
  wanted.resize(77, 49407);
  EXPECT_EQ(ids, wanted);
}

}  // namespace
}  // namespace colossal::text::vectors_test
