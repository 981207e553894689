// Compiled schemas: which are kept, use by several threads, and new masks after a limit.
#include "colossal/infer/decoding/schema_cache.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "colossal/text/tokenizers/byte.h"
#include "support/thrown_message.h"

namespace colossal::infer::schema_cache_test {
namespace {

using testing::HasSubstr;

std::string constant(int i) { return "{\"const\": " + std::to_string(i) + "}"; }

TEST(SchemaCache, KeepsTheLastSchemas) {
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256});
  const auto first = schemas.compiled(constant(0));
  for (int i = 1; i < 64; ++i) EXPECT_EQ(schemas.compiled(constant(i))->grammar.trie, first->grammar.trie);
  EXPECT_EQ(schemas.kept().size(), 64U);
  EXPECT_EQ(schemas.compiled(constant(0)), first) << "64 schemas are kept";
  const auto second = schemas.compiled(constant(1));
  schemas.compiled(constant(64));  // drops 2, the one that was not used for longest
  EXPECT_EQ(schemas.kept().size(), 64U);
  EXPECT_EQ(schemas.kept().front(), constant(64));
  EXPECT_EQ(schemas.kept().back(), constant(3));
  EXPECT_EQ(schemas.compiled(constant(1)), second);
  EXPECT_THAT(schemas.kept(), testing::Not(testing::Contains(constant(2))));
}

TEST(SchemaCache, KeepsGrammarsWithinItsBytes) {
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256}, {.max_bytes = 1});
  schemas.compiled(constant(0)), schemas.compiled(constant(1));
  EXPECT_EQ(schemas.kept(), std::vector<std::string>{constant(1)});
}

TEST(SchemaCache, RefusesSchemasBeforeAnythingRuns) {
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256});
  const auto message = [&](const std::string& schema) {
    return test::thrown_message([&] { schemas.compiled(schema, "response_format"); });
  };
  EXPECT_THAT(message(R"({"$ref": "#"})"), HasSubstr("response_format #: a schema must allow a finite value"));
  EXPECT_THAT(message(R"({"properties": {"a": {"unevaluatedItems": false}}})"),
              HasSubstr("response_format #/properties/a"));
  EXPECT_TRUE(schemas.kept().empty());
}

TEST(SchemaCache, CompilesInSeveralThreads) {
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256}, {.max_schemas = 3});
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) EXPECT_EQ(schemas.compiled(constant((i + t) % 5))->schema, constant((i + t) % 5));
    });
  for (int i = 0; i < 50; ++i) {
    const auto constraint = schemas.constraint(constant(i % 5));
    EXPECT_TRUE(constraint->allowed(257)['0' + i % 5].item<bool>());
    EXPECT_EQ(constraint->allowed(257).sum().item<int64_t>(), 2);  // the digit, or a space in front
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(schemas.kept().size(), 3U);
}

TEST(SchemaCache, CompilesAside) {
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256});
  schemas.compile_aside(R"({"$ref": "#"})");  // no finite value
  for (int i = 0; i < 3; ++i) schemas.compile_aside(constant(i));
  while (!schemas.has(constant(2))) std::this_thread::yield();
  EXPECT_EQ(schemas.kept(), (std::vector<std::string>{constant(2), constant(1), constant(0)}));
  EXPECT_THAT(test::thrown_message([&] { schemas.compiled(R"({"$ref": "#"})"); }), HasSubstr("finite"));
}

TEST(SchemaCache, CompilesASchemaOnceForSeveralThreads) {
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256});
  std::string slow = R"({"enum": [0)";
  for (int i = 1; i < 20000; ++i) slow += "," + std::to_string(i);
  slow += "]}";
  std::vector<std::shared_ptr<const CompiledSchema>> compiled(4);
  std::vector<std::thread> threads;
  for (auto& own : compiled) threads.emplace_back([&] { own = schemas.compiled(slow); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : compiled) EXPECT_EQ(own, compiled[0]);
}

TEST(SchemaCache, MakesNewMasksAfterALimit) {
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256}, {.limits = {.bytes = 100000}});
  const auto depth = [&] {
    const auto constraint = schemas.constraint("{}");
    int reached = 0;
    EXPECT_THAT(test::thrown_message([&] {
                  for (; reached < 100000; ++reached) constraint->allowed(257), constraint->accept('[');
                }),
                HasSubstr("[grammar] the states of a grammar must take at most 100000 bytes"));
    return reached;
  };
  const int first = depth();
  EXPECT_GT(first, 10);
  EXPECT_EQ(depth(), first);
}

}  // namespace
}  // namespace colossal::infer::schema_cache_test
