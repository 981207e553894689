#include "colossal/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/byte.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/tokenizers/vocabulary.h"
#include "colossal/text/tokenizers/word_cache.h"
#include "colossal/text/unicode.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::text::tokenizer_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kShared = test::source_dir() + "/../shared/data/";

std::string all_bytes() {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  return bytes;
}

TEST(ByteTokenizer, RoundTripsEveryByte) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(all_bytes())), all_bytes());
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->piece(tokenizer->end_id()), "");
  EXPECT_THROW(tokenizer->piece(257), Error);
  EXPECT_THROW(tokenizer->piece(-1), Error);
  EXPECT_THAT(test::thrown_message([] { make_tokenizer("byte"); }), HasSubstr("must be \"bytes\""));
}

TEST(Utf8, DecodesEveryCharacterAndPrefix) {
  const auto encoded = [](uint32_t c) -> std::string {
    if (c < 0x80) return {static_cast<char>(c)};
    if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    if (c < 0x10000)
      return {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
              static_cast<char>(0x80 | (c & 63))};
    return {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
            static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  };
  for (uint32_t c = 0; c <= 0x10FFFF + 100; ++c) {
    const std::string bytes = encoded(c);
    const bool valid = c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
    const Utf8Character first = first_character(bytes);
    ASSERT_EQ(first.kind == Utf8::Complete && first.length == bytes.size(), valid) << c;
    for (size_t length = 1; valid && length < bytes.size(); ++length)
      ASSERT_EQ(first_character(bytes.substr(0, length)).kind, Utf8::Incomplete) << c;
  }
  for (const char* overlong :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xFF", "\x80"})
    EXPECT_EQ(first_character(overlong).kind, Utf8::Invalid);
}

TEST(TextStream, ReturnsCompleteCharacters) {
  const ByteTokenizer tokenizer;
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x99z";
  TextStream stream(tokenizer);
  std::vector<std::string> shown;
  for (int64_t id : tokenizer.encode(text)) {
    const std::string part = stream.push(id);
    if (!part.empty()) shown.push_back(part);
  }
  EXPECT_THAT(shown, ElementsAre("a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\xA6\x99", "z"));
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, ReplacesInvalidUtf8) {
  const ByteTokenizer tokenizer;
  const auto streamed = [&](const std::string& bytes) {
    TextStream stream(tokenizer);
    std::string text;
    for (int64_t id : tokenizer.encode(bytes)) text += stream.push(id);
    return text + stream.finish();
  };
  EXPECT_EQ(streamed("a\xFF\x62"), "a\xEF\xBF\xBD\x62");
  EXPECT_EQ(streamed("\xE2\x82"), "\xEF\xBF\xBD");
  EXPECT_EQ(streamed("\xE2\x82x"), "\xEF\xBF\xBDx");
  EXPECT_EQ(streamed(all_bytes()).substr(0, 128), all_bytes().substr(0, 128));
}

TEST(ByteAlphabet, RoundTripsEveryByte) {
  EXPECT_EQ(from_byte_alphabet(to_byte_alphabet(all_bytes())), all_bytes());
  EXPECT_EQ(to_byte_alphabet(" a\n"),
            "\xC4\xA0"
            "a"
            "\xC4\x8A");  // U+0120, a, U+010A
}

/// Writes GPT-2's tokenizer in the form of its folders: one tokenizer.json, or vocab.json and merges.txt.
void write_gpt2(const test::TemporaryFolder& folder, bool as_one_file) {
  const std::string vocabulary = test::read_all(kShared + "tokenizers/gpt2/encoder.json");
  const std::string merges = test::read_all(kShared + "tokenizers/gpt2/vocab.bpe");
  if (!as_one_file) {
    folder.write("vocab.json", vocabulary);
    folder.write("merges.txt", merges);
    return;
  }
  json list = json::array();
  std::istringstream lines(merges);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != '#')
      list.push_back({line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)});
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json added = {{"id", 50256}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", true}};
  folder.write("tokenizer.json", json({{"added_tokens", {added}},
                                       {"normalizer", nullptr},
                                       {"pre_tokenizer", byte_level},
                                       {"post_processor", byte_level},
                                       {"decoder", byte_level},
                                       {"model",
                                        {{"type", "BPE"},
                                         {"unk_token", nullptr},
                                         {"continuing_subword_prefix", ""},
                                         {"end_of_word_suffix", ""},
                                         {"vocab", json::parse(vocabulary)},
                                         {"merges", list}}}})
                                     .dump());
}

TEST(HuggingFaceTokenizer, EqualsGpt2) {
  if (!fs::exists(kShared + "tokenizers/gpt2")) GTEST_SKIP() << "needs " << kShared << "tokenizers/gpt2";
  for (bool as_one_file : {true, false}) {
    test::TemporaryFolder folder;
    write_gpt2(folder, as_one_file);
    const auto tokenizer = make_tokenizer(folder.path());
    EXPECT_EQ(tokenizer->vocabulary_size(), 50257);
    EXPECT_EQ(tokenizer->end_id(), 50256);
    const json vectors = json::parse(test::read_all(kShared + "tokenizers/gpt2/vectors.json"))["vectors"];
    EXPECT_GT(vectors.size(), 50u);
    for (const json& vector : vectors) {
      const std::string text = vector["text"];
      const auto ids = vector["ids"].get<std::vector<int64_t>>();
      EXPECT_EQ(tokenizer->encode(text), ids) << text;
      EXPECT_EQ(tokenizer->decode(ids), text);
    }
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(all_bytes())), all_bytes()) << "bytes that are not UTF-8 survive";
    EXPECT_EQ(tokenizer->encode("a<|endoftext|>b"), (std::vector<int64_t>{64, 50256, 65}));
    EXPECT_EQ(tokenizer->piece(50256), "") << "a special token prints nothing";
  }
}

TEST(HuggingFaceTokenizer, EqualsLlama) {
  if (!fs::exists(kShared + "stories260K-hf")) GTEST_SKIP() << "needs " << kShared << "stories260K-hf";
  const auto tokenizer = make_tokenizer(kShared + "stories260K-hf");
  EXPECT_EQ(tokenizer->vocabulary_size(), 512);
  EXPECT_EQ(tokenizer->begin_id(), 1);
  EXPECT_EQ(tokenizer->end_id(), 2);
  const json reference = json::parse(test::read_all(kShared + "stories260K-hf/reference.json"));
  for (const json& item : reference["cases"]) {
    const auto prompt_ids = item["prompt_ids"].get<std::vector<int64_t>>();
    auto ids = prompt_ids;
    for (const json& id : item["greedy_ids"]) ids.push_back(id);
    EXPECT_EQ(tokenizer->encode_prompt(item["prompt"].get<std::string>()), prompt_ids);
    EXPECT_EQ(tokenizer->decode(ids), item["greedy_text"].get<std::string>());
  }
  const std::string strange = "\xF0\x9F\xA6\x99 z\xC3\xA4h  lt\n\t";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(strange)), strange) << "bytes stand in for characters without a token";
}

/// Returns a small tokenizer in SentencePiece's style.
json small() {
  return {{"added_tokens",
           {{{"id", 0}, {"content", "<unk>"}, {"special", true}}, {{"id", 1}, {"content", "<s>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "first"}, {"split", false}}},
          {"decoder", {{"type", "Metaspace"}, {"prepend_scheme", "first"}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"vocab",
             {{"<unk>", 0},
              {"<s>", 1},
              {"\xE2\x96\x81", 2},
              {"a", 3},
              {"b", 4},
              {"ab", 5},
              {"\xE2\x96\x81"
               "ab",
               6},
              {"aa", 7}}},
            {"merges", {"a b", "\xE2\x96\x81 ab", "a a"}}}}};
}

std::unique_ptr<Tokenizer> made(const json& tokenizer) {
  test::TemporaryFolder folder;
  return read_hugging_face_tokenizer(folder.write("tokenizer.json", tokenizer.dump()));
}

TEST(HuggingFaceTokenizer, MergesByRankThenFromTheLeft) {
  const auto tokenizer = made(small());
  EXPECT_THAT(tokenizer->encode("ab ab"), ElementsAre(6, 6));
  EXPECT_THAT(tokenizer->encode("aaab"), ElementsAre(2, 7, 5)) << "a b ranks before a a";
  EXPECT_THAT(tokenizer->encode("aaa"), ElementsAre(2, 7, 3));
  EXPECT_THAT(tokenizer->encode("axyb"), ElementsAre(2, 3, 0, 4)) << "unknown neighbours are fused";
  EXPECT_THAT(tokenizer->encode("ab<s>ab"), ElementsAre(6, 1, 5)) << "the first text alone gets the space";
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
  EXPECT_EQ(tokenizer->decode({6, 6}), "ab ab");
}

/// Makes a byte-level tokenizer of single bytes and RoBERTa's special tokens from vocab.json, merges.txt and `config`.
std::unique_ptr<Tokenizer> made_of_older_files(const json& config, const json& model_config = nullptr) {
  test::TemporaryFolder folder;
  json vocabulary = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}};
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte + 10;
  folder.write("vocab.json", vocabulary.dump());
  folder.write("merges.txt", "#version: 0.2\n");
  if (!config.is_null()) folder.write("tokenizer_config.json", config.dump());
  if (!model_config.is_null()) folder.write("config.json", model_config.dump());
  return make_tokenizer(folder.path());
}

TEST(HuggingFaceTokenizer, AddsSpecialTokensOfTheConfigToOlderFiles) {
  EXPECT_THAT(made_of_older_files(nullptr)->encode_whole("a").ids, ElementsAre('a' + 10));
  const auto opt = made_of_older_files({{"tokenizer_class", "GPT2Tokenizer"},
                                        {"add_bos_token", true},
                                        {"bos_token", {{"content", "</s>"}, {"lstrip", false}}}});
  EXPECT_THAT(opt->encode_prompt("a"), ElementsAre(2, 'a' + 10)) << "OPT's prompts begin with </s>";
  EXPECT_THAT(opt->encode_pair("a", "b").ids, ElementsAre(2, 'a' + 10, 2, 'b' + 10));
  EXPECT_EQ(opt->begin_id(), 2);
  for (const auto& roberta :
       {made_of_older_files({{"tokenizer_class", "RobertaTokenizer"}, {"add_prefix_space", true}}),
        made_of_older_files({{"add_prefix_space", true}}, {{"model_type", "roberta"}})}) {
    EXPECT_THAT(roberta->encode_whole("a").ids, ElementsAre(0, ' ' + 10, 'a' + 10, 2));
    EXPECT_THAT(roberta->encode_pair(" a", " b").ids, ElementsAre(0, ' ' + 10, 'a' + 10, 2, 2, ' ' + 10, 'b' + 10, 2));
  }
  EXPECT_THAT(test::thrown_message([] { made_of_older_files({{"add_bos_token", true}}); }),
              HasSubstr("the bos_token <|endoftext|> is not in vocab.json"));
}

TEST(EncodeAll, EqualsEncodeForAnyNumberOfThreads) {
  const ByteTokenizer tokenizer;
  for (const int threads : {0, 1, 3, 1024})
    EXPECT_THAT(encode_all(tokenizer, {"ab", "", "c"}, threads),
                ElementsAre(ElementsAre('a', 'b'), ElementsAre(), ElementsAre('c')));
  for (int i = 0; i < 50; ++i)  // the failure with the smallest index is reported, whichever thread was faster
    try {
      for_each_index(100, 3, [](size_t i) { require(i < 70 || i > 73, "test", i); });
      FAIL() << "nothing failed";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), "70");
    }
}

/// Each thread reserves 8 MiB of addresses for its stack. If none are available, the thread cannot start.
TEST(EncodeAllDeathTest, RunsWithFewerThreadsThanWanted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer wants addresses of its own for each thread, and ends the process where there are none";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto work = [] {
    const rlimit none{1, 1};
    setrlimit(RLIMIT_AS, &none);
    std::atomic<int> count{0};
    for_each_index(64, 64, [&](size_t) { ++count; });
    std::_Exit(count == 64 ? 0 : 1);
  };
  EXPECT_EXIT(work(), testing::ExitedWithCode(0), "");
}

TEST(WordCache, FindsTheIdsOfTheSameWordOnly) {
  WordCache cache;
  unsigned state = 3;
  const auto random = [&] { return (state = state * 1664525 + 1013904223) >> 16; };
  std::vector<int64_t> ids;
  for (int i = 0; i < 200'000; ++i) {  // words of three different bytes, zero among them, so that many are similar
    std::string word;
    for (size_t left = 1 + random() % 26; left > 0; --left) word += static_cast<char>(random() % 3);
    const int64_t id = static_cast<int64_t>(std::hash<std::string>()(word) & 0xFFFFFF);
    ids.clear();
    if (cache.find(word, ids)) {
      ASSERT_THAT(ids, ElementsAre(id, 1));
    } else {
      ids = {id, 1};
      cache.keep(word, ids.data(), ids.size());
      ASSERT_EQ(cache.find(word, ids), word.size() <= 24);
    }
  }
  EXPECT_FALSE(cache.find("", ids));
}

TEST(PieceTrie, LimitsItsMemory) {
  PieceTrie trie(4);
  trie.add("abc", 1);
  trie.add("ab", 2);
  EXPECT_THAT(test::thrown_message([&] { trie.add("abd", 3); }), HasSubstr("must have at most 4 nodes"));
}

TEST(HuggingFaceTokenizer, EncodesLongWordsInLessThanQuadraticTime) {
  const std::string word(1'000'000, 'a');  // quadratic time would take minutes
  EXPECT_EQ(made(small())->encode(word).size(), 500'001u);
}

TEST(HuggingFaceTokenizer, NamesUnsupportedParts) {
  const auto refused = [](const std::function<void(json&)>& edit) {
    json tokenizer = small();
    edit(tokenizer);
    return test::thrown_message([&] { made(tokenizer); });
  };
  EXPECT_EQ(refused([](json&) {}), "");
  const auto names = [&](const char* section, const json& value, const char* wanted) {
    EXPECT_THAT(refused([&](json& t) { t[section] = value; }), HasSubstr(wanted)) << value;
  };
  names("normalizer", {{"type", "Upper"}}, "the normalizer Upper is not supported");
  names("pre_tokenizer", {{"type", "UnicodeScripts"}}, "the pre_tokenizer UnicodeScripts is not supported");
  names("post_processor", {{"type", "Other"}}, "the post_processor Other is not supported");
  names("decoder", {{"type", "Other"}}, "the decoder Other is not supported");
  names("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Kept"}},
        "the behavior Kept");
  names("pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "often"}}, "the prepend_scheme often");
  names("pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, "must be one character");
  names("pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}, "must be positive: got 0");
  names("normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "a"}}, "must not be empty");
  names("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAA*"}}, "base64 has no character");
  names("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}}, "ends within its head");
  names("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "/////wAA"}}, "must fit in its 2 bytes");
  const json once = {{"type", "BertProcessing"}, {"cls", {"a", 3}}, {"sep", {"b", 4}}};
  names("post_processor", {{"type", "Sequence"}, {"processors", {once, once}}}, "two post_processors that add tokens");
  names("post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}}, "must name each text once");
  for (const auto& [option, value, wanted] : std::vector<std::tuple<const char*, json, const char*>>{
           {"type", "Bigram", "the model Bigram is not supported"},
           {"dropout", 0.1, "dropout of merges is not supported: got 0.1"},
           {"colour", 1, "the model's option colour is not supported"},
           {"unk_token", "nobody", "unk_token nobody is not in the vocabulary"}})
    EXPECT_THAT(refused([&, option = option, value = value](json& t) { t["model"][option] = value; }),
                HasSubstr(wanted));
  EXPECT_EQ(refused([](json& t) { t["model"]["dropout"] = 0.0; }), "");
  EXPECT_THAT(refused([](json& t) { t["model"]["merges"] = {"a c"}; }), HasSubstr("which is not in the vocabulary"));
  EXPECT_THAT(refused([](json& t) { t["model"]["merges"] = {"ab"}; }), HasSubstr("must name two tokens"));
  EXPECT_THAT(refused([](json& t) { t["model"]["vocab"]["a"] = -1; }), HasSubstr("the id of a must be"));
  EXPECT_THAT(refused([](json& t) { t["model"]["vocab"]["a"] = 1LL << 60; }), HasSubstr("the id of a must be"));
  EXPECT_THAT(refused([](json& t) { t["model"]["vocab"]["a"] = "x"; }),
              HasSubstr("the id of a must be a whole number"));
  EXPECT_THAT(refused([](json& t) { t.erase("model"); }), HasSubstr("not a tokenizer"));
  EXPECT_THAT(refused([](json& t) { t = 3; }), HasSubstr("must be a JSON object"));
  test::TemporaryFolder folder;
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i) deep += R"({"type":"Sequence","decoders":[)";
  const std::string file = folder.write("tokenizer.json", R"({"decoder":)" + deep);
  EXPECT_THAT(test::thrown_message([&] { read_hugging_face_tokenizer(folder.path()); }),
              HasSubstr(file + ": nested too deeply"));
  folder.write("tokenizer.json", small().dump());
  folder.write("tokenizer_config.json", R"({"eos_token":)" + deep);
  EXPECT_THAT(test::thrown_message([&] { read_hugging_face_tokenizer(folder.path()); }),
              HasSubstr("tokenizer_config.json: nested too deeply"));
  std::filesystem::remove(file);
  std::filesystem::remove(folder / "tokenizer_config.json");
  folder.write("merges.txt", "");
  folder.write("vocab.json", R"({"<|endoftext|>":)" + deep);
  EXPECT_THAT(test::thrown_message([&] { read_hugging_face_tokenizer(folder.path()); }),
              HasSubstr("vocab.json: nested too deeply"));
  const json broken = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(refused([&](json& t) { t["pre_tokenizer"] = broken; }), HasSubstr("bad regular expression (a"));
}

}  // namespace
}  // namespace colossal::text::tokenizer_test
