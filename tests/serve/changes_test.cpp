// Changes as bytes: all values arrive with all bits, and bytes that are cut short are refused.
#include "colossal/serve/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/thrown_message.h"

namespace colossal::serve::changes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

Changes all_kinds() {
  Changes changes;
  Generation generation;
  generation.prompt = {5, 1 << 20, 7};
  generation.ignores_end = true;
  generation.client = "key 3", generation.cache_key = std::string("a\0b", 3);
  generation.scored_from = 2;
  generation.adapter = "poet";
  generation.options.max_tokens = 9, generation.options.logprobs = 5;
  generation.options.stop = {"", "\xff end"};
  generation.options.json_schema = R"({"type": "object"})";
  generation.options.sampling = {.temperature = 0.1, .seed = std::numeric_limits<int64_t>::min()};
  generation.options.sampling.repetition_penalty = std::numeric_limits<double>::denorm_min();
  generation.options.sampling.logit_bias = {{0, -100}, {50256, 1.0 / 3}};
  generation.on_event = [](const infer::Event&) {};
  changes.generations = {{.ticket = 4, .generation = generation}, {.ticket = 6, .after = 4}};
  changes.embeddings = {{.ticket = 8, .embedding = {.texts = {{1, 2}, {}, {3}}, .client = "key 2"}}};
  changes.cancelled = {1, int64_t{1} << 40};
  changes.schemas = {"{}", R"({"const": 1})"};
  changes.ends = true;
  return changes;
}

TEST(Changes, KeepAllValuesAsBytes) {
  const Changes want = all_kinds(), got = changes_of(to_bytes(want));
  ASSERT_EQ(got.generations.size(), 2U);
  EXPECT_EQ(got.generations[0].ticket, 4);
  EXPECT_EQ(got.generations[0].after, 0);
  EXPECT_EQ(got.generations[1].ticket, 6);
  EXPECT_EQ(got.generations[1].after, 4);
  const Generation &a = want.generations[0].generation, &b = got.generations[0].generation;
  EXPECT_EQ(b.prompt, a.prompt);
  EXPECT_TRUE(b.ignores_end);
  EXPECT_EQ(b.client, a.client);
  EXPECT_EQ(b.cache_key, a.cache_key);
  EXPECT_EQ(b.scored_from, 2);
  EXPECT_EQ(b.adapter, "poet");
  EXPECT_EQ(b.options.max_tokens, 9);
  EXPECT_EQ(b.options.logprobs, 5);
  EXPECT_EQ(b.options.prompt_logprobs, -1);
  EXPECT_EQ(b.options.stop, a.options.stop);
  EXPECT_EQ(b.options.json_schema, a.options.json_schema);
  EXPECT_EQ(b.options.sampling.temperature, 0.1);
  EXPECT_EQ(b.options.sampling.seed, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(b.options.sampling.repetition_penalty, std::numeric_limits<double>::denorm_min());
  EXPECT_THAT(b.options.sampling.logit_bias, ElementsAre(Pair(0, -100.0), Pair(50256, 1.0 / 3)));
  EXPECT_FALSE(b.on_event);
  EXPECT_EQ(to_bytes(got), to_bytes(want)) << "options that the lines above do not name";
  ASSERT_EQ(got.embeddings.size(), 1U);
  EXPECT_EQ(got.embeddings[0].ticket, 8);
  EXPECT_EQ(got.embeddings[0].embedding.texts, want.embeddings[0].embedding.texts);
  EXPECT_EQ(got.embeddings[0].embedding.client, "key 2");
  EXPECT_EQ(got.cancelled, want.cancelled);
  EXPECT_EQ(got.schemas, want.schemas);
  EXPECT_TRUE(got.ends);
}

TEST(Changes, TakeNoBytesIfEmpty) {
  EXPECT_TRUE(Changes{}.is_empty());
  EXPECT_THAT(to_bytes({}), IsEmpty());
  EXPECT_TRUE(changes_of("").is_empty());
  EXPECT_FALSE(changes_of(to_bytes({.cancelled = {3}})).is_empty());
}

TEST(Changes, RefuseBytesThatAreNotWhole) {
  const std::string bytes = to_bytes(all_kinds());
  for (size_t size = 1; size < bytes.size(); ++size)
    EXPECT_THAT(test::thrown_message([&] { changes_of(bytes.substr(0, size)); }),
                HasSubstr("[serve] changes must be bytes"))
        << size;
  EXPECT_THAT(test::thrown_message([&] { changes_of(bytes + "x"); }), HasSubstr("[serve] changes must be bytes"));
  const std::string huge = std::string(1, '\0') + std::string(8, '\xff');  // 2^64 - 1 cancelled tickets
  EXPECT_THAT(test::thrown_message([&] { changes_of(huge); }), HasSubstr("got 9 bytes"));
}

}  // namespace
}  // namespace colossal::serve::changes_test
