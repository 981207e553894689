// Records of chats as tokens with labels: which tokens a model reads, and which of them it learns to write.
//
//   const data::ChatEncoder encoder(tokenizer, text::ChatTemplate::read(folder), {.end_ids = {2}});
//   const data::EncodedChat chat = encoder.encode(data::chat_line_of(record, "chats.jsonl:1"));
//   chat.texts[0].ids, chat.texts[0].labels;        // {1, 403, ...}, {-100, 403, ...}
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/data/chats/chat_line.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

/// Tokens with labels: labels[i] is ids[i] if the token counts in the loss, else kIgnored. Labels are not shifted.
struct LabelledTokens {
  std::vector<int64_t> ids, labels;
  /// Returns true if a token counts that has another one before it, from which it can be predicted.
  bool can_learn() const;
};

/// The messages of the assistant that are trained.
enum class Answers {
  All,
  Last,        ///< the last message of the assistant alone
  Everything,  ///< all of them, and prompts too
};

/// Returns the value of `name`: "all", "last" or "everything". `option` names the key or flag in messages.
/// Errors ("data"): another name.
Answers answers_of(const std::string& name, const char* option);

/// Options of a ChatEncoder.
struct ChatEncoderOptions {
  Answers answers = Answers::All;
  std::vector<int64_t> end_ids{};  ///< tokens at which generation stops (text::end_ids()), besides the tokenizer's own
  int64_t vocabulary = 0;          ///< ids must be below it; 0 = any
};

/// A record as tokens.
struct EncodedChat {
  std::vector<LabelledTokens> texts;  ///< one, or the chosen and the rejected one of a pair
  std::vector<int64_t> turn_ends;     ///< ids that end answers and count, in ascending order
  bool appends_end = false;           ///< the template writes no end token, so that of the tokenizer was appended
};

/// An encoder of records.
///
/// Messages become the text of the chat template and nothing else. Their answers are the `generation` blocks of the
/// template. A template without such blocks is rendered up to an answer, with the generation prompt, and to the end of
/// the answer, which is the text that the second rendering has in addition. Both must begin the text of the whole chat.
/// The whole text is encoded once. A token counts if its first byte is in an answer. The token that ends a turn counts,
/// inside a block or directly after it, and what the template writes after it does not. If the template writes no end
/// token after the last message, one of the assistant, the tokenizer's end token is appended and counts.
///
/// Plain texts get the tokens that the tokenizer puts before a prompt (encode_prompt()), and its end token unless they
/// end with it. The tokens of the completion and the end token count; of ChatKind::Text all but the first tokens do.
/// Thread safety: const members may be called from several threads.
/// Cost: two renderings of the beginning of the chat for each answer, if the template has no generation blocks.
class ChatEncoder {
 public:
  /// Without a template, records with messages are refused.
  ChatEncoder(std::shared_ptr<const text::Tokenizer> tokenizer, std::optional<text::ChatTemplate> chat_template,
              ChatEncoderOptions options = {});

  /// Errors ("data"), beginning with the record's place: messages without a template; an error of the template; a
  ///         template of which a beginning does not begin the whole text (use Answers::Last, or a template with
  ///         generation blocks); an id outside the vocabulary.
  EncodedChat encode(const ChatLine& line) const;

  /// Returns the ids of a ChatKind::Prompt up to where the answer begins: of messages what the template writes with its
  /// generation prompt, and of a text the ids that encode() gives to a prompt with a completion, unless a token spans
  /// their border. Errors: as encode().
  std::vector<int64_t> encode_prompt(const ChatLine& line) const;

  /// Returns the ids of a chat of one message of the user, up to where the answer begins. Without a template, those of
  /// text::Tokenizer::encode_prompt(). Errors: as encode(), without a place.
  std::vector<int64_t> encode_prompt(const std::string& message) const;

  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatEncoderOptions& options() const { return options_; }
  /// Returns true if generation stops at this token.
  bool is_end(int64_t id) const;
  /// Returns the id of padding: the tokenizer's end token, or 0 if it has none.
  int64_t padding_id() const { return tokenizer_->end_id() < 0 ? 0 : tokenizer_->end_id(); }
  /// Returns a JSON object of the template's checksum and of the choice of answers. A stream's position needs the same.
  nlohmann::json traits() const;

 private:
  struct Rendering;
  struct Answer;
  struct Turn;
  LabelledTokens encode_texts(const Dialogue& dialogue, const ChatLine& line, EncodedChat& out) const;
  LabelledTokens encode_messages(const Dialogue& dialogue, const ChatLine& line, EncodedChat& out) const;
  text::RenderedChat render(const Dialogue& dialogue, size_t messages, bool prompts, const ChatLine& line) const;
  std::vector<Answer> block_answers(const Rendering& whole) const;
  std::vector<Answer> prefix_answers(const Rendering& whole) const;
  std::string without_closing_end(const std::string& text) const;
  int64_t end_after_block(const Rendering& whole) const;
  Turn turn_of(const Rendering& whole, size_t begin, size_t end, int64_t end_after_block) const;
  bool is_written_special(const Rendering& whole, size_t token) const;
  bool is_white_token(int64_t id) const;
  void append_end(LabelledTokens& tokens, EncodedChat& out) const;
  void require_template() const;
  void check_ids(const std::vector<int64_t>& ids, const ChatLine& line) const;

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> template_;
  ChatEncoderOptions options_;
  std::vector<int64_t> before_;  // tokens before a plain text
};

}  // namespace colossal::data
