#include "colossal/infer/prompts/answer_stream.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/text/utf8.h"

namespace colossal::infer {

void check_stops(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops)
    require(!stop.empty() && text::is_utf8(stop), "sampling", "a stop string must be UTF-8 text and not empty");
}

AnswerStream::AnswerStream(const text::Tokenizer& tokenizer, std::vector<std::string> stops)
    : stream_(tokenizer), stops_(std::move(stops)) {
  check_stops(stops_);
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
  std::string text = waiting_.substr(0, stopped_ ? found : waiting_.size() - kept);
  waiting_.erase(0, stopped_ ? waiting_.size() : text.size());
  return text;
}

std::string AnswerStream::push(int64_t id) {
  if (stopped_) return "";
  waiting_ += stream_.push(id);
  return passed();
}

std::string AnswerStream::finish() {
  if (stopped_) return "";
  waiting_ += stream_.finish();
  std::string text = passed();
  return stopped_ ? text : text + std::exchange(waiting_, "");
}

}  // namespace colossal::infer
