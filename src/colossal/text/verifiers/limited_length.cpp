#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/verifiers/built_in.h"

namespace colossal::text {
namespace {

class LimitedLength final : public Verifier {
 public:
  void check(const PromptLine& line) override { limit_of(line); }

  Verdict verify(const PromptLine& line, const Completion& completion) override {
    const uint64_t limit = limit_of(line);
    if (static_cast<uint64_t>(completion.tokens) <= limit) return {.value = 1};
    return {.value = 0, .text = concat(completion.tokens, " tokens, at most ", limit)};
  }

 private:
  static uint64_t limit_of(const PromptLine& line) {
    const nlohmann::json& limit = required_member(line, "max_tokens", "length");
    if (!limit.is_number_integer() || limit < 0)
      refuse_member(line, "max_tokens", "length", "which must be a whole number of at least 0",
                    printable(limit.dump()));
    return limit.get<uint64_t>();
  }
};

}  // namespace

std::unique_ptr<Verifier> limited_length() { return std::make_unique<LimitedLength>(); }

}  // namespace colossal::text
