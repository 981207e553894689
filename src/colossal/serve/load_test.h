// Loads an OpenAI-compatible server with completions and measures its answers.
//
//   const serve::LoadResult result = serve::run_load(
//       {.url = "http://127.0.0.1:8000", .clients = 16, .requests = 64, .prompts = serve::built_in_prompts(64, 128)});
//   std::printf("%.1f tokens/s\n", static_cast<double>(result.tokens) / result.seconds);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::serve {

struct LoadPrompt {
  std::string text{};        ///< UTF-8
  int64_t max_tokens = 128;  ///< maximum number of tokens of the answer
};

struct LoadTestOptions {
  std::string url{};                  ///< http::ClientOptions::url, without /v1
  std::string key{};                  ///< sent as `Authorization: Bearer KEY`; "" = none
  int64_t clients = 16;               ///< number of threads that send requests, one at a time each
  int64_t requests = 64;              ///< number of requests of all clients together
  std::vector<LoadPrompt> prompts{};  ///< at least one; request i has prompt i modulo their number
  std::vector<std::string> models{};  ///< request i names model i modulo their number; empty = the first of /v1/models
  bool ignore_eos = false;            ///< sends "ignore_eos": true, so that answers have max_tokens tokens
  double timeout = 600;               ///< seconds that the server may be silent
};

/// Counts and times of a load. Requests that failed are in `requests` and `failed` alone.
struct LoadResult {
  int64_t requests = 0;
  int64_t failed = 0;
  std::string failure{};                 ///< message of the failed request with the smallest number; "" = none failed
  int64_t tokens = 0;                    ///< tokens of all answers
  double seconds = 0;                    ///< from the first request to the end of the last answer
  std::vector<double> first_token{};     ///< seconds from a request to the first event with text
  std::vector<double> between_tokens{};  ///< seconds between two consecutive events with text of one answer
  std::vector<double> request{};         ///< seconds from a request to the end of its answer
  std::vector<double> arrivals{};        ///< seconds from the first request to each event with text, ascending
};

/// Returns `count` prompts of at most 200 characters. The first word of each is its number, so that no two begin alike
/// and a server cannot reuse the cached tokens of another prompt. Prompt i is the same for any `count`.
std::vector<LoadPrompt> built_in_prompts(int64_t count, int64_t max_tokens);

/// Sends the requests to /v1/completions as streams at temperature 0. Each client sends its next request after it has
/// the answer to the last one. Without LoadTestOptions::models the requests name the first model of /v1/models, if the
/// server has that route.
///
/// Tokens:  usage.completion_tokens, or the number of events with text if the server sends no usage.
/// Failure: an answer with another status than 200, also 429; an event with an error; a stream that breaks off or does
///          not end with [DONE]; an event that is not JSON; no answer. An answer that is not streamed counts as one
///          event and must have its usage.
/// Errors ("load"): no prompt. Errors ("http"): `url` is not a URL.
/// Cost: one thread and one connection per client; 16 bytes per event.
LoadResult run_load(const LoadTestOptions& options);

}  // namespace colossal::serve
