// Reads the JSON bodies of requests.
//
//   const serve::RequestReader reader({.defaults = defaults, .vocabulary = tokenizer.vocabulary_size()});
//   const serve::CompletionRequest request = reader.completion(R"({"prompt": "To be", "max_tokens": 5})");
//   request.options.max_tokens;   // 5
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/diffusion/draw_options.h"
#include "colossal/http/error_answer.h"
#include "colossal/infer/generation_options.h"
#include "colossal/serve/request_defaults.h"

namespace colossal::serve {

struct ReaderLimits {
  int depth = 64;                   ///< levels of nested JSON
  int64_t max_n = 16;               ///< choices of one prompt
  int64_t members = 1024;           ///< members of one JSON object
  int64_t stops = 16;               ///< stop strings
  int64_t stop_bytes = 256;         ///< bytes of one stop string
  int64_t bias_entries = 1024;      ///< entries of logit_bias
  int64_t embedding_inputs = 2048;  ///< texts of an embedding request, and prompts of a completion request
  int64_t pictures = 10;            ///< pictures of one request
  int64_t pixels = 4 << 20;         ///< of one picture: 2048 x 2048
};

struct ReaderOptions {
  RequestDefaults defaults{};
  ReaderLimits limits{};
  int64_t vocabulary = 0;  ///< number of token ids of the model
  /// Names that requests may have as `model`, that of the model itself first; requests for others get 404. Empty =
  /// every name is accepted
  std::vector<std::string> names{};
};

/// A prompt, or a text to embed: text or token ids.
using Prompt = std::variant<std::string, std::vector<int64_t>>;

/// Fields that completions and chats share.
struct GenerationRequest {
  std::string model{};  ///< "" = not in the request
  bool stream = false;
  bool include_usage = false;  ///< the last event of the stream has the usage
  int64_t n = 1;               ///< choices per prompt; choice i draws by options.sampling.seed + i
  bool has_seed = false;       ///< false: the caller draws options.sampling.seed
  bool ignore_eos = false;     ///< end tokens do not end the answer
  /// max_tokens may be kAsManyAsFit. logprobs and prompt_logprobs are -1 unless the request asks for them. json_schema
  /// is not checked yet; it has response_format, or the call that tool_choice demands.
  infer::GenerationOptions options{};
};

struct CompletionRequest : GenerationRequest {
  std::vector<Prompt> prompts{};  ///< at least one
  bool echo = false;              ///< the text begins with the prompt
};

/// Which functions the model may or must call.
struct ToolChoice {
  enum Kind { kNone, kAuto, kRequired, kNamed };
  Kind kind = kNone;
  std::string name{};  ///< for kNamed

  bool is_forced() const { return kind == kRequired || kind == kNamed; }
};

struct ChatRequest : GenerationRequest {
  /// A list of objects with "role" and, as a text, "content". Arguments of earlier tool calls are JSON values.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools{};  ///< a list of objects; null = none
  ToolChoice tool_choice{};
  bool parallel_tool_calls = true;  ///< false: at most one call
  /// Variables of the template: chat_template_kwargs and reasoning_effort, and those of the defaults that they do not
  /// set.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();

  /// Fields of the request by the variables that they set.
  std::map<std::string, std::string> variable_params{};

  /// Returns the names of the functions in `tools`, unless the choice is kNone.
  std::vector<std::string> function_names() const;
};

struct EmbeddingRequest {
  std::string model{};
  std::vector<Prompt> inputs{};  ///< at least one
  bool base64 = false;           ///< encoding_format
};

struct ImageRequest {
  std::string model{};
  bool has_seed = false;             ///< false: the caller draws options.seed
  diffusion::DrawOptions options{};  ///< not checked by its check(); what shall be drawn is its prompt
  diffusion::GivenFiles files{};     ///< pictures of the request, by the names that options have for them
};

/// A text to tokenize: a prompt, or the messages of a chat.
struct TokenizeRequest {
  std::string model{};
  std::variant<std::string, ChatRequest> input{};
  /// The tokenizer adds the special tokens that a model expects around a text. Default: true for a prompt, false for a
  /// chat, whose template writes them.
  bool add_special_tokens = true;
};

struct DetokenizeRequest {
  std::vector<int64_t> tokens{};
};

/// Reads requests. Fields that no server knows are ignored, and null counts as a field that was left out.
///
/// Errors: http::RequestError, for every body that is not a request: not UTF-8, not JSON, not an object, too deep
///         (400); a field of a wrong type or out of range, or one that is not supported and would change the answer
///         (400, with `param`); another model (404). Nothing else is thrown, except std::bad_alloc.
/// Cost: two passes over the body.
/// Thread safety: const members may be called from several threads.
class RequestReader {
 public:
  explicit RequestReader(ReaderOptions options) : options_(std::move(options)) {}

  CompletionRequest completion(std::string_view body) const;
  ChatRequest chat(std::string_view body) const;
  EmbeddingRequest embedding(std::string_view body) const;
  ImageRequest image(std::string_view body) const;
  TokenizeRequest tokenize(std::string_view body) const;
  DetokenizeRequest detokenize(std::string_view body) const;

 private:
  ReaderOptions options_;
};

}  // namespace colossal::serve
