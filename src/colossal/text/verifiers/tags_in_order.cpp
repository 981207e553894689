#include "colossal/base/error.h"
#include "colossal/text/verifiers/built_in.h"

namespace colossal::text {
namespace {

class TagsInOrder final : public Verifier {
 public:
  void check(const PromptLine&) override {}

  Verdict verify(const PromptLine&, const Completion& completion) override {
    size_t before = 0;
    for (const std::string tag : {"<think>", "</think>", "<answer>", "</answer>"}) {
      const size_t at = completion.text.find(tag);
      if (at == std::string::npos) return {.value = 0, .text = tag + " is missing"};
      if (completion.text.find(tag, at + 1) != std::string::npos) return {.value = 0, .text = tag + " occurs twice"};
      if (at < before) return {.value = 0, .text = tag + " stands too early"};
      before = at;
    }
    return {.value = 1};
  }
};

}  // namespace

std::unique_ptr<Verifier> tags_in_order() { return std::make_unique<TagsInOrder>(); }

}  // namespace colossal::text
