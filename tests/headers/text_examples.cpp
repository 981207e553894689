// The examples at the beginning of headers of text, and of those that decide which token comes next.
// tests/base/examples_test.cpp compares them with the headers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "colossal/infer/decoding/sampler.h"
#include "colossal/infer/decoding/token_constraint.h"
#include "colossal/infer/request.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/end_tokens.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/verifiers/verifier.h"

namespace colossal::header_examples {
namespace {

TEST(HeaderExamples, Sampler) {
  const at::Tensor logits = at::tensor({0.0, 100.0});
  infer::Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 7});
  const int64_t token = sampler.next(logits);
  EXPECT_EQ(token, 1);
}

TEST(HeaderExamples, TokenConstraint) {
  class EvenTokens final : public infer::TokenConstraint {
    at::Tensor allowed(int64_t vocabulary) override { return at::arange(vocabulary).remainder(2).eq(0); }
    void accept(int64_t) override {}
    std::shared_ptr<infer::TokenConstraint> copy() const override { return std::make_shared<EvenTokens>(*this); }
  };
  infer::Request request;
  request.constraint = std::make_shared<EvenTokens>();
  const at::Tensor logits = infer::constrained(at::tensor({1.0, 3.0, 2.0}), request.constraint.get());
  EXPECT_EQ(logits.argmax().item<int64_t>(), 2);
}

class Polite final : public text::Verifier {
 public:
  void check(const text::PromptLine& line) override { text::required_text(line, "word", "polite"); }
  text::Verdict verify(const text::PromptLine& line, const text::Completion& completion) override {
    const std::string word = text::required_text(line, "word", "polite");
    return {.value = completion.text.find(word) == std::string::npos ? 0.0 : 1.0};
  }
};

TEST(HeaderExamples, Verifier) {
  text::Verifiers verifiers = text::built_in_verifiers();
  verifiers.add({.name = "polite", .make = [] { return std::make_unique<Polite>(); }});
  const text::PromptLine line{{{"word", "please"}}, "line 1"};
  EXPECT_EQ(verifiers.at("polite").make()->verify(line, {.text = "Yes, please."}).value, 1);
}

}  // namespace

// These examples are compiled, but not run.

std::string tokenizer_example() {
  const auto tokenizer = text::make_tokenizer("models/gpt2");
  const std::vector<int64_t> ids = tokenizer->encode("To be");
  const std::string text = tokenizer->decode(ids);
  return text;
}

std::vector<int64_t> chat_template_example(const text::Tokenizer* tokenizer) {
  const auto chat_template = text::ChatTemplate::read("models/Qwen2.5-0.5B-Instruct");
  text::Chat chat;
  chat.messages = {{{"role", "user"}, {"content", "Hello"}}};
  chat.add_generation_prompt = true;
  const text::RenderedChat rendered = chat_template.render(chat);
  const auto ids = tokenizer->encode(rendered.text);
  return ids;
}

void end_tokens_example(const text::Tokenizer* tokenizer) { text::end_ids("models/Llama-3.2-1B-Instruct", *tokenizer); }

}  // namespace colossal::header_examples
