// Function calls in the text of an answer.
//
//   serve::ToolCallReader calls({.functions = {"weather"}});
//   calls.push("<tool_call>{\"name\": \"weather\", \"argum").calls;         // empty
//   calls.push("ents\": {\"city\": \"Rome\"}}</tool_call>").calls[0].name;  // weather
//
// Models write calls in the form that they were trained on. Each form is a row in call_forms.h.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/serve/request_reader.h"
#include "colossal/text/tokenizer.h"

namespace colossal::serve {

struct CallForm;

struct ToolCall {
  std::string name;
  std::string arguments;  ///< text of a JSON object

  bool operator==(const ToolCall&) const = default;
};

/// Content and calls that a piece of text adds to an answer.
struct CallsAndContent {
  std::string content{};
  std::vector<ToolCall> calls{};
};

struct ToolCallOptions {
  std::vector<std::string> functions{};  ///< a call of another name is content
  bool is_forced = false;                ///< the answer is the JSON that forced_call_schema() describes
  bool only_one = false;                 ///< drops all calls after the first
  /// Those of the request; null = unknown. Their parameters decide whether a value in tags is a text or JSON.
  std::shared_ptr<const nlohmann::ordered_json> tools{};
};

/// Separates the calls of an answer from its content, as text arrives.
///
/// Text that may begin a call waits. A call is returned when it is complete. Text that turns out to be no call, or a
/// call in another form, is returned as content, unchanged. White space and marks around a call are dropped.
/// Cost: linear in the length of the answer, for pieces of any size, as long as what begins like a call is one.
class ToolCallReader {
 public:
  explicit ToolCallReader(ToolCallOptions options) : options_(std::move(options)) {}
  /// Reads the next piece of the answer, which must be UTF-8 as a whole.
  CallsAndContent push(std::string_view text);
  /// Returns the text that waits. Call it at the end of the answer.
  CallsAndContent finish();
  int64_t calls() const { return calls_; }  ///< number of calls so far

 private:
  /// Finds the end of a JSON object or list in a text that grows. Reads each byte once.
  struct JsonEnd {
    size_t at = 0;      // number of bytes that were read
    size_t member = 0;  // place of the first byte inside the value that is no white space; 0 = not read yet
    int64_t depth = 0;
    bool in_text = false, is_escaped = false;
    bool is_complete() const { return at > 0 && depth == 0; }
    /// Returns true if the value that begins at text[0] ends at text[at - 1].
    bool advance(std::string_view text);
  };
  /// The state of the call that waiting_ begins with, from which later pieces continue.
  struct Begun {
    const CallForm* form = nullptr;  // null = no call was begun
    size_t opening_end = 0;
    size_t value = 0, closing = 0;  // where the value and the closing begin, or the search for them goes on
    JsonEnd json{};
    std::vector<std::pair<size_t, size_t>> values{};  // begins and ends of earlier values of this call
  };
  struct Opening;
  enum class Found { kCall, kNoCall, kUndecided };
  size_t find_beginning();
  Opening opening_at(size_t at) const;
  Found read_call(const CallForm& form, bool is_end, CallsAndContent& out);
  Found read_values(const CallForm& form, bool is_end, CallsAndContent& out);
  Found read_named(const CallForm& form, bool is_end, CallsAndContent& out);
  Found read_section(const CallForm& form, bool is_end, CallsAndContent& out);
  Found find_closing(const CallForm& form, bool is_end, size_t& end);
  Found take(std::vector<ToolCall> calls, size_t end, CallsAndContent& out);
  bool drop_after_call(bool is_end);
  void pass(size_t bytes, CallsAndContent& out);
  void drop(size_t bytes);
  CallsAndContent read(bool is_end);

  ToolCallOptions options_;
  std::string waiting_;
  size_t spaces_ = 0;  // number of first bytes of waiting_ that are known to be white space
  Begun begun_;
  bool has_content_ = false;  // content other than white space was returned
  bool after_call_ = false;   // a call was the last thing that was returned
  int64_t calls_ = 0;
};

/// Returns the ids of tokens that mark calls or their parts and that Tokenizer::piece() shows as "" (special tokens).
/// The text of an answer with tools includes their spelling (SpelledTokens).
std::vector<int64_t> call_tokens(const text::Tokenizer& tokenizer);

/// A tokenizer that also shows some special tokens. The other tokenizer must outlive it.
class SpelledTokens final : public text::Tokenizer {
 public:
  SpelledTokens(const text::Tokenizer& tokenizer, std::vector<int64_t> spelled)
      : tokenizer_(tokenizer), spelled_(std::move(spelled)) {}
  std::vector<int64_t> encode(std::string_view text) const override { return tokenizer_.encode(text); }
  std::string piece(int64_t id) const override;
  std::string spelling(int64_t id) const override { return tokenizer_.spelling(id); }
  int64_t vocabulary_size() const override { return tokenizer_.vocabulary_size(); }
  int64_t end_id() const override { return tokenizer_.end_id(); }

 private:
  const text::Tokenizer& tokenizer_;
  std::vector<int64_t> spelled_;
};

/// Returns the JSON Schema of one call, {"name": ..., "arguments": {...}}, of one of the tools (kRequired) or of the
/// named one. "x-white-space" of a tool's parameters counts for the call. `tools` and `choice` are those of a
/// ChatRequest, and `choice` is forced.
std::string forced_call_schema(const nlohmann::ordered_json& tools, const ToolChoice& choice);

}  // namespace colossal::serve
