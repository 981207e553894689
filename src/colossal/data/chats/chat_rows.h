// Labelled texts as rows of batches. A row holds one or more texts, each a document of its own, and padding after them.
//
//   const ChatSample sample = fitted(encoder.encode(line), line, {.sequence = 1024});
//   tensor::Batch batch = make_chat_batch(8, 1024, ChatSamples::Answers);
//   fill_chat_row({&sample.texts[0]}, padding_id, batch, 0);
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/data/chats/chat_encoder.h"
#include "colossal/data/chats/chat_line.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/tensor/batch.h"
#include "colossal/text/verifiers/verifier.h"

namespace colossal::data {

/// The records that a method of training reads.
enum class ChatSamples {
  Answers,  ///< chats, completions and plain texts: one text each
  Pairs,    ///< a chosen and a rejected text each
  Rated,    ///< texts that are desirable or not
  Ranked,   ///< answers to a prompt from the best to the worst: pairs and rankings
  Prompts,  ///< prompts, which a model answers in the run (data/chats/prompts.h)
};

/// The treatment of a text that is longer than `sequence`.
enum class TooLong {
  Cut,     ///< its end is lost
  Drop,    ///< its sample is lost
  Refuse,  ///< an error
};

/// Returns the value of `name`: "cut", "drop" or "refuse". `option` names the key in messages. Errors ("data"): another
/// name.
TooLong too_long_of(const std::string& name, const char* option);

/// The rules for samples.
struct ChatRules {
  ChatSamples samples = ChatSamples::Answers;
  int64_t sequence = 0;  ///< most tokens of a text
  TooLong too_long = TooLong::Cut;
  int64_t answers = 2;     ///< of ChatSamples::Ranked: most answers of a record
  int64_t max_tokens = 0;  ///< of ChatSamples::Prompts: tokens that `sequence` must leave for an answer
  /// Of ChatSamples::Prompts: checks a record, such as the members that a verifier reads. It throws an Error about a
  /// record that cannot be used. Several threads call it. Null = no check
  std::function<void(const text::PromptLine&)> check_line{};

  /// Returns the most texts of a row that is not packed, without mismatched ones.
  int64_t texts() const { return samples == ChatSamples::Pairs ? 2 : samples == ChatSamples::Ranked ? answers : 1; }
};

/// A text in a compact form.
struct ChatText {
  std::vector<int32_t> ids;
  std::vector<bool> counts;  ///< true for tokens that count in the loss
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  int64_t labels() const;  ///< tokens that count and have another one before them
};

/// The texts of a record, which fit the rules.
struct ChatSample {
  /// The loss of tokens of the record. A sample that was dropped has no texts.
  enum class Loss { None, Cut, TooLong, NoLabels };
  std::vector<ChatText> texts{};
  double margin = 0;
  bool is_desirable = true;
  Loss loss = Loss::None;
  int64_t tokens = 0;  ///< tokens of its longest text before it was cut
  std::string line{};  ///< of ChatSamples::Prompts: the record, a JSON object

  int64_t size() const;  ///< tokens of all texts
};

/// Returns the sample of a record that is no prompt. A sample without a token that counts is dropped.
/// Errors ("data"), beginning with the record's place: a record of another kind; more than ChatRules::answers; a text
/// that is too long (TooLong::Refuse); a text of a pair or a rated text without a token that counts, because its prompt
/// leaves no room for the answer.
ChatSample fitted(const EncodedChat& chat, const ChatLine& line, const ChatRules& rules);

/// Returns the sample of a record of a stream. Errors ("data"): the same as parse_ordered_json_line(), chat_line_of(),
/// ChatEncoder::encode() and fitted(), and of ChatSamples::Prompts those of prompt_sample_of().
ChatSample chat_sample_of(const Record& record, const ChatEncoder& encoder, const ChatRules& rules);

/// Returns rows of at most `sequence` tokens: the indices of their samples, by best_fit().
std::vector<std::vector<size_t>> pack_samples(const std::vector<ChatSample>& samples, int64_t sequence);

/// Returns the first texts of the samples of a row of pack_samples(). They are valid as long as `samples`.
std::vector<const ChatText*> texts_of_row(const std::vector<ChatSample>& samples, const std::vector<size_t>& row);

/// Gives each sample of a batch its mismatched text, of at most `sequence` tokens: its prompt with the answer of the
/// sample before it, and for the first sample that of the last. It is KTO's estimate of the divergence (2402.01306).
void add_mismatched(std::vector<ChatSample>& samples, int64_t sequence);

/// Returns a batch of rows of `length` tokens, all zeros, for samples that are no prompts. Its fields are those of
/// text_batch() and
///   lengths [B, 1]             int64, tokens of the row that are not padding
///   answer_lengths [B, K]      int64, of all but ChatSamples::Answers: labels of each text that count, and 0 for texts
///                              that a row lacks. K is 2, or `answers` of ChatSamples::Ranked. 0 is its ignored
///                              value: a row that was counted before has zeros
///   margins [B, 1]             float, of pairs and ChatSamples::Ranked: the margin that the record asks for, or 0
///   mean_answer_length [B, 1]  double, of ChatSamples::Pairs: mean_answer_length() of the rows that are read together
///   desirable [B, 1]           int64, of ChatSamples::Rated: 1 or 0
tensor::Batch make_chat_batch(int64_t rows, int64_t length, ChatSamples samples, int64_t answers = 2);

/// Fills row `row` with texts, which fit it together, and sets its length. labels[t] is token t + 1 if it counts, else
/// kIgnored, and kIgnored for the last token of a text. Positions restart and documents change with each text. The
/// padding is the last document; its ids are `padding_id`.
void fill_chat_row(const std::vector<const ChatText*>& texts, int64_t padding_id, const tensor::Batch& batch,
                   int64_t row);

/// Fills row `row` with the texts of a sample, and with the other fields of the row. If rows have room for K texts, the
/// positions of the padding restart at every K-th part of the row, so that no position is beyond those of the texts.
/// `mean_answer_length`: the value of the field, if the batch has it.
void fill_chat_row(const ChatSample& sample, int64_t padding_id, const tensor::Batch& batch, int64_t row,
                   double mean_answer_length = 0);

/// Returns the mean number of labels that count of the first texts of samples, such as those of a global batch.
double mean_answer_length(const std::vector<ChatSample>& samples);

/// Numbers of samples that were lost, with notices of the first, tenth, hundredth ... of each kind.
class ChatLosses {
 public:
  /// Counts what was lost of a sample of the record at `place`.
  void add(const ChatSample& sample, const std::string& place, const ChatRules& rules);
  /// Returns the notices since the last call, one line each.
  std::vector<std::string> take_notices();
  int64_t cut = 0, dropped = 0, unlabelled = 0;  ///< cut; dropped as too long; dropped because no token counts

 private:
  std::vector<std::string> notices_;
};

}  // namespace colossal::data
