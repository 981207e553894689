// Verifiers: functions that judge an answer of a model by the line of the data that it answers.
//
//   class Polite final : public text::Verifier {                    // 1 if the answer has the line's `word`
//    public:
//     void check(const text::PromptLine& line) override { text::required_text(line, "word", "polite"); }
//     text::Verdict verify(const text::PromptLine& line, const text::Completion& completion) override {
//       const std::string word = text::required_text(line, "word", "polite");
//       return {.value = completion.text.find(word) == std::string::npos ? 0.0 : 1.0};
//     }
//   };
//
//   text::Verifiers verifiers = text::built_in_verifiers();
//   verifiers.add({.name = "polite", .make = [] { return std::make_unique<Polite>(); }});
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/json.h"

namespace colossal::text {

/// A line of the data.
struct PromptLine {
  nlohmann::json members;  ///< an object: `prompt`, and what the verifiers read
  std::string where{};     ///< its place for messages: "prompts.jsonl, line 12"
};

/// What a model has written.
struct Completion {
  std::string text{};
  int64_t tokens = 0;  ///< number of tokens, with the end token if it was drawn
};

/// What a verifier says about an answer.
struct Verdict {
  double value = 0;    ///< 1 = right, 0 = wrong; some verifiers have values between them
  std::string text{};  ///< the reason for people; may be empty
};

/// A verifier. It may keep what it makes from lines, such as a compiled pattern.
/// Thread safety: none; each thread makes its own verifier.
class Verifier {
 public:
  virtual ~Verifier() = default;
  /// Checks that the line has what verify() reads. Errors ("verifier"): a member that is missing or wrong; the message
  /// names member, verifier and line.
  virtual void check(const PromptLine& line) = 0;
  /// Judges an answer to a line. Errors: those of check(). No completion is an error.
  virtual Verdict verify(const PromptLine& line, const Completion& completion) = 0;
};

/// A kind of verifier. Both members are required.
struct VerifierRow {
  std::string name{};  ///< "exact"
  std::function<std::unique_ptr<Verifier>()> make{};
};

/// The set of verifiers of a program.
class Verifiers {
 public:
  /// Adds a verifier and returns this set. Errors ("verifier"): no name or make; a name that another verifier has.
  Verifiers& add(VerifierRow row);
  const std::vector<VerifierRow>& rows() const { return rows_; }
  /// Returns the verifier of that name. Errors ("verifier"): an unknown name; the message names the nearest.
  const VerifierRow& at(const std::string& name) const;

 private:
  std::vector<VerifierRow> rows_;
};

/// Returns the verifiers of the library:
/// - exact, number, strict, flexible, f1, rouge: the Comparison of the answer with the line's `answer`, which is a
///   text, a number or a list of them. Of a list the best value counts.
/// - regex:  the line's `pattern` is found in the answer. It is a regular expression in which ^ and $ match only at the
///   borders of the text. If the search takes more than ten million steps, the value is 0 and the verdict says so.
/// - json:   the answer is a JSON value, nested at most 100 levels deep, and valid for the line's `schema`, if there is
///   one. That is a JSON Schema of draft 7, as JSON or as a text (JsonSchemaCheck).
/// - tags:   <think>, </think>, <answer> and </answer> each occur once, in this order.
/// - length: the answer has at most the line's `max_tokens` tokens.
///
/// All values but those of f1 and rouge are 0 or 1. Patterns and schemas are compiled once for each distinct text.
Verifiers built_in_verifiers();

/// Returns the member of that name, which must be a text. `verifier` is the name of the verifier that reads it.
/// Errors ("verifier"): the line lacks the member, or it is no text.
std::string required_text(const PromptLine& line, const std::string& member, const std::string& verifier);
/// Returns the member of that name. Errors ("verifier"): the line lacks it.
const nlohmann::json& required_member(const PromptLine& line, const std::string& member, const std::string& verifier);
/// Throws Error("verifier") about a member that a verifier cannot read: "VERIFIER reads `MEMBER` of each line, RULE:
/// got VALUE in WHERE; ...".
[[noreturn]] void refuse_member(const PromptLine& line, const std::string& member, const std::string& verifier,
                                const std::string& rule, const std::string& value);

}  // namespace colossal::text
