#include "colossal/base/error.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/verifiers/built_in.h"
#include "colossal/text/verifiers/made_once.h"

namespace colossal::text {
namespace {

class FoundPattern final : public Verifier {
 public:
  void check(const PromptLine& line) override { pattern_of(line); }

  Verdict verify(const PromptLine& line, const Completion& completion) override {
    const Regex& pattern = pattern_of(line);
    try {
      return {.value = pattern.find_groups(valid_utf8(completion.text)).empty() ? 0.0 : 1.0};
    } catch (const Error& error) {  // a search without end is no reason to end the run
      return {.value = 0, .text = error.message()};
    }
  }

 private:
  const Regex& pattern_of(const PromptLine& line) {
    const std::string pattern = required_text(line, "pattern", "regex");
    return patterns_.of(pattern, [&] {
      try {
        return Regex(pattern, Dialect::Rust);
      } catch (const Error& error) {
        refuse_member(line, "pattern", "regex", "which must be a regular expression", error.message());
      }
    });
  }

  MadeOnce<Regex> patterns_;
};

}  // namespace

std::unique_ptr<Verifier> found_pattern() { return std::make_unique<FoundPattern>(); }

}  // namespace colossal::text
