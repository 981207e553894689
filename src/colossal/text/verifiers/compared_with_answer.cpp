#include <algorithm>
#include <utility>

#include "colossal/base/json_file.h"
#include "colossal/text/verifiers/built_in.h"

namespace colossal::text {
namespace {

class ComparedWithAnswer final : public Verifier {
 public:
  explicit ComparedWithAnswer(Comparison comparison) : comparison_(std::move(comparison)) {}

  void check(const PromptLine& line) override { targets_of(line); }

  Verdict verify(const PromptLine& line, const Completion& completion) override {
    Verdict verdict;
    for (const std::string& target : targets_of(line))
      verdict.value = std::max(verdict.value, comparison_.value(completion.text, target));
    return verdict;
  }

 private:
  std::vector<std::string> targets_of(const PromptLine& line) const {
    const nlohmann::json& answer = required_member(line, "answer", comparison_.name);
    const nlohmann::json answers = answer.is_array() ? answer : nlohmann::json::array({answer});
    std::vector<std::string> targets;
    for (const nlohmann::json& one : answers) {
      if (!one.is_string() && !one.is_number()) break;
      targets.push_back(one.is_string() ? one.get<std::string>() : one.dump());
    }
    if (targets.empty() || targets.size() < answers.size())
      refuse_member(line, "answer", comparison_.name, "which must be a text, a number or a list of them",
                    printable(answer.dump()));
    return targets;
  }

  const Comparison comparison_;
};

}  // namespace

std::unique_ptr<Verifier> compared_with_answer(const Comparison& comparison) {
  return std::make_unique<ComparedWithAnswer>(comparison);
}

}  // namespace colossal::text
