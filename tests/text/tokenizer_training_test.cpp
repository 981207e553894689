// Training of vocabularies, compared with brute-force definitions and used as tokenizers.
#include "colossal/text/training/tokenizer_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "colossal/text/tokenizer.h"
#include "colossal/text/training/bpe_trainer.h"
#include "colossal/text/training/lattice.h"
#include "colossal/text/training/unigram_trainer.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::text::tokenizer_training_test {
namespace {

using ::testing::HasSubstr;

/// Returns words of a few letters, many of them repeated, so that pairs are equally frequent and overlap ("aaa").
std::vector<CountedWord> random_words(int seed, int count) {
  std::mt19937 generator(seed);
  std::map<std::string, int64_t> words;
  for (int i = 0; i < count; ++i) {
    std::string word;
    for (size_t n = 1 + generator() % 8; word.size() < n;) word += static_cast<char>('a' + generator() % 4);
    words[word] += 1 + static_cast<int64_t>(generator() % 3);
  }
  std::vector<CountedWord> list;
  for (const auto& [word, times] : words) list.push_back({word, times});
  return list;
}

/// Trains by definition: all pairs are counted again for each merge. The words must have no overlapping pairs of equal
/// symbols, because the count of a pair would then depend on whether overlaps count.
TrainedBpe by_definition(const std::vector<CountedWord>& words, int64_t vocabulary, int64_t min_frequency) {
  std::set<std::string> characters;
  for (const CountedWord& word : words)
    for (const char c : word.text) characters.insert(std::string(1, c));
  TrainedBpe trained{{characters.begin(), characters.end()}, {}};
  std::map<std::string, size_t> ids;
  for (const std::string& token : trained.tokens) ids.emplace(token, ids.size());
  std::vector<std::vector<size_t>> cut;
  for (const CountedWord& word : words) {
    cut.emplace_back();
    for (const char c : word.text) cut.back().push_back(ids[std::string(1, c)]);
  }
  while (static_cast<int64_t>(trained.tokens.size()) < vocabulary) {
    std::map<std::pair<size_t, size_t>, int64_t> counts;
    for (size_t w = 0; w < words.size(); ++w)
      for (size_t i = 1; i < cut[w].size(); ++i) counts[{cut[w][i - 1], cut[w][i]}] += words[w].count;
    auto best = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it)
      if (it->second > best->second) best = it;
    if (best == counts.end() || best->second < min_frequency) break;
    const auto [left, right] = best->first;
    trained.merges.emplace_back(trained.tokens[left], trained.tokens[right]);
    const std::string token = trained.tokens[left] + trained.tokens[right];
    if (ids.emplace(token, trained.tokens.size()).second) trained.tokens.push_back(token);
    for (std::vector<size_t>& word : cut)
      for (size_t i = 1; i < word.size(); ++i)
        if (word[i - 1] == left && word[i] == right) {
          word[i - 1] = ids[token];
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i));
        }
  }
  return trained;
}

/// Returns words in which no symbol is next to an equal one: letters in ascending order, with random counts.
std::vector<CountedWord> words_without_repeats(int seed) {
  std::mt19937 generator(seed);
  std::map<std::string, int64_t> words;
  for (int i = 0; i < 60; ++i) {
    std::string word;
    for (char c = 'a'; c < 'k'; ++c)
      if (generator() % 2) word += c;
    if (!word.empty()) words[word] += 1 + static_cast<int64_t>(generator() % 4);
  }
  std::vector<CountedWord> list;
  for (const auto& [word, times] : words) list.push_back({word, times});
  return list;
}

TEST(BpeTrainer, JoinsTheMostFrequentPair) {
  for (int seed = 0; seed < 20; ++seed) {
    const std::vector<CountedWord> words = words_without_repeats(seed);
    const TrainedBpe want = by_definition(words, 60, 3);
    const TrainedBpe got = train_bpe(words, {.vocabulary = 60, .min_frequency = 3});
    EXPECT_EQ(got.tokens, want.tokens) << seed;
    EXPECT_EQ(got.merges, want.merges) << seed;
  }
}

TEST(BpeTrainer, CountsOverlappingPairsAfterMerges) {
  // "aaaa" becomes two "aa". The third position of "aa" no longer exists.
  const TrainedBpe trained = train_bpe({{"aaaa", 5}, {"ab", 4}}, {.vocabulary = 10, .min_frequency = 1});
  EXPECT_EQ(trained.tokens, (std::vector<std::string>{"a", "b", "aa", "aaaa", "ab"}));
  EXPECT_EQ(trained.merges.size(), 3u);
}

TEST(BpeTrainer, HonoursItsOptions) {
  const std::vector<CountedWord> words{{"low", 5}, {"lower", 2}, {"zz", 1}};
  EXPECT_EQ(train_bpe(words, {.vocabulary = 9, .special = {"<s>"}, .alphabet = {'A'}}).tokens,
            (std::vector<std::string>{"<s>", "A", "e", "l", "o", "r", "w", "z", "lo"}));
  EXPECT_EQ(train_bpe(words, {.vocabulary = 5, .max_characters = 3}).tokens,
            (std::vector<std::string>{"l", "o", "w", "lo", "low"}))
      << "of words only the most frequent characters are left";
  const TrainedBpe spelled = train_bpe({{"abab", 3}}, {.vocabulary = 7, .prefix = "##", .suffix = "$"});
  EXPECT_EQ(spelled.tokens, (std::vector<std::string>{"a", "b", "##b", "##a", "##b$", "ab", "##ab$"}));
  EXPECT_EQ(train_bpe({{"abcabc", 3}}, {.vocabulary = 9, .length_limit = 4}).tokens,
            (std::vector<std::string>{"a", "b", "c", "ab", "abc"}));
  EXPECT_THAT(test::thrown_message([&] { train_bpe(words, {.vocabulary = 5}); }),
              HasSubstr("must hold the special tokens and characters, which are 6: got 5"));
}

/// Calls found() for all segmentations of a word into pieces, with the probability of each.
void all_ways(const std::string& word, const std::map<std::string, double>& pieces, double probability,
              std::vector<std::string>& way,
              const std::function<void(const std::vector<std::string>&, double)>& found) {
  if (word.empty()) return found(way, probability);
  for (const auto& [piece, score] : pieces) {
    if (!word.starts_with(piece)) continue;
    way.push_back(piece);
    all_ways(word.substr(piece.size()), pieces, probability * std::exp(score), way, found);
    way.pop_back();
  }
}

TEST(Lattice, SumsOverAllSegmentations) {
  const std::map<std::string, double> pieces{{"a", -1.0}, {"b", -2.0},   {"ab", -2.5}, {"ba", -2.2},
                                             {"c", -3.0}, {"abc", -4.1}, {"bc", -3.7}, {"ca", -1.9}};
  PieceTrie trie;
  std::vector<double> scores;
  std::vector<std::string> names;
  for (const auto& [piece, score] : pieces) {
    trie.add(piece, static_cast<int32_t>(scores.size()));
    scores.push_back(score);
    names.push_back(piece);
  }
  Lattice lattice;
  for (const std::string word : {"abcabca", "a", "bcab", "cababababc"}) {
    std::map<std::string, double> want;
    double all = 0, best = 0, best_cut = 0;
    std::vector<std::string> way, best_way, best_cut_way;
    all_ways(word, pieces, 1, way, [&](const std::vector<std::string>& found, double probability) {
      all += probability;
      for (const std::string& piece : found) want[piece] += probability;
      if (probability > best) best = probability, best_way = found;
      if (found.size() > 1 && probability > best_cut) best_cut = probability, best_cut_way = found;
    });
    lattice.read(word, trie, scores, {-1, 0});
    std::vector<double> expected(scores.size(), 0);
    EXPECT_NEAR(lattice.add_expected(3, expected), std::log(all), 1e-12);
    for (size_t id = 0; id < names.size(); ++id)
      EXPECT_NEAR(expected[id], 3 * want[names[id]] / all, 1e-12) << names[id];
    const auto named = [&](const std::vector<int32_t>& ids) {
      std::vector<std::string> list;
      for (const int32_t id : ids) list.push_back(names[static_cast<size_t>(id)]);
      return list;
    };
    EXPECT_EQ(named(lattice.best()), best_way);
    EXPECT_EQ(named(lattice.best(true)), best_cut_way);
  }
}

TEST(SeedPieces, ReturnsStringsThatDifferentCharactersFollow) {
  const std::vector<CountedWord> words = random_words(3, 80);
  std::map<std::string, std::pair<int64_t, std::set<char>>> places;  // number of positions, and the characters that
                                                                     // follow
  std::map<std::string, int64_t> characters;
  for (const CountedWord& word : words)
    for (size_t i = 0; i < word.text.size(); ++i) {
      characters[word.text.substr(i, 1)] += word.count;
      for (size_t n = 2; n <= 4 && i + n <= word.text.size(); ++n) {
        auto& [count, followers] = places[word.text.substr(i, n)];
        ++count;
        followers.insert(i + n < word.text.size() ? word.text[i + n] : '\0');
      }
    }
  std::map<std::string, double> want(characters.begin(), characters.end());
  for (const auto& [string, place] : places)
    if (place.second.size() > 1) want[string] = static_cast<double>(place.first * static_cast<int64_t>(string.size()));
  double sum = 0;
  for (const auto& [piece, score] : want) sum += score;
  const auto got = seed_pieces(words, 4, 1000000);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [piece, score] : got) {
    ASSERT_TRUE(want.contains(piece)) << piece;
    EXPECT_NEAR(score, std::log(want[piece] / sum), 1e-12) << piece;
  }
  const auto few = seed_pieces(words, 4, 10);
  ASSERT_EQ(few.size(), 10u);
  for (size_t i = 0; i < few.size(); ++i) EXPECT_EQ(few[i].first, got[i].first) << "the best ones";
}

TEST(UnigramTrainer, KeepsCharactersAndProbablePieces) {
  std::vector<CountedWord> words = random_words(5, 400);
  words.push_back({"abcdabcd", 5000});
  const TrainedUnigram one = train_unigram(words, {.vocabulary = 40, .special = {"</s>"}});
  ASSERT_EQ(one.pieces.size(), 40u);
  EXPECT_EQ(one.pieces[0].first, "<unk>");
  EXPECT_EQ(one.pieces[1].first, "</s>");
  EXPECT_EQ(one.pieces[2].first, "abcd") << "most of all words are this twice";
  std::set<std::string> found;
  for (const auto& [piece, score] : one.pieces) found.insert(piece);
  for (const char* character : {"a", "b", "c", "d"}) EXPECT_TRUE(found.contains(character)) << character;
  for (size_t id = 3; id < one.pieces.size(); ++id) EXPECT_GE(one.pieces[id - 1].second, one.pieces[id].second);
  const TrainedUnigram three = train_unigram(words, {.vocabulary = 40, .special = {"</s>"}, .threads = 3});
  EXPECT_EQ(three.pieces, one.pieces) << "threads change nothing";
  const TrainedUnigram other = train_unigram(words, {.vocabulary = 40, .special = {"</s>", "<unk>"}});
  EXPECT_EQ(other.unknown, 1);
  EXPECT_EQ(other.pieces.size(), 40u);
  EXPECT_THAT(test::thrown_message([&] { train_unigram(words, {.vocabulary = 4}); }),
              HasSubstr("must hold the special tokens and characters, which are 5: got 4"));
  EXPECT_THAT(test::thrown_message([&] { train_unigram({}, {}); }), HasSubstr("there must be words"));
}

TEST(TokenizerTrainer, MakesReadableTokenizers) {
  std::mt19937 generator(7);
  const std::vector<std::string> syllables{"ba", "ko", "lim", "tra", "ne", "su", "caf\xC3\xA9", "\xF0\x9F\x98\x80"};
  std::vector<std::string> texts(200);
  for (std::string& text : texts) {
    for (int i = 0; i < 12; ++i) text += syllables[generator() % syllables.size()] + (generator() % 3 ? "" : " ");
    text += "\n";
  }
  for (const char* kind : {"bpe", "unigram"}) {
    TokenizerTrainer trainer({.kind = kind, .vocabulary = 320, .special = {"</s>"}});
    trainer.add(texts);
    const test::TemporaryFolder folder;
    folder.write("tokenizer.json", std::move(trainer).trained().dump());
    const auto tokenizer = make_tokenizer(folder.path());
    EXPECT_EQ(tokenizer->vocabulary_size(), 320);
    EXPECT_EQ(tokenizer->spelling(tokenizer->end_id()), "</s>");
    const std::string text = "bako limtra suba nenene";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << kind;
    EXPECT_LT(tokenizer->encode(text).size(), text.size()) << kind;
  }
}

TEST(TokenizerTrainer, SplitsTextLikeAnotherTokenizer) {
  const nlohmann::json like{{"normalizer", {{"type", "Lowercase"}}},
                            {"pre_tokenizer", {{"type", "Whitespace"}}},
                            {"decoder", {{"type", "BPEDecoder"}, {"suffix", "</w>"}}},
                            {"model", {{"type", "BPE"}, {"end_of_word_suffix", "</w>"}, {"unk_token", "[UNK]"}}}};
  TokenizerTrainer trainer({.vocabulary = 30, .special = {"[END]"}, .min_frequency = 1, .like = like});
  trainer.add({"Low LOW lower", "low"});
  const nlohmann::ordered_json made = std::move(trainer).trained();
  const auto& vocabulary = made["model"]["vocab"];
  EXPECT_EQ(vocabulary["[UNK]"], 0);
  EXPECT_EQ(vocabulary["[END]"], 1);
  EXPECT_TRUE(vocabulary.contains("low</w>")) << made.dump();
  EXPECT_EQ(made["model"]["end_of_word_suffix"], "</w>");
  EXPECT_EQ(made["normalizer"]["type"], "Lowercase");
}

TEST(TokenizerTrainer, RefusesInvalidOptions) {
  const auto refusal = [](TokenizerTraining training) {
    return test::thrown_message([&] { TokenizerTrainer trainer(std::move(training)); });
  };
  EXPECT_THAT(refusal({.kind = "words"}), HasSubstr("must be bpe or unigram: got words"));
  EXPECT_THAT(refusal({.vocabulary = 0}), HasSubstr("must have tokens: got 0"));
  EXPECT_THAT(refusal({.special = {"a", "a"}}), HasSubstr("occur twice: got a"));
  EXPECT_THAT(refusal({.special = {"\xFF"}}), HasSubstr("must be UTF-8"));
  EXPECT_THAT(refusal({.like = {{"pre_tokenizer", {{"type", "Nonsense"}}}}}), HasSubstr("Nonsense is not supported"));
  EXPECT_THAT(refusal({.like = {{"decoder", {{"type", "Nonsense"}}}}}), HasSubstr("Nonsense is not supported"));
  for (const nlohmann::json& like : {nlohmann::json{{"normalizer", 3}}, nlohmann::json{{"model", {{"unk_token", 3}}}},
                                     nlohmann::json{{"model", {{"unk_id", 0}, {"vocab", {3}}}}}})
    EXPECT_THAT(refusal({.like = like}), HasSubstr("must be a tokenizer.json")) << like;
}

TEST(TokenizerTrainer, AddsEachSpecialTokenOnce) {
  for (const char* kind : {"bpe", "unigram"}) {
    TokenizerTrainer trainer({.kind = kind, .vocabulary = 300, .special = {"a", "the", "</s>"}, .threads = 2});
    trainer.add({"the cat", "a hat that the <unk> ate</s>", "the the the"});
    const nlohmann::ordered_json made = std::move(trainer).trained();
    std::multiset<std::string> tokens;
    for (const auto& [key, value] : made["model"]["vocab"].items())
      tokens.insert(kind == std::string("bpe") ? key : value[0].get<std::string>());
    for (const char* token : {"a", "the", "</s>"}) EXPECT_EQ(tokens.count(token), 1u) << kind << " " << token;
    EXPECT_LE(tokens.count("<unk>"), 1u);
    for (const auto& added : made["added_tokens"]) {
      const size_t id = added["id"];
      const auto& vocabulary = made["model"]["vocab"];
      EXPECT_TRUE(vocabulary.is_array() ? vocabulary[id][0] == added["content"]
                                        : vocabulary[added["content"].get<std::string>()] == id);
    }
  }
}

TEST(TokenizerTrainer, TakesTheUnknownTokenOfAnotherTokenizer) {
  const auto like =
      nlohmann::json::parse(R"({"model": {"type": "Unigram", "unk_id": 1, "vocab": [["<pad>", 0], ["[UNK]", 0]]}})");
  TokenizerTrainer trainer({.kind = "unigram", .vocabulary = 30, .special = {"</s>"}, .like = like});
  trainer.add({"the cat", "the hat"});
  const nlohmann::ordered_json made = std::move(trainer).trained();
  EXPECT_EQ(made["model"]["vocab"][0][0], "[UNK]");
  EXPECT_EQ(made["model"]["vocab"][1][0], "</s>");
  EXPECT_EQ(made["model"]["unk_id"], 0);
}

}  // namespace
}  // namespace colossal::text::tokenizer_training_test
