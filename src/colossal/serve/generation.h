// Answers the requests of completions and chats: adds their choices to a replica and sends what these produce.
//
//   serve::generate(service, request, exchange,
//                   {.request = wanted, .prompts = {ids}, .writer = serve::completion_writer()});
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/http/exchange.h"
#include "colossal/serve/answers.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

/// The functions of serve/answers.h that write the answers of a route.
struct AnswerWriter {
  std::string (*whole)(const AnswerHead&, const std::vector<ChoicePart>&, const Usage&) = nullptr;
  std::string (*event)(const AnswerHead&, int64_t index, const ChoicePart&, int64_t first_call) = nullptr;
  std::string (*usage_event)(const AnswerHead&, const Usage&) = nullptr;
  std::string (*opening_event)(const AnswerHead&, int64_t index) = nullptr;  ///< nullptr = choices have none
  bool reports_end = false;                                                  ///< ChoiceOptions::reports_end
};

AnswerWriter completion_writer();
AnswerWriter chat_writer();

/// The work of one request, in tokens.
struct GenerationJob {
  GenerationRequest request{};
  std::vector<std::vector<int64_t>> prompts{};  ///< token ids, at least one prompt
  std::vector<Echo> echoes{};                   ///< one per prompt, which its answers begin with; empty = none
  std::optional<ToolCallOptions> tools{};       ///< reads calls from the answers
  AnswerWriter writer{};
  std::string prompt_param = "prompt";           ///< field of the request that has the prompts
  std::string schema_param = "response_format";  ///< field of the request that has the JSON schema
};

/// Throws http::RequestError 400 unless the model continues text.
void require_continuation(const ServedModel& model);

/// Returns a random seed that the seeds of further choices or pictures can follow.
int64_t random_seed();

/// Checks the work, adds it to the service's replica and returns. The exchange gets one whole answer, or a stream. An
/// error that comes after the stream has begun is its last event. The choices are cancelled if the client is gone, if a
/// stop string occurs or if another choice fails. Choice i of prompt p has the index p * n + i. It draws by the
/// request's seed + i, or by a random seed of the prompt + i.
///
/// Errors: http::RequestError 400: no token in a prompt, a prompt that does not fit ("context_length_exceeded"), a
///         schema that does not compile, more choices than the queue ever takes, more than 4,000,000 log-probabilities
///         to keep for an answer; 429: the queue is full. Those that come after a new schema is compiled go to the
///         exchange.
/// Cost: a new schema is compiled later, in Exchange::post_long().
void generate(Service& service, const http::Request& request, http::Exchange exchange, GenerationJob job);

}  // namespace colossal::serve
