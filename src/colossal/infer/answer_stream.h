// The text of an answer as it grows, up to a stop string.
//
//   infer::AnswerStream stream(*saved.tokenizer, {"\nUser:"});
//   show(stream.push(token));
//   if (stream.is_stopped()) engine.cancel(id);   // what follows is not wanted
#pragma once
#include <string>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::infer {

/// Text that may be the beginning of a stop string waits until that is known, so what was shown never holds a part of
/// one that came.
class AnswerStream {
 public:
  /// `stops` may be none. Errors ("sampling"): an empty stop string, one that is no UTF-8.
  AnswerStream(const text::Tokenizer& tokenizer, std::vector<std::string> stops);
  /// The text that can be shown with this token, perhaps none; nothing any more once a stop string came.
  std::string push(int64_t id);
  /// What waited, at the end of the answer.
  std::string finish();
  bool is_stopped() const { return stopped_; }

 private:
  std::string passed();

  text::TextStream stream_;
  std::vector<std::string> stops_;
  std::string waiting_;
  bool stopped_ = false;
};

/// Errors: those of AnswerStream, for who asks before a model is loaded.
void check_stops(const std::vector<std::string>& stops);

}  // namespace colossal::infer
