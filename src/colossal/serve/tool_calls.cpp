#include "colossal/serve/tool_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/serve/call_forms.h"
#include "colossal/serve/written_calls.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

constexpr const char* kWhiteSpaceKey = "x-white-space";

ordered_json schema_of_call(const ordered_json& function, size_t number) {
  ordered_json parameters = ordered_json::object();
  const auto given = function.find("parameters");
  if (given != function.end() && given->is_object()) parameters = *given;
  if (given == function.end() || given->is_null())
    parameters = {{"type", "object"}, {"properties", ordered_json::object()}, {"additionalProperties", false}};
  const auto has = [&](const char* keyword) { return parameters.contains(keyword); };
  if (!has("type") && !has("$ref") && !has("anyOf") && !has("oneOf") && !has("allOf")) parameters["type"] = "object";
  // References such as # and #/$defs/name start at the nearest schema with an $id, which may have no $ref beside it.
  if (!has("$id") && !(has("$ref") && has("allOf")) && parameters.dump().find("\"$ref\"") != std::string::npos) {
    if (has("$ref")) parameters["allOf"] = ordered_json::array({{{"$ref", parameters["$ref"]}}});
    parameters.erase("$ref");
    parameters["$id"] = concat("tool-", number);
  }
  return {{"type", "object"},
          {"properties", {{"name", {{"const", function["name"]}}}, {"arguments", std::move(parameters)}}},
          {"required", {"name", "arguments"}},
          {"additionalProperties", false}};
}

constexpr const char* kSpace = " \t\r\n";
constexpr size_t kNone = std::string::npos;
constexpr size_t kMaxHead = 512;  // bytes between the opening of a call and its arguments

size_t skip_space(std::string_view text, size_t from) {
  return std::min(text.find_first_not_of(kSpace, from), text.size());
}

/// Returns the length of the longest end of `text` that is the beginning of `word`, but not all of it.
size_t begun(std::string_view text, std::string_view word) {
  for (size_t length = std::min(text.size(), word.size() - 1); length > 0; --length)
    if (text.substr(text.size() - length) == word.substr(0, length)) return length;
  return 0;
}

/// Returns all words that can come first in a call.
const std::vector<std::string_view>& first_words() {
  static const std::vector<std::string_view> kWords = [] {
    std::vector<std::string_view> words(std::begin(kBeforeCalls), std::end(kBeforeCalls));
    for (const CallForm& form : kCallForms) words.push_back(form.opening);
    return words;
  }();
  return kWords;
}

/// Returns true if JSON that is no call need not be read to its end: `member` begins with another member's name.
bool differs(std::string_view member, bool is_list) {
  if (is_list) return !member.starts_with('{');
  constexpr std::string_view kMembers[] = {"\"name\"",     "\"arguments\"", "\"parameters\"",
                                           "\"function\"", "\"type\"",      "\"id\""};
  return std::none_of(std::begin(kMembers), std::end(kMembers),
                      [&](std::string_view one) { return agree(member, one); });
}

}  // namespace

struct ToolCallReader::Opening {
  const CallForm* form = nullptr;
  size_t at = kNone;          // where the opening is
  bool is_undecided = false;  // more text decides whether there is one
};

bool ToolCallReader::JsonEnd::advance(std::string_view text) {
  while (at < text.size()) {
    const char c = text[at++];
    if (member == 0 && at > 1 && std::string_view(kSpace).find(c) == kNone) member = at - 1;
    if (in_text) {
      if (!is_escaped && c == '"') in_text = false;
      is_escaped = !is_escaped && c == '\\';
      continue;
    }
    if (c == '"') in_text = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return true;
  }
  return false;
}

// Returns the first place in waiting_ that may begin a call. Does not search after one that waiting_ begins with,
// because such a call may be long. Other text does not wait.
size_t ToolCallReader::find_beginning() {
  spaces_ = skip_space(waiting_, spaces_);
  const std::string_view text = std::string_view(waiting_).substr(spaces_);
  if (!has_content_ && (text.starts_with('{') || text.starts_with('['))) return spaces_;
  if (options_.is_forced) return kNone;
  for (const std::string_view word : first_words())
    if (text.starts_with(word)) return spaces_;
  size_t first = kNone;
  for (const std::string_view word : first_words()) first = std::min(first, waiting_.find(word, spaces_));
  return first;
}

// Returns the opening at a place in waiting_, or after marks that may precede it there.
ToolCallReader::Opening ToolCallReader::opening_at(size_t at) const {
  if (options_.is_forced) return {&kBareForm, at};
  bool is_marked = false;
  while (true) {
    const std::string_view text = std::string_view(waiting_).substr(at);
    for (const CallForm& form : kCallForms)
      if (text.starts_with(form.opening)) return {&form, at};
    const auto is_here = [text](std::string_view word) { return text.starts_with(word); };
    const auto mark = std::find_if(std::begin(kBeforeCalls), std::end(kBeforeCalls), is_here);
    if (mark != std::end(kBeforeCalls)) {
      at = skip_space(waiting_, at + mark->size());
      is_marked = true;
      continue;
    }
    const auto may_become = [text](std::string_view word) { return agree(text, word); };
    const bool is_undecided = std::any_of(first_words().begin(), first_words().end(), may_become);
    return {is_marked ? nullptr : &kBareForm, at, is_undecided};
  }
}

ToolCallReader::Found ToolCallReader::read_values(const CallForm& form, bool is_end, CallsAndContent& out) {
  Begun& known = begun_;
  while (true) {
    const std::string_view json = std::string_view(waiting_).substr(known.value);
    const bool is_complete = known.json.is_complete() || known.json.advance(json);
    // A call of a form without an opening begins with a member of a call.
    if (form.opening.empty() && known.json.member > 0 && differs(json.substr(known.json.member), json.front() == '['))
      return Found::kNoCall;
    if (!is_complete) return is_end ? Found::kNoCall : Found::kUndecided;
    const size_t end = known.value + known.json.at;
    if (form.closing.empty()) break;
    known.closing = skip_space(waiting_, std::max(known.closing, end));
    if (known.closing == waiting_.size() || waiting_[known.closing] != '{') break;
    known.values.emplace_back(known.value, end);
    known.value = known.closing, known.json = {};
  }
  size_t end = known.value + known.json.at;
  if (const Found found = find_closing(form, is_end, end); found != Found::kCall) return found;
  std::vector<ToolCall> calls;
  known.values.emplace_back(known.value, known.value + known.json.at);
  for (const auto& [begin, value_end] : known.values) {
    const auto json = std::string_view(waiting_).substr(begin, value_end - begin);
    std::vector<ToolCall> some = json_calls(json, !form.opening.empty(), options_);
    if (some.empty()) return Found::kNoCall;
    std::move(some.begin(), some.end(), std::back_inserter(calls));
  }
  return take(std::move(calls), end, out);
}

ToolCallReader::Found ToolCallReader::read_named(const CallForm& form, bool is_end, CallsAndContent& out) {
  Begun& known = begun_;
  const std::string_view text = std::string_view(waiting_).substr(known.value);
  const std::string_view head = text.substr(0, kMaxHead);
  const Found if_short = is_end || text.size() >= kMaxHead ? Found::kNoCall : Found::kUndecided;
  const size_t separator = head.find(form.separator);
  if (separator == kNone) return if_short;
  const size_t after = skip_space(head, separator + form.separator.size());
  if (form.has_tags && after < head.size() && head[after] != '{') return read_section(form, is_end, out);
  const size_t arguments = head.find('{', after);
  if (arguments == kNone) return if_short;
  const std::string_view json = text.substr(arguments);
  if (!known.json.is_complete() && !known.json.advance(json)) return is_end ? Found::kNoCall : Found::kUndecided;
  size_t end = known.value + arguments + known.json.at;
  if (const Found found = find_closing(form, is_end, end); found != Found::kCall) return found;
  return take(named_call(head.substr(0, arguments), form.separator, json.substr(0, known.json.at), options_), end, out);
}

ToolCallReader::Found ToolCallReader::read_section(const CallForm& form, bool is_end, CallsAndContent& out) {
  const size_t begin = form.opens_tag ? begun_.value - form.opening.size() : begun_.value;
  const std::string_view section = std::string_view(waiting_).substr(begin);
  if (!form.has_literals && !may_be_tagged(section, options_)) return Found::kNoCall;
  const size_t at = waiting_.find(form.closing, std::max(begun_.closing, begin));
  if (at == kNone) {
    begun_.closing = waiting_.size() - begun(waiting_, form.closing);
    return is_end ? Found::kNoCall : Found::kUndecided;
  }
  const size_t end = at + form.closing.size();
  const std::string_view whole = section.substr(0, (form.opens_tag ? end : at) - begin);
  return take(form.has_literals ? literal_calls(whole, options_) : tagged_calls(whole, options_), end, out);
}

// Moves `end`, the end of the arguments, after the closing of the call. A closing may lack at the end of the answer,
// and before the next opening.
ToolCallReader::Found ToolCallReader::find_closing(const CallForm& form, bool is_end, size_t& end) {
  if (form.closing.empty()) return Found::kCall;
  begun_.closing = skip_space(waiting_, std::max(begun_.closing, end));
  if (constexpr std::string_view kFence = "```";
      !form.separator.empty() && waiting_.compare(begun_.closing, 3, kFence) == 0)
    begun_.closing = skip_space(waiting_, begun_.closing + kFence.size());
  const size_t at = begun_.closing;
  const std::string_view rest = std::string_view(waiting_).substr(at);
  if (rest.starts_with(form.opening)) return end = at, Found::kCall;
  if (!agree(rest, form.closing)) {
    const bool may_become = agree(rest, form.opening) || (!form.separator.empty() && agree(rest, "```"));
    return may_become && !is_end ? Found::kUndecided : Found::kNoCall;
  }
  if (rest.size() < form.closing.size() && !is_end) return Found::kUndecided;
  end = std::min(at + form.closing.size(), waiting_.size());
  return Found::kCall;
}

// Decides whether waiting_, which has white space and marks before the opening, begins with a call, and if so removes
// the call.
ToolCallReader::Found ToolCallReader::read_call(const CallForm& form, bool is_end, CallsAndContent& out) {
  if (begun_.values.empty()) begun_.value = skip_space(waiting_, begun_.value);
  if (begun_.value == waiting_.size()) return is_end ? Found::kNoCall : Found::kUndecided;
  if (form.has_literals) return read_section(form, is_end, out);
  const char first = waiting_[begun_.value];
  if ((first == '{' || first == '[') && !form.opens_tag) return read_values(form, is_end, out);
  if (!form.separator.empty()) return read_named(form, is_end, out);
  return form.has_tags ? read_section(form, is_end, out) : Found::kNoCall;
}

ToolCallReader::Found ToolCallReader::take(std::vector<ToolCall> calls, size_t end, CallsAndContent& out) {
  if (calls.empty()) return Found::kNoCall;
  for (ToolCall& call : calls) {
    if (options_.only_one && calls_ > 0) break;
    out.calls.push_back(std::move(call));
    ++calls_;
  }
  drop(end);
  after_call_ = true;
  return Found::kCall;
}

void ToolCallReader::drop(size_t bytes) {
  if (bytes == 0) return;  // the call is still being read
  waiting_.erase(0, bytes);
  spaces_ = 0;
  begun_ = {};
}

// Returns the first bytes of waiting_ as content.
void ToolCallReader::pass(size_t bytes, CallsAndContent& out) {
  if (bytes == 0) return;
  const std::string_view text = std::string_view(waiting_).substr(0, bytes);
  if (text.find_first_not_of(kSpace) != kNone) has_content_ = true;
  out.content += text;
  after_call_ = false;
  drop(bytes);
}

// Drops white space and marks after a call, and the semicolon before the next one of Llama 3. Returns false if more
// text decides.
bool ToolCallReader::drop_after_call(bool is_end) {
  drop(skip_space(waiting_, 0));
  const auto is_here = [this](std::string_view word) { return waiting_.starts_with(word); };
  const auto begins = [this](std::string_view word) { return agree(waiting_, word); };
  while (true) {
    const auto mark = std::find_if(std::begin(kAfterCalls), std::end(kAfterCalls), is_here);
    if (mark == std::end(kAfterCalls)) break;
    drop(skip_space(waiting_, mark->size()));
  }
  if (!waiting_.empty() && !is_end && std::any_of(std::begin(kAfterCalls), std::end(kAfterCalls), begins)) return false;
  if (waiting_.starts_with(';')) {
    begun_.closing = skip_space(waiting_, std::max<size_t>(begun_.closing, 1));
    if (begun_.closing == waiting_.size()) return is_end;
    if (waiting_[begun_.closing] == '{') drop(begun_.closing);
  }
  return true;
}

CallsAndContent ToolCallReader::read(bool is_end) {
  CallsAndContent out;
  while (!waiting_.empty()) {
    if (!begun_.form) {
      if (after_call_ && !drop_after_call(is_end)) return out;
      const size_t at = find_beginning();
      if (spaces_ == waiting_.size() && !is_end) return out;
      if (at == kNone) break;
      const size_t content = at == spaces_ ? 0 : waiting_.find_last_not_of(kSpace, at - 1) + 1;
      pass(content, out);
      const Opening opening = opening_at(at - content);
      if (opening.is_undecided && !is_end) return out;
      if (!opening.form) {
        pass(opening.at, out);
        continue;
      }
      begun_.form = opening.form;
      begun_.value = opening.at + opening.form->opening.size();
      begun_.opening_end = std::max(begun_.value, opening.at + 1);
    }
    const Found found = read_call(*begun_.form, is_end, out);
    if (found == Found::kUndecided) return out;
    if (found == Found::kNoCall) pass(begun_.opening_end, out);
  }
  size_t held = 0;
  if (!is_end) {
    if (!options_.is_forced)
      for (const std::string_view word : first_words()) held = std::max(held, begun(waiting_, word));
    const size_t last = waiting_.find_last_not_of(kSpace, waiting_.size() - held - 1);
    held = waiting_.size() - (held == waiting_.size() || last == kNone ? 0 : last + 1);
  }
  pass(waiting_.size() - held, out);
  return out;
}

CallsAndContent ToolCallReader::push(std::string_view text) {
  waiting_ += text;
  return read(false);
}

CallsAndContent ToolCallReader::finish() { return read(true); }

std::vector<int64_t> call_tokens(const text::Tokenizer& tokenizer) {
  std::vector<std::string_view> words = first_words();
  words.insert(words.end(), std::begin(kAfterCalls), std::end(kAfterCalls));
  words.insert(words.end(), std::begin(kMarksWithinCalls), std::end(kMarksWithinCalls));
  for (const CallForm& form : kCallForms) words.insert(words.end(), {form.closing, form.separator});
  for (const TagSyntax& tags : kTagSyntaxes)
    words.insert(words.end(), {tags.call, tags.name_end, tags.open_end, tags.call_end, tags.key, tags.key_end,
                               tags.value, tags.value_end});
  std::vector<int64_t> ids;
  for (const std::string_view word : words)
    for (const int64_t id : tokenizer.encode(word)) {
      const bool is_part = word.find(tokenizer.spelling(id)) != kNone;  // not the unknown token
      const bool is_new = std::find(ids.begin(), ids.end(), id) == ids.end();
      if (tokenizer.piece(id).empty() && is_part && is_new) ids.push_back(id);
    }
  return ids;
}

std::string SpelledTokens::piece(int64_t id) const {
  const bool is_spelled = std::find(spelled_.begin(), spelled_.end(), id) != spelled_.end();
  return is_spelled ? tokenizer_.spelling(id) : tokenizer_.piece(id);
}

std::string forced_call_schema(const ordered_json& tools, const ToolChoice& choice) {
  ordered_json calls = ordered_json::array(), white_space;
  for (const ordered_json& tool : tools) {
    const ordered_json& function = tool.at("function");
    if (choice.kind == ToolChoice::kNamed && function.at("name") != choice.name) continue;
    calls.push_back(schema_of_call(function, calls.size()));
    const ordered_json& parameters = calls.back()["properties"]["arguments"];
    if (parameters.contains(kWhiteSpaceKey)) white_space = parameters[kWhiteSpaceKey];
  }
  ordered_json schema = calls.size() == 1 ? std::move(calls[0]) : ordered_json{{"anyOf", std::move(calls)}};
  if (!white_space.is_null()) schema[kWhiteSpaceKey] = std::move(white_space);  // the key counts for the whole schema
  return schema.dump();
}

}  // namespace colossal::serve
