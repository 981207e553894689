// A conversation with a model that was trained on chats.
//
//   const auto chat_template = text::ChatTemplate::read("models/Qwen2.5-0.5B-Instruct");
//   infer::Conversation conversation(engine, *saved.tokenizer, chat_template, saved.end_ids, {.system = "Be brief"});
//   conversation.answer("Hello", [](const std::string& text) { std::cout << text << std::flush; return true; });
//
// Each turn is a new request with all messages so far, as the template writes them. The engine finds the blocks of
// earlier turns in its cache, so a turn costs its new tokens only.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/infer/engine.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizer.h"

namespace colossal::infer {

struct ConversationOptions {
  std::string system{};                           ///< the first message, if any
  GenerationOptions options{.max_tokens = 1024};  ///< of each answer; answer i draws by the seed + i
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  ///< of the template, as text::Chat has them
};

/// Communication: that of the engine. All ranks of a layout must pass the same messages, and `emit` must return the
/// same on each.
class Conversation {
 public:
  /// All arguments must outlive it. `end_ids` are those of run::SavedModel.
  /// Errors ("conversation"): an option of unused(). Those of json_constraints().
  Conversation(Engine& engine, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
               std::vector<int64_t> end_ids, ConversationOptions options);

  /// Calls `emit` with the answer, piece by piece, as far as it can be printed. The answer ends where `emit` returns
  /// false. Returns how it ended.
  /// The engine may have other requests: their callers hear their events while this waits.
  /// Errors: those of the template and of Engine::add(), a conversation that no longer fits for instance, those of the
  ///         tokenizer, of AnswerStream, of `emit` and of the constraint; the conversation is then what it was before.
  Ended answer(const std::string& said, const std::function<bool(const std::string&)>& emit);
  /// Forgets all messages and sets the system message; "" = none.
  void begin(const std::string& system);

  /// Generation options that have no effect on a conversation, by their names in JSON: it reports text alone.
  static std::vector<std::string> unused() { return {"logprobs", "prompt_logprobs"}; }

  const nlohmann::ordered_json& messages() const { return messages_; }
  /// Tokens of the last request and of its answer.
  int64_t tokens() const { return tokens_; }

 private:
  std::vector<int64_t> ids() const;

  Engine& engine_;
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  std::vector<int64_t> end_ids_;
  ConversationOptions options_;
  std::function<std::shared_ptr<TokenConstraint>()> constraint_;  // makes one for each answer
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  int64_t answers_ = 0, tokens_ = 0;
};

}  // namespace colossal::infer
