#include "colossal/infer/prompts/answer_stream.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/text/unicode.h"

namespace colossal::infer {

void check_stops(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops)
    require(!stop.empty() && text::is_utf8(stop), "sampling", "a stop string must be UTF-8 text and not empty");
}

AnswerStream::AnswerStream(const text::Tokenizer& tokenizer, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stream_(tokenizer), stops_(std::move(stops)) {
  check_stops(stops_);
}

// Returns the spelling of a special token that a stop string contains, else "". Other special tokens do not part the
// text that a stop string may span.
std::string AnswerStream::hidden_text(int64_t id) const {
  if (stops_.empty() || id >= tokenizer_.vocabulary_size() || !tokenizer_.piece(id).empty()) return "";
  const std::string spelling = tokenizer_.spelling(id);
  const auto has_spelling = [&](const std::string& stop) { return stop.find(spelling) != std::string::npos; };
  return std::any_of(stops_.begin(), stops_.end(), has_spelling) ? spelling : "";
}

void AnswerStream::wait(const std::string& text, bool is_hidden) {
  waiting_ += text;
  is_hidden_.resize(waiting_.size(), is_hidden);
}

// Removes the first bytes of waiting_ and returns those that are not hidden.
std::string AnswerStream::take(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i)
    if (!is_hidden_[i]) text += waiting_[i];
  waiting_.erase(0, bytes);
  is_hidden_.erase(is_hidden_.begin(), is_hidden_.begin() + static_cast<std::ptrdiff_t>(bytes));
  return text;
}

// Removes and returns the part of waiting_ before a stop string, or before text that may become one.
std::string AnswerStream::passed() {
  size_t found = std::string::npos, kept = 0;
  for (const std::string& stop : stops_) {
    found = std::min(found, waiting_.find(stop));
    for (size_t length = std::min(stop.size() - 1, waiting_.size()); length > kept; --length)
      if (waiting_.compare(waiting_.size() - length, length, stop, 0, length) == 0) kept = length;
  }
  stopped_ = found != std::string::npos;
  return take(stopped_ ? found : waiting_.size() - kept);
}

std::string AnswerStream::push(int64_t id) {
  if (stopped_) return "";
  wait(hidden_text(id), true);
  wait(stream_.push(id), false);
  return passed();
}

std::string AnswerStream::finish() {
  if (stopped_) return "";
  wait(stream_.finish(), false);
  std::string text = passed();
  return stopped_ ? text : text + take(waiting_.size());
}

}  // namespace colossal::infer
