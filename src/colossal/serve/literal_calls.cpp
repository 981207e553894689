// Calls that are written with literals instead of JSON: [f(a='x', n=1)] of LFM2, call:f{a:<|"|>x<|"|>,n:1} of Gemma 4.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/serve/written_calls.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

/// A reader of literals. A reading function returns no value if the text is something else.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  bool skip(std::string_view word) {
    skip_space();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool is_at_end() {
    skip_space();
    return text_.empty();
  }
  /// Reads a name up to one of the characters in `ends`, which stays.
  std::string name(const char* ends) {
    skip_space();
    const std::string_view taken = text_.substr(0, text_.find_first_of(ends));
    text_.remove_prefix(taken.size());
    return std::string(taken.substr(0, taken.find_last_not_of(" \t\r\n") + 1));
  }
  /// Reads members up to `closing`: names, `between` and values.
  std::optional<ordered_json> members(std::string_view between, std::string_view closing) {
    ordered_json object = ordered_json::object();
    while (!skip(closing)) {
      if (!object.empty() && !skip(",")) return {};
      if (skip(closing)) break;  // after a last comma
      std::optional<std::string> key = string();
      if (!key) key = name(":=,)}");
      if (key->empty() || !skip(between)) return {};
      std::optional<ordered_json> value = this->value();
      if (!value) return {};
      object[*key] = std::move(*value);
    }
    return object;
  }

 private:
  static constexpr int kMaxDepth = 32;

  void skip_space() { text_.remove_prefix(std::min(text_.find_first_not_of(" \t\r\n"), text_.size())); }

  std::optional<ordered_json> value() {
    if (depth_ == kMaxDepth) return {};
    ++depth_;
    std::optional<ordered_json> value = unlimited_value();
    --depth_;
    return value;
  }

  std::optional<ordered_json> unlimited_value() {
    if (std::optional<std::string> text = string()) return ordered_json(std::move(*text));
    if (skip("{")) return members(":", "}");
    if (skip("[")) {
      ordered_json list = ordered_json::array();
      while (!skip("]")) {
        if (!list.empty() && !skip(",")) return {};
        if (skip("]")) break;
        std::optional<ordered_json> item = value();
        if (!item) return {};
        list.push_back(std::move(*item));
      }
      return list;
    }
    const std::string word = name(",)]} \t\r\n");
    if (word == "True" || word == "true") return ordered_json(true);
    if (word == "False" || word == "false") return ordered_json(false);
    if (word == "None" || word == "null") return ordered_json();
    try {
      ordered_json number = parse_ordered_json(word, "a value", "serve");
      if (number.is_number()) return number;
    } catch (const Error&) {
      return {};
    }
    return {};
  }

  std::optional<std::string> string() {
    constexpr std::string_view kQuote = "<|\"|>";  // Gemma 4: a token, so the text between needs no escapes
    if (skip(kQuote)) {
      const size_t end = text_.find(kQuote);
      if (end == std::string_view::npos) return {};
      std::string text(text_.substr(0, end));
      text_.remove_prefix(end + kQuote.size());
      return text;
    }
    const char quote = text_.empty() ? '\0' : text_.front();
    if (quote != '\'' && quote != '"') return {};
    std::string text;
    for (size_t i = 1; i < text_.size(); ++i) {
      if (text_[i] == quote) {
        text_.remove_prefix(i + 1);
        return text;
      }
      if (text_[i] != '\\') {
        text += text_[i];
        continue;
      }
      constexpr std::string_view kEscapes = "ntr\\'\"", kEscaped = "\n\t\r\\'\"";
      const size_t escape = ++i < text_.size() ? kEscapes.find(text_[i]) : std::string_view::npos;
      if (escape == std::string_view::npos) return {};
      text += kEscaped[escape];
    }
    return {};
  }

  std::string_view text_;
  int depth_ = 0;
};

bool add_call(const std::string& name, const std::optional<ordered_json>& arguments, const ToolCallOptions& options,
              std::vector<ToolCall>& calls) {
  if (!arguments || name_of_function(name, options).empty()) return false;
  calls.push_back({name_of_function(name, options), arguments->dump()});
  return true;
}

}  // namespace

std::vector<ToolCall> literal_calls(std::string_view section, const ToolCallOptions& options) {
  LiteralReader reader(section);
  std::vector<ToolCall> calls;
  if (reader.skip("call:")) {
    const std::string name = reader.name("{");
    if (!reader.skip("{") || !add_call(name, reader.members(":", "}"), options, calls) || !reader.is_at_end())
      return {};
    return calls;
  }
  const bool is_list = reader.skip("[");
  while (!reader.is_at_end() && !(is_list && reader.skip("]"))) {
    if (!calls.empty()) reader.skip(",");
    const std::string name = reader.name("(");
    if (!reader.skip("(") || !add_call(name, reader.members("=", ")"), options, calls)) return {};
  }
  return reader.is_at_end() ? calls : std::vector<ToolCall>();
}

}  // namespace colossal::serve
