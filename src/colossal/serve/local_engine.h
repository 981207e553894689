// An engine in this process, on a thread of its own, for programs that call it from any thread.
//
//   serve::LocalEngine engine(serve::read_local_engine_options(R"({"from": "models/gpt2", "kv_cache": "2GiB"})"));
//   const auto request = engine.submit(engine.prompt_ids("To be"), engine.options(R"({"max_tokens": 20})"));
//   for (serve::AnswerPart part; !part.is_last();) show((part = request->next(std::chrono::seconds(1))).text);
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/infer/answer_scores.h"
#include "colossal/infer/generation_options.h"
#include "colossal/infer/request.h"
#include "colossal/serve/model_options.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizer.h"

namespace colossal::serve {

/// The options of a LocalEngine: those of `colossal generate` for the model and the engine, without those of ranks.
struct LocalEngineOptions {
  ModelOptions model;
  infer::EngineOptions engine{};
  /// NAME=FOLDER[:SCALE]: adapters of which each request chooses one, or none, in addition to those of `model`
  std::vector<std::string> adapters{};

  void fields(Fields& f);
};

/// Reads the options from a JSON object of them, with underscores: {"from": "models/gpt2", "kv_cache": "2GiB"}.
/// Errors: ("engine") text that is not JSON; an unknown option, with the nearest name; a wrong value; an option that
///         has no effect together with the others. Errors of ModelOptions::check().
LocalEngineOptions read_local_engine_options(const std::string& json);

/// A part of an answer: everything that came since the last call of LocalRequest::next().
struct AnswerPart {
  std::string text{};          ///< whole characters, without any part of a stop string; "" without a tokenizer
  std::vector<int64_t> ids{};  ///< new tokens without the end token
  std::vector<infer::LogProbabilities> log_probabilities{};  ///< one per id, with GenerationOptions::logprobs
  /// Log-probabilities of the prompt's tokens (infer::Event), with GenerationOptions::prompt_logprobs; in the first
  /// part alone.
  std::vector<infer::LogProbabilities> prompt_log_probabilities{};
  infer::FinishReason finish_reason = infer::FinishReason::None;  ///< why the answer ended; None before its last part

  bool is_empty() const { return text.empty() && ids.empty(); }
  bool is_last() const { return finish_reason != infer::FinishReason::None; }
};

/// A request that runs. Thread safety: any thread may call the members.
class LocalRequest {
 public:
  struct State;
  explicit LocalRequest(std::shared_ptr<State> state);
  ~LocalRequest();  ///< calls cancel()
  LocalRequest(const LocalRequest&) = delete;
  LocalRequest& operator=(const LocalRequest&) = delete;

  /// Waits at most `timeout` for a part, and returns an empty one if there is none. After the last part it returns an
  /// empty last part. Errors: errors of Engine::add() and of the engine's steps, after the parts before them were
  /// taken.
  AnswerPart next(std::chrono::milliseconds timeout);
  /// Returns a descriptor that is readable if next() has a part, or if the answer has ended. The request owns it.
  /// Errors ("engine"): the process has no free descriptor.
  int descriptor();
  /// Ends the answer, if it has not ended, with FinishReason::Cancelled. Tokens that arrived before stay.
  void cancel();

 private:
  std::shared_ptr<State> state_;
};

/// Loads a model on one rank and answers requests: all requests at a time share the engine's steps (infer/engine.h).
/// Thread safety: any thread may call the members. None of them waits for a step, except close().
class LocalEngine {
 public:
  /// Waits until the model is loaded. A Hugging Face folder without a tokenizer is allowed.
  /// Errors: ("engine") the tokenizer `none`; errors of ModelOptions::check(), load_with_draft() and infer::Engine.
  explicit LocalEngine(LocalEngineOptions options);
  ~LocalEngine();  ///< calls close()

  /// Starts a request with the adapter of that name; "" = the model without one. Errors ("engine"): the engine is
  /// closed or has failed; stop strings without a tokenizer. Errors that depend on the model, such as a prompt that is
  /// too long or an unknown adapter, are errors of LocalRequest::next().
  std::unique_ptr<LocalRequest> submit(std::vector<int64_t> prompt, infer::GenerationOptions options,
                                       const std::string& adapter = "");
  /// Starts a request for the score of each answer, and returns the requests in the order of the answers. The one part
  /// of a request has AnswerPart::prompt_log_probabilities: one for each token of the answer. The requests are sent
  /// together, as infer::answer_scores() sends them. Errors ("engine"): as of submit(); a prompt or an answer without
  /// tokens.
  std::vector<std::unique_ptr<LocalRequest>> score(const std::vector<infer::GivenAnswer>& given,
                                                   const std::string& adapter = "");
  /// Returns the sampling options that the folder recommends, changed by the members of a JSON object.
  /// Errors ("generate", "sampling"): an unknown option, a wrong value; one that has no effect at temperature 0.
  infer::GenerationOptions options(const std::string& json) const;
  /// Returns the tokens of a prompt. Errors ("engine"): a model without a tokenizer.
  std::vector<int64_t> prompt_ids(const std::string& text) const;
  /// Returns the tokens of a prompt and of an answer to it. Errors: of infer::encode_answer(); ("engine") a model
  /// without a tokenizer.
  infer::GivenAnswer answer_ids(const std::string& prompt, const std::string& answer) const;
  /// Ends unfinished requests as cancelled, frees the model and waits until the thread has ended.
  void close();

  /// Reads the template that renders the chats of requests with the adapter of that name; "" = of the model
  /// (ModelOptions::chat_template()). Errors: of that function; ("engine") there is none.
  text::ChatTemplate chat_template(const std::string& adapter = "") const;

  std::shared_ptr<const text::Tokenizer> tokenizer() const;  ///< null = the model has none
  int64_t max_length() const;                                ///< infer::Engine::max_length()
  const std::vector<std::string>& notices() const;           ///< lines for the user about what was loaded

  struct Host;

 private:
  std::shared_ptr<Host> host_;
};

}  // namespace colossal::serve
