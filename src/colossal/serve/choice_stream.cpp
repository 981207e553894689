#include "colossal/serve/choice_stream.h"

#include <algorithm>
#include <iterator>

namespace colossal::serve {
namespace {

bool begins_character(char byte) { return (byte & 0xc0) != 0x80; }

int64_t characters_of(std::string_view text) { return std::count_if(text.begin(), text.end(), begins_character); }

/// Returns what a token adds to a text; special tokens have their spelling, ids that only the model has "".
std::string bytes_of(const text::Tokenizer& tokenizer, int64_t id) {
  if (id >= tokenizer.vocabulary_size()) return "";
  std::string bytes = tokenizer.piece(id);
  return bytes.empty() ? tokenizer.spelling(id) : bytes;
}

ReportedToken reported(const text::Tokenizer& tokenizer, int64_t id, const infer::LogProbabilities* values,
                       int64_t offset) {
  ReportedToken token{.bytes = bytes_of(tokenizer, id), .offset = offset};
  if (!values) return token;
  token.logprob = values->own;
  for (const auto& [best, logprob] : values->best) token.best.emplace_back(bytes_of(tokenizer, best), logprob);
  return token;
}

/// Finds the places of a prompt's tokens in its text. If the tokenizer puts a space before a text, its tokens begin
/// with one more space than the text has. It is removed from the reported token and from those in its place.
class PromptPlaces {
 public:
  PromptPlaces(const text::Tokenizer& tokenizer, std::string_view text)
      : tokenizer_(tokenizer), stream_(tokenizer), rest_(text) {}

  /// Sets the offset of the next token of the prompt.
  void place(int64_t id, ReportedToken& token) {
    token.offset = offset_;
    std::string added = added_by(id);
    if (added.starts_with(' ') && !rest_.starts_with(added) && rest_.starts_with(added.substr(1))) {
      added.erase(0, 1);
      drop_space(token.bytes);
      for (auto& [bytes, logprob] : token.best) drop_space(bytes);
    }
    for (int64_t left = characters_of(added); left > 0 && !rest_.empty(); --left, ++offset_) {
      const auto end = std::find_if(rest_.begin() + 1, rest_.end(), begins_character);
      rest_.remove_prefix(static_cast<size_t>(end - rest_.begin()));
    }
  }

 private:
  static void drop_space(std::string& bytes) {
    if (bytes.starts_with(' ')) bytes.erase(0, 1);
  }
  /// Returns the complete characters that a token adds. The text may spell a special token, or leave it out.
  std::string added_by(int64_t id) {
    if (id < tokenizer_.vocabulary_size() && tokenizer_.piece(id).empty()) {
      std::string spelling = tokenizer_.spelling(id);
      return rest_.starts_with(spelling) ? spelling : "";
    }
    return stream_.push(id);
  }
  const text::Tokenizer& tokenizer_;
  text::TextStream stream_;
  std::string_view rest_;  // end of the text, after the placed tokens
  int64_t offset_ = 0;
};

constexpr const char* kFailed = "error";

const char* reason_of(const infer::Event& event, bool is_stopped, bool has_calls) {
  using infer::FinishReason;
  const FinishReason reason = is_stopped ? FinishReason::AtStop : event.finish_reason;
  if (reason == FinishReason::Failed || reason == FinishReason::EngineEnded) return kFailed;
  if (reason == FinishReason::Cancelled) return "cancelled";
  if (reason == FinishReason::AtLength || reason == FinishReason::AtPositions) return "length";
  return has_calls ? "tool_calls" : "stop";
}

}  // namespace

void ChoicePart::append(ChoicePart part) {
  text += part.text;
  std::move(part.tokens.begin(), part.tokens.end(), std::back_inserter(tokens));
  std::move(part.calls.begin(), part.calls.end(), std::back_inserter(calls));
  if (!part.finish_reason.empty()) finish_reason = std::move(part.finish_reason);
  if (!part.error.empty()) error = std::move(part.error);
}

struct ChoiceStream::State {
  struct Waiting {
    ReportedToken token;
    int64_t begin, end;  // bytes of the decoded text
  };
  State(const text::Tokenizer& tokenizer, ChoiceOptions options)
      : tokenizer(tokenizer),
        shown(tokenizer, options.tools ? call_tokens(tokenizer) : std::vector<int64_t>()),
        stream(shown, std::move(options.stop)),
        decoder(shown),
        reports_end(options.reports_end),
        echo(std::move(options.echo)) {
    if (options.tools) calls.emplace(std::move(*options.tools));
  }

  void repeat_prompt(const infer::Event& event, ChoicePart& part);
  std::string decode(const infer::Event& event);
  void report(const infer::Event& event, int64_t end);
  void release(bool is_end);

  const text::Tokenizer& tokenizer;
  SpelledTokens shown;
  infer::AnswerStream stream;
  text::TextStream decoder;  // the same text without waiting for stop strings, to know where tokens begin
  const bool reports_end;
  std::optional<ToolCallReader> calls;
  std::optional<Echo> echo;
  std::deque<Waiting> waiting;
  std::vector<ReportedToken> released;  // tokens that the next part reports
  int64_t decoded_bytes = 0, decoded_characters = 0, emitted_bytes = 0;
  bool has_ended = false;
};

void ChoiceStream::State::repeat_prompt(const infer::Event& event, ChoicePart& part) {
  part.text = echo->text;
  if (echo->with_logprobs) {
    PromptPlaces places(tokenizer, echo->text);
    for (size_t i = 0; i < echo->ids.size(); ++i) {
      const auto& values = event.prompt_log_probabilities;
      const bool has_values = i > 0 && i - 1 < values.size();
      part.tokens.push_back(reported(tokenizer, echo->ids[i], has_values ? &values[i - 1] : nullptr, 0));
      places.place(echo->ids[i], part.tokens.back());
    }
  }
  decoded_characters = characters_of(echo->text);
  echo.reset();
}

// Adds the token of an event whose text ends at `end`, if it has log-probabilities.
void ChoiceStream::State::report(const infer::Event& event, int64_t end) {
  if (!event.log_probabilities) return;
  waiting.push_back(
      {reported(tokenizer, event.token, &*event.log_probabilities, decoded_characters), decoded_bytes, end});
}

// Adds the token of an event and returns the text that can be shown.
std::string ChoiceStream::State::decode(const infer::Event& event) {
  const std::string text = decoder.push(event.token);
  const auto end = decoded_bytes + static_cast<int64_t>(text.size());
  report(event, end);
  decoded_bytes = end;
  decoded_characters += characters_of(text);
  return stream.push(event.token);
}

void ChoiceStream::State::release(bool is_end) {
  while (!waiting.empty()) {
    const Waiting& next = waiting.front();
    const bool is_shown = is_end ? !stream.is_stopped() || next.begin < emitted_bytes : next.end <= emitted_bytes;
    if (!is_shown) break;
    released.push_back(std::move(waiting.front().token));
    waiting.pop_front();
  }
}

ChoiceStream::ChoiceStream(const text::Tokenizer& tokenizer, ChoiceOptions options)
    : state_(std::make_unique<State>(tokenizer, std::move(options))) {}
ChoiceStream::~ChoiceStream() = default;
ChoiceStream::ChoiceStream(ChoiceStream&&) noexcept = default;

bool ChoiceStream::is_stopped() const { return state_->stream.is_stopped(); }

ChoicePart ChoiceStream::hear(const infer::Event& event) {
  using infer::FinishReason;
  State& s = *state_;
  ChoicePart part;
  if (s.has_ended) return part;
  if (s.echo) s.repeat_prompt(event, part);
  std::string text;
  if (event.is_answer())
    ++tokens_, text = s.decode(event);
  else if (event.token >= 0 && s.reports_end)
    s.report(event, s.decoded_bytes);
  if (event.finish_reason != FinishReason::None) text += s.stream.finish();
  s.has_ended = event.finish_reason != FinishReason::None || s.stream.is_stopped();
  s.emitted_bytes += static_cast<int64_t>(text.size());
  if (!text.empty() || s.has_ended) s.release(s.has_ended);
  if (s.calls) {
    CallsAndContent read = s.calls->push(text);
    text = std::move(read.content), part.calls = std::move(read.calls);
    if (s.has_ended) {
      read = s.calls->finish();
      text += read.content;
      std::move(read.calls.begin(), read.calls.end(), std::back_inserter(part.calls));
    }
  }
  part.text += text;
  if (s.has_ended) {
    part.finish_reason = reason_of(event, s.stream.is_stopped(), s.calls && s.calls->calls() > 0);
    if (part.finish_reason == kFailed) part.error = event.error;
  }
  if (part.is_empty()) return part;
  std::move(s.released.begin(), s.released.end(), std::back_inserter(part.tokens));
  s.released.clear();
  return part;
}

}  // namespace colossal::serve
