// Writes answers as JSON: OpenAI's objects, and vLLM's for /tokenize and /detokenize.
//
// Each function returns one line of UTF-8. Bytes that are not UTF-8 become U+FFFD. The events of a stream are the lines
// of the functions named *_event, and at last kDone.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/serve/choice_stream.h"

namespace colossal::serve {

/// The last event of a stream.
inline constexpr const char* kDone = "[DONE]";

/// Fields that all objects of one answer share.
struct AnswerHead {
  std::string id{};            ///< id of the request; the objects' ids are "cmpl-" or "chatcmpl-" and this
  int64_t created = 0;         ///< seconds since 1970
  std::string model{};         ///< name of the model
  bool with_logprobs = false;  ///< the request asked for log-probabilities
  bool with_usage = false;     ///< the request asked for usage in its stream
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  ///< prompt tokens that were found in the cache
};

/// Returns the whole answer. choices[i] has the index i.
std::string completion_json(const AnswerHead& head, const std::vector<ChoicePart>& choices, const Usage& usage);
std::string chat_json(const AnswerHead& head, const std::vector<ChoicePart>& choices, const Usage& usage);

/// Returns the event of a part of the choice `index`. `first_call` is the number of calls in earlier parts.
std::string completion_event(const AnswerHead& head, int64_t index, const ChoicePart& part);
std::string chat_event(const AnswerHead& head, int64_t index, const ChoicePart& part, int64_t first_call = 0);
/// Returns the first event of a choice of a chat, which has the role.
std::string chat_role_event(const AnswerHead& head, int64_t index);
/// Returns the event with the usage, for requests with stream_options.include_usage. It comes before kDone.
std::string completion_usage_event(const AnswerHead& head, const Usage& usage);
std::string chat_usage_event(const AnswerHead& head, const Usage& usage);

/// A model or adapter as /v1/models shows it.
struct ShownModel {
  std::string name{};
  std::string parent{};       ///< name of the model that an adapter belongs to, as in vLLM; "" = it is a model
  int64_t created = 0;        ///< seconds since 1970
  int64_t max_model_len = 0;  ///< 0 = the model reads no sequences
};
/// Returns the object of /v1/models/NAME.
std::string model_json(const ShownModel& model);
/// Returns the list of /v1/models.
std::string models_json(const std::vector<ShownModel>& models);

/// Returns the answer of /v1/embeddings. With `base64`, vectors are little-endian fp32.
std::string embeddings_json(const std::string& model, const std::vector<std::vector<float>>& vectors, bool base64,
                            int64_t prompt_tokens);

/// A picture of an answer.
struct ShownPicture {
  std::string png{};  ///< bytes of the file
  int64_t seed = 0;   ///< with which the same request draws it alone
};
/// Returns the answer of /v1/images/generations. `created` is in seconds since 1970. `notices` are lines for the
/// client, which the answer has as `warnings` if there are any.
std::string images_json(int64_t created, const std::vector<ShownPicture>& pictures,
                        const std::vector<std::string>& notices);

std::string tokenize_json(const std::vector<int64_t>& tokens, int64_t max_model_len);
std::string detokenize_json(const std::string& text);

}  // namespace colossal::serve
