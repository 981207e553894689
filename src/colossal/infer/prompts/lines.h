// Reads a file of prompts, one per line. JSON lines may have their own options:
//
//   {"prompt": "To be", "max_tokens": 20, "temperature": 0.8, "stop": ["\n"], "id": "hamlet"}
//
//   for (const infer::PromptLine& line : infer::read_prompts("prompts.jsonl", defaults))
//     engine.add({.prompt = tokenizer.encode_prompt(line.prompt), .options = line.options}, on_event);
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/infer/engine.h"
#include "colossal/infer/generation_options.h"
#include "colossal/infer/prompts/answer_stream.h"
#include "colossal/text/tokenizer.h"

namespace colossal::infer {

struct PromptLine {
  std::string prompt{};
  nlohmann::ordered_json id{};  ///< any JSON value, printed with the completion; null = none
  GenerationOptions options{};
};

/// Reads the lines of a file in one pass, so that it may be a pipe. Lines of a .jsonl file are objects with a string
/// "prompt", an optional "id", and options by their names (GenerationOptions::fields). Missing options are taken from
/// `common`, except that prompt i gets the seed of `common` + i if its line has no seed. Empty lines are skipped.
/// Errors ("generate"): a file that cannot be read or holds no prompt. Errors with the line's number: text that is not
///                      UTF-8, a line that is not such an object, an unknown option, a value that
///                      GenerationOptions::check() refuses.
std::vector<PromptLine> read_prompts(const std::string& path, const GenerationOptions& common);

/// Writes the completions of a file of prompts: one JSON object per line, in the order of the prompts:
///
///   {"prompt": "To be", "text": ", or not", "ended": "length", "tokens": 4}
///
///   infer::PromptAnswers answers(engine, *saved.tokenizer, saved.end_ids, infer::read_prompts(path, defaults));
///   answers.run([](const std::string& line) { std::puts(line.c_str()); });
///
/// Communication: the same as Engine. All ranks of a layout must construct and run it with equal arguments.
class PromptAnswers {
 public:
  /// Adds a request for each line. `engine`, `tokenizer` and `lines` must outlive it.
  /// Errors: errors of Engine::add(), with the number of the prompt; errors of SchemaCache.
  PromptAnswers(Engine& engine, const text::Tokenizer& tokenizer, const std::vector<int64_t>& end_ids,
                const std::vector<PromptLine>& lines);
  ~PromptAnswers();
  PromptAnswers(const PromptAnswers&) = delete;
  PromptAnswers& operator=(const PromptAnswers&) = delete;

  /// Steps the engine until all requests have ended. Calls `emit` with each line once it and all lines before it are
  /// complete.
  ///
  /// Members: "id" if the prompt has one, "prompt", "text", "ended" (end, length, positions, stop or error), "tokens",
  /// and "error" if the request failed. "logprobs", if the line asks for them, has for each token its id, its piece of
  /// text, its log-probability and the best ones. "prompt_logprobs" has the same for each token of the prompt; the
  /// "logprob" of the first one is null, because nothing predicts it.
  void run(const std::function<void(const std::string& line)>& emit);

  int64_t tokens() const;  ///< number of tokens of all completions
  int64_t failed() const;  ///< number of requests that ended with an error

 private:
  struct Answer {
    int64_t id;  // id of the request
    AnswerStream stream;
    std::vector<int64_t> prompt;
    std::string text{};
    int64_t tokens = 0;
    nlohmann::ordered_json log_probabilities = nlohmann::ordered_json::array();
    nlohmann::ordered_json prompt_log_probabilities = nlohmann::ordered_json::array();
    FinishReason finish_reason = FinishReason::None;
    std::string error{};
  };
  void hear(const Event& event, Answer& answer) const;
  nlohmann::ordered_json json_of(const LogProbabilities& reported, int64_t token) const;
  std::string line_of(const Answer& answer, const PromptLine& line) const;

  Engine& engine_;
  const text::Tokenizer& tokenizer_;
  const std::vector<PromptLine>& lines_;
  std::vector<Answer> answers_;
};

}  // namespace colossal::infer
