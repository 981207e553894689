// Sampling under a grammar: for any logits, the sampled text is JSON of the schema.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/json.h"
#include "colossal/infer/decoding/sampler.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/text/tokenizers/byte.h"

namespace colossal::infer::grammar_constraint_test {
namespace {

TEST(GrammarConstraint, MatchesTheSchemaForAnyLogits) {
  const std::string schema = R"({"properties": {"a": {"type": "string", "maxLength": 9},
      "b": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}}, "required": ["a", "b"]})";
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256});
  for (int64_t seed = 0; seed < 20; ++seed) {
    const auto constraint = schemas.constraint(schema);
    Sampler sampler({.temperature = 1, .seed = seed});
    std::string text;
    int64_t token = 0;
    while (token != 256 && text.size() < 500) {
      // There are more logits than tokens, and the extra ones are the most probable.
      at::Tensor logits = at::zeros({300});
      logits.slice(0, 257).fill_(50);
      constraint->accept(token = sampler.next(constrained(logits, constraint.get())));
      text += tokenizer.piece(token);
    }
    const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_TRUE(value["a"].is_string() && value["b"].is_array() && value.size() == 2) << text;
  }
  EXPECT_EQ(schemas.constraint(""), nullptr);
  const at::Tensor logits = at::zeros({3});
  EXPECT_TRUE(constrained(logits, nullptr).is_same(logits));
}

}  // namespace
}  // namespace colossal::infer::grammar_constraint_test
