// Decodes the tokens of a completion to text as they arrive, up to a stop string.
//
//   infer::AnswerStream stream(*saved.tokenizer, {"\nUser:"});
//   show(stream.push(token));
//   if (stream.is_stopped()) engine.cancel(id);   // what follows is not wanted
#pragma once
#include <string>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::infer {

/// A stream of completion text that ends at a stop string. It holds back text that may be the beginning of a stop
/// string until later tokens decide. So the text it returns never contains any part of a stop string that occurred.
class AnswerStream {
 public:
  /// `tokenizer` must outlive the stream. `stops` may be empty. Errors ("sampling"): an empty stop string, one that is
  /// not UTF-8.
  AnswerStream(const text::Tokenizer& tokenizer, std::vector<std::string> stops);
  /// Adds a token and returns the text that can be shown with it, perhaps "". Returns "" after a stop string occurred.
  std::string push(int64_t id);
  /// Returns the text still held back. Call it at the end of the completion.
  std::string finish();
  bool is_stopped() const { return stopped_; }

 private:
  std::string hidden_text(int64_t id) const;
  void wait(const std::string& text, bool is_hidden);
  std::string take(size_t bytes);
  std::string passed();

  const text::Tokenizer& tokenizer_;
  text::TextStream stream_;
  std::vector<std::string> stops_;
  std::string waiting_;          // text that may begin a stop string
  std::vector<bool> is_hidden_;  // by byte of waiting_: the spelling of a special token, which is not returned
  bool stopped_ = false;
};

/// Checks stop strings before a model is loaded. Errors: the same as the constructor of AnswerStream.
void check_stops(const std::vector<std::string>& stops);

}  // namespace colossal::infer
