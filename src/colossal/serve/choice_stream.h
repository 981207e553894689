// Converts the events of one request to the pieces of its answer.
//
//   serve::ChoiceStream choice(tokenizer, {.stop = {"\n"}});
//   const serve::ChoicePart part = choice.hear(event);            // in the order of events
//   if (choice.is_stopped()) engine.drop(event.id);               // a stop string: part.finish_reason is set
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/infer/prompts/answer_stream.h"
#include "colossal/infer/request.h"
#include "colossal/serve/tool_calls.h"
#include "colossal/text/tokenizer.h"

namespace colossal::serve {

/// A token in a report of log-probabilities.
struct ReportedToken {
  /// Bytes that it adds to the text. A special token has its spelling, also if the text leaves it out.
  std::string bytes{};
  std::optional<double> logprob{};                     ///< none for the first token of a prompt
  std::vector<std::pair<std::string, double>> best{};  ///< bytes and log-probability, the most probable first
  /// Complete characters (code points) of the text before the token. Offsets do not decrease. A token that the text
  /// leaves out, or that ends within a character, has the offset of the next one.
  int64_t offset = 0;
};

/// Text, tokens and calls that one or several events add to a choice.
struct ChoicePart {
  std::string text{};
  std::vector<ReportedToken> tokens{};  ///< empty without log-probabilities
  std::vector<ToolCall> calls{};
  std::string finish_reason{};  ///< "stop", "length", "tool_calls", "cancelled" or "error"; "" = the choice goes on
  std::string error{};          ///< message for "error"

  bool is_empty() const { return text.empty() && calls.empty() && finish_reason.empty(); }
  void append(ChoicePart part);
};

/// A prompt that an answer repeats.
struct Echo {
  std::string text{};  ///< UTF-8. If the tokens stand for another text (a normalizer), their offsets are approximate
  std::vector<int64_t> ids{};
  bool with_logprobs = false;  ///< the part reports the tokens of the prompt
};

struct ChoiceOptions {
  std::vector<std::string> stop{};
  std::optional<Echo> echo{};              ///< the first part begins with this prompt
  std::optional<ToolCallOptions> tools{};  ///< reads calls from the text
  bool reports_end = false;                ///< an end token, which has no text, is reported, too
};

/// The answer of one request. Text that may begin a stop string or a call, and bytes of an incomplete character, wait
/// for later tokens. Reported tokens wait with their text. Tokens whose text begins in or after a stop string are not
/// reported.
class ChoiceStream {
 public:
  /// `tokenizer` must outlive the stream. Errors: errors of infer::AnswerStream.
  ChoiceStream(const text::Tokenizer& tokenizer, ChoiceOptions options);
  ~ChoiceStream();
  ChoiceStream(ChoiceStream&&) noexcept;

  /// Returns what the event adds, perhaps nothing. Ignores events after the end.
  ChoicePart hear(const infer::Event& event);
  bool is_stopped() const;                    ///< a stop string occurred, so the request can be dropped
  int64_t tokens() const { return tokens_; }  ///< tokens of the answer so far

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t tokens_ = 0;
};

}  // namespace colossal::serve
