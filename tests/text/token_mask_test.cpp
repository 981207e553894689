// Masks of tokens: bytes without a token, freed states, and the bounds of steps and bytes for hostile schemas.
#include "colossal/text/grammar/token_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/grammar/json_schema.h"
#include "colossal/text/tokenizers/byte.h"
#include "support/thrown_message.h"

namespace colossal::text::token_mask_test {
namespace {

using nlohmann::json;
using Random = std::mt19937_64;

class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<int64_t> encode(std::string_view) const override { return {}; }
  std::string piece(int64_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int64_t end_id() const override { return 0; }

 private:
  std::vector<std::string> pieces_;
};

/// Returns the end token, all bytes, and `more` random tokens of up to 12 bytes that occur in JSON.
PieceTokenizer random_pieces(int more) {
  std::vector<std::string> pieces{""};
  for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  Random random(5);
  const std::string bytes = "\"\\{}[],: \n0123456789-+.eEabcdefghijklmnopqrstuvwxyzu\xc3\xa4";
  for (int i = 0; i < more; ++i) {
    std::string piece;
    for (uint64_t size = 2 + random() % 11; piece.size() < size;) piece += bytes[random() % bytes.size()];
    pieces.push_back(piece);
  }
  return PieceTokenizer(std::move(pieces));
}

TokenGrammar grammar_of(const json& schema, const Tokenizer& tokenizer) {
  JsonGrammar made = json_grammar(schema.dump());
  return token_grammar(std::move(made.grammar), made.rule, std::make_shared<const TokenTrie>(tokenizer));
}

std::vector<int64_t> choices_of(const std::vector<uint64_t>& allowed, int64_t vocabulary) {
  std::vector<int64_t> choices;
  for (int64_t id = 0; id < vocabulary; ++id)
    if (allowed[static_cast<size_t>(id) / 64] >> (id % 64) & 1) choices.push_back(id);
  return choices;
}

TEST(TokenMasks, ExcludesBytesWithoutAToken) {
  // There is no token for c, so "bc" would start a text that cannot be completed.
  const PieceTokenizer tokenizer({"", "\"", "a", "b", "bc", "ab"});
  TokenMasks masks(grammar_of({{"enum", {"ab", "bcd", "a"}}}, tokenizer), {0});
  EXPECT_EQ(masks.allowed(masks.start())[0], 0b10u);
  int state = masks.next(masks.start(), 1);
  EXPECT_EQ(masks.allowed(state)[0], 0b100100u);
  state = masks.next(state, 5);
  EXPECT_EQ(masks.allowed(state)[0], 0b10u);
  EXPECT_THROW(masks.next(state, 4), Error);
  state = masks.next(state, 1);
  EXPECT_EQ(masks.allowed(state)[0], 0b1u);
  EXPECT_EQ(masks.next(state, 0), TokenMasks::kEnded);
  EXPECT_EQ(masks.allowed(TokenMasks::kEnded)[0], 0b1u);
  EXPECT_THROW(grammar_of({{"type", "object"}}, tokenizer), Error);
  EXPECT_THROW(TokenMasks(grammar_of({{"const", "a"}}, tokenizer), {9}), Error);
  EXPECT_THROW(TokenMasks(grammar_of({{"const", "a"}}, tokenizer), {}), Error);
}

// Walks over masks that keep few states give the same results as walks over masks that keep all states.
TEST(TokenMasks, KeepsResultsAfterFreeingStates) {
  const ByteTokenizer tokenizer;
  const json schema = {{"type", "array"}, {"items", {{"type", {"string", "array", "integer"}}, {"maxLength", 40}}}};
  const TokenGrammar grammar = grammar_of(schema, tokenizer);
  const auto make = [&](int64_t bytes) {
    return std::make_shared<TokenMasks>(grammar, std::vector<int64_t>{256}, MaskLimits{.bytes = bytes});
  };
  const auto all = make(MaskLimits{}.bytes), few = make(40000);
  Random random(3);
  size_t most = 0, steps = 0;  // number of states in the small masks
  for (int round = 0; round < 5; ++round) {
    std::vector<TokenWalk> wanted(3, TokenWalk(all)), got(3, TokenWalk(few));
    for (int step = 0; step < 300; ++step) {
      const size_t one = random() % wanted.size();
      const std::vector<uint64_t> allowed = wanted[one].allowed();
      ASSERT_EQ(got[one].allowed(), allowed);
      const std::vector<int64_t> choices = choices_of(allowed, 256);
      if (choices.empty()) continue;  // the text has ended
      const int64_t token = choices[random() % choices.size()];
      wanted[one].accept(token);
      got[one].accept(token);
      most = std::max(most, few->states());
      ++steps;
    }
  }
  EXPECT_GT(steps, 200U);
  EXPECT_GT(all->states(), 2 * most);
}

// The second masks have seen other texts before, and have freed states, which must not change the count.
TEST(TokenMasks, CountsTheSameStepsOnTwoMachines) {
  const PieceTokenizer tokenizer = random_pieces(3000);
  const json schema = {{"type", "array"},
                       {"items",
                        {{"anyOf",
                          {{{"type", "string"}, {"pattern", "^[a-c]*(ab|ba){2}$"}},
                           {{"type", "integer"}, {"maximum", 12345}},
                           {{"$ref", "#"}}}}}}};
  const TokenGrammar grammar = grammar_of(schema, tokenizer);
  const auto fresh = std::make_shared<TokenMasks>(grammar, std::vector<int64_t>{0});
  const auto used = std::make_shared<TokenMasks>(grammar, std::vector<int64_t>{0}, MaskLimits{.bytes = 1 << 20});
  Random random(7);
  const auto token_after = [&](TokenWalk& walk) {
    const std::vector<int64_t> choices = choices_of(walk.allowed(), tokenizer.vocabulary_size());
    return choices[random() % choices.size()];
  };
  for (int text = 0; text < 20; ++text) {
    TokenWalk walk(used);
    for (int i = 0; i < 10; ++i) walk.accept(token_after(walk));
  }
  int64_t most = 0;
  for (int text = 0; text < 10; ++text) {
    TokenWalk one(fresh), other(used);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(one.allowed(), other.allowed());
      ASSERT_EQ(one.steps(), other.steps());
      most = std::max(most, one.steps());
      const int64_t token = token_after(one);
      one.accept(token), other.accept(token);
    }
  }
  EXPECT_GT(most, 100);
  EXPECT_LT(most, MaskLimits{}.steps / 8);
}

/// Schemas that make a grammar, a state or a mask large.
std::vector<json> hostile_schemas() {
  std::vector<json> schemas;
  // Lists can be read in several ways at every depth: 3^depth ways.
  schemas.push_back({{"anyOf",
                      {{{"items", {{"$ref", "#"}}}},
                       {{"items", {{"$ref", "#"}}}, {"minItems", 1}},
                       {{"items", {{"$ref", "#"}}}, {"minItems", 2}}}}});
  json deep = {{"type", "null"}};
  for (int i = 0; i < 20; ++i) deep = {{"anyOf", {{{"type", "array"}, {"items", deep}}, {{"type", "array"}}}}};
  schemas.push_back(deep);
  json unions = json::array(), names = json::array(), patterns = json::array();
  for (int i = 0; i < 400; ++i) {
    unions.push_back(
        {{"properties", {{"same", {{"type", "string"}, {"maxLength", 20 + i % 30}}}}}, {"required", {"same"}}});
    names.push_back(std::string(static_cast<size_t>(i % 50), 'a') + std::to_string(i));
  }
  for (int i = 0; i < 200; ++i)
    patterns.push_back({{"type", "string"}, {"pattern", "^([a-z]{1,9}" + std::to_string(i) + ")*$"}});
  schemas.push_back({{"anyOf", unions}});
  schemas.push_back({{"type", "array"}, {"items", {{"enum", names}}}});
  schemas.push_back({{"anyOf", patterns}});
  schemas.push_back({{"type", "string"}, {"maxLength", 20000}});
  return schemas;
}

// Writes texts as a model that likes to nest: it opens a bracket if it may, and otherwise takes a random token.
TEST(TokenMasks, BoundStepsAndBytesOfHostileSchemas) {
  const PieceTokenizer tokenizer = random_pieces(3000);
  Random random(11);
  int ended = 0, walked = 0;
  for (const json& schema : hostile_schemas()) {
    const auto masks = std::make_shared<TokenMasks>(grammar_of(schema, tokenizer), std::vector<int64_t>{0});
    const std::string message = test::thrown_message([&] {
      TokenWalk walk(masks);
      for (int i = 0; i < 60; ++i) {
        const std::vector<int64_t> choices = choices_of(walk.allowed(), tokenizer.vocabulary_size());
        ASSERT_LE(walk.steps(), MaskLimits{}.steps);
        const bool opens = std::find(choices.begin(), choices.end(), 1 + '[') != choices.end();
        walk.accept(opens ? 1 + '[' : choices[random() % choices.size()]);
        ASSERT_LE(masks->bytes(), int64_t{64} << 20);
      }
      ++walked;
    });
    if (message.empty()) continue;
    ++ended;
    EXPECT_NE(message.find("[grammar] a mask of the tokens that may come next must take at most 524288 steps"),
              std::string::npos)
        << message;
    EXPECT_TRUE(masks->is_exhausted());
    EXPECT_LE(masks->bytes(), int64_t{64} << 20);
  }
  EXPECT_GE(walked, 1);
  EXPECT_GE(ended, 1);
}

TEST(GrammarMachine, BoundsTheStepsOfOneByte) {
  Grammar grammar;
  std::vector<int> ways;
  for (int i = 0; i < GrammarMachine::kMaxNextSteps; ++i) ways.push_back(grammar.literal("b", Grammar::kReturn));
  const int rule = grammar.declare();
  grammar.set(rule, grammar.byte('a', 'a', grammar.either(std::move(ways))));
  GrammarMachine machine(std::move(grammar), rule);
  EXPECT_EQ(machine.next(machine.start(), 'b'), GrammarMachine::kDead);
  const auto message = [&] { return test::thrown_message([&] { machine.next(machine.start(), 'a'); }); };
  EXPECT_NE(message().find("[grammar] a byte must have at most 65536 ways to be read"), std::string::npos) << message();
}

// The error ends the walk that needs more. A walk beside it continues, and new masks begin with no states.
TEST(TokenMasks, EndOneWalkAtALimit) {
  const PieceTokenizer tokenizer = random_pieces(100);
  const TokenGrammar grammar = grammar_of(hostile_schemas()[0], tokenizer);
  const MaskLimits limits{.steps = 6000};
  const auto masks = std::make_shared<TokenMasks>(grammar, std::vector<int64_t>{0}, limits);
  TokenWalk beside(masks);
  const std::vector<uint64_t> first = beside.allowed();
  const auto nest = [&](const std::shared_ptr<TokenMasks>& own) {
    TokenWalk walk(own);
    int depth = 0;
    const std::string message = test::thrown_message([&] {
      for (; depth < 60; ++depth) walk.allowed(), walk.accept(1 + '[');
    });
    EXPECT_NE(message.find("[grammar] a mask of the tokens that may come next must take at most 6000 steps"),
              std::string::npos)
        << message;
    return depth;
  };
  const int depth = nest(masks);
  EXPECT_GT(depth, 1);
  EXPECT_TRUE(masks->is_exhausted());
  EXPECT_EQ(beside.allowed(), first);
  EXPECT_NO_THROW(beside.accept(1 + '['));
  const auto fresh = std::make_shared<TokenMasks>(grammar, std::vector<int64_t>{0}, limits);
  EXPECT_FALSE(fresh->is_exhausted());
  EXPECT_EQ(nest(fresh), depth);
}

// Only states that no walk is at may be freed, so the walks of many texts can fill the bytes.
TEST(TokenMasks, CountBytesOfAllWalks) {
  const PieceTokenizer tokenizer = random_pieces(100);
  const TokenGrammar grammar = grammar_of(json::object(), tokenizer);
  const auto masks = std::make_shared<TokenMasks>(grammar, std::vector<int64_t>{0}, MaskLimits{.bytes = 120000});
  TokenWalk walk(masks);
  std::string message;
  int depth = 0;
  for (; depth < 100000 && message.empty(); ++depth) {
    try {
      walk.allowed();
    } catch (const Error& error) {
      message = error.what();
    }
    if (message.empty()) walk.accept(1 + '[');
  }
  EXPECT_NE(message.find("the states of a grammar must take at most 120000 bytes"), std::string::npos) << message;
  EXPECT_GT(depth, 300);
  EXPECT_TRUE(masks->is_exhausted());
}

}  // namespace
}  // namespace colossal::text::token_mask_test
