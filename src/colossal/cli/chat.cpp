#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>

#include "colossal/base/error.h"
#include "colossal/cli/chat_options.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/generation_flags.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/model_options.h"
#include "colossal/comm/agreement.h"
#include "colossal/infer/prompts/conversation.h"
#include "colossal/text/unicode.h"

namespace colossal::cli {
namespace {

constexpr size_t kMaxLineBytes = 16 << 20;

/// Lines that a user types, one at a time. Signals can interrupt the wait for one.
class InputLines {
 public:
  /// `descriptor` must stay open during the lifetime of this object, which does not close it.
  explicit InputLines(int descriptor) : descriptor_(descriptor) {}
  /// Returns the next line without its line end (\n or \r\n); the last line may have none. Returns nothing at the end
  /// of input, or if stop_requested() became true while no input was available. Errors ("input"): a line of more than
  /// 16 MiB, a failed read.
  std::optional<std::string> next();

 private:
  bool read_more();

  int descriptor_;
  std::string held_;
  bool is_at_end_ = false;
};

// Returns false if a signal arrived before any byte was read.
bool InputLines::read_more() {
  // A signal interrupts poll() even if its handler restarts read().
  pollfd wanted{descriptor_, POLLIN, 0};
  if (::poll(&wanted, 1, -1) < 0) {
    require(errno == EINTR, "input", "cannot wait for a line: ", std::generic_category().message(errno));
    return !stop_requested();
  }
  char bytes[4096];
  const ssize_t got = ::read(descriptor_, bytes, sizeof bytes);
  require(got >= 0 || errno == EINTR, "input", "cannot read a line: ", std::generic_category().message(errno));
  if (got > 0) held_.append(bytes, static_cast<size_t>(got));
  is_at_end_ = got == 0;
  return true;
}

std::optional<std::string> InputLines::next() {
  size_t searched = 0, end;
  while ((end = held_.find('\n', searched)) == std::string::npos && !is_at_end_) {
    searched = held_.size();
    require(searched <= kMaxLineBytes, "input", "a line must have at most ", kMaxLineBytes, " bytes");
    if (stop_requested() || !read_more()) return std::nullopt;
  }
  if (end == std::string::npos && held_.empty()) return std::nullopt;
  std::string line = held_.substr(0, end);
  held_.erase(0, end == std::string::npos ? held_.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

constexpr const char* kHelp =
    "/clear        start over\n/system TEXT  start over with another system message; without TEXT: with none\n/help    "
    "     show this list\n/exit         quit, as at the end of the input\nCtrl-C stops an answer.\n";

struct ChatRequest {
  ModelOptions model;
  infer::EngineOptions engine;
  infer::ConversationOptions conversation;
  std::vector<std::string> ignored_defaults;  ///< keys of generation_config.json that are not applied
};

/// Kind of input that the first rank broadcasts to all ranks.
enum class Said : char { Message = 'm', System = 's', End = 'e' };

/// The user's side of the conversation, on the rank that communicates with the user.
class Terminal {
 public:
  Terminal() : lines_(STDIN_FILENO), is_person_(isatty(STDIN_FILENO)) {}

  /// Returns the user's next input: a letter of Said and a text.
  std::string next() {
    while (true) {
      if (is_person_) show("> ");
      const std::optional<std::string> line = lines_.next();
      if (!line) return end();
      if (line->find_first_not_of(" \t") == std::string::npos) continue;
      if (!text::is_utf8(*line)) {
        say("input must be UTF-8: the line was ignored");
        continue;
      }
      if (line->front() != '/') return told(Said::Message, *line);
      if (*line == "/exit") return told(Said::End, "");
      if (*line == "/clear") return told(Said::System, system_);
      if (*line == "/system" || line->starts_with("/system ")) {
        system_ = line->size() > 8 ? line->substr(8) : "";
        return told(Said::System, system_);
      }
      if (*line != "/help") say("unknown command " + line->substr(0, line->find(' ')) + "; the commands are:");
      std::fputs(kHelp, stderr);
    }
  }

  void show(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  void begin(const std::string& system) { system_ = system; }

 private:
  static std::string told(Said said, const std::string& text) { return static_cast<char>(said) + text; }
  std::string end() {
    if (is_person_) show("\n");
    return told(Said::End, "");
  }

  InputLines lines_;
  bool is_person_;
  std::string system_;
};

void tell_end(infer::FinishReason finish_reason, const ChatRequest& request) {
  if (finish_reason == infer::FinishReason::AtLength)
    say(concat("the answer stops after ", request.conversation.options.max_tokens, " tokens (--max-tokens)"));
  if (finish_reason == infer::FinishReason::AtPositions)
    say("the answer stops at the model's last position; /clear starts over");
}

int chat_as_rank(const ChatRequest& request, const LoadedModel& loaded, const text::ChatTemplate& chat_template) {
  const run::SavedModel& saved = loaded.saved;
  infer::Engine engine(*saved.model, loaded.engine(request.engine));
  infer::Conversation conversation(engine, *saved.tokenizer, chat_template, saved.end_ids, request.conversation);
  const bool speaks = loaded.speaks(), is_alone = loaded.world.size() == 1;
  Terminal terminal;
  terminal.begin(request.conversation.system);
  watch_stop_signals();
  if (speaks) say_sampling(request.conversation.options.sampling, request.ignored_defaults);
  if (speaks && isatty(STDIN_FILENO)) say("/help lists the commands");
  while (true) {
    std::string said;
    {
      const auto busy = loaded.world.busy("waiting for the user");
      if (speaks) said = terminal.next();
      said = comm::broadcast_text(loaded.mesh.all(), at::kCPU, 0, said);
    }
    const std::string text = said.substr(1);
    if (said[0] == static_cast<char>(Said::End)) return stop_status();
    if (said[0] == static_cast<char>(Said::System)) {
      conversation.begin(text);
      continue;
    }
    try {
      const infer::FinishReason finish_reason = conversation.answer(text, [&](const std::string& piece) {
        if (speaks) terminal.show(piece);
        return !(is_alone && stop_requested());  // a signal does not reach all ranks at the same token
      });
      if (speaks) terminal.show("\n"), tell_end(finish_reason, request);
    } catch (const Error& error) {
      // The input caused the error, so it is the same on every rank and the conversation is unchanged.
      if (speaks) say(error.what());
    }
    if (is_alone) forget_interrupt();
  }
}

}  // namespace

int chat(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Chats in the terminal with a model that has a chat template.", "colossal chat");
  ChatRequest r;
  add_model_options(app, r.model);
  add_engine_options(app, r.model, r.engine);
  infer::GenerationOptions& options = r.conversation.options;
  ChatOptions chat_options;
  add_chat_options(app, chat_options, "system message, the first of the conversation");
  add_generation_flags(app, options,
                       {.left_out = infer::Conversation::unused(),
                        .max_tokens_help = "maximum number of tokens of an answer",
                        .min_tokens = 1});
  parse(app, arguments);
  r.ignored_defaults = use_folder_defaults(app, r.model.from, options.sampling);
  options.check();
  refuse_unused_sampling(app, options.sampling);
  check_text_model_options(app, r.model, "chat");
  r.conversation.system = chat_options.system;
  r.conversation.variables = template_variables(chat_options, "chat");
  const std::optional<text::ChatTemplate> chat_template = r.model.chat_template(chat_options.template_file);
  require(chat_template.has_value(), "chat", r.model.from,
          " has no chat template; name one with --chat-template, or use `colossal generate`");
  return with_model(r.model, "chat", arguments, program,
                    [&](const LoadedModel& loaded) { return chat_as_rank(r, loaded, *chat_template); });
}

}  // namespace colossal::cli
