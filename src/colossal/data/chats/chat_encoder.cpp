#include "colossal/data/chats/chat_encoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/data/ignored_label.h"
#include "colossal/data/streams/json_lines.h"

namespace colossal::data {
namespace {

constexpr const char* kAnswerNames[] = {"all", "last", "everything"};

bool is_assistant(const Dialogue& dialogue, size_t message) {
  return dialogue.messages[message]["role"] == "assistant";
}

/// Returns the index of the last message that is an answer, trained or not.
size_t last_answer(const Dialogue& dialogue) {
  size_t last = dialogue.uses.size();
  while (last > 0 && dialogue.uses[last - 1] == MessageUse::Context) --last;
  return last - 1;  // there is one, as chat_line_of() checks
}

}  // namespace

/// The text and the tokens of all messages.
struct ChatEncoder::Rendering {
  const Dialogue& dialogue;
  const ChatLine& line;
  text::RenderedChat rendered;
  text::PlacedTokens placed;
};

/// The bytes of one answer in the whole text.
struct ChatEncoder::Answer {
  size_t begin, end, message;
};

/// The tokens [first, last) of an answer that count, and the last of them if it ends the turn; -1 = none does.
struct ChatEncoder::Turn {
  size_t first, last;
  int64_t end_id;
};

bool LabelledTokens::can_learn() const {
  return labels.size() > 1 && std::any_of(labels.begin() + 1, labels.end(), [](int64_t l) { return l != kIgnored; });
}

Answers answers_of(const std::string& name, const char* option) {
  const auto* found = std::find(std::begin(kAnswerNames), std::end(kAnswerNames), name);
  require(found != std::end(kAnswerNames), "data", option, " must be all, last or everything: got ", printable(name));
  return static_cast<Answers>(found - kAnswerNames);
}

ChatEncoder::ChatEncoder(std::shared_ptr<const text::Tokenizer> tokenizer,
                         std::optional<text::ChatTemplate> chat_template, ChatEncoderOptions options)
    : tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      options_(std::move(options)),
      before_(tokenizer_->encode_prompt("")) {
  std::sort(options_.end_ids.begin(), options_.end_ids.end());
}

bool ChatEncoder::is_end(int64_t id) const {
  return id == tokenizer_->end_id() || std::binary_search(options_.end_ids.begin(), options_.end_ids.end(), id);
}

nlohmann::json ChatEncoder::traits() const {
  return {{"template", template_ ? "checksum " + template_->checksum().substr(0, 16) : "none"},
          {"answers", kAnswerNames[static_cast<size_t>(options_.answers)]}};
}

EncodedChat ChatEncoder::encode(const ChatLine& line) const {
  EncodedChat out;
  for (const Dialogue& dialogue : line.dialogues) {
    try {
      out.texts.push_back(dialogue.has_messages() ? encode_messages(dialogue, line, out)
                                                  : encode_texts(dialogue, line, out));
    } catch (const Error& error) {
      throw Error("data", concat(line.place, ": ", error.message()));
    }
    check_ids(out.texts.back().ids, line);
  }
  std::sort(out.turn_ends.begin(), out.turn_ends.end());
  out.turn_ends.erase(std::unique(out.turn_ends.begin(), out.turn_ends.end()), out.turn_ends.end());
  return out;
}

void ChatEncoder::require_template() const {
  require(template_.has_value(), "data",
          "messages need a chat template, and there is none; name a Jinja file with data.chat_template (as a flag of "
          "commands --chat-template), or give records of prompt and completion");
}

void ChatEncoder::check_ids(const std::vector<int64_t>& ids, const ChatLine& line) const {
  for (const int64_t id : ids)
    require(options_.vocabulary == 0 || id < options_.vocabulary, "data", line.place, ": the tokenizer's id ", id, " (",
            printable(tokenizer_->spelling(id)), ") must be below the model's vocabulary of ", options_.vocabulary,
            "; use the tokenizer of the model, or add rows with `colossal expand`");
}

void ChatEncoder::append_end(LabelledTokens& tokens, EncodedChat& out) const {
  const int64_t end = tokenizer_->end_id();
  if (end < 0) return;
  tokens.ids.push_back(end);
  tokens.labels.push_back(end);
  out.turn_ends.push_back(end);
  out.appends_end = true;
}

LabelledTokens ChatEncoder::encode_texts(const Dialogue& dialogue, const ChatLine& line, EncodedChat& out) const {
  const text::PlacedTokens placed = tokenizer_->encode_placed(dialogue.prompt + dialogue.completion);
  const bool counts_all = line.kind == ChatKind::Text || options_.answers == Answers::Everything;
  LabelledTokens tokens{before_, std::vector<int64_t>(before_.size(), kIgnored)};
  for (size_t i = 0; i < placed.ids.size(); ++i) {
    tokens.ids.push_back(placed.ids[i]);
    tokens.labels.push_back(counts_all || placed.begins[i] >= dialogue.prompt.size() ? placed.ids[i] : kIgnored);
  }
  if (placed.ids.empty() || placed.ids.back() != tokenizer_->end_id())
    append_end(tokens, out);
  else
    out.turn_ends.push_back(placed.ids.back());
  return tokens;
}

text::RenderedChat ChatEncoder::render(const Dialogue& dialogue, size_t messages, bool prompts,
                                       const ChatLine& line) const {
  const auto first = dialogue.messages.begin();
  text::Chat chat;
  chat.messages = nlohmann::ordered_json(first, first + static_cast<std::ptrdiff_t>(messages));
  chat.tools = line.tools;
  chat.documents = line.documents;
  chat.variables = line.variables;
  chat.add_generation_prompt = prompts;
  return template_->render(chat);
}

std::vector<int64_t> ChatEncoder::encode_prompt(const ChatLine& line) const {
  const Dialogue& dialogue = line.dialogues.at(0);
  std::vector<int64_t> ids;
  try {
    if (dialogue.has_messages()) {
      require_template();
      ids = tokenizer_->encode_placed(render(dialogue, dialogue.messages.size(), true, line).text).ids;
    } else {
      ids = before_;
      const std::vector<int64_t> own = tokenizer_->encode_placed(dialogue.prompt).ids;
      ids.insert(ids.end(), own.begin(), own.end());
    }
  } catch (const Error& error) {
    throw Error("data", concat(line.place, ": ", error.message()));
  }
  check_ids(ids, line);
  return ids;
}

std::vector<int64_t> ChatEncoder::encode_prompt(const std::string& message) const {
  if (!template_) return tokenizer_->encode_prompt(message);
  text::Chat chat;
  chat.messages = {{{"role", "user"}, {"content", message}}};
  chat.add_generation_prompt = true;
  return tokenizer_->encode(template_->render(chat).text);
}

/// Returns the answers that generation blocks mark, with the message to which each belongs.
std::vector<ChatEncoder::Answer> ChatEncoder::block_answers(const Rendering& whole) const {
  std::vector<text::TextSpan> spans = whole.rendered.assistant;
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<size_t> owners;
  for (size_t i = 0; i < whole.dialogue.messages.size(); ++i)
    if (is_assistant(whole.dialogue, i)) owners.push_back(i);
  if (owners.size() != spans.size()) {  // a message has several blocks or none: prefixes show how many
    std::vector<size_t> assistants;
    assistants.swap(owners);
    for (const size_t message : assistants) {
      const size_t blocks = render(whole.dialogue, message + 1, false, whole.line).assistant.size();
      if (blocks > owners.size()) owners.resize(std::min(blocks, spans.size()), message);
    }
    owners.resize(spans.size(), assistants.back());
  }
  std::vector<Answer> answers;
  for (size_t i = 0; i < spans.size(); ++i)
    if (whole.dialogue.uses[owners[i]] != MessageUse::Context)
      answers.push_back({spans[i].begin, spans[i].end, owners[i]});
  return answers;
}

/// Returns `text` without an end token that the template writes after the last message only, as Phi-3's does.
std::string ChatEncoder::without_closing_end(const std::string& text) const {
  std::vector<int64_t> ids = options_.end_ids;
  if (tokenizer_->end_id() >= 0) ids.push_back(tokenizer_->end_id());
  for (const int64_t id : ids) {
    const std::string spelling = tokenizer_->spelling(id);
    if (!spelling.empty() && text.ends_with(spelling)) return text.substr(0, text.size() - spelling.size());
  }
  return text;
}

/// Returns the answers that are trained or skipped, found by rendering the messages before and up to each.
std::vector<ChatEncoder::Answer> ChatEncoder::prefix_answers(const Rendering& whole) const {
  const Dialogue& dialogue = whole.dialogue;
  const std::string& text = whole.rendered.text;
  const size_t last = last_answer(dialogue);
  std::vector<Answer> answers;
  for (size_t i = options_.answers == Answers::Last ? last : 0; i <= last; ++i) {
    if (dialogue.uses[i] == MessageUse::Context) continue;
    const std::string before = render(dialogue, i, true, whole.line).text;
    std::string after = i + 1 == dialogue.messages.size() ? text : render(dialogue, i + 1, false, whole.line).text;
    if (!text.starts_with(after)) after = without_closing_end(after);
    require(text.starts_with(before) && text.starts_with(after) && before.size() <= after.size(), "data",
            "the chat template writes the text up to message ", i + 1,
            " differently when other messages follow or a reply is opened (it may drop the reasoning of earlier "
            "answers), so the tokens of this answer are unknown; ",
            i < last ? "train the last answer alone with data.answers = \"last\", or " : "",
            "give a template with {% generation %} blocks with data.chat_template");
    answers.push_back({before.size(), after.size(), i});
  }
  return answers;
}

/// Returns true if a special token is written in the text; an unknown token stands for other characters.
bool ChatEncoder::is_written_special(const Rendering& whole, size_t token) const {
  const int64_t id = whole.placed.ids[token];
  if (!tokenizer_->piece(id).empty()) return false;
  const std::string spelling = tokenizer_->spelling(id);
  return !spelling.empty() &&
         std::string_view(whole.rendered.text).substr(whole.placed.begins[token]).starts_with(spelling);
}

bool ChatEncoder::is_white_token(int64_t id) const {
  const std::string piece = tokenizer_->piece(id);
  return !piece.empty() && is_blank(piece);
}

/// Returns the special token that the template writes directly after the blocks of the last answer, if no message
/// follows; -1 = none. It is the end of a turn, and not the beginning of the next one.
int64_t ChatEncoder::end_after_block(const Rendering& whole) const {
  const size_t last = last_answer(whole.dialogue);
  const auto after = [&](const Rendering& shown) -> int64_t {
    if (shown.rendered.assistant.empty()) return -1;
    size_t end = 0;
    for (const text::TextSpan& span : shown.rendered.assistant) end = std::max(end, span.end);
    const auto& begins = shown.placed.begins;
    size_t i = static_cast<size_t>(std::lower_bound(begins.begin(), begins.end(), end) - begins.begin());
    while (i < begins.size() && is_white_token(shown.placed.ids[i])) ++i;
    return i < begins.size() && is_written_special(shown, i) ? shown.placed.ids[i] : -1;
  };
  if (last + 1 == whole.dialogue.messages.size()) return after(whole);
  Rendering shown{whole.dialogue, whole.line, render(whole.dialogue, last + 1, false, whole.line), {}};
  shown.placed = tokenizer_->encode_placed(shown.rendered.text);
  return after(shown);
}

/// Returns the tokens of the answer [begin, end) that count: up to the token that ends its turn, which is inside or
/// directly after it.
ChatEncoder::Turn ChatEncoder::turn_of(const Rendering& whole, size_t begin, size_t end,
                                       int64_t end_after_block) const {
  const auto& [ids, begins] = whole.placed;
  const auto token_at = [&](size_t byte) {
    return static_cast<size_t>(std::lower_bound(begins.begin(), begins.end(), byte) - begins.begin());
  };
  const size_t first = token_at(begin), stop = token_at(end);
  const auto ends = [&](size_t i) { return is_end(ids[i]) || is_written_special(whole, i); };
  size_t ending = stop;  // the first token that ends a turn and is followed by such tokens and white space only
  for (size_t i = stop; i > first && (ends(i - 1) || is_white_token(ids[i - 1])); --i)
    if (ends(i - 1)) ending = i - 1;
  if (ending < stop) return {first, ending + 1, ids[ending]};
  size_t next = stop;
  while (next < ids.size() && is_white_token(ids[next])) ++next;
  if (next < ids.size() && (is_end(ids[next]) || ids[next] == end_after_block)) return {first, next + 1, ids[next]};
  return {first, stop, -1};
}

LabelledTokens ChatEncoder::encode_messages(const Dialogue& dialogue, const ChatLine& line, EncodedChat& out) const {
  require_template();
  Rendering whole{dialogue, line, render(dialogue, dialogue.messages.size(), false, line), {}};
  whole.placed = tokenizer_->encode_placed(whole.rendered.text);
  const std::vector<int64_t>& ids = whole.placed.ids;
  const bool has_blocks = !whole.rendered.assistant.empty(), counts_all = options_.answers == Answers::Everything;
  const std::vector<Answer> answers = has_blocks ? block_answers(whole) : prefix_answers(whole);
  std::optional<int64_t> closing;  // found at the first block without an end
  const size_t last = last_answer(dialogue);
  std::vector<char> counts(ids.size(), counts_all ? 1 : 0);
  size_t covered = 0;  // number of tokens up to the end of the last answer, if it is trained and has no end
  for (const Answer& answer : answers) {
    const bool is_trained = dialogue.uses[answer.message] == MessageUse::Answer &&
                            (options_.answers != Answers::Last || answer.message == last);
    Turn turn = turn_of(whole, answer.begin, answer.end, -1);
    if (turn.end_id < 0 && has_blocks) {
      if (!closing) closing = end_after_block(whole);
      turn = turn_of(whole, answer.begin, answer.end, *closing);
    }
    if (is_trained || counts_all)
      std::fill(counts.begin() + static_cast<std::ptrdiff_t>(turn.first),
                counts.begin() + static_cast<std::ptrdiff_t>(turn.last), is_trained ? 1 : 0);
    if (is_trained && turn.end_id >= 0) out.turn_ends.push_back(turn.end_id);
    const bool is_open = is_trained && turn.end_id < 0 && turn.last > turn.first;
    covered = is_open && answer.message == last ? turn.last : 0;
  }
  LabelledTokens tokens{ids, {}};
  for (size_t i = 0; i < ids.size(); ++i) tokens.labels.push_back(counts[i] ? ids[i] : kIgnored);
  size_t after = covered;
  while (after < ids.size() && is_white_token(ids[after])) ++after;
  if (covered == 0 || after < ids.size()) return tokens;
  for (; covered < ids.size(); ++covered) tokens.labels[covered] = ids[covered];  // it stands before the end token
  append_end(tokens, out);
  return tokens;
}

}  // namespace colossal::data
